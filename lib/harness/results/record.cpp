#include "harness/results/record.h"

#include "harness/cell/subject_keys.h"
#include "harness/scenario/controls.h"

namespace fp8lab {

RecordList::Head head_of(const CellRecord& record) {
  const CellConfig& cell = record.config;
  RecordList::Head out;
  out.id = cell.id;
  out.scenario = cell.scenario;
  out.fix = cell.fix;
  out.verdict = record.verdict;
  out.seconds = record.seconds;
  out.undecided_control = is_undecided_control(cell.id, record.verdict, record.gates);
  out.control = is_control(cell.id) || cell.control != Control::kNone;
  out.has_before = has_before(cell);
  out.measured_on = is_library(cell) ? subject_text(cell) + " on " + cell.device : cell.device;
  for (const Gate& gate : record.gates)
    if (!gate.metric.empty()) out.groups.insert(gate.metric.substr(0, gate.metric.find('.')));
  out.peak_bytes = measured(record.arms, Side::kAfter, "memory.peak_bytes").value.value_or(0);
  out.effect = record.effect;
  return out;
}

}  // namespace fp8lab
