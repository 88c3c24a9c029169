#include "harness/subjects/torch_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/spelling.h"
#include "harness/results/json_reader.h"
#include "harness/subjects/eager_estimate.h"
#include "harness/subjects/recorded_keys.h"
#include "harness/subjects/torch_coverage.h"

namespace fp8lab {
namespace {

using eager::Operators;
using eager::Program;

constexpr std::string_view kTorchSchema = "fp8lab.torch-memory/1";

std::string range_of(const TorchLibrary& library) {
  return fmt::format("{0}@{1}{2} to {0}@{1}{3}", library.name, library.major, library.oldest, library.newest);
}

TorchRun run_from(const JsonReader& json) {
  TorchRun out;
  out.what = json.object_json();
  const std::string program = json.at("program").text(), operators = json.at("operators").text();
  if (program != "worker" && program != "torchtitan") json.at("program").refuse("worker or torchtitan");
  static const std::map<std::string, Operators> kOperators{
      {"host", Operators::kHost}, {"cuda_shapes", Operators::kCudaOnShapes}, {"cuda", Operators::kCuda}};
  const auto of = kOperators.find(operators);
  if (of == kOperators.end()) json.at("operators").refuse("host, cuda_shapes or cuda");
  out.program = program == "worker" ? Program::kWorker : Program::kTorchtitan;
  out.operators = of->second;
  set_recorded_keys(json.at("keys"), out.cell);
  const JsonReader bytes = json.at("bytes");
  out.peak = bytes.at("peak").number();
  out.end_of_forward = bytes.at("end_of_forward").number();
  out.end_of_backward = bytes.at("end_of_backward").number();
  out.end_of_step = bytes.at("end_of_step").number();
  if (out.operators == Operators::kCuda) out.reserved = bytes.at("reserved").number();
  if (const auto traffic = json.find("traffic")) {
    auto& moved = out.traffic.emplace();
    traffic->each_member([&](const std::string& kind, const JsonReader& value) {
      moved[fmt::format("traffic.{}_bytes", kind)] = value.number();
    });
  }
  return out;
}

constexpr const char* kReserved = "memory.reserved_peak_bytes";

/// How far a figure is from the measured one, as a part of it.
double distance(const eager::Memory& memory, const char* name, double measured) {
  return std::abs(static_cast<double>(memory.figures.at(name)) / measured - 1.0);
}

void add(Accuracy& accuracy, double distance) {
  constexpr double kClose = 0.01;
  ++accuracy.runs;
  accuracy.within += distance <= kClose;
  accuracy.worst = std::max(accuracy.worst, distance);
}

/// The runs under DistributedDataParallel, or the others.
TorchRuns part_of(TorchRuns runs, bool of_replicas) {
  std::erase_if(runs.rows, [&](const TorchRun& run) { return is_replicated(run.cell) != of_replicas; });
  return runs;
}

/// The runs of mixtures of experts, or the others.
TorchRuns runs_of(TorchRuns runs, bool of_mixtures) {
  std::erase_if(runs.rows, [&](const TorchRun& run) { return routes_tokens(run.cell.model) != of_mixtures; });
  return runs;
}

/// "within 1 % in 26 of 26 on a CPU, worst 0.02 %"
std::string text_of(const Accuracy& accuracy, const char* where) {
  return fmt::format("within 1 % in {} of {} {}, worst {:.2f} %", accuracy.within, accuracy.runs, where,
                     100.0 * accuracy.worst);
}

/// How far predictions are from runs without a GPU; "" without runs.
std::string compared_without_gpus(const TorchRuns& runs) {
  std::string out;
  for (const auto& [operators, where] :
       {std::pair(Operators::kHost, "on a CPU"),
        std::pair(Operators::kCudaOnShapes, "with CUDA's operators on shapes (FakeTensorMode)")})
    if (const Accuracy accuracy = accuracy_of(runs, operators); accuracy.runs > 0)
      out += (out.empty() ? "" : ",\n") + text_of(accuracy, where);
  return out;
}

constexpr const char* kFloat8Title =
    "Under `recipe: current` Float8Linear computes the products of layers; head and embedding stay in 16 bits. Saved "
    "inputs have\n16 bits too, and casts are eager operations with FP32 temporaries, which torch.compile fuses: a "
    "compiled program needs less.\n";

}  // namespace

TorchRuns read_torch_runs(const std::string& path) {
  const std::string text = read_regular_file(path);
  try {
    const JsonDocument document(text);
    const JsonReader json = document.root();
    if (!json.at("schema").is_text(kTorchSchema)) json.at("schema").refuse(kTorchSchema);
    TorchRuns out;
    out.measured = json.at("measured").text();
    json.at("rows").each_item([&](const JsonReader& row) { out.rows.push_back(run_from(row)); });
    return out;
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", path, error.what()));
  }
}

Accuracy accuracy_of(const TorchRuns& runs, Operators operators) {
  Accuracy out;
  for (const TorchRun& run : runs.rows) {
    if (run.operators != operators) continue;
    const eager::Memory memory = memory_of(run.cell, run.program, run.operators);
    add(out, std::max(distance(memory, "memory.peak_bytes", run.peak),
                      distance(memory, "memory.end_of_forward_bytes", run.end_of_forward)));
  }
  return out;
}

Accuracy accuracy_of_reserved(const TorchRuns& runs) {
  Accuracy out;
  for (const TorchRun& run : runs.rows)
    if (run.operators == Operators::kCuda)
      add(out, distance(memory_of(run.cell, run.program, run.operators), kReserved, run.reserved));
  return out;
}

std::string traffic_mismatch(const TorchRun& run) {
  const eager::Memory memory = memory_of(run.cell, run.program, run.operators);
  for (const char* name : {"traffic.all_gather_bytes", "traffic.reduce_scatter_bytes", "traffic.all_reduce_bytes",
                           "traffic.all_to_all_bytes", "traffic.ring_exchange_bytes"}) {
    const auto found = memory.figures.find(name);
    const auto counted = run.traffic->find(name);
    const auto predicted = found == memory.figures.end() ? 0.0 : static_cast<double>(found->second);
    const double measured = counted == run.traffic->end() ? 0.0 : counted->second;
    if (predicted != measured)
      return fmt::format("{}: predicted {}, measured {}: {}", name, predicted, measured, run.what);
  }
  return "";
}

std::optional<double> reserved_with_margin(const Estimate& estimate) {
  constexpr double kMargin = 0.02;
  const auto figure = estimate.figures.find(std::string(kReserved));
  if (figure == estimate.figures.end()) return std::nullopt;
  return (1.0 + kMargin) * figure->second;
}

std::string TorchMemory::runs_in(const std::string& folder) { return folder + "/measured/torch-memory.json"; }

std::string TorchMemory::gpu_runs_in(const std::string& folder) { return folder + "/measured/torch-memory-cuda.json"; }

bool TorchMemory::is_named(const std::string& release) { return torch_library_of(release) != nullptr; }

std::vector<std::string> TorchMemory::ranges() {
  std::vector<std::string> out;
  for (const TorchLibrary& library : torch_libraries()) out.push_back(range_of(library));
  return out;
}

std::string TorchMemory::newest(std::string_view library) {
  const TorchLibrary* const found = torch_library_of(library);
  check(found != nullptr, "a library without figures");
  return fmt::format("{}@{}{}", found->name, found->major, found->newest);
}

TorchMemory TorchMemory::find(const std::string& folder, const std::string& release) {
  const TorchLibrary* const library = torch_library_of(release);
  if (library == nullptr) fail(fmt::format("--as: there are no figures of `{}`", quotable(release)));
  const std::size_t sign = release.find('@');
  const std::string version = sign == std::string::npos ? "" : release.substr(sign + 1);
  const std::string minor = version.substr(0, version.find('.', 2)).substr(std::min<std::size_t>(version.size(), 2));
  const auto number = version.starts_with(library->major) ? integer(minor) : std::nullopt;
  if (!number || *number < library->oldest || *number > library->newest)
    fail(fmt::format("--as: there are no figures of `{}`; there are {}{}{}", quotable(release), range_of(*library),
                     number && *number < library->oldest ? ": " : "",
                     number && *number < library->oldest ? library->why_not_older : ""));
  TorchMemory out;
  out.name_ = release;
  out.runs_ = read_torch_runs(runs_in(folder));
  out.gpu_runs_ = read_torch_runs(gpu_runs_in(folder));
  for (TorchRuns* runs : {&out.runs_, &out.gpu_runs_})
    std::erase_if(runs->rows, [&](const TorchRun& run) {
      return (run.cell.training.recipe == kBf16Recipe) == !library->float8_recipe.empty();
    });
  return out;
}

// No run of an earlier release had `expert_parallel` or sinks, and 2.11 lacks what the first needs.
bool TorchMemory::is_newest() const { return name_.starts_with(newest()); }

std::vector<std::string> TorchMemory::recipes() const {
  const TorchLibrary& library = *torch_library_of(name_);
  std::vector<std::string> out{std::string(kBf16Recipe)};
  if (!library.float8_recipe.empty()) out.emplace_back(library.float8_recipe);
  return out;
}

std::string TorchMemory::title(Program program) const {
  const char* const layers =
      program == Program::kTorchtitan
          ? "layers as torchtitan and published models have them (products of their own for Q, K, V, gate and up); "
            "under FSDP2\nwith `master_weights: f32` sharded parameters are FP32 and layers compute in BF16 "
            "(MixedPrecisionPolicy)"
          : "the layers of lib/subjects, which `subject: torch` trains (one product for Q, K and V)";
  const bool is_float8 = !torch_library_of(name_)->float8_recipe.empty();
  const std::string compared = compared_without_gpus(runs_of(runs_, false));
  std::string of_mixtures = compared_without_gpus(runs_of(runs_, true));
  if (const TorchRuns mixtures = runs_of(gpu_runs_, true); !mixtures.rows.empty())
    of_mixtures = fmt::format("Mixtures of experts: {};\non GPUs {}; reserved memory {}.\n", of_mixtures,
                              text_of(accuracy_of(mixtures, Operators::kCuda), "runs"),
                              text_of(accuracy_of_reserved(mixtures), "on the same GPUs"));
  if (is_newest() && program == Program::kTorchtitan)
    of_mixtures +=
        "With `expert_parallel` figures assume the same number of rows for each expert; a rank that receives more rows "
        "holds\nmore. No run on GPUs had `expert_parallel`.\n";
  if (is_newest() && program == Program::kTorchtitan)
    of_mixtures +=
        "With `attention_sinks` and `swiglu_limit` layers are the ones of torchtitan's GPT-OSS: one product for Q, K "
        "and "
        "V,\nvarlen_attn(), and routers in FP32. No run on GPUs had them.\n";
  if (program == Program::kTorchtitan)
    of_mixtures +=
        "With `context_parallel` attention is the one of PyTorch's context_parallel(): a ring, with gathered keys and "
        "values. Ranks\nthen hold different amounts, and figures are for the rank that holds most.\n";
  std::string on_gpus;
  if (const TorchRuns others = runs_of(part_of(gpu_runs_, false), false); !others.rows.empty())
    on_gpus =
        fmt::format("On GPUs {}; reserved memory {}\n({}).\n", text_of(accuracy_of(others, Operators::kCuda), "runs"),
                    text_of(accuracy_of_reserved(others), "on the same GPUs"), gpu_runs_.measured);
  if (const TorchRuns replicas = part_of(gpu_runs_, true); !replicas.rows.empty())
    on_gpus += fmt::format(
        "DistributedDataParallel on GPUs {}; in the others NCCL's process\ngroup had freed the buckets of the first "
        "step "
        "before the peak of the second.\n",
        text_of(accuracy_of(replicas, Operators::kCuda), "runs"));
  std::size_t counted = 0, equal = 0;
  for (const TorchRun& run : runs_.rows) {
    if (!run.traffic) continue;
    ++counted;
    equal += traffic_mismatch(run).empty();
  }
  const std::string of_traffic =
      counted == 0 ? ""
                   : fmt::format("Bytes of collectives equal the bytes that PyTorch dispatched in {} of {} runs.\n",
                                 equal, counted);
  const char* const of_others =
      is_float8
          ? "Other releases were compared with no run.\n"
          : "PyTorch 2.9.1 ran 52 of these configurations on a CPU: ends of forward equal 2.15's in 51, peaks in 44; "
            "other peaks\nare at most 1.7 % off, and with frozen layers 9.3 %. Other releases were compared with no "
            "run.\n";
  return fmt::format(
      "As {}: live bytes of an eager program with a fused kernel of SDPA, F.cross_entropy of FP32 logits, AdamW, and "
      "FSDP2;\n{}.\n{}Peak and end of forward compared with runs of {}: {}\n({}).\n{}{}{}",
      name_, layers, is_float8 ? kFloat8Title : "", is_float8 ? "torchao under PyTorch" : "PyTorch", compared,
      runs_.measured, on_gpus + of_mixtures, of_traffic, of_others);
}

Estimate TorchMemory::estimate(const CellConfig& cell, Arm arm, Program program) const {
  std::vector<std::string> reasons = uncovered_by_torch(cell, arm, program, *torch_library_of(name_));
  if (cell.expert_parallel > 1 && !is_newest())
    reasons.push_back(fmt::format(
        "expert_parallel: figures cover {0}, whose FSDP2 can shard a module over two meshes; write `--as {0}`",
        newest()));
  if (cell.model.attention_sinks && program == Program::kTorchtitan && !is_newest())
    reasons.push_back(fmt::format(
        "model.attention_sinks: figures cover {0}, whose varlen_attn() was read; write `--as {0}`", newest()));
  if (!reasons.empty()) fail(fmt::format("{} does not cover: {}", name_, fmt::join(reasons, "; ")));
  const Operators operators = cell.device == "cpu" ? Operators::kHost : Operators::kCuda;
  CellConfig trained = cell;
  if (arm == Arm::kBf16) trained.training.recipe = kBf16Recipe;
  return estimate_of(memory_of(trained, program, operators), cell);
}

CellConfig as_torchtitan(CellConfig cell) {
  if (is_sharded(cell) && !cell.reduce_dtype) cell.reduce_dtype = ReduceDType::kF32;
  if (cell.training.steps > 1)
    cell.training.steps = std::max<std::int64_t>(cell.training.steps, eager::kStepsThatReserve);
  return cell;
}

}  // namespace fp8lab
