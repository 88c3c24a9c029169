#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "harness/measure/cast_check.h"
#include "harness/reference/model.h"

namespace fp8lab {

/// The largest magnitudes of what the runtime cast in a micro-batch and the experts that its routers chose, and in the
/// last step the casts themselves.
class StepCasts : public CastWatch {
 public:
  StepCasts(std::int64_t last_step, bool checks) : last_step_(last_step), checks_(checks) {}

  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override;

  void saw_choices(Device& device, std::string_view router, const Tensor& experts) override;

  /// By the name of the router's weight.
  const reference_step::SeenChoices& choices() const { return choices_; }
  /// By the owner of the quantized data and what they are there, as the reference step names places.
  const std::map<std::string, double>& amaxes() const { return amaxes_; }
  void end_micro_batch() { amaxes_.clear(); }
  const CastCheck& checked() const { return check_; }

 private:
  std::int64_t last_step_;
  bool checks_;
  CastCheck check_;
  std::map<std::string, double> amaxes_;
  reference_step::SeenChoices choices_;
};

/// The amaxes that the runtime recorded, by the owner of the roles, under the names of what the roles cast.
std::map<std::string, double> amaxes_by_place(const std::map<std::string, std::vector<float>>& recorded);

}  // namespace fp8lab
