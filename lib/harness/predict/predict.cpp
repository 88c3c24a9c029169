#include "harness/predict/predict.h"

#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/predict/predict_run.h"
#include "harness/predict/predict_traffic.h"

namespace fp8lab {

using namespace closed_form;

namespace {

/// True if PyTorch's FSDP2 moves the parameters of the model's layers as the own runtime does.
bool has_layers_of_torch(const CellConfig& cell) {
  const ModelConfig& model = cell.model;
  return !routes_tokens(model) && !has_latents(model) && !is_norm(model) && cell.training.loss_chunks == 1;
}

/// True if PyTorch's FSDP2 moves the bytes that the own runtime moves: BF16 parameters and gradients.
bool moves_as_torch(const CellConfig& config, const CellNumbers& cell) {
  return cell.sharding.replicas == 1 && config.training.param_dtype == ParamDType::kBF16 &&
         config.training.clip_norm == 0.0;
}

/// What DistributedDataParallel moves: all gradients once, in their own type. The number of its reductions depends on
/// the order in which backward made the gradients of the first step.
std::map<std::string, double> predict_replicas(const CellConfig& config, Arm arm) {
  std::map<std::string, double> figures = estimate(config, arm).figures;
  std::erase_if(figures, [](const auto& figure) {
    return !figure.first.starts_with("traffic.") || figure.first == "traffic.collectives";
  });
  return figures;
}

/// The closed forms cover the own runtime. A library's memory differs, and so does its traffic, except for plain FSDP2.
std::map<std::string, double> predict_library(CellConfig config, Arm arm) {
  if (config.subject != "torch" || !has_layers_of_torch(config) ||
      (arm != Arm::kBf16 && config.training.recipe != "bf16"))
    return {};
  config.training.recipe = "bf16";
  config.training.quantized_weights = false;
  config.subject = CellConfig{}.subject;
  if (is_replicated(config)) return predict_replicas(config, arm);
  const CellNumbers cell(config, arm);
  if (!moves_as_torch(config, cell)) return {};
  std::map<std::string, double> figures = estimate(config, arm).figures;
  std::erase_if(figures, [](const auto& figure) { return !figure.first.starts_with("traffic."); });
  // The backward of the first trained layer prefetches the frozen layer before it, for a backward that does not come.
  const TrainingConfig& training = config.training;
  if (training.frozen_layers > 0 && config.reshard_after_forward) {
    const auto passes = static_cast<double>(training.micro_batches);
    const auto bytes = static_cast<double>(LayersAccount(config, arm).first().forward_gather.payload);
    for (const char* name : {"traffic.all_gather_bytes", "traffic.all_gather_payload_bytes"})
      figures[name] += passes * bytes;
    figures["traffic.collectives"] += passes;
  }
  // The own runtime's collectives run over one shard too; FSDP2 has none there.
  if (cell.sharding.shards == 1)
    for (auto& [name, bytes] : figures) bytes = 0.0;
  return figures;
}

Estimate estimate_own(const CellConfig& config, Arm arm) {
  const CellNumbers cell(config, arm);
  const LayersAccount layers(config, arm);
  if (layers.sum(&LayerAccount::stops) > 0 || !has_closed_form(config, cell, layers)) return {};
  const EndsAccount ends(cell);
  const OptimizerNumbers optimizer = optimizer_numbers(config, cell, layers, ends);
  const RunFigures run = RunAccount(config, cell, layers, ends, optimizer).figures();
  Estimate out;
  for (const auto& [name, bytes] : run.bytes) out.figures[name] = static_cast<double>(bytes);
  for (const auto& [name, count] : traffic(config, cell, layers, ends, optimizer))
    out.figures[name] = static_cast<double>(count);
  if (cell.sharding.sharded) out.moved = moved_by_rank(config, cell, layers, ends);
  out.peak_phase = run.peak.first;
  out.peak_by_owner = largest_first(run.peak.second.by_owner);
  out.fp8_weights = layers.sum(&LayerAccount::fp8_weights);
  out.refused_weights = layers.sum(&LayerAccount::refused_weights);
  return out;
}

}  // namespace

Estimate estimate(const CellConfig& config, Arm arm) {
  if (is_library(config)) return {.figures = predict_library(config, arm), .peak_phase = {}, .peak_by_owner = {}};
  return estimate_own(config, arm);
}

std::map<std::string, double> predict(const CellConfig& config, Arm arm) { return estimate(config, arm).figures; }

}  // namespace fp8lab
