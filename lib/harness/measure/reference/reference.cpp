#include "harness/measure/reference/reference.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/gathered_gradients.h"
#include "harness/measure/over_ranks.h"
#include "harness/measure/reference/expert_balance.h"
#include "harness/measure/reference/mean_over_ranks.h"
#include "harness/measure/reference/step_bounds.h"
#include "harness/measure/reference/step_casts.h"
#include "harness/reference/compare.h"
#include "harness/reference/initial.h"
#include "harness/reference/model.h"
#include "harness/reference/support.h"
#include "harness/reference/update.h"
#include "harness/train/training_run.h"

namespace fp8lab {
namespace {

using reference_step::Bounds;
using reference_step::Matrix;
using reference_step::NamedMatrices;
using reference_step::SeenAmaxes;
using reference_step::SeenLayer;

/// The most faults that are named.
constexpr std::size_t kMostNamed = 8;

/// Sums in FP32 over a vocabulary and over the tokens, relative to a loss of 1 or more.
constexpr double kLossRounding = 0x1p-16;
/// A sum in double that is rounded once to FP32.
constexpr double kLossStep = 0x1p-22;

/// std::max would drop a NaN, on which every gate fails.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

/// A largest magnitude of the runtime's is taken for the reference's if they are this close, relative to them. An
/// element of a gradient is a sum over products of eight bits, and a step of one of these moves it by some percent.
constexpr double kSameAmax = 0x1p-4;

/// Every rank compares its own micro-batches; what ranks add up, and weights, are compared on rank 0.
class Comparison {
 public:
  /// `world`: null if nothing is sharded; must outlive this.
  Comparison(const CellConfig& cell, const Recipe& recipe, ProcessGroup* world)
      : cell_(cell),
        world_(world),
        exact_(cell, recipe.name, true),
        rounded_(cell, recipe.name, false),
        update_(cell.training),
        storage_(cell, recipe.name, false),
        balance_(cell),
        bounds_(cell, recipe.quantized) {
    for (reference_step::Model* model : {&exact_, &rounded_}) {
      if (cell.context_parallel > 1) model->set_parts(neighbours(world, cell.context_parallel));
      if (cell.expert_parallel > 1) model->set_expert_parts(neighbours(world, cell.expert_parallel));
    }
    if (world != nullptr)
      rounded_.set_group([world](std::vector<double>& values) {
        const std::vector<double> all = of_all_ranks(world, values, "largest magnitudes");
        for (std::size_t i = 0; i < all.size(); ++i) {
          double& value = values[i % values.size()];
          value = std::max(value, all[i]);
        }
      });
  }

  /// What ranks that split sequences, or that have experts between them, know of each other.
  static reference_step::SequenceParts neighbours(ProcessGroup* world, int parts) {
    return {.part = world->rank() % parts, .parts = parts, .gather = [world, parts](const auto& own) {
              const std::vector<double> all = of_all_ranks(world, own, "reference values of neighbours");
              const auto of_parts = all.begin() + world->rank() / parts * parts * std::ssize(own);
              return std::vector<double>(of_parts, of_parts + parts * std::ssize(own));
            }};
  }

  /// `casts`: the runtime's in this micro-batch.
  void saw_micro_batch(const StepValues& seen, const std::vector<std::string>& names, const std::vector<Shape>& shapes,
                       const StepCasts& casts) {
    const SeenAmaxes all = judged_amaxes(casts.amaxes(), seen.amaxes);
    rounded_.set_seen_amaxes(&all);
    const ModelConfig& model = cell_.model;
    const std::int64_t tokens = seq_of_rank(cell_) * model.batch;
    const bool language = is_language_model(cell_);
    const std::int64_t in = language ? 1 : model.hidden, out = language ? model.vocabulary : model.hidden;
    const Matrix x(tokens, in, seen.x), target = seen.target.empty() ? Matrix() : Matrix(tokens, in, seen.target);
    const NamedMatrices before = named(names, shapes, seen.weights);
    if (language) expect_next_tokens(x, target);
    std::vector<SeenLayer> layers;
    for (const LayerValues& layer : seen.layers)
      layers.push_back({Matrix(tokens, model.hidden, layer.input), Matrix(tokens, model.hidden, layer.output),
                        layer.gradient.empty() ? Matrix() : Matrix(tokens, model.hidden, layer.gradient)});
    const double share =
        cell_.training.loss == Loss::kSum ? 1.0 : 1.0 / static_cast<double>(cell_.training.micro_batches);
    const std::int64_t number = (world_ == nullptr ? 0 : world_->rank()) * cell_.training.micro_batches + micro_batch_;
    for (reference_step::Model* model_of : {&exact_, &rounded_}) {
      model_of->set_seen_choices(&casts.choices());
      model_of->set_router_biases(&balance_.biases());
      model_of->set_draws({.step = step_, .first_row = number * tokens});
      model_of->set_casts_weights(!cell_.training.cache_weights || micro_batch_ == 0);
    }
    const reference_step::Step exact = exact_.run(x, target, before, layers, share),
                               rounded = rounded_.run(x, target, before, layers, share);
    for (const double logit : of_all_ranks(world_, std::vector{rounded.largest_logit}, "largest logits"))
      bounds_.saw_logit(logit);
    // What follows a layer's output or gradient starts from the runtime's, so these are judged here.
    // A language model's embedding, last norm and head have no eight bits under any recipe.
    const Bounds plain = bounds_.with(reference_step::kIndependentShare);
    if (language) judge("output", "embedding", exact.embedded, rounded.embedded, layers.front().input, plain);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::string name = fmt::format("layers[{}]", i);
      judge("output", name, exact.layer_outputs[i], rounded.layer_outputs[i], layers[i].output, bounds_.of_layer(i));
      if (std::cmp_less(i, cell_.training.frozen_layers)) {
        expect_no_gradient(name, layers[i].gradient);
        continue;
      }
      judge("output gradient", name, exact.layer_gradients[i], rounded.layer_gradients[i], layers[i].gradient,
            i + 1 < layers.size() ? bounds_.of_layer(i + 1) : plain);
    }
    const Matrix output(tokens, out, seen.output);
    if (language) judge("output", "y", exact.output, rounded.output, output, plain);
    expect_loss(fmt::format("loss{}", where()), rounded_.loss_of(output, target), seen.loss);
    add_up(names, exact, rounded);
    balance_.saw_micro_batch(rounded);
    ++micro_batch_;
  }

  void saw_validation(const std::vector<float>& output, const std::vector<float>& target) {
    const std::int64_t tokens = seq_of_rank(cell_) * cell_.model.batch;
    const auto matrix = [&](const std::vector<float>& values) {
      return values.empty() ? Matrix() : Matrix(tokens, std::ssize(values) / tokens, values);
    };
    validated_.push_back(rounded_.loss_of(matrix(output), matrix(target)));
  }

  /// Compares the mean losses of this rank's validations.
  void saw_validations(const std::vector<ValidationLoss>& seen) {
    const auto batches = static_cast<std::size_t>(cell_.training.validation_batches);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      double expected = 0.0;
      for (std::size_t j = 0; j < batches; ++j)
        expected += validated_.at(i * batches + j) / static_cast<double>(batches);
      expect_loss(fmt::format("validation loss{}, after step {}", of_rank(), seen[i].step), expected, seen[i].loss);
    }
  }

  /// Collective.
  void saw_step(const StepValues& seen, const std::vector<std::string>& names, const std::vector<Shape>& shapes,
                const std::vector<ElementRange>& own) {
    const Lists gathered = gathered_gradients(world_, cell_, seen.gradients, own, shapes).front();
    in_step_ = true;
    if (is_first()) judge_step(seen, named(names, shapes, gathered), names, shapes);
    in_step_ = false;
    for (const std::string& wrong : balance_.wrong_biases(seen, world_)) {
      ++tensors_;
      if (!wrong.empty())
        faults_.push_back(
            {std::numeric_limits<double>::infinity(), fmt::format("{}{}, step {}", wrong, of_rank(), step_)});
    }
    sums_.clear();
    micro_batch_ = 0;
    ++step_;
  }

  /// Compares this rank's rows; the first update of an average copies the weights.
  void saw_averages(const StepValues& seen, const std::vector<std::string>& names,
                    const std::vector<ElementRange>& own) {
    constexpr double kNewShare = 0.1, kRoundings = 0x1p-21;
    for (std::size_t i = 0; i < seen.averages.size(); ++i) {
      std::size_t wrong = 0;
      for (std::size_t j = 0; j < seen.averages[i].size(); ++j) {
        const double weight = seen.updated[i][static_cast<std::size_t>(own[i].begin) + j];
        const double before = averages_.empty() ? weight : averages_[i][j];
        const double expected = before + kNewShare * (weight - before);
        const double distance = std::abs(seen.averages[i][j] - expected);
        if (!(distance <= kRoundings * (std::abs(before) + std::abs(weight)))) ++wrong;
      }
      ++tensors_;
      if (wrong > 0)
        faults_.push_back(
            {std::numeric_limits<double>::infinity(),
             fmt::format("average {}{}, step {}: {} of {} values are not 0.9 of the average before and 0.1 "
                         "of the weight",
                         names[i], of_rank(), step_ - 1, wrong, seen.averages[i].size())});
    }
    averages_ = seen.averages;
  }

  /// Adds the casts of the last step.
  void saw_casts(const CastCheck& casts) {
    tensors_ += casts.casts();
    for (const WrongCast& wrong : casts.wrong())
      faults_.push_back({std::numeric_limits<double>::infinity(),
                         fmt::format("cast of {}{}, {}", nearest(wrong.source), of_rank(), wrong.what)});
  }

  /// Collective.
  void put_figures(ArmResult& result) {
    std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) { return a.size > b.size; });
    std::vector<NamedFault> named(kMostNamed);
    for (std::size_t i = 0; i < std::min(faults_.size(), kMostNamed); ++i) {
      named[i].size = faults_[i].size;
      std::copy_n(faults_[i].text.begin(), std::min(faults_[i].text.size(), named[i].text.size() - 1),
                  named[i].text.begin());
    }
    std::vector<NamedFault> all = of_all_ranks(world_, named, "reference faults");
    std::erase_if(all, [](const NamedFault& fault) { return fault.text[0] == '\0'; });
    std::stable_sort(all.begin(), all.end(), [](const NamedFault& a, const NamedFault& b) { return a.size > b.size; });
    const std::string first = all.empty() ? "" : all.front().text.data();
    double faults = 0.0, tensors = 0.0, noise = 0.0, scale = 0.0;
    const std::vector figures{static_cast<double>(faults_.size()), static_cast<double>(tensors_), noise_, scale_};
    const std::vector<double> of_ranks = of_all_ranks(world_, figures, "reference figures");
    for (std::size_t i = 0; i < of_ranks.size(); i += figures.size()) {
      faults += of_ranks[i];
      tensors += of_ranks[i + 1];
      noise = larger(of_ranks[i + 2], noise);
      scale = larger(of_ranks[i + 3], scale);
    }
    put(result.metrics, "reference.faults", faults, first);
    put(result.metrics, "reference.tensors", tensors);
    put(result.metrics, "reference.noise", noise, std::isnan(noise) ? "a value is not finite" : "");
    put(result.metrics, "reference.scale", scale, std::isnan(scale) ? "a value is not finite" : "");
    for (std::size_t i = 0; i < std::min(all.size(), kMostNamed); ++i)
      result.notes.push_back(fmt::format("reference: {}", all[i].text.data()));
    const auto count = static_cast<std::size_t>(faults);
    if (count > std::min(all.size(), kMostNamed))
      result.notes.push_back(
          fmt::format("reference: {} more tensors are outside their bounds", count - std::min(all.size(), kMostNamed)));
  }

 private:
  struct Fault {
    double size;
    std::string text;
  };
  /// As ranks exchange it.
  struct NamedFault {
    double size = 0.0;
    std::array<char, 256> text{};
  };
  /// A gradient over the micro-batches so far, as the type of the gradient holds it.
  struct Sum {
    Matrix exact, rounded;
    double largest_term = 0.0;
  };

  bool is_first() const { return world_ == nullptr || world_->rank() == 0; }
  int ranks() const { return world_ == nullptr ? 1 : world_->size(); }
  std::string of_rank() const { return ranks() > 1 ? fmt::format(", rank {}", world_->rank()) : ""; }
  /// ", rank 1, micro-batch 2, step 3": the origin of the tensor that is judged.
  std::string where() const {
    const bool several = cell_.training.micro_batches > 1 && !in_step_;
    return fmt::format("{}{}, step {}", in_step_ ? "" : of_rank(),
                       several ? fmt::format(", micro-batch {}", micro_batch_) : "", step_);
  }

  /// Adds a micro-batch's gradients, of all ranks, in the type of parameters. Collective.
  void add_up(const std::vector<std::string>& names, const reference_step::Step& exact,
              const reference_step::Step& rounded) {
    for (const std::string& name : names) {
      const Matrix &of_exact = exact.gradients.at(name), &of_rounded = rounded.gradients.at(name);
      Sum sum{.exact = mean_over_ranks(cell_, world_, storage_, of_exact, false),
              .rounded = mean_over_ranks(cell_, world_, storage_, of_rounded, true)};
      const auto term = rounded.largest_terms.find(name);
      for (const double largest :
           of_all_ranks(world_, std::vector{term != rounded.largest_terms.end() ? term->second : 0.0}, "largest terms"))
        sum.largest_term = std::max(sum.largest_term, largest);
      const auto [found, is_new] = sums_.try_emplace(name, std::move(sum));
      if (is_new) continue;
      Sum& all = found->second;
      all.exact = reference_step::sum(all.exact, sum.exact);
      all.rounded = storage_.stored(reference_step::sum(all.rounded, sum.rounded));
      all.largest_term = std::max(all.largest_term, sum.largest_term);
    }
  }

  void judge_step(const StepValues& seen, const NamedMatrices& gradients, const std::vector<std::string>& names,
                  const std::vector<Shape>& shapes) {
    const NamedMatrices before = named(names, shapes, seen.weights);
    for (std::size_t i = 0; step_ == 0 && i < names.size(); ++i)
      expect_initial(names[i], before.at(names[i]), shapes[i].rank() == 1);
    for (const std::string& name : names) {
      const Sum& sum = sums_.at(name);
      judge("gradient", name, sum.exact, sum.rounded, gradients.at(name), bounds_.of_gradient(name, sum.largest_term));
    }
    if (cell_.training.optimizer == Optimizer::kNone) return;
    std::set<std::string> vectors;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (shapes[i].rank() == 1) vectors.insert(names[i]);
    const NamedMatrices after = update_.step(before, gradients, vectors), updated = named(names, shapes, seen.updated);
    // Each operation of list-wise Adam rounds, so that a value in FP32 that is nearly a tie may fall to the other side.
    const double share = cell_.training.optimizer == Optimizer::kForeachAdam ? reference_step::kIndependentShare
                                                                             : reference_step::kNoiseShare;
    const bool at_random = cell_.training.weight_rounding == Rounding::kStochastic;
    for (const std::string& name : names) {
      if (reference_step::is_frozen(cell_, name)) {
        expect_unchanged(name, before.at(name), updated.at(name));
        continue;
      }
      judge("update", name, difference(after.at(name), before.at(name)),
            difference(at_random ? update_.rounded_at_random(name, after.at(name)) : storage_.stored(after.at(name)),
                       before.at(name)),
            difference(updated.at(name), before.at(name)),
            bounds_.with(share,
                         vectors.contains(name) ? bounds_.step_at(reference_step::amax_of(before.at(name))) : 0.0));
    }
  }

  /// Backward must not reach the output of a frozen layer.
  void expect_no_gradient(const std::string& name, const Matrix& seen) {
    ++tensors_;
    if (!seen.values.empty())
      faults_.push_back({std::numeric_limits<double>::infinity(),
                         fmt::format("output gradient {}{}: the layer is frozen, and has one", name, where())});
  }

  /// A frozen parameter keeps its bits.
  void expect_unchanged(const std::string& name, const Matrix& before, const Matrix& after) {
    ++tensors_;
    if (before.values != after.values)
      faults_.push_back({std::numeric_limits<double>::infinity(),
                         fmt::format("update {}{}: the parameter is frozen, and has changed", name, where())});
  }

  /// The runtime's amaxes by place: of what it was seen to cast, and of what it recorded for later scales, which must
  /// be the same if there are both. What only a kernel has seen is taken as well, but in forward only if it is
  /// within two steps of the stored type.
  SeenAmaxes judged_amaxes(const std::map<std::string, double>& cast,
                           const std::map<std::string, std::vector<float>>& recorded) {
    SeenAmaxes out;
    const std::map<std::string, double> by_place = amaxes_by_place(recorded);
    for (const auto& [place, amax] : by_place)
      out[place] = {amax, place.find(" grad") != std::string::npos ? kSameAmax : bounds_.with(0.0).step};
    for (const auto& [place, amax] : cast) {
      out[place] = {amax, kSameAmax};
      const auto found = by_place.find(place);
      if (found != by_place.end() && found->second != amax)
        faults_.push_back(
            {std::numeric_limits<double>::infinity(),
             fmt::format("amax of {}{}: {:.7g} is recorded, {:.7g} was cast", place, where(), found->second, amax)});
    }
    return out;
  }

  /// The name of the matrix that the reference cast last with the values closest to these.
  std::string nearest(const Matrix& seen) const {
    std::string name = "a matrix";
    double closest = std::numeric_limits<double>::infinity();
    for (const auto& [place, source] : rounded_.sources()) {
      if (source.rows != seen.rows || source.cols != seen.cols) continue;
      double distance = 0.0;
      for (std::size_t i = 0; i < seen.values.size(); ++i) distance += std::abs(seen.values[i] - source.values[i]);
      if (distance < closest) closest = distance, name = place;
    }
    return name;
  }

  static NamedMatrices named(const std::vector<std::string>& names, const std::vector<Shape>& shapes,
                             const std::vector<std::vector<float>>& values) {
    NamedMatrices out;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::int64_t rows = shapes[i].rank() > 1 ? dim0(shapes[i]) : 1;
      out.emplace(names[i], Matrix(rows, static_cast<std::int64_t>(values[i].size()) / rows, values[i]));
    }
    return out;
  }

  static Matrix scalar(double value) {
    Matrix out(1, 1);
    out.values.front() = value;
    return out;
  }

  static Matrix difference(const Matrix& a, const Matrix& b) {
    Matrix out = a;
    for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] -= b.values[i];
    return out;
  }

  void expect_initial(const std::string& name, const Matrix& seen, bool is_vector) {
    ++tensors_;
    const std::string wrong = reference_step::wrong_initial_values(cell_, name, seen, is_vector);
    if (!wrong.empty()) faults_.push_back({std::numeric_limits<double>::infinity(), wrong});
  }

  /// A target is the token that follows. The token after the last one of a part is not in the batch.
  void expect_next_tokens(const Matrix& tokens, const Matrix& targets) {
    const std::int64_t batch = cell_.model.batch, parts = cell_.context_parallel;
    const std::int64_t part = parts > 1 ? world_->rank() % parts : 0;
    const std::vector<std::int64_t> places =
        reference_step::positions(cell_.model.seq, static_cast<int>(part), static_cast<int>(parts));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i + 1 < places.size(); ++i)
      for (std::int64_t s = 0; places[i + 1] == places[i] + 1 && s < batch; ++s) {
        const auto at = i * static_cast<std::size_t>(batch) + static_cast<std::size_t>(s);
        wrong += targets.values[at] != tokens.values[at + static_cast<std::size_t>(batch)];
      }
    ++tensors_;
    if (wrong > 0)
      faults_.push_back({std::numeric_limits<double>::infinity(),
                         fmt::format("target{}: {} tokens are not those that follow", where(), wrong)});
  }

  /// One number has no noise to be measured by. It follows from the runtime's own output except for roundings of FP32:
  /// one at the end, and over a vocabulary one for each term.
  void expect_loss(const std::string& name, double expected, double seen) {
    ++tensors_;
    const double most = is_language_model(cell_) ? kLossRounding * std::max(1.0, std::abs(expected))
                                                 : kLossStep * std::abs(expected),
                 distance = std::abs(seen - expected);
    if (distance <= most) return;
    faults_.push_back({std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance / most,
                       fmt::format("{}: {:.7g} is not the loss of the output, {:.7g}", name, seen, expected)});
  }

  void judge(std::string_view of, const std::string& name, const Matrix& exact, const Matrix& rounded,
             const Matrix& seen, const reference_step::Bounds& bounds) {
    const reference_step::Distance found = reference_step::compare(exact, rounded, seen, bounds);
    ++tensors_;
    noise_ = larger(noise_, found.noise);
    scale_ = larger(scale_, found.scale);
    if (!found.fault.empty())
      faults_.push_back(
          {std::isnan(found.noise) ? std::numeric_limits<double>::infinity() : std::max(found.noise, found.scale),
           fmt::format("{} {}{}: {}", of, name, where(), found.fault)});
  }

  const CellConfig& cell_;
  ProcessGroup* world_;
  reference_step::Model exact_;
  reference_step::Model rounded_;
  reference_step::Update update_;
  reference_step::Casts storage_;
  ExpertBalance balance_;
  StepBounds bounds_;
  std::map<std::string, Sum> sums_;
  bool in_step_ = false;  ///< what is judged covers all ranks and micro-batches
  std::int64_t micro_batch_ = 0;
  std::int64_t step_ = 0;
  std::int64_t tensors_ = 0;
  double noise_ = 0.0;
  double scale_ = 0.0;
  Lists averages_;                 ///< after the step before
  std::vector<double> validated_;  ///< losses of validation batches
  std::vector<Fault> faults_;
};

std::string why_absent(const CellConfig& cell, const Recipe& recipe) {
  if (!open_device(cell.device, {.arch = cell.arch, .memory = {}})->computes())
    return fmt::format("device '{}' computes no values", cell.device);
  return reference_step::why_unsupported(cell, recipe.name);
}

}  // namespace

void measure_reference(const CellConfig& cell, Arm arm, ProcessGroup* world, ArmResult& result) {
  const Recipe recipe = recipe_of(cell, arm);
  if (const std::string reason = why_absent(cell, recipe); !reason.empty()) {
    for (const char* name : {"reference.faults", "reference.tensors", "reference.noise", "reference.scale"})
      put(result.metrics, name, std::nullopt, reason);
    return;
  }
  Comparison comparison(cell, recipe, world);
  std::vector<std::string> names;
  std::vector<Shape> shapes;
  // Q, K and V share the scale of one amax, which no cast of one of them shows.
  StepCasts casts(cell.training.steps - 1, !cell.training.fp8_attention);
  TrainingRun run(
      cell, behaviors_of(cell, arm), recipe,
      {.world = world,
       .casts = &casts,
       .cast_steps = cell.training.steps,
       .saw_micro_batch =
           [&](const StepValues& seen) {
             StepValues judged = seen;
             if (plants_on(cell, arm, world))
               for (float& value : judged.layers.back().output) value = -value;
             comparison.saw_micro_batch(judged, names, shapes, casts);
             casts.end_micro_batch();
           },
       .saw_step =
           [&](const StepValues& seen) {
             comparison.saw_step(seen, names, shapes, run.own_elements());
             comparison.saw_averages(seen, names, run.own_elements());
           },
       .saw_validation = [&](const auto& output, const auto& target) { comparison.saw_validation(output, target); }});
  run.visit_parameters([&](const Parameter& parameter) {
    names.push_back(parameter.name);
    shapes.push_back(parameter.entire_shape());
  });
  run.train();
  comparison.saw_casts(casts.checked());
  comparison.saw_validations(run.validations());
  comparison.put_figures(result);
}

}  // namespace fp8lab
