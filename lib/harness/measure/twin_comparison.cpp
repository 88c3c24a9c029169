#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>

#include "fsdp/row_split.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/gathered_gradients.h"
#include "harness/measure/over_ranks.h"
#include "harness/measure/plain_twin.h"
#include "harness/reference/compare.h"

namespace fp8lab {
namespace {

using reference_step::Bounds;
using reference_step::Matrix;

constexpr std::array kTwinMetrics{"parity.twin_faults", "parity.twin_tensors", "parity.twin_noise"};
constexpr std::size_t kMostNamedFaults = 8;

/// How much of the twin's noise N a distance from it may have. It is 2 N if the cell's noise is as large and
/// independent; either varies by half in tensors of a few dozen elements, and with the values that a scale of an entire
/// tensor follows from.
constexpr double kTwinShare = 6.0;

/// What is wrong, in words; of a length that ranks can exchange.
using FaultText = std::array<char, 256>;

FaultText fault_text(const std::string& text) {
  FaultText out{};
  std::copy_n(text.begin(), std::min(text.size(), out.size() - 1), out.begin());
  return out;
}

/// Tensors that were compared, and those that differ.
struct Findings {
  std::int64_t tensors = 0;
  double noise = 0.0;
  std::vector<FaultText> faults;

  void add_fault(const std::string& text) { faults.push_back(fault_text(text)); }

  /// Bits, so that NaN may equal NaN: parity.loss_gap shows whether values are finite.
  void expect_same(const std::string& what, const std::vector<float>& seen, const std::vector<float>& expected) {
    ++tensors;
    if (equal_bits(seen, expected)) return;
    std::size_t count = seen.size() == expected.size() ? 0 : 1, first = 0;
    for (std::size_t i = std::min(seen.size(), expected.size()); i-- > 0;)
      if (std::memcmp(&seen[i], &expected[i], sizeof(float)) != 0) ++count, first = i;
    const bool is_there = first < std::min(seen.size(), expected.size());
    add_fault(fmt::format("{}: {} of {} values differ from the plain twin's, one is {:.7g} instead of {:.7g}", what,
                          count, seen.size(), is_there ? seen[first] : 0.0F, is_there ? expected[first] : 0.0F));
  }

  /// `exact`: without the recipe's roundings, `rounded`: the twin's.
  std::string compare(const std::string& what, const Matrix& exact, const Matrix& rounded, const Matrix& seen,
                      const Bounds& bounds) {
    const reference_step::Distance found = reference_step::compare(exact, rounded, seen, bounds);
    ++tensors;
    noise = std::isnan(noise) || noise >= found.noise ? noise : found.noise;
    if (!found.fault.empty()) add_fault(fmt::format("{}: {}", what, found.fault));
    return found.fault;
  }
};

/// What all ranks computed in one step.
struct AllRanks {
  std::vector<Lists> outputs;    ///< by rank and micro-batch
  std::vector<Lists> gradients;  ///< by replica, of unsharded parameters
};

std::vector<float> joined(const Lists& lists) {
  std::vector<float> out;
  for (const std::vector<float>& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

/// The sizes of unsharded parameters as [rows, elements of a row].
std::vector<Shape> shapes_of(TrainingRun& run) {
  std::vector<Shape> shapes;
  run.visit_parameters([&](const Parameter& parameter) { shapes.push_back(parameter.spec.shape); });
  return shapes;
}

/// Collective.
AllRanks of_step(ProcessGroup* world, const CellConfig& cell, const RecordedStep& mine,
                 const std::vector<Shape>& shapes) {
  AllRanks out;
  const std::vector<float> outputs = of_all_ranks(world, joined(mine.outputs), "twin outputs");
  const std::size_t of_one = mine.outputs.front().size();
  for (auto at = outputs.begin(); at != outputs.end();) {
    Lists& of_rank = out.outputs.emplace_back();
    for (std::size_t i = 0; i < mine.outputs.size(); ++i, at += static_cast<std::ptrdiff_t>(of_one))
      of_rank.emplace_back(at, at + static_cast<std::ptrdiff_t>(of_one));
  }
  out.gradients = gathered_gradients(world, cell, mine.gradients, shapes);
  return out;
}

void write_all(TrainedModel& model, Device& device, const Lists& values, Tensor Parameter::* member) {
  const std::vector<Parameter*>& parameters = model.model().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i]->*member) device.write(parameters[i]->*member, values[i]);
}

/// Trains the twin: records it, and puts the cell's gradients in place of its own.
class TwinRecorder : public StepRecorder {
 public:
  TwinRecorder(std::int64_t steps, const std::vector<AllRanks>& cell) : StepRecorder(steps), cell_(cell) {}

  void begin_step(TrainedModel& model, Device& device, std::int64_t step) override {
    StepRecorder::begin_step(model, device, step);
    present().weights = model.weights();
  }
  void end_passes(TrainedModel& model, Device& device) override {
    StepRecorder::end_passes(model, device);
    write_all(model, device, cell_[steps().size() - 1].gradients.front(), &Parameter::grad);
  }

 private:
  const std::vector<AllRanks>& cell_;
};

/// Records the twin's passes in FP32, in every step from the twin's weights.
class ExactRecorder : public StepRecorder {
 public:
  ExactRecorder(std::int64_t steps, const std::vector<RecordedStep>& twin) : StepRecorder(steps), twin_(twin) {}

  void begin_step(TrainedModel& model, Device& device, std::int64_t step) override {
    StepRecorder::begin_step(model, device, step);
    write_all(model, device, twin_[static_cast<std::size_t>(step)].weights, &Parameter::value);
  }

 private:
  const std::vector<RecordedStep>& twin_;
};

CellConfig in_f32(const CellConfig& twin) {
  CellConfig exact = as_bf16(twin);
  TrainingConfig& training = exact.training;
  training.param_dtype = ParamDType::kF32;
  training.optimizer = Optimizer::kNone;
  training.master_weights = Master::kNone;
  training.moments = Moments::kF32;
  training.clip_norm = 0.0;
  training.validation_batches = 0;
  return exact;
}

/// Positions in a sequence of the tokens of rank `rank` of `ranks` that split it: chunk `rank` of 2 ranks, and the
/// chunk as far from the end.
std::vector<std::int64_t> positions(std::int64_t seq, int rank, int ranks) {
  std::vector<std::int64_t> out;
  const std::int64_t length = ranks == 1 ? seq : seq / (2 * ranks);
  const std::array<std::int64_t, 2> chunks{rank, 2 * ranks - 1 - rank};
  for (int i = 0; i < (ranks == 1 ? 1 : 2); ++i)
    for (std::int64_t at = 0; at < length; ++at) out.push_back(chunks[static_cast<std::size_t>(i)] * length + at);
  return out;
}

class TwinComparison {
 public:
  TwinComparison(const CellConfig& cell, const PlainTwin& twin, const Recipe& recipe, Findings& out)
      : cell_(cell),
        twin_(twin),
        quantized_(recipe.quantized),
        f32_(twin.cell.training.param_dtype == ParamDType::kF32),
        out_(out) {}

  void compare_step(std::int64_t step, const AllRanks& seen, const RecordedStep& twin, const RecordedStep* exact,
                    const std::vector<std::string>& names, const std::vector<Shape>& shapes) {
    for (std::size_t replica = 1; replica < seen.gradients.size(); ++replica)
      for (std::size_t i = 0; i < names.size(); ++i)
        if (!equal_bits(seen.gradients[replica][i], seen.gradients[0][i]))
          out_.add_fault(
              fmt::format("gradient {}, step {}: replica {} has another one than replica 0", names[i], step, replica));
    if (step < twin_.first) return;
    compare_outputs(step, seen, twin, exact);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string what = fmt::format("gradient {}, step {}", names[i], step);
      if (exact == nullptr)
        out_.expect_same(what, seen.gradients[0][i], twin.gradients[i]);
      else
        compare_gradient(what, shapes[i], seen.gradients[0][i], twin.gradients[i], exact->gradients[i]);
    }
  }

  /// `seen`, `expected`: means over ranks. `exact`: the loss without the recipe's roundings, if known.
  void compare_loss(const std::string& what, double seen, double expected, double exact) {
    ++out_.tensors;
    const bool sum = twin_.cell.training.loss == Loss::kSum;
    // A sum of outputs may be far smaller than they are, and is one of all tokens.
    if (sum && twin_.splits) return;
    const double most = !twin_.splits ? 0.0 : 3.0 * std::abs(expected - exact) + loss_rounding() * std::abs(expected);
    if (std::abs(seen - expected) <= most || (std::isnan(seen) && std::isnan(expected))) return;
    out_.add_fault(fmt::format("{}: {:.7g}, but {:.7g} of the plain twin", what, seen, expected));
  }

  /// Weights after the same number of steps; both unsharded and in 16 or 32 bits. In other orders of the sum that
  /// clips, an element in a thousand may be rounded to the other side.
  void compare_weights(const std::vector<std::string>& names, const Lists& seen, const Lists& twin) {
    const double step = f32_ ? 0x1p-18 : 0x1p-7;
    for (std::size_t i = 0; i < names.size(); ++i) {
      ++out_.tensors;
      std::size_t rounded = 0, wrong = 0;
      for (std::size_t j = 0; j < seen[i].size(); ++j) {
        const double a = seen[i][j], b = twin[i][j], distance = std::abs(a - b);
        if (distance == 0.0 || (std::isnan(a) && std::isnan(b))) continue;
        distance <= step* std::max(std::abs(b), 0x1p-20) ? ++rounded : ++wrong;
      }
      if (wrong > 0 || (!f32_ && rounded > 1 + seen[i].size() / 1000))
        out_.add_fault(
            fmt::format("weight {}, after step {}: {} of {} values differ from the plain twin's, {} by more "
                        "than one rounding",
                        names[i], twin_.steps - 1, rounded + wrong, seen[i].size(), wrong));
    }
  }

 private:
  /// How far a mean over many terms is from a mean of terms with other roundings, relative to it.
  double loss_rounding() const { return quantized_ ? 0x1p-6 : f32_ ? 0x1p-16 : 0x1p-9; }
  Bounds bounds() const {
    return {.share = kTwinShare, .step = f32_ ? reference_step::kF32Steps : reference_step::kBF16Steps};
  }

  /// Every part of the tokens that a rank has in a micro-batch.
  void compare_outputs(std::int64_t step, const AllRanks& seen, const RecordedStep& twin, const RecordedStep* exact) {
    const int parallel = cell_.context_parallel;
    const std::int64_t batch = cell_.model.batch, micro_batches = cell_.training.micro_batches;
    for (std::size_t rank = 0; rank < seen.outputs.size(); ++rank) {
      const int reader = static_cast<int>(rank) / parallel, part = static_cast<int>(rank) % parallel;
      for (std::int64_t i = 0; i < micro_batches; ++i) {
        const std::int64_t number = reader * micro_batches + i;
        const auto pass = static_cast<std::size_t>(number / twin_.joined);
        const std::int64_t first = number % twin_.joined * batch;
        const std::vector<float>& mine = seen.outputs[rank][static_cast<std::size_t>(i)];
        const std::int64_t tokens = cell_.model.seq / parallel * batch;
        const std::int64_t cols = std::ssize(mine) / tokens;
        const auto part_of = [&](const std::vector<float>& all) {
          std::vector<float> out;
          for (const std::int64_t position : positions(cell_.model.seq, part, parallel)) {
            const auto begin = all.begin() + (position * batch * twin_.joined + first) * cols;
            out.insert(out.end(), begin, begin + batch * cols);
          }
          return out;
        };
        const std::string what = fmt::format("output, rank {}, micro-batch {}, step {}", rank, i, step);
        const std::vector<float> expected = part_of(twin.outputs[pass]);
        if (exact == nullptr)
          out_.expect_same(what, mine, expected);
        else
          out_.compare(what, Matrix(tokens, cols, part_of(exact->outputs[pass])), Matrix(tokens, cols, expected),
                       Matrix(tokens, cols, mine), bounds());
      }
    }
  }

  /// When ranks and micro-batches add up, each addition rounds to the type in which it is made.
  void compare_gradient(const std::string& what, const Shape& shape, const std::vector<float>& seen,
                        const std::vector<float>& twin, const std::vector<float>& exact) {
    // Ranks average what one rank adds up, also if the loss is a sum.
    const double factor = cell_.training.loss == Loss::kSum ? 1.0 / cell_.ranks : 1.0;
    const std::int64_t rows = shape.rank() > 1 ? dim0(shape) : 1;
    const auto matrix = [&](const std::vector<float>& values, double by) {
      Matrix out(rows, std::ssize(values) / rows, values);
      for (double& value : out.values) value *= by;
      return out;
    };
    const bool in_f32 = f32_ && cell_.reduce_dtype.value_or(ReduceDType::kF32) == ReduceDType::kF32;
    Bounds within = bounds();
    if (!in_f32) within.step = reference_step::kBF16Steps;
    within.together = cell_.training.loss == Loss::kSum;
    within.additions =
        (in_f32 ? 0x1p-24 : 0x1p-9) * std::sqrt(static_cast<double>(cell_.ranks + cell_.training.micro_batches));
    out_.compare(what + rank_of(shape, seen, twin), matrix(exact, factor), matrix(twin, factor), matrix(seen, 1.0),
                 within);
  }

  /// ", rows of rank 2": the shard that is farthest from the twin's.
  std::string rank_of(const Shape& shape, const std::vector<float>& seen, const std::vector<float>& twin) const {
    const int shards = mesh_of(cell_).shards;
    if (shards == 1) return {};
    const RowSplit split(dim0(shape), shards);
    int worst = 0;
    double farthest = -1.0;
    for (int shard = 0; shard < shards; ++shard) {
      double distance = 0.0;
      for (std::int64_t i = split.begin(shard) * row_elems(shape); i < split.begin(shard + 1) * row_elems(shape); ++i) {
        const double d = seen[static_cast<std::size_t>(i)] - twin[static_cast<std::size_t>(i)];
        distance += d * d;
      }
      if (!(distance <= farthest)) farthest = distance, worst = shard;
    }
    return fmt::format(", farthest in rows of rank {}", worst);
  }

  const CellConfig& cell_;
  const PlainTwin& twin_;
  bool quantized_;
  bool f32_;
  Findings& out_;
};

/// Bit for bit, with the same ranks and micro-batches. Collective. Steps after one with a fault follow from it.
void compare_same_split(const PlainTwin& twin, const Recipe& recipe, const StepRecorder& recorder,
                        const std::vector<float>& losses, const std::vector<std::string>& names, ProcessGroup* world,
                        Findings& out) {
  CellConfig cell = *twin.same_split;
  cell.training.steps = twin.steps;
  StepRecorder plain(twin.steps);
  TrainingRun run(cell, Behaviors{}, recipe, {.world = world, .watch = &plain});
  run.train();
  const int rank = world != nullptr ? world->rank() : 0;
  for (std::size_t step = 0; step < plain.steps().size() && out.faults.empty(); ++step) {
    const RecordedStep &seen = recorder.steps()[step], &expected = plain.steps()[step];
    for (std::size_t i = 0; i < seen.outputs.size(); ++i)
      out.expect_same(fmt::format("output, rank {}, micro-batch {}, step {}", rank, i, step), seen.outputs[i],
                      expected.outputs[i]);
    for (std::size_t i = 0; i < names.size(); ++i)
      out.expect_same(fmt::format("gradient {}, rank {}, step {}", names[i], rank, step), seen.gradients[i],
                      expected.gradients[i]);
    out.expect_same(fmt::format("loss, rank {}, step {}", rank, step), {losses[step]}, {run.losses()[step]});
  }
}

/// A validation drops nothing, so before the first step a model without dropout has the same loss, of the same batches.
/// The twin itself has dropout, and would hide that a validation drops.
void compare_undropped_validation(const CellConfig& plain, const Recipe& recipe,
                                  const std::vector<ValidationLoss>& seen, Findings& out) {
  if (plain.model.dropout == 0.0 || seen.empty() || plain.training.validation_batches == 0) return;
  CellConfig undropped = plain;
  undropped.model.dropout = 0.0;
  undropped.training.steps = 1;
  TrainingRun run(undropped, Behaviors{}, recipe);
  run.train();
  constexpr double kMeanOfBatches = 1e-6;  // in another order
  const double expected = run.validations().front().loss, loss = seen.front().loss;
  ++out.tensors;
  if (!(std::abs(loss - expected) <= kMeanOfBatches * std::abs(expected)))
    out.add_fault(
        fmt::format("validation loss, before the first step: {:.7g}, but {:.7g} without dropout", loss, expected));
}

/// True if two sequences are equal only by mistake. A corpus of the user's may be short, and repeat.
bool draws_each_sequence_once(const CellConfig& cell) {
  constexpr double kFewBits = 64.0;
  if (!is_language_model(cell)) return true;
  if (cell.training.data == Data::kText) return cell.training.corpus.empty();
  return static_cast<double>(seq_of_rank(cell)) * std::log2(static_cast<double>(cell.model.vocabulary)) >= kFewBits;
}

/// Every sequence is read once: ranks, micro-batches and steps have sequences of their own. Collective.
void compare_inputs(const CellConfig& cell, const std::vector<RecordedStep>& steps, ProcessGroup* world,
                    Findings& out) {
  std::vector<std::uint64_t> mine;
  for (const RecordedStep& step : steps) mine.insert(mine.end(), step.inputs.begin(), step.inputs.end());
  const std::vector<std::uint64_t> all = of_all_ranks(world, mine, "twin inputs");
  if (!draws_each_sequence_once(cell) || (world != nullptr && world->rank() != 0)) return;
  const auto batch = static_cast<std::size_t>(cell.model.batch);
  const auto of_step = batch * static_cast<std::size_t>(cell.training.micro_batches);
  const auto place = [&](std::size_t i) {
    const std::size_t own = i % mine.size();
    return fmt::format("sequence {}, rank {}, micro-batch {}, step {}", own % batch, i / mine.size(),
                       own % of_step / batch, own / of_step);
  };
  std::unordered_map<std::uint64_t, std::size_t> first;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const auto [known, is_new] = first.emplace(all[i], i); !is_new)
      out.add_fault(fmt::format("input, {}: it is the input of {} again", place(i), place(known->second)));
}

/// What all ranks computed.
struct Seen {
  std::vector<AllRanks> steps;        ///< on rank 0, elsewhere empty
  const std::vector<double>& losses;  ///< by step, the mean over ranks
  const std::vector<ValidationLoss>& validations;
  const Lists& weights;
};

void compare_joined(const CellConfig& cell, const PlainTwin& twin, const Recipe& recipe, const Seen& seen,
                    const std::vector<std::string>& names, const std::vector<Shape>& shapes, Findings& out) {
  // The twin is not sharded, so it trains without the others, which wait in put_findings().
  if (seen.steps.empty()) return;
  CellConfig plain = twin.cell;
  plain.training.steps = twin.steps;
  // A schedule ends at the step at which the cell's schedule ends.
  if (plain.training.decay_steps == 0) plain.training.decay_steps = cell.training.steps;
  TwinRecorder recorder(twin.steps, seen.steps);
  TrainingRun run(plain, Behaviors{}, recipe, {.watch = &recorder, .joined = twin.joined});
  run.train();
  std::optional<ExactRecorder> exact;
  std::vector<float> exact_losses = run.losses();
  const CellConfig in_full = in_f32(plain);
  if (twin.splits && twin.steps > twin.first) {
    exact.emplace(twin.steps, recorder.steps());
    TrainingRun exact_run(in_full, Behaviors{}, make_recipe("bf16"), {.watch = &*exact, .joined = twin.joined});
    exact_run.train();
    exact_losses = exact_run.losses();
  }
  TwinComparison comparison(cell, twin, recipe, out);
  for (std::int64_t step = 0; step < twin.steps; ++step) {
    const auto at = static_cast<std::size_t>(step);
    comparison.compare_step(step, seen.steps[at], recorder.steps()[at], exact ? &exact->steps()[at] : nullptr, names,
                            shapes);
    if (step >= twin.first)
      comparison.compare_loss(fmt::format("loss, step {}", step), seen.losses[at],
                              static_cast<double>(run.losses()[at]), static_cast<double>(exact_losses[at]));
  }
  compare_undropped_validation(plain, recipe, seen.validations, out);
  for (const ValidationLoss& of_twin : run.validations()) {
    const auto found = std::ranges::find(seen.validations, of_twin.step, &ValidationLoss::step);
    // The twin's last step need not be the cell's.
    if (found != seen.validations.end())
      comparison.compare_loss(fmt::format("validation loss, after step {}", of_twin.step), found->loss, of_twin.loss,
                              of_twin.loss);
  }
  if (twin.compares_weights) comparison.compare_weights(names, seen.weights, run.weights());
}

void put_findings(const Findings& mine, ProcessGroup* world, ArmResult& result) {
  const std::vector<std::size_t> counts =
      of_all_ranks(world, std::vector{mine.faults.size()}, "numbers of twin faults");
  std::vector<FaultText> named = mine.faults;
  named.resize(kMostNamedFaults);
  const std::vector<FaultText> all = of_all_ranks(world, named, "twin faults");
  const std::vector<double> noise = of_all_ranks(world, std::vector{mine.noise}, "twin noise");
  const std::vector<std::int64_t> tensors = of_all_ranks(world, std::vector{mine.tensors}, "twin tensors");
  std::size_t faults = 0;
  std::int64_t compared = 0;
  for (const std::size_t count : counts) faults += count;
  for (const std::int64_t count : tensors) compared += count;
  std::size_t shown = 0;
  std::string first;
  for (const FaultText& text : all) {
    if (text[0] == '\0' || shown == kMostNamedFaults) continue;
    if (shown++ == 0) first = text.data();
    result.notes.push_back(fmt::format("twin: {}", text.data()));
  }
  if (faults > shown) result.notes.push_back(fmt::format("twin: {} more differ", faults - shown));
  put(result.metrics, "parity.twin_faults", static_cast<double>(faults), first);
  put(result.metrics, "parity.twin_tensors", static_cast<double>(compared));
  put(result.metrics, "parity.twin_noise", noise.front(), std::isnan(noise.front()) ? "a value is not finite" : "");
}

}  // namespace

void measure_plain_twin(const CellConfig& cell, Arm arm, TrainingRun& run, const StepRecorder& recorder,
                        const Lists& weights, ProcessGroup* world, ArmResult& result) {
  if (const std::string reason = why_no_plain_twin(cell, arm); !reason.empty()) {
    for (const char* name : kTwinMetrics) put(result.metrics, name, std::nullopt, reason);
    return;
  }
  const PlainTwin twin = plain_twin(cell, arm);
  const Recipe recipe = recipe_of(cell, arm);
  const std::vector<std::string> names = run.parameter_names();
  const std::vector<Shape> shapes = shapes_of(run);
  Findings found;
  compare_inputs(cell, recorder.steps(), world, found);
  if (twin.same_split) compare_same_split(twin, recipe, recorder, run.losses(), names, world, found);
  Seen seen{.steps = {}, .losses = result.losses, .validations = result.validation_losses, .weights = weights};
  for (const RecordedStep& step : recorder.steps()) {
    AllRanks all = of_step(world, cell, step, shapes);
    if (world == nullptr || world->rank() == 0) seen.steps.push_back(std::move(all));
  }
  compare_joined(cell, twin, recipe, seen, names, shapes, found);
  put_findings(found, world, result);
}

}  // namespace fp8lab
