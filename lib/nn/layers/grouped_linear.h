#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/build.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

class ExpertCore;

/// y_i = x_i W_i^T + b_i for the group of rows x_i of each expert i, as one node; groups may be empty. The groups of x
/// are cast one by one, each by its own quantizer. Saves them (column-wise) and the quantized copies of all W_i (unless
/// the cores cache these), also if the weights are sharded: TransformerEngine#2805 left GroupedLinear out, so that
/// `requantize_in_backward` changes nothing here. It also left the transposes of gathered eight-bit weights in place,
/// which without a reshard after forward belong to outdated weights; here backward frees them, as in every module.
class GroupedLinear final : public Module {
 public:
  GroupedLinear(Build& build, const std::string& name, const LayerConfig& config);
  ~GroupedLinear() override;
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  std::string name_;
  std::vector<std::unique_ptr<ExpertCore>> experts_;
  std::vector<std::int64_t> group_rows_;
};

}  // namespace fp8lab
