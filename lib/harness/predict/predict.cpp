#include "harness/predict/predict.h"

#include <algorithm>

#include "harness/predict/predict_run.h"
#include "harness/predict/predict_traffic.h"

namespace fp8lab {

using namespace closed_form;

Estimate estimate(const CellConfig& config, Arm arm, const LanguageModel* model) {
  const CellNumbers cell(config, arm);
  const LayersOfRun layers = make_layers(cell, config.model.layer);
  const LayerAccount each(cell, layers);
  if (each.stops || !has_closed_form(config, cell, each)) return {};
  const EndsAccount ends(cell, model);
  const OptimizerNumbers optimizer = optimizer_numbers(config, cell, each, ends);
  const RunFigures run = RunAccount(config, cell, each, ends, optimizer).figures();
  Estimate out;
  for (const auto& [name, bytes] : run.bytes) out.figures[name] = static_cast<double>(bytes);
  for (const auto& [name, count] : traffic(config, cell, each, ends, optimizer))
    out.figures[name] = static_cast<double>(count);
  out.peak_phase = run.peak_phase;
  for (std::size_t i = 0; i < kOwnerNames.size(); ++i)
    if (run.at_peak.bytes[i] != 0) out.peak_by_owner.emplace_back(kOwnerNames[i], run.at_peak.bytes[i]);
  std::stable_sort(out.peak_by_owner.begin(), out.peak_by_owner.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::map<std::string, double> predict(const CellConfig& config, Arm arm) { return estimate(config, arm).figures; }

}  // namespace fp8lab
