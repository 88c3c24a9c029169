#include "harness/predict/predict.h"

#include "harness/predict/predict_run.h"
#include "harness/predict/predict_traffic.h"

namespace fp8lab {

using namespace closed_form;

std::map<std::string, double> predict(const CellConfig& cell, Arm arm) {
  const Scenario scenario(cell, arm);
  const Layer layer = make_layer(scenario, cell.model.layer);
  const LayerAccount each(scenario, layer);
  if (each.stops || !has_closed_form(cell, each)) return {};
  const OptimizerNumbers optimizer = optimizer_numbers(cell, scenario, each);
  std::map<std::string, double> figures;
  for (const auto& [name, bytes] : RunAccount(cell, scenario, each, optimizer).figures())
    figures[name] = static_cast<double>(bytes);
  for (const auto& [name, count] : traffic(cell, scenario, each, optimizer)) figures[name] = static_cast<double>(count);
  return figures;
}

}  // namespace fp8lab
