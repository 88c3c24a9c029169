// Adam, with casts and without, the norm that it clips by and list operations: the GPU's bytes against the host's,
// over every type, lists of odd and empty tensors, vectors' bodies and the one for any strides.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "core/moment_scale.h"
#include "reference/compare.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using reference::gaussian_values;

/// The same tensors on the host and on the GPU.
class Pair {
 public:
  static constexpr std::size_t kSides = 2;
  std::array<std::unique_ptr<Device>, kSides> devices{
      open_device("cpu", {.memory = {.capacity_bytes = 0, .poison = true}}),
      open_device("cuda", {.memory = {.capacity_bytes = 0, .poison = true}})};

  template <class Use>
  void each(const Use& use) {
    for (std::size_t side = 0; side < kSides; ++side) use(side, *devices[side]);
  }
};

using Both = std::array<Tensor, Pair::kSides>;

Both make(Pair& pair, const TensorSpec& spec, const std::vector<float>& values) {
  Both both;
  pair.each([&](std::size_t side, Device& device) {
    both[side] = device.allocate(spec, support::anyone(device));
    device.write(both[side], values);
  });
  return both;
}

/// Any bits, those of i16 for instance.
Both make_bytes(Pair& pair, const TensorSpec& spec, std::uint64_t seed) {
  Both both;
  std::vector<std::byte> bytes(static_cast<std::size_t>(spec.bytes()));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(reference::scramble(seed ^ i) >> 56);
  pair.each([&](std::size_t side, Device& device) {
    both[side] = device.allocate(spec, support::anyone(device));
    device.write_bytes(both[side], bytes);
  });
  return both;
}

/// The first byte that differs, in words; empty if there is none.
std::string difference(Pair& pair, const Both& both) {
  if (!both[0]) return {};
  const std::vector<std::byte> host = pair.devices[0]->read_bytes(both[0]), gpu = pair.devices[1]->read_bytes(both[1]);
  if (host.size() != gpu.size()) return "sizes";
  for (std::size_t i = 0; i < host.size(); ++i)
    if (host[i] != gpu[i]) return "byte " + std::to_string(i) + " of " + std::to_string(host.size());
  return {};
}

// Empty, one element, less than a vector, odd, a vector more than a step, exactly one piece, several pieces and an odd
// rest.
const Shape kShapes[] = {{0, 7}, {1, 1}, {3}, {5, 811}, {1028, 4}, {128, 128}, {3, 16387}, {7, 8192}};

enum class Master { kNone, kF32, kRemainder };

struct Case {
  DType param;
  DType grad;
  DType exp_avg;
  DType exp_avg_sq;
  Master master;
  bool decoupled;
};

std::string label(const Case& c) {
  const char* const masters[] = {"alone", "master", "remainder"};
  return std::string(name(c.param)) + "_" + masters[static_cast<int>(c.master)] + "_grad_" + std::string(name(c.grad)) +
         "_m_" + std::string(name(c.exp_avg)) + "_v_" + std::string(name(c.exp_avg_sq)) +
         (c.decoupled ? "" : "_coupled");
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const DType moments[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3};
  for (const DType exp_avg : moments)
    for (const DType exp_avg_sq : moments)
      for (const DType grad : {DType::kF32, DType::kBF16}) {
        const bool decoupled = exp_avg == exp_avg_sq;
        for (const Master master : {Master::kNone, Master::kF32, Master::kRemainder})
          cases.push_back({DType::kBF16, grad, exp_avg, exp_avg_sq, master, decoupled});
        cases.push_back({DType::kF32, grad, exp_avg, exp_avg_sq, Master::kNone, decoupled});
      }
  cases.push_back({DType::kF32, DType::kF32, DType::kF32, DType::kF32, Master::kNone, false});
  cases.push_back({DType::kF16, DType::kF16, DType::kF32, DType::kF32, Master::kF32, true});
  return cases;
}

struct Member {
  Both param, grad, exp_avg, exp_avg_sq, exp_avg_scale, exp_avg_sq_scale, master;
  bool transposed = false;

  AdamTensor tensor(std::size_t side) const {
    const auto view = [&](const Both& both) { return both[side] ? both[side].view() : MatrixView{}; };
    AdamTensor result{.param = view(param),
                      .grad = view(grad),
                      .exp_avg = view(exp_avg),
                      .exp_avg_sq = view(exp_avg_sq),
                      .master = view(master),
                      .exp_avg_scale = exp_avg_scale[side].data<float>(),
                      .exp_avg_sq_scale = exp_avg_sq_scale[side].data<float>()};
    if (transposed) result.grad = grad[side].transposed().view();
    return result;
  }
};

Member make_member(Pair& pair, const Case& c, const Shape& shape, std::uint64_t seed, bool transposed = false) {
  const auto count = shape.numel();
  Member member;
  member.transposed = transposed;
  member.param = make(pair, {shape, c.param}, gaussian_values(count, seed, 0.5));
  const Shape grad_shape = transposed ? Shape{shape.cols(), shape.rows()} : shape;
  member.grad = make(pair, {grad_shape, c.grad}, gaussian_values(count, seed + 1, 0.1));
  std::vector<float> squares = gaussian_values(count, seed + 3, 0.1);
  for (float& x : squares) x *= x;
  member.exp_avg = make(pair, {shape, c.exp_avg}, gaussian_values(count, seed + 2, 0.05));
  member.exp_avg_sq = make(pair, {shape, c.exp_avg_sq}, squares);
  if (moment_limit(c.exp_avg) > 0.0f) member.exp_avg_scale = make(pair, {Shape{1}, DType::kF32}, {0.75f});
  if (moment_limit(c.exp_avg_sq) > 0.0f) member.exp_avg_sq_scale = make(pair, {Shape{1}, DType::kF32}, {0.375f});
  if (c.master == Master::kF32) member.master = make(pair, {shape, DType::kF32}, gaussian_values(count, seed, 0.5));
  if (c.master == Master::kRemainder) member.master = make_bytes(pair, {shape, DType::kI16}, seed);
  return member;
}

/// Changes what is notified of a tensor.
using Change = std::function<void(std::size_t side, std::size_t index, AdamTensor& tensor)>;

struct Betas {
  double beta1 = 0.9;
  double beta2 = 0.95;
};

void step(Pair& pair, const std::vector<Member>& members, bool decoupled, const Both& gradient_scale, int number,
          const Change& change = {}, const Betas& betas = {}) {
  const auto correction = [&](double beta) { return static_cast<float>(1.0 - std::pow(beta, number)); };
  pair.each([&](std::size_t side, Device& device) {
    std::vector<AdamTensor> list;
    for (const Member& member : members) list.push_back(member.tensor(side));
    for (std::size_t i = 0; change && i < list.size(); ++i) change(side, i, list[i]);
    device.launch(&KernelTable::adam, AdamArgs{.tensors = list,
                                               .learning_rate = 0.01f,
                                               .exp_avg_weight = static_cast<float>(1.0 - betas.beta1),
                                               .exp_avg_sq_weight = static_cast<float>(1.0 - betas.beta2),
                                               .epsilon = 1e-8f,
                                               .weight_decay = 0.1f,
                                               .decoupled_decay = decoupled,
                                               .bias_correction1 = correction(betas.beta1),
                                               .bias_correction2 = correction(betas.beta2),
                                               .gradient_scale = gradient_scale[side].data<const float>()});
  });
}

void expect_equal(Pair& pair, const std::vector<Member>& members) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& m = members[i];
    SCOPED_TRACE(testing::Message() << "tensor " << i);
    EXPECT_EQ(difference(pair, m.param), "");
    EXPECT_EQ(difference(pair, m.exp_avg), "");
    EXPECT_EQ(difference(pair, m.exp_avg_sq), "");
    EXPECT_EQ(difference(pair, m.master), "");
    EXPECT_EQ(difference(pair, m.exp_avg_scale), "");
    EXPECT_EQ(difference(pair, m.exp_avg_sq_scale), "");
  }
}

TEST(AdamOnGpu, LeavesTheHostsBytesForEveryType) {
  Pair pair;
  const Both gradient_scale = make(pair, {Shape{1}, DType::kF32}, {0.7f});
  std::uint64_t seed = 1;
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    std::vector<Member> members;
    for (const Shape& shape : kShapes) members.push_back(make_member(pair, c, shape, seed += 10));
    members.push_back(make_member(pair, c, {33, 65}, seed += 10, true));  // element by element
    for (int number = 1; number <= 2; ++number)
      step(pair, members, c.decoupled, number == 1 ? Both{} : gradient_scale, number);
    expect_equal(pair, members);
  }
}

// Weights on either side of a half, where lerp starts from the other end, and the smallest in use.
TEST(AdamOnGpu, LeavesTheHostsBytesForEveryBeta) {
  Pair pair;
  std::uint64_t seed = 400;
  const Betas all[] = {{0.0, 0.4}, {0.3, 0.0}, {0.5, 0.5}, {0.99, 0.999}, {0.999, 0.99999}};
  for (const Betas& betas : all) {
    SCOPED_TRACE(testing::Message() << betas.beta1 << " " << betas.beta2);
    std::vector<Member> members;
    for (const Case& c : all_cases())
      if (c.decoupled) members.push_back(make_member(pair, c, {60, 100}, seed += 10));
    for (int number = 1; number <= 3; ++number) step(pair, members, true, {}, number, {}, betas);
    expect_equal(pair, members);
  }
}

// Types side by side, more tensors than warps, some of them at addresses that vectors do not take.
TEST(AdamOnGpu, TakesListsOfManyMixedTensors) {
  Pair pair;
  const std::vector<Case> cases = all_cases();
  std::vector<Member> members;
  for (std::size_t i = 0; i < 300; ++i) {
    Case c = cases[i % cases.size()];
    c.decoupled = true;
    members.push_back(make_member(pair, c, kShapes[i % std::size(kShapes)], 1000 + 10 * i));
    if (i % 7 == 3 && members.back().param[0].rows() > 2)
      for (Both* both : {&members.back().param, &members.back().grad, &members.back().exp_avg,
                         &members.back().exp_avg_sq, &members.back().master})
        for (Tensor& tensor : *both)
          if (tensor) tensor = tensor.row_range(1, tensor.rows() - 1);
  }
  for (int number = 1; number <= 2; ++number) step(pair, members, true, {}, number);
  expect_equal(pair, members);
}

TEST(AdamOnGpu, KeepsNanAndInfInTheirElements) {
  Pair pair;
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    std::vector<Member> members{make_member(pair, c, {4, 100}, 5)};
    std::vector<float> gradients = gaussian_values(400, 6, 0.1);
    gradients[7] = kNan;
    gradients[130] = kInf;
    gradients[131] = -kInf;
    members[0].grad = make(pair, {Shape{4, 100}, c.grad}, gradients);
    step(pair, members, c.decoupled, {}, 1);
    for (const Both* both : {&members[0].param, &members[0].exp_avg, &members[0].exp_avg_sq, &members[0].exp_avg_scale,
                             &members[0].exp_avg_sq_scale}) {
      if (!(*both)[0]) continue;
      const std::vector<float> host = pair.devices[0]->read((*both)[0]), gpu = pair.devices[1]->read((*both)[1]);
      for (std::size_t i = 0; i < host.size(); ++i)
        EXPECT_TRUE(host[i] == gpu[i] || (std::isnan(host[i]) && std::isnan(gpu[i])))
            << i << ": " << host[i] << ", " << gpu[i];
    }
  }
}

/// Orientations of a matrix in eight bits under one scale.
struct TwoOrientations {
  Both rowwise, columnwise, scale_inv, scale, amax;
};

struct CastCase {
  const char* label;
  bool rowwise;
  bool columnwise;
  DType payload;
  DType nominal;
};
const CastCase kCasts[] = {
    {"rowwise", true, false, DType::kE4M3, DType::kBF16},   {"both", true, true, DType::kE4M3, DType::kBF16},
    {"columnwise", false, true, DType::kE5M2, DType::kF32}, {"both_e5m2", true, true, DType::kE5M2, DType::kF16},
    {"measured", false, false, DType::kE4M3, DType::kBF16},
};

// Besides: one tile, several with uneven ends, lines that are no multiple of 16 bytes, and of 4 columns.
const Shape kMatrices[] = {{0, 64}, {64, 64}, {80, 272}, {60, 100}, {5, 811}, {1028, 4}, {272, 512}, {1, 16}};

TwoOrientations make_orientations(Pair& pair, const CastCase& c, const Shape& shape, float scale) {
  TwoOrientations orientations;
  const TensorSpec flat{shape, c.payload}, transposed{{shape.cols(), shape.rows()}, c.payload};
  const std::vector<float> none(static_cast<std::size_t>(shape.numel()), 0.0f);
  if (c.rowwise) orientations.rowwise = make(pair, flat, none);
  if (c.columnwise) orientations.columnwise = make(pair, transposed, none);
  orientations.scale_inv = make(pair, {Shape{1}, DType::kF32}, {-1.0f});
  orientations.scale = make(pair, {Shape{1}, DType::kF32}, {scale});
  orientations.amax = make(pair, {Shape{1}, DType::kF32}, {0.25f});
  return orientations;
}

CastTarget target_of(const TwoOrientations& orientations, const CastCase& c, std::size_t side) {
  const ScaleView scale_inv{.data = orientations.scale_inv[side].view().data, .storage_elems = 1};
  const auto half = [&](const Both& data) {
    return data[side] ? OperandView{.values = data[side].view(), .scales = scale_inv} : OperandView{};
  };
  return {.rowwise = half(orientations.rowwise),
          .columnwise = half(orientations.columnwise),
          .format = {.payload = c.payload, .amax_source = AmaxSource::kHistory},
          .nominal = c.nominal,
          .scale = orientations.scale[side].data<const float>(),
          .amax = orientations.amax[side].data<float>()};
}

void expect_equal(Pair& pair, const TwoOrientations& orientations) {
  EXPECT_EQ(difference(pair, orientations.rowwise), "");
  EXPECT_EQ(difference(pair, orientations.columnwise), "");
  EXPECT_EQ(difference(pair, orientations.scale_inv), "");
  EXPECT_EQ(difference(pair, orientations.amax), "");
}

TEST(AdamOnGpu, CastsAndMeasuresWhatItMakes) {
  Pair pair;
  std::uint64_t seed = 7000;
  for (const CastCase& cast : kCasts)
    for (const DType grad : {DType::kF32, DType::kBF16})
      for (const auto& [exp_avg, exp_avg_sq] :
           {std::pair{DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kE4M3, DType::kF16}}) {
        const Case c{DType::kF32, grad, exp_avg, exp_avg_sq, Master::kNone, true};
        SCOPED_TRACE(cast.label + (" " + label(c)));
        std::vector<Member> members;
        std::vector<TwoOrientations> orientations;
        for (const Shape& shape : kMatrices) {
          members.push_back(make_member(pair, c, shape, seed += 10));
          orientations.push_back(make_orientations(pair, cast, shape, 96.0f));
        }
        members.push_back(make_member(pair, c, {33, 65}, seed += 10, true));
        orientations.push_back(make_orientations(pair, cast, {33, 65}, 96.0f));
        step(pair, members, true, {}, 1, [&](std::size_t side, std::size_t i, AdamTensor& tensor) {
          tensor.target = target_of(orientations[i], cast, side);
        });
        expect_equal(pair, members);
        for (const TwoOrientations& one : orientations) expect_equal(pair, one);
      }
}

TEST(QuantizeListOnGpu, IsTheHostsForEveryTypeAndScale) {
  Pair pair;
  std::uint64_t seed = 9000;
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const CastCase& c : kCasts)
    for (const DType in_type : {DType::kF32, DType::kBF16, DType::kF16})
      for (const float measured : {0.0f, 3.7f, kInf, kNan})  // 0 has the scale known beforehand
        for (const bool odd_values : {false, true}) {
          SCOPED_TRACE(testing::Message() << c.label << " " << name(in_type) << " " << measured);
          const Both amax = make(pair, {Shape{1}, DType::kF32}, {measured});
          std::vector<Both> ins;
          std::vector<TwoOrientations> orientations;
          for (const Shape& shape : kMatrices) {
            std::vector<float> values = gaussian_values(shape.numel(), ++seed);
            if (odd_values && values.size() > 40) values[3] = kInf, values[38] = kNan, values[39] = -0.0f;
            ins.push_back(make(pair, {shape, in_type}, values));
            orientations.push_back(make_orientations(pair, c, shape, 17.0f));
          }
          pair.each([&](std::size_t side, Device& device) {
            std::vector<ListCast> list;
            for (std::size_t i = 0; i < ins.size(); ++i) {
              list.push_back({.in = ins[i][side].view(), .target = target_of(orientations[i], c, side)});
              if (measured == 0.0f) continue;
              list.back().target.scale = nullptr;
              list.back().measured = amax[side].data<const float>();
            }
            device.launch(&KernelTable::quantize_list, QuantizeListArgs{.tensors = list});
          });
          for (const TwoOrientations& one : orientations) {
            EXPECT_EQ(difference(pair, one.rowwise), "");
            EXPECT_EQ(difference(pair, one.columnwise), "");
            EXPECT_EQ(difference(pair, one.scale_inv), "");
            const float host = pair.devices[0]->read(one.amax[0]).front(),
                        gpu = pair.devices[1]->read(one.amax[1]).front();
            EXPECT_TRUE(host == gpu || (std::isnan(host) && std::isnan(gpu))) << host << ", " << gpu;
          }
        }
}

TEST(SquareSumOnGpu, IsTheHostsForEveryListAndType) {
  Pair pair;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<Both> tensors;
    std::uint64_t seed = 50;
    for (const Shape& shape : kShapes)
      tensors.push_back(make(pair, {shape, dtype}, gaussian_values(shape.numel(), ++seed, 3.0)));
    // More stretches than lanes, to have the second level go round.
    tensors.push_back(make(pair, {{1200, 16384}, dtype}, gaussian_values(1200 * 16384, ++seed)));
    tensors.push_back(make(pair, {{16387}, dtype}, gaussian_values(16387, ++seed)));
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4}, tensors.size()}) {
      const Both sum = make(pair, {Shape{1}, DType::kF32}, {-1.0f}),
                 norm = make(pair, {Shape{1}, DType::kF32}, {-1.0f}),
                 coefficient = make(pair, {Shape{1}, DType::kF32}, {-1.0f});
      pair.each([&](std::size_t side, Device& device) {
        std::vector<MatrixView> views;
        for (std::size_t i = 0; i < count; ++i) views.push_back(tensors[i][side].view());
        if (count > 4) views.push_back(tensors[3][side].transposed().view());
        device.launch(&KernelTable::square_sum, SquareSumArgs{.tensors = views, .sum = sum[side].data<float>()});
        device.launch(&KernelTable::clip_coefficient,
                      ClipCoefficientArgs{.square_sum = sum[side].data<const float>(),
                                          .max_norm = 2.5f,
                                          .norm = norm[side].data<float>(),
                                          .coefficient = coefficient[side].data<float>()});
      });
      EXPECT_EQ(difference(pair, sum), "") << count;
      EXPECT_EQ(difference(pair, norm), "") << count;
      EXPECT_EQ(difference(pair, coefficient), "") << count;
    }
  }
}

TEST(ListOpOnGpu, IsTheHostsForEveryOperationAndType) {
  Pair pair;
  const ListOp ops[] = {ListOp::kScale, ListOp::kAdd,         ListOp::kAddList, ListOp::kSqrt,
                        ListOp::kLerp,  ListOp::kLerpProduct, ListOp::kAddcdiv};
  const DType types[] = {DType::kF32, DType::kBF16};
  std::uint64_t seed = 500;
  for (const ListOp op : ops)
    for (const DType out_type : types)
      for (const DType a_type : types) {
        const float scalar = a_type == out_type ? 0.375f : 0.875f;
        SCOPED_TRACE(testing::Message() << static_cast<int>(op) << " " << name(out_type) << " " << name(a_type));
        std::vector<Both> outs, as, bs;
        for (const Shape& shape : kShapes) {
          std::vector<float> values = gaussian_values(shape.numel(), ++seed);
          if (op == ListOp::kSqrt)  // the host's NaNs have another sign
            for (float& x : values) x = std::fabs(x);
          outs.push_back(make(pair, {shape, out_type}, values));
          as.push_back(make(pair, {shape, a_type}, gaussian_values(shape.numel(), ++seed)));
          bs.push_back(make(pair, {shape, out_type}, gaussian_values(shape.numel(), ++seed)));
        }
        pair.each([&](std::size_t side, Device& device) {
          std::vector<ListOpTensor> list;
          for (std::size_t i = 0; i < outs.size(); ++i)
            list.push_back({.out = outs[i][side].view(), .a = as[i][side].view(), .b = bs[i][side].view()});
          device.launch(&KernelTable::list_op, ListOpArgs{.op = op, .tensors = list, .scalar = scalar});
        });
        for (const Both& out : outs) EXPECT_EQ(difference(pair, out), "");
      }
}

}  // namespace
}  // namespace fp8lab
