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

/// The cell without what a run as `arm` ignores.
CellConfig as_run_by(const CellConfig& cell, Arm arm) {
  if (arm == Arm::kBf16) return as_bf16(cell);
  CellConfig fixed = cell;
  fixed.fix.clear();
  fixed.control = Control::kNone;
  return fixed;
}

/// Equal for runs that have the same bits on the same rank.
std::string name_of(const CellConfig& as_run, Arm arm, const ProcessGroup* world) {
  std::string text(arm == Arm::kBf16 ? "bf16" : "after");
  if (world != nullptr) text.append(1, '\n').append(std::to_string(world->rank()));
  for (const Key& key : keys()) text.append(1, '\n').append(to_text(key.get(as_run)));
  return text;
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
  const CellConfig as_run = as_run_by(cell, arm);
  const std::shared_ptr<const ComparedRun> known =
      cell.training.deterministic ? kept().find(name_of(as_run, arm, world)) : nullptr;
  // A rank that trained while another did not would wait for it for ever.
  const bool known_on_all = on_all_ranks(world, known != nullptr, "run is known");
  if (known_on_all) return known;
  TrainingRun run(as_run, Behaviors{}, recipe_of(cell, arm), {.world = world});
  run.keep_values(true);
  run.train();
  const auto finished = std::make_shared<const ComparedRun>(run, arm == Arm::kAfter);
  keep_run(cell, arm, finished, world);
  return finished;
}

void keep_run(const CellConfig& cell, Arm arm, const std::shared_ptr<const ComparedRun>& run,
              const ProcessGroup* world) {
  if (!cell.training.deterministic || (arm == Arm::kAfter && !has_before(cell))) return;
  kept().keep(name_of(as_run_by(cell, arm), arm, world), run);
}

}  // namespace fp8lab
