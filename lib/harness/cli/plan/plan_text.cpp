#include "harness/cli/plan/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/plan/plan_fit_text.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

struct Column {
  std::string_view metric, title;
};
constexpr std::array kColumns{Column{"memory.peak_bytes", "peak"}, Column{"memory.weight_bytes", "weights"},
                              Column{"memory.retained_bytes", "retained"},
                              Column{"traffic.all_gather_bytes", "all-gather"},
                              Column{"traffic.reduce_scatter_bytes", "reduce-scatter"}};

constexpr const char* kLegend =
    "(peak: memory.peak_bytes; weights: memory.weight_bytes; retained: memory.retained_bytes; all-gather and "
    "reduce-scatter:\ntraffic.all_gather_bytes and traffic.reduce_scatter_bytes, the full arrays of a step)\n";

std::string row_of(std::string_view label, const std::array<std::string, kColumns.size()>& texts) {
  std::string out = fmt::format("  {:<24}", label);
  for (const std::string& text : texts) out += fmt::format(" {:>14}", text);
  return out + "\n";
}

std::array<std::string, kColumns.size()> texts_of(const std::map<std::string, double>& figures) {
  std::array<std::string, kColumns.size()> out;
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    const auto figure = figures.find(std::string(kColumns[i].metric));
    out[i] = figure == figures.end() ? "-" : short_figure(figure->second, "B");
  }
  return out;
}

/// "+4.50 GiB"
std::string signed_text(double bytes) {
  return bytes == 0 ? "same" : (bytes < 0 ? "-" : "+") + short_figure(std::abs(bytes), "B");
}

std::array<std::string, kColumns.size()> difference_texts(const Estimate& estimate, const Estimate& of_bf16) {
  std::array<std::string, kColumns.size()> out;
  for (std::size_t i = 0; i < kColumns.size(); ++i) {
    const std::string name(kColumns[i].metric);
    const auto a = estimate.figures.find(name), b = of_bf16.figures.find(name);
    out[i] = a == estimate.figures.end() || b == of_bf16.figures.end() ? "-" : signed_text(a->second - b->second);
  }
  return out;
}

/// The rows of an arm: its figures, the measured ones, their differences from bf16, and PyTorch's.
std::string rows_of(const Planned& plan, const PlannedArm& arm) {
  const std::string measured =
      arm.measured.empty() ? "" : row_of(fmt::format("{}, measured", name(arm.arm)), texts_of(arm.measured));
  if (!arm.reason.empty()) return fmt::format("  {:<24} {}\n", name(arm.arm), for_terminal(arm.reason)) + measured;
  std::string out = row_of(name(arm.arm), texts_of(arm.estimate.figures)) + measured;
  if (plan.bf16 && arm.arm == Arm::kAfter)
    out += row_of("after less bf16", difference_texts(arm.estimate, plan.bf16->estimate));
  if (arm.torch)
    out += row_of(fmt::format("{}, {}", name(arm.arm), arm.torch->release), texts_of(arm.torch->estimate.figures));
  return out;
}

/// Which of its weights are not FP8, though the cell requires it.
std::string refused_text(const PlannedArm& arm, const std::string& indent) {
  if (arm.estimate.refused_weights == 0) return "";
  return fmt::format("{}{} of {} stay in high precision{}\n", indent, arm.estimate.refused_weights,
                     counted(static_cast<std::size_t>(arm.estimate.fp8_weights), "FP8 weight"),
                     arm.arm == Arm::kBefore ? "" : ": over these ranks, shards would cut their blocks");
}

/// An expectation that fails, with the figures that show it and whose they are.
std::string gate_text(const Planned& plan, const Gate& gate) {
  const Metric* metric = find_metric(gate.metric);
  const std::string_view unit = metric ? metric->unit : "1";
  std::string figures = gate.detail;
  if (gate.observed) figures = "predicted " + figure(*gate.observed, unit);
  if (gate.observed && gate.limit) figures += ", limit " + figure(*gate.limit, unit);
  return fmt::format("  fails for {}: {}: {}\n", plan.subject(), for_terminal(gate.text), figures);
}

/// "11.2", "1.87", in GiB; small values have a unit, "512 B".
std::string gib_text(double bytes, bool with_sign = false) {
  const double value = bytes / (1024.0 * 1024.0 * 1024.0), size = std::abs(value);
  const std::string digits = size >= 10                  ? fmt::format("{:.1f}", size)
                             : size >= 0.01 || size == 0 ? fmt::format("{:.2f}", size)
                                                         : short_figure(std::abs(bytes), "B");
  return (value < 0 ? "-" : with_sign ? "+" : "") + digits;
}

/// "47.7 (-4.5)": GiB, in brackets the difference from bf16.
std::string with_difference(double bytes, const std::optional<double>& of_bf16) {
  if (!of_bf16) return gib_text(bytes);
  return fmt::format("{} ({})", gib_text(bytes), bytes == *of_bf16 ? "same" : gib_text(bytes - *of_bf16, true));
}

std::optional<double> figure_of(const Estimate& estimate, const char* name) {
  const auto found = estimate.figures.find(name);
  return found == estimate.figures.end() ? std::nullopt : std::optional(found->second);
}

std::string figure_text(const Planned& plan, const Estimate& estimate, const Estimate* of_bf16, const char* name) {
  const auto value = figure_of(estimate, name);
  if (!value) return "-";
  return with_difference(*value, plan.bf16 && of_bf16 ? figure_of(*of_bf16, name) : std::nullopt);
}

bool shares_experts(const Planned& plan) { return plan.cell.config.expert_parallel > 1; }

/// A row of the table of one number of ranks: peaks with the marks that the legend explains, weights, bytes moved.
std::string table_row(const Planned& plan) {
  constexpr const char* kPeak = "memory.peak_bytes";
  const PlannedArm& arm = plan.arms.front();
  const Estimate* const bf16 = plan.bf16 ? &plan.bf16->estimate : nullptr;
  const std::string fit = !arm.spare ? "" : *arm.spare < 0 ? "!" : fits_tightly(plan, arm) ? "?" : "";
  std::string out = fmt::format("{:<24} {:>17} {:<2}", plan.cell.title, figure_text(plan, arm.estimate, bf16, kPeak),
                                fit + (arm.estimate.refused_weights > 0 ? "*" : ""));
  // Between two libraries there is no difference of a recipe.
  const bool compares = arm.torch && TorchMemory::is_named(arm.torch->release);
  const Estimate* const torch_bf16 = compares && plan.bf16 && plan.bf16->torch ? &plan.bf16->torch->estimate : nullptr;
  if (plan.asks_torch)
    out += fmt::format(" {:>17} {:<1}", arm.torch ? figure_text(plan, arm.torch->estimate, torch_bf16, kPeak) : "-",
                       arm.torch_lacks_memory() ? "!" : "");
  out += fmt::format(" {:>17}", figure_text(plan, arm.estimate, bf16, "memory.weight_bytes"));
  const auto moved = moved_bytes(plan.cell.config, arm.estimate);
  const auto in_bf16 = bf16 ? moved_bytes(plan.cell.config, *bf16) : std::nullopt;
  std::vector<double MovedBytes::*> columns{&MovedBytes::received, &MovedBytes::sent};
  if (shares_experts(plan)) columns.push_back(&MovedBytes::exchanged);
  for (double MovedBytes::* const bytes : columns)
    out += fmt::format(
        " {:>17}",
        moved ? with_difference((*moved).*bytes, in_bf16 ? std::optional((*in_bf16).*bytes) : std::nullopt) : "-");
  return out + "\n";
}

/// The table of the number of ranks that `column` counts.
std::string model_table(const std::vector<Planned>& plans, const ModelPlan& model, std::size_t column) {
  const std::string subject = plans.front().library.empty() ? "built-in runtime" : plans.front().library;
  const auto of_torch = [&](const char* text) {
    return plans.front().asks_torch ? fmt::format(" {:>17}  ", text) : "";
  };
  const auto to_experts = [&](const char* text) {
    return shares_experts(plans.front()) ? fmt::format(" {:>17}", text) : "";
  };
  std::string out = fmt::format(
      "\nOver {}, GiB of a rank; in brackets the difference from bf16:\n{:<24} {:>17}   {} {:>17} {:>17} {:>17}{}\n"
      "{:<24} {:>17}   {} {:>17} {:>17} {:>17}{}\n",
      counted(static_cast<std::size_t>(model.ranks[column]), "rank"), "", "peak,", of_torch("peak,"), "weights kept",
      "received a step", "sent a step in", to_experts("sent a step in"), "", subject.size() > 17 ? "library" : subject,
      of_torch("libraries"), "between steps", "in all-gathers", "reduce-scatters", to_experts("all-to-alls"));
  for (std::size_t i = column; i < plans.size(); i += model.ranks.size()) out += table_row(plans[i]);
  return out;
}

std::string marks_legend(const std::vector<Planned>& plans) {
  const auto any = [&](const auto& marked) {
    return std::ranges::any_of(plans, [&](const Planned& plan) { return marked(plan, plan.arms.front()); });
  };
  std::string out;
  if (any([](const Planned&, const PlannedArm& arm) {
        return arm.torch_lacks_memory() || (arm.spare && *arm.spare < 0);
      }))
    out += "(!: does not fit)\n";
  if (any([](const Planned& plan, const PlannedArm& arm) { return fits_tightly(plan, arm); }))
    out += "(?: fits by live bytes)\n";
  if (any([](const Planned&, const PlannedArm& arm) { return arm.estimate.refused_weights > 0; }))
    out += "(*: FP8 weights stay in high precision because shards would cut their blocks)\n";
  return out.empty() ? "" : "\n" + out;
}

/// Why rows of the tables have no figures, or none of PyTorch, each reason once.
std::string unpredicted_text(const std::vector<Planned>& plans) {
  std::string out;
  for (const Planned& plan : plans) {
    const PlannedArm& arm = plan.arms.front();
    const std::string& reason = arm.reason.empty() ? arm.torch_reason : arm.reason;
    const std::string line = fmt::format("-: {}\n", for_terminal(reason));
    if (!reason.empty() && out.find(line) == std::string::npos) out += line;
  }
  return out.empty() ? "" : "\n" + out;
}

/// The rows of a model's plan over its fewest ranks.
std::vector<PlannedRow> first_rows(const std::vector<Planned>& plans, const ModelPlan& model) {
  std::vector<PlannedRow> out;
  for (std::size_t i = 0; i < plans.size(); i += model.ranks.size()) out.push_back({plans[i].cell.title, &plans[i]});
  return out;
}

/// "all 7 rows", "5 of 7 rows"
std::string of_rows(std::size_t some, std::size_t all) {
  if (all == 1) return some == 1 ? "its row" : "no row";
  return some == all ? fmt::format("all {} rows", all) : fmt::format("{} of {} rows", some, all);
}

/// What PyTorch's figures show in the rows that they cover: "torch@2.15 fits (bf16: 75.7 GiB reserved), ".
std::string torch_answer(const std::vector<PlannedRow>& rows) {
  std::vector<std::pair<std::string, std::string>> answers;  // release with its verdict, and its rows
  for (const PlannedRow& row : rows) {
    const PlannedArm& arm = row.plan->arms.front();
    if (!arm.torch_spare) continue;
    const TorchFit fit = torch_fit_of(arm.torch->estimate, arm.torch->release, row.plan->capacity);
    const std::string verdict = fmt::format("{} {}", arm.torch->release,
                                            !fit.fits     ? "does not fit"
                                            : fit.is_sure ? "fits"
                                                          : "may not fit");
    const std::string bytes = fit.fits && fit.reserved && !fit.is_bound ? bytes_text(*fit.reserved) + " reserved"
                                                                        : bytes_text(fit.live) + " live";
    const std::string of_row = fmt::format("{}: {}", row.title, bytes);
    const auto same = std::ranges::find(answers, verdict, &std::pair<std::string, std::string>::first);
    if (same == answers.end())
      answers.emplace_back(verdict, of_row);
    else
      same->second += "; " + of_row;
  }
  std::string out;
  for (const auto& [verdict, titles] : answers) out += fmt::format("{} ({}), ", verdict, titles);
  return out;
}

/// One line: in which rows of a model's plan the memory is enough over the fewest ranks, and the cheapest change for
/// the others.
std::string answer_text(const std::vector<PlannedRow>& all, const ModelPlan& model) {
  std::vector<PlannedRow> rows = all;
  std::erase_if(rows, [](const PlannedRow& row) { return !row.plan->arms.front().spare; });
  if (rows.empty()) return "";
  std::size_t fitting = 0, tight = 0;
  const Fit* cheapest = nullptr;
  const PlannedRow* of = nullptr;
  for (const PlannedRow& row : rows) {
    const PlannedArm& arm = row.plan->arms.front();
    fitting += *arm.spare >= 0;
    tight += fits_tightly(*row.plan, arm);
    if (!arm.search) continue;
    for (const Fit& fit : arm.search->fits) {
      const auto rank = [](const Fit& f) { return std::pair(f.cost, f.peak.largest()); };
      if (cheapest && rank(*cheapest) <= rank(fit)) continue;
      cheapest = &fit;
      of = &row;
    }
  }
  const std::string of_torch = torch_answer(rows);
  std::string out = fmt::format(
      "Over {} of {} each, {}{}{} {}", counted(static_cast<std::size_t>(model.ranks.front()), "rank"),
      bytes_text(static_cast<double>(rows.front().plan->capacity)), of_torch, of_torch.empty() ? "" : "and ",
      rows.front().plan->subject(), fitting == 0 ? "fits in no row" : "fits in " + of_rows(fitting, rows.size()));
  if (tight > 0) out += tight == fitting ? " by live bytes" : fmt::format(", {} of them by live bytes", tight);
  out += ".\n";
  if (cheapest) out += fmt::format("The cheapest change is {} in row {}.\n", text_of_changes(*cheapest), of->title);
  return out;
}

/// How the PyTorch program of a model's plan holds its parameters: "FSDP2 (FP32 shards, gradients reduced in FP32)".
std::string torch_program_text(const CellConfig& cell) {
  const bool is_f32 = cell.training.param_dtype == ParamDType::kF32;
  const char* const parameters = is_f32 || cell.training.master_weights == Master::kF32 ? "FP32" : "BF16";
  if (!is_sharded(cell))
    return fmt::format("{}{} parameters", is_replicated(cell) ? "DistributedDataParallel, " : "",
                       is_f32 ? "FP32" : "BF16");
  const CellConfig trained = as_torchtitan(cell);
  return fmt::format("FSDP2 ({} shards, {} layers, gradients reduced in {})", parameters, is_f32 ? "FP32" : "BF16",
                     *trained.reduce_dtype == ReduceDType::kF32 ? "FP32" : "BF16");
}

/// What the rows of Transformer Engine are; "" if there are none.
std::string engine_note(const std::vector<Planned>& plans) {
  for (const Planned& plan : plans)
    if (const auto& torch = plan.arms.front().torch; torch && !TorchMemory::is_named(torch->release))
      return fmt::format(
          "{} in the other recipes: layers from its memory profile, FusedAdam, BF16 shards, and PyTorch's embedding "
          "and loss.\n",
          torch->release);
  return "";
}

/// Whose the figures of a model's plan are.
std::string figures_note(const std::vector<Planned>& plans) {
  const Planned& plan = plans.front();
  if (TorchMemory::is_named(plan.library))
    return fmt::format("Figures belong to {}, predicted from what its program allocates.\n", plan.library);
  if (!plan.library.empty())
    return fmt::format("Figures belong to {}, predicted from its memory profile.\n{}", plan.library,
                       is_replicated(plan.cell.config)
                           ? "NCCL's process group may hold the buckets of the first step until the second, which is "
                             "not predicted: peaks are\nthen higher by the size of all gradients.\n"
                           : "");
  if (!plan.asks_torch)
    return "Figures belong to the built-in runtime: closed forms that its runs are compared with, byte by byte.\n";
  return fmt::format(
      "Figures belong to the subject that a column or line names. Built-in runtime: closed forms that its runs are "
      "compared\nwith, byte by byte; the last three columns are its figures too. Libraries: live bytes of an eager "
      "program with\n{3}, FP32 logits, and layers as torchtitan has them:\n{0} in bf16, {1} (Float8Linear) under "
      "recipe `current`.\n{4}`fp8lab plan --as LIBRARY@RELEASE` gives all figures and states how they were compared "
      "with runs.\n{2}",
      TorchMemory::newest("torch"), TorchMemory::newest("torchao"),
      shares_experts(plan) ? "With `expert_parallel` the built-in runtime allocates all rows that a rank can "
                             "receive, and PyTorch the rows "
                             "that it\ndoes receive; figures assume the same number for each expert.\n"
                           : "",
      torch_program_text(plan.cell.config), engine_note(plans));
}

/// Below the tables: what the fewest ranks hold, rows of one answer together, and what would make them fit.
std::string details_text(const std::vector<PlannedRow>& rows, const ModelPlan& model) {
  std::vector<std::pair<std::string, std::string>> answers;  // rows, and what they have in common
  for (const PlannedRow& row : rows) {
    const PlannedArm& arm = row.plan->arms.front();
    std::string answer =
        arm.reason.empty() ? fit_text(*row.plan, arm, "  ") : fmt::format("  {}\n", for_terminal(arm.reason));
    const auto same = std::ranges::find(answers, answer, &std::pair<std::string, std::string>::second);
    if (same == answers.end())
      answers.emplace_back(row.title, std::move(answer));
    else
      same->first += "; " + row.title;
  }
  std::string out = fmt::format("\nOver {}, by row:\n", counted(static_cast<std::size_t>(model.ranks.front()), "rank"));
  for (const auto& [titles, answer] : answers) out += titles + "\n" + answer;
  const std::string remedies = remedies_text(rows);
  return out + (remedies.empty() ? "" : "\n" + remedies);
}

std::string why_not_run(const PlannedCell& cell) {
  if (cell.skip_reason.empty()) return "";
  return fmt::format("  {}: {}", cell.skipped_here ? "not run here" : "skipped", for_terminal(cell.skip_reason));
}

}  // namespace

std::string model_text(const std::vector<Planned>& plans, const ModelPlan& model) {
  std::vector<PlannedRow> rows = first_rows(plans, model);
  std::string out = answer_text(rows, model) + model.heading + figures_note(plans);
  const bool predicted = std::ranges::any_of(plans, [](const Planned& p) { return p.arms.front().reason.empty(); });
  if (!predicted) return out + details_text(rows, model);
  for (std::size_t column = 0; column < model.ranks.size(); ++column) out += model_table(plans, model, column);
  out += unpredicted_text(plans) + marks_legend(plans);
  std::erase_if(rows, [](const PlannedRow& row) { return !row.plan->arms.front().reason.empty(); });
  if (plans.front().capacity > 0 && !rows.empty()) out += details_text(rows, model);
  return out + live_bytes_legend(out, plans.front().library);
}

std::string scenario_text(const std::vector<Planned>& plans, bool says_what_runs) {
  const std::string subject = says_what_runs ? "the built-in runtime" : plans.front().subject();
  std::string text = fmt::format("Predicted figures of {}, on rank 0:\n", subject);
  std::array<std::string, kColumns.size()> titles;
  for (std::size_t i = 0; i < kColumns.size(); ++i) titles[i] = kColumns[i].title;
  text += row_of("", titles);
  std::size_t runs = 0, arms = 0, predicted = 0, hold = 0, fail = 0, open = 0;
  std::vector<PlannedRow> rows;
  for (const Planned& plan : plans) {
    const CellConfig& cell = plan.cell.config;
    rows.push_back({cell.id, &plan});
    runs += plan.cell.skip_reason.empty();
    arms += plan.arms.size();
    predicted += static_cast<std::size_t>(
        std::ranges::count_if(plan.arms, [](const PlannedArm& arm) { return !arm.estimate.figures.empty(); }));
    text += fmt::format("{}  ({}, {} {}{}){}\n", cell.id, cell.device, cell.ranks, cell.ranks == 1 ? "rank" : "ranks",
                        plan.subject() == subject ? "" : ", figures of " + plan.subject(), why_not_run(plan.cell));
    for (const PlannedArm& arm : plan.arms)
      text += rows_of(plan, arm) + refused_text(arm, "      ") + fit_text(plan, arm, "      ");
    for (const Gate& gate : plan.gates) {
      if (!*gate.pass) text += gate_text(plan, gate);
      ++(*gate.pass ? hold : fail);
    }
    open += plan.open;
  }
  text += kLegend + remedies_text(rows);
  text += live_bytes_legend(text, plans.front().library);
  text += fmt::format("{}, {}{}", counted(plans.size(), "cell"),
                      says_what_runs ? fmt::format("{} of them run here, ", runs) : "", counted(arms, "arm"));
  if (predicted < arms) text += fmt::format("; {} of {} are predicted", predicted, counted(arms, "arm"));
  if (hold + fail > 0)
    text +=
        fmt::format("; predictions for {} decide {} of {}: {}", subject, hold + fail,
                    counted(hold + fail + open, "expectation"), fail == 0 ? "all hold" : fmt::format("{} fail", fail));
  return text + "\n";
}

}  // namespace fp8lab
