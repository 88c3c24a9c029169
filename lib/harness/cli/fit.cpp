#include "harness/cli/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"

namespace fp8lab {
namespace {

// Sizes as the models' publishers state them: config.json of meta-llama's repositories, and table 2.1 of the GPT-3
// paper (its vocabulary is GPT-2's).
constexpr std::array kModels{
    KnownModel{"llama3-8b", "Llama-3 8B", "llama", 32, 4096, 32, 8, 14336, {128256, false}},
    KnownModel{"llama3-70b", "Llama-3 70B", "llama", 80, 8192, 64, 8, 28672, {128256, false}},
    KnownModel{"llama3-405b", "Llama-3 405B", "llama", 126, 16384, 128, 8, 53248, {128256, false}},
    KnownModel{"gpt3-13b", "GPT-3 13B", "gpt", 40, 5120, 40, 40, 20480, {50257, true}},
    KnownModel{"gpt3-175b", "GPT-3 175B", "gpt", 96, 12288, 96, 96, 49152, {50257, true}},
};

// Memory as nvidia-smi reports it.
constexpr double kMiB = 1 << 20;
constexpr std::array kGpus{
    KnownGpu{"a100-40", "NVIDIA A100 40GB", 40960 * kMiB}, KnownGpu{"a100", "NVIDIA A100 80GB", 81920 * kMiB},
    KnownGpu{"l40s", "NVIDIA L40S 48GB", 46068 * kMiB},    KnownGpu{"h100", "NVIDIA H100 80GB", 81559 * kMiB},
    KnownGpu{"h200", "NVIDIA H200 141GB", 143771 * kMiB},  KnownGpu{"b200", "NVIDIA B200 180GB", 183359 * kMiB},
};

struct Step {
  std::string_view text;
  bool (*apply)(CellConfig& cell);  ///< false if the cell has it already
  bool repeatable = false;
};
constexpr int kMostTimes = 8;

bool set(auto& field, auto value) {
  if (field == value) return false;
  field = value;
  return true;
}

// From what costs nothing to what costs the most: an all-gather in backward; rounding of moments; a second forward;
// smaller batches; more GPUs.
constexpr std::array kSteps{
    Step{"reshard_after_forward: true", [](CellConfig& c) { return set(c.reshard_after_forward, true); }},
    Step{"training.quantized_weights: true", [](CellConfig& c) { return set(c.training.quantized_weights, true); }},
    Step{"training.moments: bf16",
         [](CellConfig& c) {
           return c.training.moments == Moments::kF32 && set(c.training.moments, Word<Moments>(Moments::kBF16));
         }},
    Step{"training.checkpoint: full",
         [](CellConfig& c) {
           return c.training.checkpoint == Recompute::kNone &&
                  set(c.training.checkpoint, Word<Recompute>(Recompute::kFull));
         }},
    Step{"half the batch, twice the micro-batches",
         [](CellConfig& c) {
           if (c.model.batch % 2 != 0) return false;
           c.model.batch /= 2;
           c.training.micro_batches *= 2;
           return true;
         },
         true},
    Step{"twice the ranks",
         [](CellConfig& c) {
           if (c.ranks * 2 > kMostRanks || !c.mesh.empty()) return false;
           c.ranks *= 2;
           return true;
         },
         true},
};

std::string phase_of(const std::map<std::string, double>& figures, double peak) {
  for (const std::string phase : {"setup", "forward", "optimizer"})
    if (const auto found = figures.find("memory." + phase + "_peak_bytes");
        found != figures.end() && found->second == peak)
      return phase;
  return "backward";
}

/// Holders begin with the kind of what they hold: "saved slot of layers[0].mlp: x".
std::string_view kind_of(std::string_view holder) {
  return holder.substr(0, std::min(holder.find(" of "), holder.find(':')));
}

constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
    {"saved slot", "saved for backward"},
    {"context", "saved for backward"},
    {"unsharded", "gathered weights and unsharded gradients"},
    {"parameter", "parameters"},
    {"gradient", "gradients"},
    {"in flight", "temporaries"},
    {"workspace", "temporaries"},
    {"output", "inputs and outputs"},
    {"input", "inputs and outputs"}};

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }
std::span<const KnownGpu> known_gpus() { return kGpus; }

Need need_of(const CellConfig& cell, const VocabularySize& vocabulary, const PredictFunction& predict) {
  const std::map<std::string, double> figures = predict(cell, Arm::kAfter);
  const auto peak = figures.find("memory.peak_bytes"), loss = figures.find("memory.end_of_forward_bytes");
  if (peak == figures.end() || loss == figures.end())
    fail("this configuration has no closed form of its memory; `fp8lab run -d meta` measures it");
  const VocabularyBytes more = vocabulary_bytes(cell, vocabulary);
  const Need layers{peak->second + more.standing, phase_of(figures, peak->second)};
  const double at_loss = loss->second + more.standing + more.at_loss;
  return vocabulary.tokens > 0 && at_loss > layers.bytes ? Need{at_loss, "loss"} : layers;
}

std::optional<Change> change_that_fits(const CellConfig& cell, const VocabularySize& vocabulary, double capacity,
                                       const PredictFunction& predict, const Vocabulary& words) {
  // The cell after `steps`; nothing if one of them changes nothing, a rule forbids it, or it has no closed form.
  const auto after = [&](const std::vector<const Step*>& steps) -> std::optional<Change> {
    Change out{"", cell, {}};
    for (const Step* step : steps) {
      if (!step->apply(out.cell)) return {};
      out.text += fmt::format("{}{}", out.text.empty() ? "" : ", ", step->text);
    }
    if (words.broken_rule && words.broken_rule(out.cell)) return {};
    try {
      out.need = need_of(out.cell, vocabulary, predict);
    } catch (const Error&) {
      return {};
    }
    return out;
  };
  const auto fits = [&](const std::optional<Change>& change) { return change && change->need.bytes <= capacity; };
  for (const Step& step : kSteps)
    if (auto change = after({&step}); fits(change)) return change;
  std::vector<const Step*> steps;
  std::optional<Change> found;
  for (const Step& step : kSteps)
    for (int times = step.repeatable ? kMostTimes : 1; times > 0 && !fits(found); --times) {
      steps.push_back(&step);
      auto change = after(steps);
      if (!change) {
        steps.pop_back();
        break;
      }
      found = std::move(change);
    }
  if (!fits(found)) return {};
  // Without the steps that the others make unnecessary, the dearest first.
  for (std::size_t i = steps.size(); i-- > 0;) {
    std::vector<const Step*> fewer = steps;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (auto change = after(fewer); fits(change)) {
      steps = std::move(fewer);
      found = std::move(change);
    }
  }
  return found;
}

std::vector<std::pair<std::string, double>> peak_by_kind(const CellConfig& cell, const ArmFunction& measure) {
  CellConfig on_meta = cell;
  on_meta.device = "meta";
  on_meta.capacity = 0;
  on_meta.measure = {"memory"};
  std::map<std::string, double> sums;
  for (const auto& [holder, bytes] : measure(on_meta, Arm::kAfter).peak_by_holder) {
    const std::string_view kind = kind_of(holder);
    const auto row = std::ranges::find(kKinds, kind, &std::pair<std::string_view, std::string_view>::first);
    sums[std::string(row == std::end(kKinds) ? kind : row->second)] += static_cast<double>(bytes);
  }
  std::vector<std::pair<std::string, double>> out(sums.begin(), sums.end());
  std::ranges::stable_sort(out, std::greater<>(), &std::pair<std::string, double>::second);
  return out;
}

std::optional<std::int64_t> capacity_of(const std::string& capacity, const std::string& gpu) {
  if (!capacity.empty()) {
    if (const auto bytes = parse_bytes(capacity)) return static_cast<std::int64_t>(*bytes);
    fail(fmt::format("--capacity: `{}` is no size; write 80GiB or 80GB", quotable(capacity)));
  }
  if (gpu.empty()) return {};
  std::vector<std::string> known;
  for (const KnownGpu& row : kGpus) {
    if (row.name == gpu) return static_cast<std::int64_t>(row.bytes - kDriverOverheadBytes);
    known.emplace_back(row.name);
  }
  fail(fmt::format("--gpu: no GPU is called `{}`.{}", quotable(gpu), suggestion(gpu, known)));
}

std::optional<double> parse_bytes(std::string_view text) {
  const std::size_t end = text.find_last_of("0123456789.") + 1;  // npos + 1 is 0
  const auto number = decimal_number(std::string(text.substr(0, end)));
  const std::size_t unit = text.find_first_not_of(' ', end);
  const auto bytes = unit == std::string_view::npos ? 1.0 : in_base_units(text.substr(unit), "B");
  if (!number || !bytes || !(*number > 0)) return {};
  return *number * *bytes;
}

}  // namespace fp8lab
