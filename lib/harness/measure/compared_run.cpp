#include "harness/measure/compared_run.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "harness/cell/keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/over_ranks.h"

namespace fp8lab {
namespace {

template <class T>
std::int64_t bytes_of(const std::vector<T>& list) {
  return static_cast<std::int64_t>(list.size() * sizeof(T));
}

std::int64_t bytes_of(const Lists& lists) {
  std::int64_t sum = 0;
  for (const std::vector<float>& list : lists) sum += bytes_of(list);
  return sum;
}

/// The runs that this process keeps, of all ranks that are its threads. Safe to call from several threads.
class KeptRuns {
 public:
  using Shared = std::shared_ptr<const ComparedRun>;

  Shared find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [of, run] : kept_)
      if (of == name) return run;
    return nullptr;
  }

  void keep(const std::string& name, const Shared& run) {
    const std::int64_t bytes = run->bytes();
    const std::lock_guard lock(mutex_);
    if (bytes > kMostKeptBytes || std::ranges::find(kept_, name, &Named::first) != kept_.end()) return;
    kept_.emplace_back(name, run);
    bytes_ += bytes;
    for (; bytes_ > kMostKeptBytes; kept_.pop_front()) bytes_ -= kept_.front().second->bytes();
  }

 private:
  using Named = std::pair<std::string, Shared>;

  mutable std::mutex mutex_;
  std::deque<Named> kept_;  ///< oldest first
  std::int64_t bytes_ = 0;
};

KeptRuns& kept() {
  static KeptRuns runs;
  return runs;
}

/// Equal for runs that have the same bits on the same rank.
std::string name_of(const CellConfig& cell, Arm arm, const ProcessGroup* world) {
  std::string text(arm == Arm::kBf16 ? "bf16" : "after");
  if (world != nullptr) text.append(1, '\n').append(std::to_string(world->rank()));
  for (const Key& key : keys()) text.append(1, '\n').append(to_text(key.get(cell)));
  return text;
}

/// The cell as BF16 layers that do not train.
CellConfig untrained_in_bf16(const CellConfig& cell) {
  CellConfig out = as_bf16(cell);
  TrainingConfig& training = out.training;
  const TrainingConfig none;
  training.optimizer = none.optimizer;
  training.master_weights = none.master_weights;
  training.clip_norm = none.clip_norm;
  training.weight_average = none.weight_average;
  training.resume_at = none.resume_at;
  return out;
}

std::vector<Noise> noise_on_all_ranks(ProcessGroup* world, const Lists& expected, const Lists& seen) {
  std::vector<Noise> mine;
  for (std::size_t i = 0; i < expected.size(); ++i) mine.push_back(noise_of(expected[i], seen[i]));
  return of_all_ranks(world, mine, "noise with the same weights");
}

}  // namespace

std::vector<Stored> stored_parameters(TrainingRun& run) {
  std::vector<Stored> all;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    std::size_t index = 0;
    const auto visit = [&](const Parameter& parameter) {
      const QuantizedTensor& q = parameter.quantized;
      const std::array tensors{&parameter.value, &q.rowwise().data, &q.rowwise().scale_inv, &q.columnwise().data,
                               &q.columnwise().scale_inv};
      if (index == all.size()) all.emplace_back();
      Stored& one = all[index++];
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (*tensors[i] && one[i].empty()) one[i] = run.device().read_bytes(*tensors[i]);
    };
    run.visit_parameters(visit, pass);
  }
  return all;
}

ComparedRun::ComparedRun(TrainingRun& run, bool with_stored)
    : losses(run.losses()), values(run.take_values()), weights(run.weights()) {
  if (with_stored) stored = stored_parameters(run);
}

std::int64_t ComparedRun::bytes() const {
  std::int64_t sum = bytes_of(losses) + bytes_of(weights) + bytes_of(values.output) + bytes_of(values.gradients) +
                     bytes_of(values.initial_weights) + bytes_of(values.weights);
  for (const Stored& parameter : stored)
    for (const std::vector<std::byte>& buffer : parameter) sum += bytes_of(buffer);
  return sum;
}

std::shared_ptr<const ComparedRun> compared_run(const CellConfig& cell, Arm arm, ProcessGroup* world) {
  const CellConfig trained = as_run(cell, arm);
  const std::shared_ptr<const ComparedRun> known =
      cell.training.deterministic ? kept().find(name_of(trained, arm, world)) : nullptr;
  // A rank that trained while another did not would wait for it for ever.
  const bool known_on_all = on_all_ranks(world, known != nullptr, "run is known");
  if (known_on_all) return known;
  TrainingRun run(trained, Behaviors{}, recipe_of(cell, arm), {.world = world});
  run.keep_values(true);
  run.train();
  const auto finished = std::make_shared<const ComparedRun>(run, arm == Arm::kAfter);
  keep_run(cell, arm, finished, world);
  return finished;
}

void keep_run(const CellConfig& cell, Arm arm, const std::shared_ptr<const ComparedRun>& run,
              const ProcessGroup* world) {
  if (!cell.training.deterministic || (arm == Arm::kAfter && !has_before(cell))) return;
  kept().keep(name_of(as_run(cell, arm), arm, world), run);
}

TrainingRun::Passes passes_with_stored_weights(const CellConfig& cell, Arm arm, TrainingRun& run) {
  if (arm == Arm::kBf16) return {};
  // Scales that follow from the passes before clip what an update of the weights enlarged. The second time they follow
  // from these very tokens.
  const bool from_history = recipe_of(cell, arm).activation.amax_source == AmaxSource::kHistory;
  if (from_history || cell.training.fp8_attention) run.pass_once_more();
  return run.pass_once_more();
}

void measure_same_weights(const CellConfig& cell, Arm arm, TrainingRun& run, TrainingRun::Passes seen,
                          const Lists& weights, ProcessGroup* world, ArmResult& result) {
  if (arm == Arm::kBf16) {
    for (const char* name : {"parity.same_weights_output_sqnr_db", "parity.same_weights_grad_sqnr_db"})
      put(result.metrics, name, std::nullopt, "the arm is in BF16 itself");
    return;
  }
  if (plants_on(cell, arm, world)) {
    for (float& value : seen.output) value = -value;
    for (std::vector<float>& gradient : seen.gradients)
      for (float& value : gradient) value = -value;
  }
  const CellConfig plain = untrained_in_bf16(cell);
  TrainingRun bf16(plain, Behaviors{}, make_recipe("bf16"), {.world = world});
  const TrainingRun::Weights own{.values = weights, .router_biases = run.router_biases()};
  TrainingRun::Passes expected = bf16.pass_once_more(&own);
  put_noise(result, "parity.same_weights_output_sqnr_db", "output with the same weights", {"output"},
            noise_on_all_ranks(world, {expected.output}, {seen.output}));
  // The gradient of a vector is a sum over tokens that may cancel, so that no floor holds for its noise.
  std::vector<std::string> matrices;
  Lists of_bf16, of_arm;
  std::size_t next = 0;
  run.visit_parameters([&](const Parameter& parameter) {
    const std::size_t i = next++;
    if (parameter.spec.shape.rank() < 2) return;
    matrices.push_back(parameter.name);
    of_bf16.push_back(std::move(expected.gradients[i]));
    of_arm.push_back(std::move(seen.gradients[i]));
  });
  put_least_sqnr(result, "parity.same_weights_grad_sqnr_db", "gradient with the same weights", matrices,
                 noise_on_all_ranks(world, of_bf16, of_arm));
}

}  // namespace fp8lab
