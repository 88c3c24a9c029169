#include "harness/run/shared_arms.h"

#include <functional>
#include <utility>

#include "core/fnv1a.h"
#include "harness/cell/metrics.h"
#include "harness/cell/subject_keys.h"
#include "harness/measure/arms.h"
#include "harness/results/json_codec.h"
#include "harness/results/verdict.h"

namespace fp8lab {

std::string task_of(CellConfig cell, Arm arm) {
  if (any_group(cell.measure, &MetricGroup::alone)) return {};
  cell.scenario.clear();
  cell.id.clear();
  cell.axes.clear();
  if (arm != Arm::kBefore) {
    cell.fix.clear();
    cell.control = Control::kNone;
  }
  if (is_library(cell)) cell.versions = {.before = {}, .after = version_of(cell, arm)};
  if (arm == Arm::kBf16) cell = as_bf16(std::move(cell));
  return std::string(name(arm)) + cell_to_json(cell);
}

SharedArms::SharedArms(TaskFunction task, const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary)
    : task_(std::move(task)) {
  if (!task_) return;
  for (const PlannedCell& cell : cells) {
    if (!cell.skip_reason.empty()) continue;
    for (const Arm arm : arms_of(cell, vocabulary))
      if (const std::string name = this->task(cell.config, arm); !name.empty()) ++tasks_[key(name)].askers;
  }
}

SharedArms::Key SharedArms::key(const std::string& task) { return {std::hash<std::string>()(task), fnv1a(task)}; }

void SharedArms::begin(const std::string& task) {
  if (task.empty()) return;
  Task& of = tasks_.at(key(task));
  of.underway = true;
  --of.askers;
}

void SharedArms::finish(const std::string& task, const ArmResult& result, const std::string& id) {
  if (task.empty()) return;
  const auto found = tasks_.find(key(task));
  if (found == tasks_.end()) return;  // two cells ran the task at the same time, and the other one finished last
  Task& of = found->second;
  of.underway = false;
  of.failed = of.failed || result.status != "ok";
  if (of.askers == 0) {
    results_ -= of.result.has_value();
    tasks_.erase(found);
  } else if (result.status == "ok") {
    keep(found->first, of, result, id);
  }
}

void SharedArms::keep(const Key& key, Task& task, const ArmResult& result, const std::string& id) {
  results_ += !task.result;
  task.result = result;
  task.result->measured_in = id;
  kept_.push_back(key);
  while (results_ > kMostKept) {
    const auto oldest = tasks_.find(kept_.front());
    kept_.pop_front();
    if (oldest == tasks_.end() || !oldest->second.result) continue;
    oldest->second.result.reset();
    --results_;
  }
}

bool SharedArms::underway(const std::string& task) const {
  if (task.empty()) return false;
  const Task& of = tasks_.at(key(task));
  return of.underway && !of.failed;
}

std::optional<ArmResult> SharedArms::take(const std::string& task, double limit_s) {
  if (task.empty()) return {};
  const auto found = tasks_.find(key(task));
  if (found == tasks_.end() || !found->second.result || found->second.result->seconds > limit_s) return {};
  Task& of = found->second;
  if (--of.askers > 0) return of.result;
  std::optional<ArmResult> last = std::move(of.result);
  --results_;
  tasks_.erase(found);
  return last;
}

}  // namespace fp8lab
