#pragma once

#include <string>

#include "harness/scenario/parsed.h"
#include "harness/scenario/sample.h"
#include "harness/scenario/scenario.h"

namespace fp8lab::sample {

/// A cell of a fake scenario on `meta` whose arms are both as expected. `id` is the scenario's name, with a # and a
/// suffix to distinguish several cells of one scenario.
inline PlannedCell fake_cell(const std::string& id) {
  const Vocabulary words = vocabulary();
  std::string text = kFixScenario + R"(device: meta
expect:
  - {metric: memory.retained_bytes, arm: before, equals: 100}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)";
  text.replace(text.find("name: sample"), 12, "name: " + id.substr(0, id.find('#')));
  PlannedCell cell = plan_cells(parse_scenario(text, id + ".yaml", words), words).at(0);
  cell.config.id = id;
  return cell;
}

}  // namespace fp8lab::sample
