#include "autograd/runtime.h"

#include <utility>

#include "ops/elementwise.h"
#include "ops/quantized_storage.h"

namespace fp8lab {

void Parameter::make_columnwise(Device& device) {
  quantized.columnwise() = fp8lab::make_columnwise(device, quantized, holder);
  made_columnwise = true;
}

void Parameter::drop_columnwise() {
  quantized.drop_columnwise();
  made_columnwise = false;
}

void Parameter::accumulate(Device& device, Tensor gradient) {
  if (grad) {
    add_into(device, grad, gradient);
    return;
  }
  grad = std::move(gradient);
  grad.rename(grad_holder);
}

}  // namespace fp8lab
