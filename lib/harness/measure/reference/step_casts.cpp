#include "harness/measure/reference/step_casts.h"

#include <algorithm>
#include <array>
#include <span>

#include "harness/reference/casts.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

using reference_step::Matrix;

namespace {

/// Amaxes of the roles of a product or of attention, under the names of what it casts.
void add_roles(const std::string& owner, const std::vector<float>& of_roles, std::map<std::string, double>& amaxes) {
  using Roles = std::array<const char*, 3>;
  constexpr Roles kForward{"input", "weight", "output"}, kBackward{"gradient", "input gradient", ""},
      kAttentionForward{"qkv", "p", "o"}, kAttentionBackward{"grad o", "grad s", "grad qkv"};
  const std::size_t space = owner.rfind(' ');
  if (space == std::string::npos) return;
  const std::string of = owner.substr(0, space);
  const bool forward = owner.substr(space + 1) == "forward", attention = of.ends_with(".attention");
  const Roles& roles =
      attention ? (forward ? kAttentionForward : kAttentionBackward) : (forward ? kForward : kBackward);
  // Under current scaling only the matrices inside attention have a history.
  const std::size_t first = attention && of_roles.size() == 1 ? 1 : 0;
  for (std::size_t i = 0; i < std::min(of_roles.size(), roles.size()); ++i)
    amaxes[of + " " + roles[first + i]] = static_cast<double>(of_roles[i]);
}

}  // namespace

void StepCasts::saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) {
  if (made.format().per_tensor()) {
    const Ledger& ledger = device.ledger();
    const Holder& holder = ledger.holder((made.rowwise() ? made.rowwise() : made.columnwise()).data.holder());
    double& amax = amaxes_[holder.owner + " " + holder.what];
    amax = std::max(amax, reference_step::amax_of(Matrix(x.rows(), x.cols(), device.read(x))));
  }
  if (checks_ && device.ledger().phase().step == last_step_) check_.saw_cast(device, x, made);
}

void StepCasts::saw_choices(Device& device, std::string_view router, const Tensor& experts) {
  std::vector<std::int32_t>& seen = choices_[std::string(router)];
  seen.resize(static_cast<std::size_t>(experts.numel()));
  device.read_bytes_to(experts, std::as_writable_bytes(std::span(seen)));
}

std::map<std::string, double> amaxes_by_place(const std::map<std::string, std::vector<float>>& recorded) {
  std::map<std::string, double> out;
  for (const auto& [owner, of_roles] : recorded) add_roles(owner, of_roles, out);
  return out;
}

}  // namespace fp8lab
