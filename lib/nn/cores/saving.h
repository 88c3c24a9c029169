#pragma once

#include <string_view>
#include <utility>

#include "autograd/node.h"
#include "nn/cores/norm_core.h"
#include "nn/cores/operand.h"

namespace fp8lab {

/// A node of a module with matrix products and norms: saves their operands and restores them.
class ModuleNode : public Node {
 public:
  using Node::Node;
  using Node::save;

  /// Saves an activation that is one tensor to the engine, quantized or not.
  void save_activation(std::string_view what, const Operand& operand) {
    if (operand.is_quantized())
      save_quantized(what, operand.quantized);
    else
      save(what, operand.plain);
  }
  /// Saves an activation as storage that the engine does not know.
  void save_storage(std::string_view what, Operand operand) {
    if (operand.is_quantized())
      save_split(what, std::move(operand.quantized));
    else
      save(what, operand.plain);
  }
  /// Saves what LinearCore::backward() needs of a weight, in one entry: a module's own quantized copy of it, as storage
  /// that the engine does not know; or the scale to make that copy again; or nothing.
  void save_weight(std::string_view what, SavedWeight weight) {
    if (weight.copy)
      save_split(what, std::move(*weight.copy));
    else if (weight.scale)
      save(what, weight.scale);
    else
      save_nothing();
  }
  void save_norm(const NormCore& norm, const Tensor& x, const NormCore::Forward& outputs) {
    save("x", x);
    if (norm.has_mean()) save("mean", outputs.mean);
    save("rstd", outputs.rstd);
  }
  static std::size_t norm_entries(const NormCore& norm) { return norm.has_mean() ? 3 : 2; }
  static NormCore::Saved norm_saved(const Restored& saved, const NormCore& norm, std::size_t first) {
    return {.x = saved.tensor(first),
            .mean = norm.has_mean() ? saved.tensor(first + 1) : Tensor(),
            .rstd = saved.tensor(first + (norm.has_mean() ? 2 : 1))};
  }
};

}  // namespace fp8lab
