#include "nn/cores/qk_norm.h"

#include <utility>

#include "ops/elementwise.h"

namespace fp8lab {

/// Saved: qkv, then 1 / deviation of the heads of Q and of K.
class QkNormNode final : public Node {
 public:
  QkNormNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, QkNorm& module)
      : Node(runtime, std::move(name), {std::move(input)}), module_(module) {}
  using Node::save;

  std::vector<Tensor> backward(Tensor grad) override {
    const Restored saved = restore();
    const Tensor& qkv = saved.tensor(0);
    Tensor grad_qkv = device().allocate(qkv.spec(), runtime().in_flight(name()));
    for (std::size_t i = 0; i < module_.parts_.size(); ++i) {
      QkNorm::Part& part = module_.parts_[i];
      const Tensor x = module_.rows_of(runtime(), part, qkv), grad_y = module_.rows_of(runtime(), part, grad);
      const Tensor grad_x = part.norm.backward(runtime(), grad_y, {.x = x, .mean = {}, .rstd = saved.tensor(1 + i)});
      module_.put(runtime(), part, grad_x, grad_qkv);
    }
    module_.copy_values(runtime(), grad, grad_qkv);
    return {std::move(grad_qkv)};
  }

 private:
  QkNorm& module_;
};

QkNorm::QkNorm(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name + ".qk_norm"),
      head_dim_(config.head_dim()),
      values_begin_((config.heads + config.kv_heads) * head_dim_),
      values_count_(config.kv_heads * head_dim_),
      parts_{Part{NormCore(build, name + ".q_norm", NormKind::kRmsNorm, head_dim_, false), 0, config.heads * head_dim_},
             Part{NormCore(build, name + ".k_norm", NormKind::kRmsNorm, head_dim_, false), config.heads * head_dim_,
                  values_count_}} {}

Tensor QkNorm::rows_of(Runtime& runtime, const Part& part, const Tensor& packed) const {
  const Tensor copy =
      cast(runtime.device, packed.columns(part.begin, part.count), packed.dtype(), runtime.workspace(name_));
  return copy.reshaped(Shape{copy.numel() / head_dim_, head_dim_});
}

void QkNorm::put(Runtime& runtime, const Part& part, const Tensor& rows, const Tensor& packed) const {
  copy_into(runtime.device, rows.reshaped(Shape{packed.rows(), part.count}), packed.columns(part.begin, part.count));
}

void QkNorm::copy_values(Runtime& runtime, const Tensor& from, const Tensor& to) const {
  copy_into(runtime.device, from.columns(values_begin_, values_count_), to.columns(values_begin_, values_count_));
}

Variable QkNorm::forward(Runtime& runtime, const Variable& qkv) {
  Tensor out = runtime.device.allocate(qkv.value.spec(), runtime.in_flight(name_));
  const auto node = std::make_shared<QkNormNode>(runtime, name_, qkv.producer, *this);
  node->save("qkv", qkv.value);
  for (Part& part : parts_) {
    const NormCore::Forward normed = part.norm.forward(runtime, rows_of(runtime, part, qkv.value), {});
    put(runtime, part, normed.y.plain, out);
    node->save("rstd", normed.rstd);
  }
  copy_values(runtime, qkv.value, out);
  return {std::move(out), node};
}

}  // namespace fp8lab
