#include "autograd/runtime.h"

#include <utility>

#include "ops/elementwise.h"

namespace fp8lab {

void Parameter::accumulate(Device& device, Tensor gradient) {
  if (grad) {
    add_into(device, grad, gradient);
    return;
  }
  grad = std::move(gradient);
  grad.rename(grad_holder);
}

}  // namespace fp8lab
