#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "core/counter_rng.h"
#include "on_gpu.h"
#include "ops/activation.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/experts/routing.h"
#include "ops/loss.h"
#include "ops/norm.h"

// Memory-bound operations on the GPU, on the shapes of a Llama-3 8B layer, relative to device copies (on_gpu.h). Bytes
// count each operand once; values that a norm keeps per row or per column are not counted.
namespace fp8lab {
namespace {

constexpr DType kType = DType::kBF16;
constexpr std::int64_t kTokens = 8192, kHidden = 4096, kFfn = 14336, kVocabulary = 128256;

HolderId in_flight() { return gpu()->holder(HolderKind::kInFlight); }

/// Tensors of one kind that are used in turn, so that none is in the L2 when it is read.
class Rotation {
 public:
  Rotation(const Shape& shape, DType dtype, std::uint64_t seed = 1) {
    const int count = rotations_past_l2(TensorSpec{shape, dtype}.bytes());
    for (int i = 0; i < count; ++i)
      tensors_.push_back(dtype == DType::kE4M3
                             ? data(shape)
                             : random_tensor(*gpu(), shape, dtype, seed + static_cast<std::uint64_t>(i)));
  }
  const Tensor& operator[](int i) const { return tensors_[static_cast<std::size_t>(i) % tensors_.size()]; }
  std::int64_t bytes() const { return tensors_[0].bytes(); }

 private:
  static Tensor data(const Shape& shape) {
    const Tensor tensor = gpu()->allocate({shape, DType::kE4M3}, in_flight());
    gpu()->launch(&KernelTable::cast,
                  CastArgs{.in = random_tensor(*gpu(), shape, DType::kBF16).view(), .out = tensor.view()});
    return tensor;
  }
  std::vector<Tensor> tensors_;
};

void add_row(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  set_iterations(benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMicrosecond), 31);
}

void norm_forward_row(benchmark::State& state, NormKind kind, std::int64_t cols, DType dtype) {
  const Rotation x(Shape{kTokens, cols}, dtype);
  const Tensor gamma = random_tensor(*gpu(), {cols}, dtype, 5), beta = random_tensor(*gpu(), {cols}, dtype, 6);
  time_on_gpu(state, {.bytes = 2 * x.bytes()}, [&](int i) {
    norm_forward(*gpu(), {.kind = kind,
                          .x = x[i],
                          .gamma = gamma,
                          .beta = kind == NormKind::kLayerNorm ? beta : Tensor{},
                          .y_holder = in_flight(),
                          .statistics_holder = in_flight()});
  });
}

void norm_backward_row(benchmark::State& state, NormKind kind, std::int64_t cols, DType dtype) {
  const Rotation x(Shape{kTokens, cols}, dtype), grad_y(Shape{kTokens, cols}, dtype, 100);
  const Tensor gamma = random_tensor(*gpu(), {cols}, dtype, 5);
  const Tensor mean = random_tensor(*gpu(), {kTokens, 1}, DType::kF32, 6, 0.01f),
               rstd = random_tensor(*gpu(), {kTokens, 1}, DType::kF32, 7);
  time_on_gpu(state, {.bytes = 3 * x.bytes()}, [&](int i) {
    norm_backward(*gpu(), {.kind = kind,
                           .grad_y = grad_y[i],
                           .x = x[i],
                           .gamma = gamma,
                           .mean = mean,
                           .rstd = rstd,
                           .grad_x_holder = in_flight(),
                           .grad_gamma_holder = in_flight(),
                           .grad_beta_holder = in_flight()});
  });
}

void activation_row(benchmark::State& state, ActivationKind kind, bool backward) {
  const std::int64_t in_cols = kind == ActivationKind::kSwiglu ? 2 * kFfn : kFfn;
  const Rotation x(Shape{kTokens, in_cols}, kType), grad_y(Shape{kTokens, kFfn}, kType, 100);
  if (!backward)
    return time_on_gpu(state, {.bytes = x.bytes() + grad_y.bytes()},
                       [&](int i) { activation_forward(*gpu(), kind, x[i], in_flight()); });
  time_on_gpu(state, {.bytes = 2 * x.bytes() + grad_y.bytes()},
              [&](int i) { activation_backward(*gpu(), kind, grad_y[i], x[i], in_flight()); });
}

/// The quantizer of a result that is never stored in 16 bits.
Quantizer unstored(const char* recipe, bool both) {
  Quantizer quantizer{.format = make_recipe(recipe).activation, .orientations = {true, both}, .holder = in_flight()};
  if (!quantizer.format.per_tensor()) return quantizer;
  quantizer.scale = gpu()->allocate({Shape{1}, DType::kF32}, in_flight());
  quantizer.amax = gpu()->allocate({Shape{1}, DType::kF32}, in_flight());
  fill(*gpu(), quantizer.scale, 64.0f);
  fill(*gpu(), quantizer.amax, 0.0f);
  return quantizer;
}

void norm_quantize_row(benchmark::State& state, const char* recipe, bool both) {
  const Rotation x(Shape{kTokens, kHidden}, kType);
  const Quantizer quantizer = unstored(recipe, both);
  const NormInputs inputs{
      .kind = NormKind::kRmsNorm, .x = x[0], .gamma = random_tensor(*gpu(), {kHidden}, kType, 5), .beta = {}};
  const std::int64_t written = norm_quantize(*gpu(), inputs, quantizer).y.bytes();
  time_on_gpu(state, {.bytes = x.bytes() + written}, [&](int i) {
    NormInputs set = inputs;
    set.x = x[i];
    set.statistics_holder = in_flight();
    norm_quantize(*gpu(), set, quantizer);
  });
}

void activation_quantize_row(benchmark::State& state, const char* recipe, bool both) {
  const Rotation x(Shape{kTokens, 2 * kFfn}, kType);
  const Quantizer quantizer = unstored(recipe, both);
  const std::int64_t written = activation_quantize(*gpu(), ActivationKind::kSwiglu, x[0], quantizer).bytes();
  time_on_gpu(state, {.bytes = x.bytes() + written},
              [&](int i) { activation_quantize(*gpu(), ActivationKind::kSwiglu, x[i], quantizer); });
}

void transpose_row(benchmark::State& state, DType dtype, std::int64_t cols) {
  const Rotation x(Shape{kTokens, cols}, dtype);
  time_on_gpu(state, {.bytes = 2 * x.bytes()}, [&](int i) { cast(*gpu(), x[i].transposed(), dtype, in_flight()); });
}

void cast_row(benchmark::State& state, DType from, DType to) {
  const Rotation x(Shape{kTokens, kHidden}, from);
  const TensorSpec out{Shape{kTokens, kHidden}, to};
  time_on_gpu(state, {.bytes = x.bytes() + out.bytes()}, [&](int i) { cast(*gpu(), x[i], to, in_flight()); });
}

void add_tensors_row(benchmark::State& state) {
  const Rotation a(Shape{kTokens, kHidden}, kType), b(Shape{kTokens, kHidden}, kType, 100);
  time_on_gpu(state, {.bytes = 3 * a.bytes()}, [&](int i) { add(*gpu(), a[i], b[i], in_flight()); });
}

void column_sum_row(benchmark::State& state) {
  const Rotation x(Shape{kTokens, kHidden}, kType);
  time_on_gpu(state, {.bytes = x.bytes()}, [&](int i) { column_sum(*gpu(), x[i], kType, in_flight()); });
}

void rope_row(benchmark::State& state) {
  const Rotation x(Shape{kTokens, kHidden}, kType);
  time_on_gpu(state, {.bytes = 2 * x.bytes()}, [&](int i) {
    rope(*gpu(), {.x = x[i], .batch = 2, .heads = 32, .base = 500000.0, .holder = in_flight()});
  });
}

void dropout_row(benchmark::State& state) {
  const Rotation x(Shape{kTokens, kHidden}, kType);
  time_on_gpu(state, {.bytes = 2 * x.bytes()},
              [&](int i) { dropout(*gpu(), x[i], {.probability = 0.1f, .seed = 1}, in_flight()); });
}

Tensor random_tokens() {
  std::vector<std::int32_t> tokens;
  const CounterRng rng(1, 2);
  for (std::int64_t i = 0; i < kTokens; ++i)
    tokens.push_back(static_cast<std::int32_t>(rng.bits(static_cast<std::uint64_t>(i)) % kVocabulary));
  return make_tokens(*gpu(), tokens, kVocabulary, in_flight());
}

/// Two gigabytes of logits are past any L2. Backward overwrites them, which changes no time.
void cross_entropy_row(benchmark::State& state, bool backward) {
  const Tensor logits = random_tensor(*gpu(), {kTokens, kVocabulary}, kType), targets = random_tokens();
  const Tensor grad_loss = random_tensor(*gpu(), {1, 1}, DType::kF32);
  if (!backward)
    return time_on_gpu(state, {.bytes = logits.bytes()},
                       [&](int) { cross_entropy(*gpu(), logits, targets, in_flight(), in_flight()); });
  const Tensor log_sums = cross_entropy(*gpu(), logits, targets, in_flight(), in_flight()).log_sums;
  time_on_gpu(state, {.bytes = 2 * logits.bytes()},
              [&](int) { cross_entropy_gradient_in_place(*gpu(), logits, targets, log_sums, grad_loss); });
}

/// Forward reads a row for each token; the gradient is written for every entry of the table.
void embedding_row(benchmark::State& state, bool backward) {
  const Tensor table = random_tensor(*gpu(), {kVocabulary, kHidden}, kType), tokens = random_tokens();
  const Rotation rows(Shape{kTokens, kHidden}, kType);
  if (!backward)
    return time_on_gpu(state, {.bytes = 2 * rows.bytes()}, [&](int) {
      embedding(*gpu(), {.tokens = tokens, .table = table, .positions = {}, .holder = in_flight()});
    });
  time_on_gpu(state, {.bytes = rows.bytes() + table.bytes()},
              [&](int i) { embedding_gradient_into(*gpu(), {.grad_out = rows[i], .tokens = tokens}, table, false); });
}

constexpr std::int64_t kExperts = 8, kChoices = 2;
enum class OfExperts { kRoute, kGroup, kPermute, kPermuteWeighted, kUnpermute, kUnpermuteWeights };

/// The way of tokens through a mixture of experts. A token's row counts once for each of its choices.
void experts_row(benchmark::State& state, OfExperts what, std::int64_t multiple) {
  const Rotation logits(Shape{kTokens, kExperts}, DType::kF32), x(Shape{kTokens, kHidden}, kType);
  const Routing routing = route(*gpu(), logits[0], {.choices = kChoices}, in_flight());
  const GroupedRows grouped = group_rows(*gpu(), routing.experts, kExperts, multiple, in_flight());
  const std::int64_t rows = grouped.sources.numel(), of_choices = kChoices * x.bytes();
  const Rotation of_experts(Shape{rows, kHidden}, kType);
  switch (what) {
    case OfExperts::kRoute:
      return time_on_gpu(state, {.bytes = logits.bytes() + 2 * routing.weights.bytes()},
                         [&](int i) { route(*gpu(), logits[i], {.choices = kChoices}, in_flight()); });
    case OfExperts::kGroup:
      return time_on_gpu(state, {.bytes = 2 * routing.experts.bytes() + grouped.sources.bytes()},
                         [&](int) { group_rows(*gpu(), routing.experts, kExperts, multiple, in_flight()); });
    case OfExperts::kPermute:
    case OfExperts::kPermuteWeighted:
      return time_on_gpu(state, {.bytes = of_choices + of_experts.bytes()}, [&](int i) {
        permute(*gpu(), x[i], grouped, what == OfExperts::kPermute ? Tensor{} : routing.weights, in_flight());
      });
    case OfExperts::kUnpermute:
      return time_on_gpu(state, {.bytes = of_choices + x.bytes()},
                         [&](int i) { unpermute(*gpu(), of_experts[i], grouped, routing.weights, in_flight()); });
    default:
      return time_on_gpu(state, {.bytes = of_choices + x.bytes()},
                         [&](int i) { unpermute_weights(*gpu(), of_experts[i], grouped, x[i], in_flight()); });
  }
}

void register_experts() {
  const struct {
    const char* name;
    OfExperts what;
  } rows[] = {{"route", OfExperts::kRoute},         {"group_rows", OfExperts::kGroup},
              {"permute", OfExperts::kPermute},     {"permute_weighted", OfExperts::kPermuteWeighted},
              {"unpermute", OfExperts::kUnpermute}, {"unpermute_weights", OfExperts::kUnpermuteWeights}};
  for (const auto& row : rows)
    for (const std::int64_t multiple : {1, 128})
      add_row(fmt::format("experts/{}/{}x{}/{}_of_{}/multiple_{}", row.name, kTokens, kHidden, kChoices, kExperts,
                          multiple),
              [=](benchmark::State& state) { experts_row(state, row.what, multiple); });
}

void register_rows() {
  register_experts();
  const struct {
    const char* name;
    NormKind kind;
  } norms[] = {{"rms_norm", NormKind::kRmsNorm}, {"layer_norm", NormKind::kLayerNorm}};
  for (const auto& norm : norms)
    for (const std::int64_t cols : {std::int64_t{4096}, std::int64_t{8192}, std::int64_t{16384}})
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        if (dtype == DType::kF32 && cols != kHidden) continue;
        const std::string shape = fmt::format("{}x{}/{}", kTokens, cols, name(dtype));
        add_row(fmt::format("{}/forward/{}", norm.name, shape),
                [=](benchmark::State& state) { norm_forward_row(state, norm.kind, cols, dtype); });
        add_row(fmt::format("{}/backward/{}", norm.name, shape),
                [=](benchmark::State& state) { norm_backward_row(state, norm.kind, cols, dtype); });
      }
  for (const auto& [kind, label] :
       {std::pair{ActivationKind::kSwiglu, "swiglu"}, std::pair{ActivationKind::kGelu, "gelu"}})
    for (const bool backward : {false, true})
      add_row(fmt::format("{}/{}/{}x{}/bf16", label, backward ? "backward" : "forward", kTokens, kFfn),
              [kind = kind, backward](benchmark::State& state) { activation_row(state, kind, backward); });
  const struct {
    const char* recipe;
    const char* direction;
    bool both;
  } casts[] = {{"delayed", "rowwise", false},
               {"delayed", "both", true},
               {"block", "rowwise", false},
               {"mxfp8", "rowwise", false}};
  for (const auto& cast : casts) {
    const std::string label = fmt::format("{}/{}/{}x", cast.recipe, cast.direction, kTokens);
    add_row(fmt::format("rms_norm_quantize/{}{}/bf16", label, kHidden),
            [=](benchmark::State& state) { norm_quantize_row(state, cast.recipe, cast.both); });
    add_row(fmt::format("swiglu_quantize/{}{}/bf16", label, kFfn),
            [=](benchmark::State& state) { activation_quantize_row(state, cast.recipe, cast.both); });
  }
  for (const DType dtype : {DType::kE4M3, DType::kBF16})
    for (const std::int64_t cols : {kHidden, kFfn})
      add_row(fmt::format("transpose/{}x{}/{}", kTokens, cols, name(dtype)),
              [=](benchmark::State& state) { transpose_row(state, dtype, cols); });
  for (const auto& [from, to] : {std::pair{DType::kF32, DType::kBF16}, std::pair{DType::kBF16, DType::kF32}})
    add_row(fmt::format("cast/{}x{}/{}_{}", kTokens, kHidden, name(from), name(to)),
            [from = from, to = to](benchmark::State& state) { cast_row(state, from, to); });
  const std::string shape = fmt::format("{}x{}/bf16", kTokens, kHidden);
  add_row("add/" + shape, add_tensors_row);
  add_row("column_sum/" + shape, column_sum_row);
  add_row("rope/" + shape, rope_row);
  add_row("dropout/" + shape, dropout_row);
  for (const bool backward : {false, true}) {
    const char* const pass = backward ? "backward" : "forward";
    add_row(fmt::format("cross_entropy/{}/{}x{}/bf16", pass, kTokens, kVocabulary),
            [=](benchmark::State& state) { cross_entropy_row(state, backward); });
    add_row(fmt::format("embedding/{}/{}x{}/bf16", pass, kTokens, kHidden),
            [=](benchmark::State& state) { embedding_row(state, backward); });
  }
}

}  // namespace
}  // namespace fp8lab

int main(int argc, char** argv) { return fp8lab::run_on_gpu(argc, argv, fp8lab::register_rows); }
