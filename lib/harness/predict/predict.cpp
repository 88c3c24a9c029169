#include "harness/predict/predict.h"

#include "harness/predict/predict_run.h"
#include "harness/predict/predict_traffic.h"

namespace fp8lab {

using namespace closed_form;

std::map<std::string, double> predict(const CellConfig& config, Arm arm) {
  const CellNumbers cell(config, arm);
  const LayersOfRun layers = make_layers(cell, config.model.layer);
  const LayerAccount each(cell, layers);
  if (each.stops || !has_closed_form(config, cell, each)) return {};
  const OptimizerNumbers optimizer = optimizer_numbers(config, cell, each);
  std::map<std::string, double> figures;
  for (const auto& [name, bytes] : RunAccount(config, cell, each, optimizer).figures())
    figures[name] = static_cast<double>(bytes);
  for (const auto& [name, count] : traffic(config, cell, each, optimizer)) figures[name] = static_cast<double>(count);
  return figures;
}

}  // namespace fp8lab
