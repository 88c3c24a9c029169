#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cli/listing.h"
#include "harness/cli/plan/plan_results.h"
#include "harness/cli/plan/plan_text.h"
#include "harness/cli/plan/planned.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/subjects/profile/memory_profile.h"
#include "harness/subjects/profile/recorded_layers.h"
#include "harness/subjects/subjects.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

/// The first entry of "KEY: why; KEY: why".
std::string first_reason(std::string reasons) {
  for (std::size_t at = reasons.find("; "); at != std::string::npos; at = reasons.find("; ", at + 2))
    if (find_key(reasons.substr(at + 2, reasons.find(':', at) - at - 2))) return reasons.substr(0, at);
  return reasons;
}

/// The profile's figures of an arm. Throws Error with every key of the cell that the profile lacks, each once.
Estimate estimate_as(const MemoryProfile& profile, const CellConfig& cell, Arm arm) {
  CellConfig reduced = cell;
  std::string lacking;
  while (true) {
    try {
      Estimate out = profile.estimate(reduced, arm);
      if (lacking.empty()) return out;
      break;
    } catch (const Error& error) {
      const std::string reason = first_reason(error.what());
      const Key* const key = find_key(reason.substr(0, reason.find(':')));
      const Value plain = key ? key->get(CellConfig{}) : Value{};
      if (!key || key->get(reduced) == plain) fail(reason + (lacking.empty() ? "" : "; also lacking: " + lacking));
      lacking += fmt::format("{}{}={} ({})", lacking.empty() ? "" : ", ", key->path, to_text(key->get(reduced)),
                             reason.substr(reason.find(':') + 2));
      key->set(reduced, plain);
    }
  }
  fail(fmt::format("the profile has {} in form {}, but lacks: {}", cell.model.layer, cell.model.form, lacking));
}

std::function<Estimate(const CellConfig&, Arm)> estimate_of(const TorchMemory& torch, eager::Program eager) {
  return [torch, eager](const CellConfig& cell, Arm arm) {
    return torch.estimate(eager == eager::Program::kTorchtitan ? as_torchtitan(cell) : cell, arm, eager);
  };
}

ReleaseFigures figures_of(const MemoryProfile& engine, const CellConfig& cell, Arm arm) {
  try {
    return {engine.name(), estimate_as(engine, cell, arm)};
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", engine.name(), error.what()));
  }
}

/// The program with PyTorch's figures next to its own, if the folder of the worker has the runs they are held to.
Program with_torch(const Program& program, eager::Program eager) {
  Program out = program;
  if (!std::filesystem::exists(TorchMemory::runs_in(program.worker_directory))) return out;
  const auto of = [&](const char* library) {
    return TorchMemory::find(program.worker_directory, TorchMemory::newest(library));
  };
  const TorchMemory torch = of("torch"), torchao = of("torchao");
  const std::string profiles = fmt::format("{}/profiles", program.worker_directory);
  const std::optional<MemoryProfile> engine =
      eager == eager::Program::kTorchtitan && !MemoryProfile::releases(profiles).empty()
          ? std::optional(MemoryProfile::find(profiles, MemoryProfile::releases(profiles).back()))
          : std::nullopt;
  const auto trains_in = [](const TorchMemory& library, const std::string& recipe) {
    const std::vector<std::string> recipes = library.recipes();
    return std::ranges::find(recipes, recipe) != recipes.end();
  };
  out.torch = [=](const CellConfig& cell, Arm arm) {
    const std::string recipe = arm == Arm::kBf16 ? "bf16" : cell.training.recipe;
    if (!trains_in(torchao, recipe)) {
      if (engine) return figures_of(*engine, cell, arm);
      fail(fmt::format("no figures of PyTorch under recipe {}: {} trains in {}, {} in {}", recipe, torch.name(),
                       torch.recipes().back(), torchao.name(), torchao.recipes().back()));
    }
    const TorchMemory& library = trains_in(torch, recipe) ? torch : torchao;
    return ReleaseFigures{library.name(), estimate_of(library, eager)(cell, arm)};
  };
  return out;
}

/// The program with the predictions of the library that `request.as` names; `title` states which.
Program as_library(const PlanRequest& request, const Program& program, std::string& title) {
  const eager::Program eager = request.model.empty() ? eager::Program::kWorker : eager::Program::kTorchtitan;
  if (request.as.empty()) return with_torch(program, eager);
  Program out = program;
  if (TorchMemory::is_named(request.as)) {
    const TorchMemory torch = TorchMemory::find(program.worker_directory, request.as);
    title = torch.title(eager);
    out.estimate = estimate_of(torch, eager);
    out.estimated_library = torch.name();
    return out;
  }
  const auto profile =
      MemoryProfile::find(fmt::format("{}/profiles", program.worker_directory), request.as, TorchMemory::ranges());
  const std::string subject = request.as.substr(0, request.as.find('@'));
  title = fmt::format("As {}\n{}", profile.title(), accuracy_of_profiles(program.worker_directory, subject));
  out.estimate = [profile](const CellConfig& cell, Arm arm) { return estimate_as(profile, cell, arm); };
  out.estimated_library = profile.title().substr(0, profile.title().find(','));
  return out;
}

/// The plans of a request, and what is printed of them.
struct Answer {
  std::vector<Planned> plans;
  std::string text;
  std::vector<std::string> differs;  ///< how a watched program differs from its plan, in words
  bool bad_usage = false;            ///< files were refused, with messages
};

Answer plan_models(const PlanRequest& asked, const Program& own) {
  PlanRequest request = asked;
  if (!request.selection.devices.empty() || !request.selection.filters.empty() || request.selection.sample > 0)
    fail(
        "plan: --device, --filter and --sample choose cells of files; --ranks, --recipe and --set choose a model's "
        "rows");
  if (TorchMemory::is_named(request.as) && request.recipes.empty())
    request.recipes = TorchMemory::find(own.worker_directory, request.as).recipes();
  Answer out;
  const Program program = as_library(request, own, out.text);
  const Capacity capacity = capacity_of(request);
  const ModelPlan model = model_plan(request, capacity, program.vocabulary());
  for (const PlannedCell& cell : model.cells) out.plans.push_back(planned(cell, capacity, {Arm::kAfter}, program));
  out.text += model_text(out.plans, model);
  return out;
}

void refuse_keys_of_models(const PlanRequest& request, std::string_view instead) {
  if (!request.ranks.empty() || !request.recipes.empty() || !request.settings.empty())
    fail(fmt::format("plan: --ranks, --recipe and --set belong to --model; {}", instead));
}

/// The plans of `cells`, of which `request.selection` chooses.
void add_cells(std::vector<PlannedCell> cells, const PlanRequest& request, const Program& own, Answer& out) {
  const Program program = as_library(request, own, out.text);
  const Capacity capacity = capacity_of(request);
  const Vocabulary& vocabulary = program.vocabulary();
  const std::vector<std::string> devices = devices_of(cells);
  select_cells(cells, request.selection, vocabulary);
  if (request.as.empty()) Subjects(program.worker_directory).skip_missing(cells, vocabulary);
  if (const std::string later = foreseen(cells, false); !later.empty()) std::fputs(later.c_str(), stderr);
  for (const PlannedCell& cell : cells)
    out.plans.push_back(planned(cell, capacity, arms_of(cell, vocabulary), program));
  if (out.plans.empty()) report_error(nothing_matches(request.selection, devices, vocabulary));
}

Answer plan_scenarios(const PlanRequest& request, const Program& own) {
  if (request.selection.paths.empty())
    fail("plan: give scenario files, a result set, or --model NAME; see fp8lab plan --help");
  refuse_keys_of_models(request, "a scenario file contains these keys");
  LoadedScenarios loaded = load_scenarios(find_scenario_files(request.selection.paths), own.vocabulary());
  for (const ScenarioError& error : loaded.errors) report_error(error.what());
  if (!loaded.errors.empty()) return {.plans = {}, .text = {}, .differs = {}, .bad_usage = true};
  Answer out;
  add_cells(std::move(loaded.cells), request, own, out);
  if (!out.plans.empty()) out.text += scenario_text(out.plans, request.as.empty());
  return out;
}

/// The cells of a run, with what it measured.
Answer plan_run(const PlanRequest& request, const StoredRun& run, const Program& own) {
  refuse_keys_of_models(request, "cells of a result set have their keys already");
  Answer out;
  add_cells(cells_of(run), request, own, out);
  for (Planned& plan : out.plans) add_measured(run, plan);
  if (!out.plans.empty()) out.text += scenario_text(out.plans, request.as.empty());
  return out;
}

/// The model of a watched program, next to what was measured.
Answer plan_watched(const PlanRequest& asked, const CellRecord& record, const Program& own) {
  const WatchedModel model = read_watched_model(model_file_of(asked.selection.paths.front()));
  const PlanRequest request = request_of(asked, record, model);
  Answer out = plan_models(request, own);
  for (Planned& plan : out.plans) add_measured(record, asked, plan);
  out.differs = model.differs;
  out.text = watched_text(record, model, out.plans) + out.text;
  return out;
}

Answer answer_of(const PlanRequest& request, const Program& own) {
  const std::optional<StoredRun> run = run_in(request.selection.paths);
  if (run && is_watched(*run)) return plan_watched(request, run->cells.front(), own);
  if (!request.model.empty()) {
    if (!request.selection.paths.empty())
      fail("plan: give scenario files or --model, not both; a result set of `fp8lab watch` may be given with it");
    return plan_models(request, own);
  }
  return run ? plan_run(request, *run, own) : plan_scenarios(request, own);
}

}  // namespace

int plan_command(const PlanRequest& request, const Program& program) {
  const Answer answer = answer_of(request, program);
  if (answer.bad_usage) return exit_code({.verdicts = {}, .bad_usage = true});
  const std::string text = request.json           ? plans_json(answer.plans, answer.differs)
                           : answer.plans.empty() ? ""
                                                  : answer.text;
  std::fputs(text.c_str(), stdout);
  if (answer.plans.empty()) return exit_code({});
  const bool predicts = std::any_of(answer.plans.begin(), answer.plans.end(), [](const Planned& plan) {
    return std::any_of(plan.arms.begin(), plan.arms.end(),
                       [](const PlannedArm& arm) { return !arm.estimate.figures.empty(); });
  });
  if (!predicts) {
    std::fflush(stdout);  // the reasons come first also if both streams are one file
    report_error("plan: nothing is predicted, for the reasons above");
    return exit_code({.verdicts = {Verdict::kInconclusive}});
  }
  const bool has_memory = capacity_of(request).bytes > 0;
  return std::any_of(answer.plans.begin(), answer.plans.end(),
                     [&](const Planned& plan) { return plan.fails(has_memory); });
}

}  // namespace fp8lab
