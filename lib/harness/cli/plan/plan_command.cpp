#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cli/listing.h"
#include "harness/cli/plan/plan_text.h"
#include "harness/cli/plan/planned.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/subjects/memory_profile.h"
#include "harness/subjects/subjects.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

/// The profile's figures of an arm. Throws Error with every key of the cell that the profile lacks; the profile names
/// one at a time.
Estimate estimate_as(const MemoryProfile& profile, const CellConfig& cell, Arm arm) {
  CellConfig reduced = cell;
  std::string lacking;
  while (true) {
    try {
      Estimate out = profile.estimate(reduced, arm);
      if (lacking.empty()) return out;
      break;
    } catch (const Error& error) {
      const std::string reason = error.what();
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

/// The program with PyTorch's figures next to its own, if the folder of the worker has the runs they are held to.
Program with_torch(const Program& program, eager::Program eager) {
  Program out = program;
  if (!std::filesystem::exists(TorchMemory::runs_in(program.worker_directory))) return out;
  const TorchMemory torch = TorchMemory::find(program.worker_directory, TorchMemory::newest());
  out.torch = estimate_of(torch, eager);
  out.torch_release = torch.name();
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
  const auto profile = MemoryProfile::find(fmt::format("{}/profiles", program.worker_directory), request.as);
  title = fmt::format("As {}\n", profile.title());
  out.estimate = [profile](const CellConfig& cell, Arm arm) { return estimate_as(profile, cell, arm); };
  out.estimated_library = profile.title().substr(0, profile.title().find(','));
  return out;
}

}  // namespace

int plan_command(const PlanRequest& asked, const Program& own) {
  PlanRequest request = asked;
  if (TorchMemory::is_named(request.as) && !request.model.empty() && request.recipes.empty())
    request.recipes = TorchMemory::find(own.worker_directory, request.as).recipes();
  std::string title;
  const Program program = as_library(request, own, title);
  const Capacity capacity = capacity_of(request);
  std::vector<Planned> plans;
  std::string text;
  if (!request.model.empty()) {
    if (!request.selection.paths.empty()) fail("plan: give scenario files or --model, not both");
    const ModelPlan model = model_plan(request, capacity, program.vocabulary());
    for (const PlannedCell& cell : model.cells) plans.push_back(planned(cell, capacity, {Arm::kAfter}, program));
    text = request.json ? "" : title + model_text(plans, model);
  } else {
    if (request.selection.paths.empty()) fail("plan: give scenario files, or --model NAME; see fp8lab plan --help");
    if (!request.ranks.empty() || !request.recipes.empty() || !request.settings.empty())
      fail("plan: --ranks, --recipe and --set belong to --model; a scenario file contains these keys");
    LoadedScenarios loaded = load_scenarios(find_scenario_files(request.selection.paths), program.vocabulary());
    for (const ScenarioError& error : loaded.errors) report_error(error.what());
    if (!loaded.errors.empty()) return exit_code({.verdicts = {}, .bad_usage = true});
    const std::vector<std::string> devices = devices_of(loaded.cells);
    select_cells(loaded.cells, request.selection, program.vocabulary());
    if (request.as.empty()) Subjects(program.worker_directory).skip_missing(loaded.cells, program.vocabulary());
    if (const std::string later = foreseen(loaded.cells, false); !later.empty()) std::fputs(later.c_str(), stderr);
    for (const PlannedCell& cell : loaded.cells)
      plans.push_back(planned(cell, capacity, arms_of(cell, program.vocabulary()), program));
    if (plans.empty()) report_error(nothing_matches(request.selection, devices, program.vocabulary()));
    text = request.json || plans.empty() ? "" : title + scenario_text(plans, request.as.empty());
  }
  if (request.json) text = plans_json(plans);
  std::fputs(text.c_str(), stdout);
  if (plans.empty()) return exit_code({});
  const bool predicts = std::any_of(plans.begin(), plans.end(), [](const Planned& plan) {
    return std::any_of(plan.arms.begin(), plan.arms.end(),
                       [](const PlannedArm& arm) { return !arm.estimate.figures.empty(); });
  });
  if (!predicts) {
    std::fflush(stdout);  // the reasons come first also if both streams are one file
    report_error("plan: nothing is predicted, for the reasons above");
    return exit_code({.verdicts = {Verdict::kInconclusive}});
  }
  return std::any_of(plans.begin(), plans.end(), [&](const Planned& plan) { return plan.fails(capacity.bytes > 0); });
}

}  // namespace fp8lab
