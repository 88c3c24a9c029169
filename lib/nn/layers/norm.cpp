#include "nn/layers/norm.h"

#include <memory>
#include <utility>

#include "nn/cores/saving.h"

namespace fp8lab {
namespace {

class NormNode final : public ModuleNode {
 public:
  NormNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, NormCore& core)
      : ModuleNode(runtime, std::move(name), {std::move(input)}), core_(core) {}

  std::vector<Tensor> backward(Tensor grad) override {
    const Restored saved = restore();
    return {core_.backward(runtime(), grad, norm_saved(saved, core_, 0))};
  }

 private:
  NormCore& core_;
};

}  // namespace

Variable Norm::forward(Runtime& runtime, const Variable& x) {
  NormCore::Forward normed = core_.forward(runtime, x.value, {});
  const auto node = std::make_shared<NormNode>(runtime, name_, x.producer, core_);
  node->save_norm(core_, x.value, normed);
  return {std::move(normed.y.plain), node};
}

}  // namespace fp8lab
