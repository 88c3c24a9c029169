#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "support/dense.h"

// The dense operations allocate the same bytes under the same names in the same order on every device.
namespace fp8lab {
namespace {

using Schedule = std::function<void(Device&)>;

Tensor parameter(Device& device, const Shape& shape, const char* what) {
  const Tensor tensor = device.allocate({shape, DType::kBF16}, device.holder(HolderKind::kParameter, "mlp", what));
  random_fill(device, tensor, {.seed = 1, .scale = 0.1f});
  return tensor;
}

/// Norm, two products around an activation, dropout, residual, loss, and backward.
void mlp_step(Device& device, NormKind norm, ActivationKind activation, std::int64_t tokens) {
  const auto holder = [&](const char* what) { return device.holder(HolderKind::kInFlight, "mlp", what); };
  const bool gated = activation == ActivationKind::kSwiglu;
  const Tensor gamma = parameter(device, {32}, "gamma"), beta = parameter(device, {32}, "beta");
  const Tensor up = parameter(device, {gated ? 128 : 64, 32}, "up"), down = parameter(device, {32, 64}, "down");
  const Tensor bias = parameter(device, {32}, "bias"), x = parameter(device, {tokens, 32}, "x");
  const DropoutKey key{.probability = 0.1f, .seed = 2, .stream = 3};

  device.ledger().set_phase(PhaseKind::kForward, 0);
  const NormOutputs normed = norm_forward(device, {.kind = norm,
                                                   .x = rope(device, {.x = x, .heads = 2, .holder = holder("rope")}),
                                                   .gamma = gamma,
                                                   .beta = norm == NormKind::kLayerNorm ? beta : Tensor{},
                                                   .y_holder = holder("y"),
                                                   .statistics_holder = holder("statistics")});
  const Tensor wide = gemm(device, {.a = normed.y.operand(), .b = up.operand(), .holder = holder("wide")});
  const Tensor act = activation_forward(device, activation, wide, holder("act"));
  const Tensor out = gemm(device, {.a = act.operand(), .b = down.operand(), .bias = &bias, .holder = holder("out")});
  const Tensor sum = add(device, dropout(device, out, key, holder("dropped")), x, holder("sum"));
  const Tensor loss = mse_loss(device, sum, x, holder("loss"));

  device.ledger().set_phase(PhaseKind::kBackward, 0);
  const Tensor one = device.allocate(loss.spec(), holder("one"));
  fill(device, one, 1.0f);
  const Tensor grad_sum = mse_loss_backward(device, sum, x, one, holder("grad_sum"));
  const Tensor grad_out = dropout(device, grad_sum, key, holder("grad_out"));
  const Tensor grad_bias = column_sum(device, grad_out, DType::kBF16, holder("grad_bias"));
  const Tensor grad_act =
      gemm(device, {.a = grad_out.operand(), .b = down.transposed().operand(), .holder = holder("grad_act")});
  const Tensor grad_wide = activation_backward(device, activation, grad_act, wide, holder("grad_wide"));
  const Tensor grad_y =
      gemm(device, {.a = grad_wide.operand(), .b = up.transposed().operand(), .holder = holder("grad_y")});
  const NormGradients grads = norm_backward(device, {.kind = norm,
                                                     .grad_y = grad_y,
                                                     .x = x,
                                                     .gamma = gamma,
                                                     .mean = normed.mean,
                                                     .rstd = normed.rstd,
                                                     .grad_x_holder = holder("grad_x"),
                                                     .grad_gamma_holder = holder("grad_gamma"),
                                                     .grad_beta_holder = holder("grad_beta")});
  add_into(device, grads.x, grad_sum);
  copy_into(device, cast(device, grads.x, DType::kF32, holder("wide_grad")), x);
  sum_loss_backward(device, x.spec(), sum_loss(device, x, holder("sum_loss")), holder("ones"));
}

struct Account {
  std::uint64_t hash;
  std::size_t events;
  std::int64_t peak_bytes;
  std::int64_t live_bytes;
};

Account account(const char* device_name, const Schedule& schedule) {
  const std::unique_ptr<Device> device = open_device(device_name);
  schedule(*device);
  const Ledger& ledger = device->ledger();
  return {ledger.sequence_hash(), ledger.events_seen(), ledger.peak_bytes(), ledger.live_bytes()};
}

TEST(Schedule, MetaAndCpuHaveEqualAllocations) {
  const std::vector<Schedule> schedules = {
      [](Device& device) { mlp_step(device, NormKind::kLayerNorm, ActivationKind::kGelu, 12); },
      [](Device& device) { mlp_step(device, NormKind::kRmsNorm, ActivationKind::kSwiglu, 12); },
  };
  for (const Schedule& schedule : schedules) {
    const Account cpu = account("cpu", schedule), meta = account("meta", schedule);
    EXPECT_EQ(cpu.hash, meta.hash);
    EXPECT_EQ(cpu.events, meta.events);
    EXPECT_EQ(cpu.peak_bytes, meta.peak_bytes);
    EXPECT_EQ(cpu.live_bytes, 0);
    EXPECT_EQ(meta.live_bytes, 0);
    EXPECT_GT(cpu.events, 40u);
  }
}

TEST(Schedule, AnotherScheduleHasOtherAllocations) {
  const auto tokens = [](std::int64_t count) {
    return account("meta",
                   [=](Device& device) { mlp_step(device, NormKind::kLayerNorm, ActivationKind::kGelu, count); });
  };
  EXPECT_NE(tokens(12).hash, tokens(13).hash);
}

TEST(Schedule, MetaRunsShapesThatNoHostCouldHold) {
  const Account meta = account("meta", [](Device& device) {
    mlp_step(device, NormKind::kRmsNorm, ActivationKind::kSwiglu, std::int64_t{1} << 40);
  });
  EXPECT_GT(meta.peak_bytes, std::int64_t{1} << 46);
}

}  // namespace
}  // namespace fp8lab
