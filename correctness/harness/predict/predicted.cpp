#include "harness/predict/predicted.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "comm/process_groups.h"
#include "core/check.h"
#include "fixes/fixes.h"
#include "harness/cell/sharding_keys.h"
#include "harness/results/json_codec.h"
#include "harness/train/options.h"
#include "harness/train/training_run.h"
#include "nn/layer_table.h"
#include "recipe/recipe.h"

namespace fp8lab::predict_test {
namespace {

void add_memory(const Ledger& ledger, Figures& figures) {
  const auto add = [&](const std::string& name, std::int64_t bytes) {
    figures["memory." + name + "_bytes"] = static_cast<double>(bytes);
  };
  add("peak", ledger.peak_bytes());
  add("setup_peak", ledger.peak_bytes(PhaseKind::kSetup));
  add("forward_peak", ledger.peak_bytes(PhaseKind::kForward));
  add("optimizer_peak", ledger.peak_bytes(PhaseKind::kOptimizer));
  // Later marks of a name overwrite earlier ones: figures are the last step's.
  for (const LedgerMark& mark : ledger.marks()) {
    add(mark.name, mark.live_bytes);
    if (mark.name == "end_of_backward") add("retained", mark.retained_bytes);
    if (mark.name == "end_of_step") add("weight", mark.by_kind.at(std::string(name(HolderKind::kParameter))));
  }
}

void add_traffic(const Traffic& traffic, Figures& figures) {
  const auto add = [&](const std::string& name, std::int64_t count) {
    figures["traffic." + name] = static_cast<double>(count);
  };
  const auto bytes = [&](CollectiveKind kind) { return traffic.of(kind).payload_bytes + traffic.of(kind).scale_bytes; };
  add("all_gather_bytes", bytes(CollectiveKind::kAllGather));
  add("all_gather_payload_bytes", traffic.of(CollectiveKind::kAllGather).payload_bytes);
  add("all_gather_scale_bytes", traffic.of(CollectiveKind::kAllGather).scale_bytes);
  add("reduce_scatter_bytes", bytes(CollectiveKind::kReduceScatter));
  add("all_reduce_bytes", bytes(CollectiveKind::kAllReduce));
  add("ring_exchange_bytes", bytes(CollectiveKind::kRingExchange));
  add("all_to_all_bytes", bytes(CollectiveKind::kAllToAll));
  add("all_to_all_scale_bytes", traffic.of(CollectiveKind::kAllToAll).scale_bytes);
  std::int64_t collectives = 0;
  for (std::size_t kind = 0; kind < kCollectiveKinds; ++kind)
    collectives += traffic.of(static_cast<CollectiveKind>(kind)).collectives;
  add("collectives", collectives);
}

Figures measured_on_rank(const CellConfig& cell, Arm arm, ProcessGroup* world) {
  const std::string_view reverted[] = {cell.fix};
  const bool reverts = arm == Arm::kBefore && !cell.fix.empty();
  TrainingRun run(
      cell, reverts ? behaviors_without(reverted) : Behaviors{},
      arm == Arm::kBf16 ? make_recipe("bf16") : make_recipe(cell.training.recipe, cell.training.recipe_options),
      {.world = world});
  run.train();
  Figures figures;
  add_memory(run.device().ledger(), figures);
  figures["memory.host_copies_peak_bytes"] = static_cast<double>(run.device().memory().host_copies().peak_bytes());
  if (const Traffic* traffic = run.last_step_traffic()) add_traffic(*traffic, figures);
  return figures;
}

}  // namespace

Figures measured(const CellConfig& cell, Arm arm) {
  if (!has_ranks(cell)) return measured_on_rank(cell, arm, nullptr);
  Figures figures;
  run_ranks("simulated", {.ranks = cell.ranks},
            [&](ProcessGroup& world) { figures = measured_on_rank(cell, arm, &world); });
  return figures;
}

/// True if each expert's share of the choices, which device meta makes as even as possible, is a multiple of the rows
/// that products accept.
bool has_blocks_only(const CellConfig& cell) {
  const Recipe recipe = make_recipe(cell.training.recipe);
  const std::int64_t rows = std::lcm(recipe.rows_multiple, recipe.cols_multiple), experts = cell.model.experts;
  const std::int64_t choices = cell.model.seq * cell.model.batch * cell.model.top_k;
  for (std::int64_t e = 0; e < experts; ++e)
    if ((choices * (e + 1) / experts - choices * e / experts) % rows != 0) return false;
  return true;
}

testing::AssertionResult ends_in_an_error(const CellConfig& cell) {
  try {
    measured(cell, Arm::kBefore);
  } catch (const Error& error) {
    if (cell.fix != "pad_groups_to_blocks" ||
        std::string_view(error.what()).find("need a multiple") != std::string::npos)
      return testing::AssertionSuccess();
    return testing::AssertionFailure() << error.what() << "\n" << cell_to_json(cell);
  }
  if (cell.fix == "pad_groups_to_blocks" && has_blocks_only(cell)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "without " << cell.fix << " no error ends " << cell_to_json(cell);
}

testing::AssertionResult agrees(const CellConfig& cell, Arm arm) { return agrees(cell, arm, estimate(cell, arm)); }

testing::AssertionResult agrees(const CellConfig& cell, Arm arm, const Estimate& formulas) {
  Figures seen;
  try {
    seen = measured(cell, arm);
  } catch (const Error& error) {
    return testing::AssertionFailure() << error.what() << "\n" << cell_to_json(cell);
  }
  const Figures& formula = formulas.figures;
  std::int64_t held = 0;
  for (const auto& [owner, bytes] : formulas.peak_by_owner) {
    if (bytes < 0) return testing::AssertionFailure() << owner << " holds " << bytes << " of " << cell_to_json(cell);
    held += bytes;
  }
  const auto peak = formula.find("memory.peak_bytes");
  if (peak != formula.end() && static_cast<double>(held) != peak->second)
    return testing::AssertionFailure() << "the owners hold " << held << " at the peak of " << cell_to_json(cell);
  if (seen == formula) return testing::AssertionSuccess();
  auto result = testing::AssertionFailure();
  for (const auto& [name, value] : seen) {
    const auto found = formula.find(name);
    if (found == formula.end())
      result << name << ": no formula\n";
    else if (found->second != value)
      result << name << ": measured " << std::to_string(value) << ", predicted " << std::to_string(found->second)
             << ", difference " << std::to_string(value - found->second) << "\n";
  }
  for (const auto& [name, value] : formula)
    if (!seen.contains(name)) result << name << ": predicted " << std::to_string(value) << ", not measured\n";
  return result << "arm " << static_cast<int>(arm) << " of " << cell_to_json(cell);
}

bool can_run(const CellConfig& cell) {
  const bool attends_plainly = !cell.training.fp8_attention && cell.context_parallel == 1;
  if (has_latents(cell.model) && (!attends_plainly || is_selective(cell.training.checkpoint) || cell.model.bias))
    return false;
  const bool can_keep_results = cell.model.layer == "transformer_layer" && cell.model.top_k == 0 && attends_plainly;
  if (is_selective(cell.training.checkpoint) && !can_keep_results) return false;
  if (cell.model.attention_sinks && !attends_plainly) return false;
  try {
    const Recipe recipe = make_recipe(cell.training.recipe, cell.training.recipe_options);
    const ModelOptions options = model_options(cell);
    if (options.config.form.rope && options.config.head_dim() % 2 != 0) return false;
    for (const LayerConfig& config : {options.config_of(0), options.config})
      if (!broken_layer_rule(layer_row(cell.model.layer), config, recipe).empty()) return false;
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Latents, in few of the models that can have them: they exclude much else.
void draw_latents(Draw& draw, std::int64_t unit, ModelConfig& model) {
  model.kv_rank = model.q_rank = model.rope_dim = model.value_dim = 0;
  const bool attends = model.layer == "multihead_attention" || model.layer == "transformer_layer";
  if (!attends || model.form != "llama" || draw.upto(4) > 1) return;
  model.qk_norm = false;
  model.kv_heads = 0;
  model.q_rank = unit * draw.upto(3);
  model.kv_rank = unit * draw.upto(3);
  model.rope_dim = 2 * unit * draw.upto(2);
  model.value_dim = draw.chance() ? 0 : unit * draw.upto(3);
}

void draw_sizes(Draw& draw, const std::string& recipe_name, ModelConfig& model) {
  const Recipe recipe = make_recipe(recipe_name);
  const std::int64_t unit = std::max(recipe.rows_multiple, recipe.cols_multiple);
  model.layers = draw.upto(4);
  model.heads = draw.of<std::int64_t>({1, 2, 4, 8});
  model.kv_heads = model.heads / draw.of<std::int64_t>({1, 1, 2});
  if (model.kv_heads == 0 || draw.chance()) model.kv_heads = draw.chance() ? 0 : 1;
  model.hidden = unit * model.heads * draw.upto(6);
  model.ffn = draw.chance() ? 0 : unit * draw.upto(24);
  model.seq = unit * draw.of<std::int64_t>({1, 3, 8, 50});
  model.batch = draw.of<std::int64_t>({1, 2, 3, 40});
  model.dropout = draw.chance() ? 0.0 : 0.1;
  model.head_dim = draw.chance() ? 0 : unit * draw.upto(4);
  model.qk_norm = draw.chance();
  model.window = draw.chance() ? 0 : model.seq / 2;
  const bool attends = model.layer == "multihead_attention" || model.layer == "transformer_layer";
  model.attention_sinks = attends && draw.chance();
  draw_latents(draw, unit, model);
  model.top_k = model.shared_experts = model.dense_layers = model.expert_groups = 0;
  model.router_bias_rate = model.router_aux_loss = 0.0;
  model.top_groups = 2;
  const bool has_mlp = model.layer == "layernorm_mlp" || model.layer == "transformer_layer";
  if (has_mlp && model.form == "llama" && draw.chance()) {
    model.experts = draw.of<std::int64_t>({1, 2, 5, 16});
    model.top_k = std::min<std::int64_t>(model.experts, draw.upto(3));
    model.expert_ffn = draw.chance() ? 0 : unit * draw.upto(4);
    model.shared_experts = draw.chance() ? 0 : draw.upto(2);
    model.dense_layers = draw.chance() ? 0 : draw.upto(model.layers) - 1;
    model.router = draw.of({"softmax", "sigmoid"});
    model.router_bias_rate = model.router == RouterScore::kSigmoid && draw.chance() ? 0.01 : 0.0;
    model.router_aux_loss = draw.chance() ? 0.01 : 0.0;
    model.expert_groups = model.router == RouterScore::kSigmoid && model.experts == 16 && draw.chance() ? 4 : 0;
  }
  model.swiglu_limit = has_mlp && model.form == "llama" && draw.chance() ? 7.0 : 0.0;
  if (model.layer != "grouped_linear") return;
  model.experts = draw.of<std::int64_t>({1, 2, 4, 7});
  model.split = draw.of({"even", "uneven"});
}

void draw_language(Draw& draw, CellConfig& cell) {
  ModelConfig& model = cell.model;
  model.bias.reset();
  if (draw.chance()) model.bias = draw.chance() ? Bias::kAll : Bias::kNone;
  if (model.layer == "transformer_layer" && draw.chance()) model.bias = Bias::kQkv;
  model.head = "own";
  model.positions.reset();
  model.vocabulary = draw.chance() ? draw.of<std::int64_t>({1, 65, 1001, 50257}) : 0;
  if (model.vocabulary == 0) return;
  cell.training.loss = "cross_entropy";
  model.head = draw.of({"own", "tied"});
  if (draw.chance()) model.positions = draw.chance() ? Positions::kLearned : Positions::kNone;
}

void draw_bf16_layers(Draw& draw, CellConfig& cell) {
  TrainingConfig& training = cell.training;
  training.first_layers_bf16 = draw.upto(4) > 1 ? 0 : draw.upto(cell.model.layers);
  training.last_layers_bf16 = draw.upto(4) > 1 ? 0 : draw.upto(cell.model.layers + 1 - training.first_layers_bf16) - 1;
}

void draw_frozen_layers(Draw& draw, CellConfig& cell) {
  const std::int64_t most = cell.model.layers - (cell.model.vocabulary > 0 ? 0 : 1);
  cell.training.frozen_layers = draw.upto(3) > 1 || most == 0 ? 0 : draw.upto(most);
}

}  // namespace fp8lab::predict_test
