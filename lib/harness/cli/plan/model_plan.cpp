#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "backend/arch.h"
#include "core/check.h"
#include "harness/cell/read_keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/plan/model_file.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/cli/plan/planned.h"
#include "harness/scenario/rules.h"

namespace fp8lab {
namespace {

/// A key that --set does not take, and what chooses it instead.
struct NotSet {
  std::string_view path;
  std::string_view instead;
};

constexpr std::string_view kOwnRuntime =
    "--model plans fp8lab's own runtime, PyTorch by --as torch@2.15, and torchao by --as torchao@0.18; for another "
    "library's layers write a scenario "
    "file, and predict them by `fp8lab plan FILE --as transformer_engine@2.16`";
constexpr std::string_view kAfterAlone =
    "--model plans only the after arm, which this key does not change; write a scenario file and plan it";

constexpr std::array kNotSet{
    NotSet{"ranks", "there is a table for each number of ranks; choose them by --ranks"},
    NotSet{"training.recipe", "each table has rows for each recipe; choose them by --recipe"},
    NotSet{"capacity", "memory is set by --gpu or --capacity"},
    NotSet{"fix", kAfterAlone},
    NotSet{"control", kAfterAlone},
    NotSet{"subject", kOwnRuntime},
    NotSet{"versions.before", kOwnRuntime},
    NotSet{"versions.after", kOwnRuntime},
};

/// Applies `setting`, KEY=VALUE, and returns its key.
const Key& set_key(CellConfig& cell, const std::string& setting, const Vocabulary& vocabulary) {
  const std::size_t sign = setting.find('=');
  const std::string name = setting.substr(0, sign);
  const std::string text = sign == std::string::npos ? "" : setting.substr(sign + 1);
  const Key* key = find_key(name);
  if (!key || sign == std::string::npos)
    fail(fmt::format("--set: `{}` is not KEY=VALUE with a key of scenarios.{}", quotable(setting),
                     key ? "" : suggestion(name, axis_names())));
  if (const auto row = std::ranges::find(kNotSet, key->path, &NotSet::path); row != kNotSet.end())
    fail(fmt::format("plan: --set {}: {}", quotable(setting), row->instead));
  const auto value = value_of(*key, text, vocabulary);
  if (!value) fail(fmt::format("--set: {} must be {}", key->path, expected_of(*key, vocabulary)));
  key->set(cell, *value);
  return *key;
}

/// The rows of the table: those that were asked for, or all that the GPU has.
std::vector<std::string> recipes_of(const PlanRequest& request, const Capacity& capacity, const std::string& arch,
                                    const Vocabulary& vocabulary) {
  const std::vector<std::string> known = names_of(vocabulary.recipes);
  for (const std::string& recipe : request.recipes) {
    if (std::ranges::find(known, recipe) == known.end())
      fail(fmt::format("--recipe: `{}` is not known.{}", quotable(recipe), suggestion(recipe, known)));
    if (!capacity.fp8 && vocabulary.quantizes(recipe))
      fail(fmt::format("plan: --recipe {}: {} has no FP8 matrix products; plan --recipe bf16, or another --gpu", recipe,
                       capacity.gpu));
  }
  if (!request.recipes.empty()) return request.recipes;
  if (!capacity.fp8) return {"bf16"};
  std::vector<std::string> out;
  for (const std::string& recipe : known)
    if (recipe != "mxfp8" || arch_profile(arch).mxfp8_gemm) out.push_back(recipe);
  return out;
}

/// True if the cell breaks rules only under its recipe, whatever its weights are.
bool is_broken_by_recipe(CellConfig cell, const Vocabulary& vocabulary) {
  cell.training.quantized_weights = false;
  if (broken_rules(cell, vocabulary).empty()) return false;
  cell.training.recipe = "bf16";
  return broken_rules(cell, vocabulary).empty();
}

/// "1 sequence of 8192 tokens a rank and micro-batch"
std::string batch_text(const CellConfig& cell) {
  const std::string sequences =
      fmt::format("{} of {} tokens", counted(static_cast<std::size_t>(cell.model.batch), "sequence"), cell.model.seq);
  if (cell.context_parallel == 1) return sequences + " a rank and micro-batch";
  return fmt::format("{} a micro-batch of every {} ranks, which split them: {} tokens of a sequence on each rank",
                     sequences, cell.context_parallel, seq_of_rank(cell));
}

/// Who holds the parameters, over `cell`'s ranks, the most of the table.
std::string sharding_text(const CellConfig& cell) {
  const MeshText mesh = mesh_of(cell);
  if (is_replicated(cell)) return "DistributedDataParallel, all parameters on every rank";
  if (!is_sharded(cell)) return "nothing sharded";
  const std::string out = mesh.replicas == 1 ? "FSDP over all ranks"
                          : mesh.shards == 1
                              ? fmt::format("{} replicas, nothing sharded", mesh.replicas)
                              : fmt::format("HSDP, {} replicas of {} shards", mesh.replicas, mesh.shards);
  return out + (cell.gather_ahead ? ", each layer gathered while the one before it computes" : "");
}

/// The page's text before its table. `cells` are not empty.
std::string heading_of(const std::string& name, const CellConfig& base, const Capacity& capacity,
                       const std::vector<PlannedCell>& cells) {
  const auto text_of = [&](const char* path) { return to_text(find_key(path)->get(base)); };
  std::string out = fmt::format(
      "{}: {} layers, hidden {}, vocabulary {}; {}\n"
      "optimizer {}, master weights {}, moments {}; {}; --set KEY=VALUE changes any other key\n{}\n",
      name, base.model.layers, base.model.hidden, base.model.vocabulary, batch_text(base),
      text_of("training.optimizer"), text_of("training.master_weights"), text_of("training.moments"),
      sharding_text(std::ranges::max_element(cells, {}, [](const PlannedCell& c) { return c.config.ranks; })->config),
      capacity.bytes > 0 ? "Memory of a rank: " + capacity.words : "Give --gpu or --capacity to see what fits.");
  const bool microscaled =
      std::ranges::any_of(cells, [](const PlannedCell& cell) { return cell.config.training.recipe == "mxfp8"; });
  if (microscaled && !arch_profile(base.arch).mxfp8_gemm)
    out += fmt::format(
        "mxfp8 is emulated: '{}' has no MXFP8 products: they are made from exactly dequantized operands, which no\n"
        "figure counts\n",
        base.arch);
  return out;
}

FileModel model_called(const std::string& model) {
  if (is_model_file(model)) return read_model_file(model);
  const KnownModel& known = find_model(model);
  return {.cell = known.cell(), .left_out = std::string(known.left_out)};
}

}  // namespace

Capacity capacity_of(const PlanRequest& request) {
  Capacity out;
  const auto gib = [](std::int64_t bytes) { return short_figure(static_cast<double>(bytes), "B"); };
  if (!request.gpu.empty()) {
    const KnownGpu& gpu = find_gpu(request.gpu);
    out = {gpu.usable_bytes(),
           fmt::format("{} of {} ({} less {} GiB for the CUDA context, libraries and NCCL)", gib(gpu.usable_bytes()),
                       gpu.name, gib(gpu.mebibytes << 20), kReservedBytes >> 30),
           std::string(gpu.arch), std::string(gpu.name), gpu.fp8};
  }
  if (request.capacity.empty()) return out;
  out.bytes = parse_bytes("--capacity", request.capacity);
  out.words = gib(out.bytes);
  return out;
}

ModelPlan model_plan(const PlanRequest& request, const Capacity& capacity, const Vocabulary& vocabulary) {
  ModelPlan out{.cells = {}, .ranks = {}, .heading = {}};
  out.ranks = request.ranks.empty() ? std::vector{8, 64, 512, 4096} : request.ranks;
  const FileModel model = model_called(request.model);
  CellConfig base = model.cell;
  base.arch = capacity.arch;
  std::optional<bool> quantized_weights;  // set if --set chooses rows by it
  std::vector<const Key*> set;
  for (const std::string& setting : request.settings) {
    const Key& key = set_key(base, setting, vocabulary);
    set.push_back(&key);
    if (key.path == "training.quantized_weights") quantized_weights = base.training.quantized_weights;
    if (key.path == "arch" && !request.gpu.empty() && base.arch != capacity.arch)
      fail(
          fmt::format("plan: --set {}: --gpu {} is {}; leave --set arch out, or give memory by --capacity in place of "
                      "--gpu",
                      setting, request.gpu, capacity.arch));
  }
  std::map<const Key*, std::optional<Unread>> read, why;
  std::map<std::string, std::string> without_rows;  // recipes without rows, and why
  for (const std::string& recipe : recipes_of(request, capacity, base.arch, vocabulary)) {
    for (const bool quantized : {false, true}) {
      if (quantized && !vocabulary.quantizes(recipe)) continue;
      if (vocabulary.quantizes(recipe) && quantized_weights.value_or(quantized) != quantized) continue;
      for (const int ranks : out.ranks) {
        PlannedCell cell;
        cell.config = base;
        cell.config.training.recipe = recipe;
        cell.config.training.quantized_weights = quantized;
        cell.config.ranks = ranks;
        cell.config.gather_ahead = base.gather_ahead && is_sharded(cell.config);
        // Under --as the library reads the keys.
        cell.config.subject = request.as.empty() ? base.subject : request.as.substr(0, request.as.find('@'));
        const std::vector<std::optional<Unread>> unread = drop_unread(set, cell.config, vocabulary);
        cell.config.subject = base.subject;
        for (std::size_t i = 0; i < set.size(); ++i) (unread[i] ? why : read)[set[i]] = unread[i];
        cell.config.id =
            fmt::format("{}/ranks={},recipe={},quantized_weights={}", base.scenario, ranks, recipe, quantized);
        cell.title = recipe + (quantized ? ", FP8 weights" : "") +
                     (base.training.param_dtype == ParamDType::kF32 ? ", f32 layers" : "");
        if (const auto rules = broken_rules(cell.config, vocabulary); !rules.empty()) {
          if (!request.recipes.empty() || !is_broken_by_recipe(cell.config, vocabulary))
            fail(fmt::format("plan: {}: {}", rules.front().key, rules.front().rule));
          without_rows[recipe] = fmt::format("{}: {}", rules.front().key, rules.front().rule);
          continue;
        }
        out.cells.push_back(std::move(cell));
      }
    }
  }
  for (std::size_t i = 0; i < set.size(); ++i)
    if (!read.contains(set[i]))
      fail(fmt::format("plan: --set {}: no row reads it: {}; leave it out, or {}", request.settings[i],
                       why[set[i]]->reason, why[set[i]]->remedy));
  out.heading = heading_of(base.scenario, base, capacity, out.cells);
  if (!model.left_out.empty()) out.heading += fmt::format("Left out of the model: {}\n", model.left_out);
  for (const auto& [recipe, why_not] : without_rows) out.heading += fmt::format("No rows of {}: {}\n", recipe, why_not);
  return out;
}

}  // namespace fp8lab
