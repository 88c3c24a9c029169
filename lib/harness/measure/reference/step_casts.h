#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backend/device.h"
#include "harness/measure/cast_check.h"

namespace fp8lab {

/// The largest magnitudes of what the runtime cast in a micro-batch, and in the last step the casts themselves.
class StepCasts : public CastWatch {
 public:
  StepCasts(std::int64_t last_step, bool checks) : last_step_(last_step), checks_(checks) {}

  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override;

  /// By the owner of the quantized data and what they are there, as the reference step names places.
  const std::map<std::string, double>& amaxes() const { return amaxes_; }
  void end_micro_batch() { amaxes_.clear(); }
  const CastCheck& checked() const { return check_; }

 private:
  std::int64_t last_step_;
  bool checks_;
  CastCheck check_;
  std::map<std::string, double> amaxes_;
};

/// The amaxes that the runtime recorded, by the owner of the roles, under the names of what the roles cast.
std::map<std::string, double> amaxes_by_place(const std::map<std::string, std::vector<float>>& recorded);

}  // namespace fp8lab
