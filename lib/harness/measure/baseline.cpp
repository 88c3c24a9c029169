#include "harness/measure/baseline.h"

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "harness/cell/keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/over_ranks.h"

namespace fp8lab {
namespace {

std::int64_t bytes_of(const std::vector<float>& list) { return static_cast<std::int64_t>(list.size() * sizeof(float)); }

std::int64_t bytes_of(const Lists& lists) {
  std::int64_t sum = 0;
  for (const std::vector<float>& list : lists) sum += bytes_of(list);
  return sum;
}

/// The baselines that this process keeps, of all ranks that are its threads. Safe to call from several threads.
class KeptBaselines {
 public:
  using Shared = std::shared_ptr<const Baseline>;

  Shared find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [of, baseline] : kept_)
      if (of == name) return baseline;
    return nullptr;
  }

  void keep(const std::string& name, const Shared& baseline) {
    const std::lock_guard lock(mutex_);
    if (baseline->bytes() > kMostBaselineBytes) return;
    kept_.emplace_back(name, baseline);
    bytes_ += baseline->bytes();
    for (; bytes_ > kMostBaselineBytes; kept_.pop_front()) bytes_ -= kept_.front().second->bytes();
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::pair<std::string, Shared>> kept_;  ///< oldest first
  std::int64_t bytes_ = 0;
};

KeptBaselines& kept() {
  static KeptBaselines baselines;
  return baselines;
}

/// Equal for runs that have the same bits on the same rank.
std::string name_of(const CellConfig& bf16_cell, const ProcessGroup* world) {
  std::string text = world != nullptr ? std::to_string(world->rank()) : std::string();
  for (const Key& key : keys()) text.append(1, '\n').append(to_text(key.get(bf16_cell)));
  return text;
}

}  // namespace

std::int64_t Baseline::bytes() const {
  return bytes_of(losses) + bytes_of(weights) + bytes_of(values.output) + bytes_of(values.gradients) +
         bytes_of(values.initial_weights) + bytes_of(values.weights);
}

std::shared_ptr<const Baseline> bf16_baseline(const CellConfig& cell, ProcessGroup* world) {
  const CellConfig bf16 = as_bf16(cell);
  const std::string name = name_of(bf16, world);
  const std::shared_ptr<const Baseline> known = cell.training.deterministic ? kept().find(name) : nullptr;
  // A rank that trained while another did not would wait for it for ever.
  const bool known_on_all = on_all_ranks(world, known != nullptr, "baseline is known");
  if (known_on_all) return known;
  TrainingRun run(bf16, Behaviors{}, make_recipe("bf16"), {.world = world});
  run.keep_values(true);
  run.train();
  const auto baseline = std::make_shared<const Baseline>(run);
  if (cell.training.deterministic) kept().keep(name, baseline);
  return baseline;
}

std::shared_ptr<const Baseline> keep_as_baseline(const CellConfig& cell, TrainingRun& run, ProcessGroup* world) {
  const auto baseline = std::make_shared<const Baseline>(run);
  kept().keep(name_of(as_bf16(cell), world), baseline);
  return baseline;
}

}  // namespace fp8lab
