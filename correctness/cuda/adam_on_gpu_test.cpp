// Adam, with casts of the new weights and without: the GPU's bytes equal the host's, for every type, for lists of odd
// and empty tensors, and for kernels over vectors as well as the one for any strides.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/moment_scale.h"
#include "cuda/tensor_pair.h"

namespace fp8lab {
namespace {

using list_test::Both;
using list_test::CastCase;
using list_test::difference;
using list_test::kCasts;
using list_test::kMatrices;
using list_test::kShapes;
using list_test::make;
using list_test::make_bytes;
using list_test::make_orientations;
using list_test::Pair;
using list_test::target_of;
using list_test::TwoOrientations;
using reference::gaussian_values;

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

/// Changes the kernel's arguments for one tensor.
using Change = std::function<void(std::size_t side, std::size_t index, AdamTensor& tensor)>;

struct Betas {
  double beta1 = 0.9;
  double beta2 = 0.95;
};

void step(Pair& pair, const std::vector<Member>& members, bool decoupled, const Both& gradient_scale, int number,
          const Change& change = {}, const Betas& betas = {}, bool stochastic = false) {
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
                                               .gradient_scale = gradient_scale[side].data<const float>(),
                                               .stochastic = stochastic,
                                               .seed = 77,
                                               .step = static_cast<std::uint64_t>(number)});
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

TEST(AdamOnGpu, HasTheBytesOfTheHostForEveryType) {
  Pair pair;
  const Both gradient_scale = make(pair, {Shape{1}, DType::kF32}, {0.7f});
  std::uint64_t seed = 1;
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    std::vector<Member> members;
    for (const Shape& shape : kShapes) members.push_back(make_member(pair, c, shape, seed += 10));
    members.push_back(
        make_member(pair, c, {33, 65}, seed += 10, true));  // a transposed gradient is read element by element
    for (int number = 1; number <= 2; ++number)
      step(pair, members, c.decoupled, number == 1 ? Both{} : gradient_scale, number);
    expect_equal(pair, members);
  }
}

// Every type: weights with masters and in f32 are rounded as ever. First elements that fill no group of four draws.
TEST(AdamOnGpu, RoundsAtRandomToTheBytesOfTheHost) {
  Pair pair;
  std::uint64_t seed = 1;
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(label(c));
    std::vector<Member> members;
    for (const Shape& shape : kShapes) members.push_back(make_member(pair, c, shape, seed += 10));
    members.push_back(make_member(pair, c, {33, 65}, seed += 10, true));
    const Change streams = [](std::size_t, std::size_t index, AdamTensor& tensor) {
      tensor.stream = 1000 * index;
      tensor.first_element = static_cast<std::int64_t>(3 * index);
    };
    for (int number = 1; number <= 2; ++number) step(pair, members, c.decoupled, {}, number, streams, {}, true);
    expect_equal(pair, members);
  }
}

// Weights on both sides of 0.5, the point where lerp changes its starting point, and the smallest weights in use.
TEST(AdamOnGpu, HasTheBytesOfTheHostForEveryBeta) {
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

// Mixed types, more tensors than warps, some of them at addresses that are not aligned to vectors.
TEST(AdamOnGpu, HasTheBytesOfTheHostForLongMixedLists) {
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

void expect_equal(Pair& pair, const TwoOrientations& orientations) {
  EXPECT_EQ(difference(pair, orientations.rowwise), "");
  EXPECT_EQ(difference(pair, orientations.columnwise), "");
  EXPECT_EQ(difference(pair, orientations.scale_inv), "");
  EXPECT_EQ(difference(pair, orientations.amax), "");
}

TEST(AdamOnGpu, CastsNewWeightsAndRecordsTheirAmax) {
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

}  // namespace
}  // namespace fp8lab
