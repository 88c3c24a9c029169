// The amaxes that delayed scaling records of O and of the gradients of Q, K and V are those before rounding to eight
// bits, whichever kernel rounds them.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/cores/attention_core.h"
#include "reference/attention_reference.h"
#include "reference/float8_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/leaf_node.h"
#include "support/test_device.h"

namespace fp8lab {
namespace {

using Doubles = std::vector<double>;

const reference::SmallFloat kE4M3(reference::kE4M3Layout);
const reference::SmallFloat kE5M2(reference::kE5M2Layout);

double amax_of(const Doubles& values) {
  double amax = 0;
  for (const double value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

/// Each value cast under `scale` and dequantized again.
Doubles cast(const Doubles& values, const reference::SmallFloat& format, double scale) {
  Doubles result;
  result.reserve(values.size());
  for (const double value : values) result.push_back(format.decode(format.encode(value * scale)) / scale);
  return result;
}

// The smallest sizes that every attention kernel of a GPU supports.
constexpr std::int64_t kKernelSeq = 512, kKernelDim = 128;

struct FixedScales {
  float qkv = 64.0f, s = 448.0f, o = 67.75f;
  float grad_o = 8192.0f, grad_p = 2048.0f, grad_qkv = 10752.0f;
};

const KernelTable& host_kernels() {
  static const KernelTable& kernels = open_device("cpu")->kernels();  // the table lives as long as the program
  return kernels;
}

/// Rounds `values` to eight bits and raises the amax by their magnitudes before rounding.
void round(const MatrixView& values, const AttentionRole& role, ExecContext& context) {
  const KernelTable& kernels = host_kernels();
  if (role.amax != nullptr) kernels.amax({.in = values, .amax = role.amax}, context);
  std::vector<std::byte> data(static_cast<std::size_t>(values.numel()));
  float scale_inv = 0;
  const OperandView rounded{
      .values = {.data = data.data(),
                 .dtype = role.dtype,
                 .rows = values.rows,
                 .cols = values.cols,
                 .row_stride = values.cols,
                 .col_stride = 1},
      .scales = {.data = reinterpret_cast<std::byte*>(&scale_inv), .dtype = DType::kF32, .storage_elems = 1}};
  const QuantFormat format{.dtype = role.dtype, .amax_source = AmaxSource::kHistory};
  kernels.quantize({.in = values, .rowwise = rounded, .columnwise = {}, .format = format, .scale = role.scale},
                   context);
  kernels.dequantize({.in = rounded, .out = values}, context);
}
void rounding_forward(const AttentionForwardArgs& args, ExecContext& context) {
  host_kernels().attention_forward(args, context);
  if (args.o_cast.scale == nullptr) return;
  round(args.o, args.o_cast, context);
  *args.o_measured = true;
}
void rounding_backward(const AttentionBackwardArgs& args, ExecContext& context) {
  host_kernels().attention_backward(args, context);
  if (args.grad_cast.scale == nullptr) return;
  for (const MatrixView* grad : {&args.grad_q, &args.grad_k, &args.grad_v}) round(*grad, args.grad_cast, context);
  *args.grad_measured = true;
}

class HostMemory final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{4096}, std::nothrow));
  }
  void release(std::byte* segment, std::size_t) noexcept override {
    ::operator delete(segment, std::align_val_t{4096});
  }
};

/// The host with attention that rounds the results to be cast next and measures them before, as cuDNN's FP8 attention
/// does.
class RoundingHost final : public Device {
 public:
  RoundingHost()
      : Device("cpu", arch_profile("hopper"), kernels_with_rounding(), std::make_unique<HostMemory>(), {},
               std::make_unique<ExecContext>()) {}
  bool computes() const override { return true; }
  void copy_values_to_host(const Tensor& tensor, std::span<float> values) override { host_->read_to(tensor, values); }
  void copy_bytes_to_host(const Tensor& tensor, std::span<std::byte> bytes) override {
    host_->read_bytes_to(tensor, bytes);
  }
  void write_bytes(const Tensor& tensor, std::span<const std::byte> bytes) override {
    host_->write_bytes(tensor, bytes);
  }
  void copy_bytes(const Tensor& from, const Tensor& to) override { host_->copy_bytes(from, to); }
  void write(const Tensor& tensor, std::span<const float> values) override { host_->write(tensor, values); }
  void synchronize() override {}

 private:
  static const KernelTable& kernels_with_rounding() {
    static const KernelTable kernels = [] {
      KernelTable table = host_kernels();
      table.attention_forward = rounding_forward;
      table.attention_backward = rounding_backward;
      return table;
    }();
    return kernels;
  }

  std::unique_ptr<Device> host_ = open_device("cpu");
};

enum class Path {
  kDeterministic,  ///< the deterministic kernel of the suite's device
  kAnyOrder,
  kRoundingHost,
};

std::string name(Path path) {
  return path == Path::kDeterministic ? "Deterministic" : path == Path::kAnyOrder ? "AnyOrder" : "RoundingHost";
}

class AttentionAmaxes : public ::testing::TestWithParam<Path> {
 protected:
  AttentionAmaxes() {
    device_->context().set_deterministic(GetParam() == Path::kDeterministic);
    config_.hidden = kKernelDim;
    config_.heads = config_.kv_heads = 1;
    config_.seq = kKernelSeq;
    config_.batch = 1;
    config_.fp8_attention = true;
    core_.emplace(build_, "attention", config_);
    const FixedScales scales;
    device_->write(forward_scales().scales(), std::array{scales.qkv, scales.s, scales.o});
    device_->write(backward_scales().scales(), std::array{scales.grad_o, scales.grad_p, scales.grad_qkv});
  }

  const DelayedScales& forward_scales() const { return *registry_.forward_scales.at(0)->delayed(); }
  const DelayedScales& backward_scales() const { return *registry_.backward_scales.at(0)->delayed(); }

  std::unique_ptr<Device> device_ =
      GetParam() == Path::kRoundingHost ? std::make_unique<RoundingHost>() : support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
  Recipe recipe_ = make_recipe("delayed");
  Registry registry_;
  Build build_{.runtime = runtime_, .recipe = recipe_, .registry = registry_, .dtype = DType::kBF16};
  LayerConfig config_;
  std::optional<AttentionCore> core_;
};

/// Columns of the packed projection.
Doubles part(const Doubles& packed, std::int64_t number) {
  Doubles values;
  for (std::int64_t i = 0; i < kKernelSeq; ++i)
    for (std::int64_t j = 0; j < kKernelDim; ++j)
      values.push_back(packed[static_cast<std::size_t>((3 * i + number) * kKernelDim + j)]);
  return values;
}

// Inputs for which no cast of P changes the amaxes. The first query sees only the first key, whose V has the largest
// magnitude of all, so O has it too. The last query and key are alike and larger than the rest, so that key's dV is
// that query's dO, the largest by far. Casts under these scales would raise the amax of O by 5 % and the amaxes of the
// gradients by 8.8 %; rounding to bf16, in which O and the gradients are stored before, changes them by 2^-9.
TEST_P(AttentionAmaxes, AreThoseBeforeRounding) {
  std::vector<float> packed = reference::gaussian_values(kKernelSeq * 3 * kKernelDim, 1, 1.0);
  for (float& x : packed) x = std::clamp(x, -3.0f, 3.0f);
  packed[2 * kKernelDim] = 4.5f;
  std::fill_n(packed.end() - 3 * kKernelDim, 2 * kKernelDim, 2.0f);
  std::vector<float> grad = reference::gaussian_values(kKernelSeq * kKernelDim, 2, 0x1p-6);
  grad[(kKernelSeq - 1) * kKernelDim] = 1.75f;
  const Tensor qkv = support::make_tensor(*device_, {kKernelSeq, 3 * kKernelDim}, DType::kBF16, packed);
  const Tensor grad_o = support::make_tensor(*device_, {kKernelSeq, kKernelDim}, DType::kBF16, grad);

  const FixedScales scales;
  reference::AttentionProblem problem;
  problem.seq = kKernelSeq;
  problem.batch = problem.heads = problem.kv_heads = 1;
  problem.head_dim = kKernelDim;
  problem.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kKernelDim));
  const Doubles qkv_values = support::read(*device_, qkv), qkv8 = cast(qkv_values, kE4M3, scales.qkv);
  const reference::AttentionInputsReference inputs{part(qkv8, 0), part(qkv8, 1), part(qkv8, 2), {&kE4M3, scales.s}};
  const Doubles o = attention_forward(problem, inputs).o.value, o8 = cast(o, kE4M3, scales.o);
  const auto grads = attention_backward(
      problem, inputs, o8, cast(support::read(*device_, grad_o), kE5M2, scales.grad_o), {&kE5M2, scales.grad_p});
  double amax_grad = 0, rounded_grad = 0;
  for (const reference::Bounded* part : {&grads.grad_q, &grads.grad_k, &grads.grad_v}) {
    amax_grad = std::max(amax_grad, amax_of(part->value));
    rounded_grad = std::max(rounded_grad, amax_of(cast(part->value, kE5M2, scales.grad_qkv)));
  }
  ASSERT_GT(amax_of(o8), 1.04 * amax_of(o));
  ASSERT_GT(rounded_grad, 1.08 * amax_grad);

  const auto leaf = std::make_shared<support::LeafNode>(runtime_);
  const Variable result = core_->forward(runtime_, {qkv, leaf});
  const auto live = [&](const DelayedScales& of, int role) {
    return static_cast<double>(device_->read(of.amax(role))[0]);
  };
  EXPECT_EQ(live(forward_scales(), 0), amax_of(qkv_values));
  EXPECT_NEAR(live(forward_scales(), 2), amax_of(o), 0x1p-8 * amax_of(o));
  run_backward(runtime_, result, grad_o);
  EXPECT_EQ(live(backward_scales(), 0), 1.75);
  EXPECT_NEAR(live(backward_scales(), 2), amax_grad, 0x1p-8 * amax_grad);
  std::string algorithms;
  for (const std::string& note : device_->notes()) algorithms += note + "; ";
  RecordProperty("algorithms", algorithms);
}

INSTANTIATE_TEST_SUITE_P(, AttentionAmaxes,
                         ::testing::Values(Path::kDeterministic, Path::kAnyOrder, Path::kRoundingHost),
                         [](const auto& test) { return name(test.param); });

}  // namespace
}  // namespace fp8lab
