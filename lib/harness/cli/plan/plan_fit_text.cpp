#include "harness/cli/plan/plan_fit_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/cell/escape.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/units.h"
#include "harness/subjects/profile/memory_profile.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

/// Owners of less than this part of a peak are one in its line.
constexpr std::int64_t kSmallestPart = 50;

/// Marks a peak that fits by little, see is_tight(); live_bytes_legend() explains it.
constexpr const char* kByLiveBytes = " by live bytes";

/// "29.7 GiB activations and FP8 copies, 11.2 GiB the optimizer's state, 0.1 GiB other"; less than a hundredth of the
/// peak in all is left out.
std::string owners_text(const Estimate& estimate) {
  std::int64_t peak = 0, rest = 0;
  for (const auto& [owner, bytes] : estimate.peak_by_owner) peak += bytes;
  std::string out;
  for (const auto& [owner, bytes] : estimate.peak_by_owner) {
    if (bytes < peak / kSmallestPart)
      rest += bytes;
    else
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", bytes_text(static_cast<double>(bytes)), owner);
  }
  if (rest * 100 >= peak && rest > 0) out += fmt::format(", {} other", bytes_text(static_cast<double>(rest)));
  return out;
}

/// "its peak is 52.2 GiB in backward: 34.2 GiB activations and FP8 copies, ..."
std::string peak_text(const Estimate& estimate, const char* what) {
  const std::string owners = owners_text(estimate);
  return fmt::format("{} {}{}", what, bytes_text(estimate.figures.at("memory.peak_bytes")),
                     owners.empty() ? "" : fmt::format(" in {}: {}", estimate.peak_phase, owners));
}

/// "fits 77.6 GiB by live bytes with 12.5 GiB to spare; PyTorch's allocator reserves 79.0 GiB: it may not fit".
std::string torch_fit(const Planned& plan, const Estimate& estimate, const std::string& release) {
  const TorchFit fit = torch_fit_of(estimate, release, plan.capacity);
  const double capacity = static_cast<double>(plan.capacity);
  if (!fit.fits)
    return fmt::format("does not fit {}: its live bytes are {} too much", bytes_text(capacity),
                       bytes_text(fit.live - capacity));
  if (!fit.reserved)
    return fmt::format("fits {} with {} to spare", bytes_text(capacity), bytes_text(capacity - fit.live));
  const std::string reserves = fit.is_bound ? fmt::format("at most {}, {:.0f} % more than live, as in recorded runs",
                                                          bytes_text(*fit.reserved), 100 * (kMostReserved - 1))
                                            : fmt::format("{}, with a margin of 2 %", bytes_text(*fit.reserved));
  return fmt::format("fits {}{} with {} to spare; PyTorch's allocator reserves {}{}", bytes_text(capacity),
                     fit.is_sure ? "" : kByLiveBytes, bytes_text(capacity - (fit.is_sure ? *fit.reserved : fit.live)),
                     reserves, fit.is_sure ? "" : ": it may not fit");
}

/// "FSDP2 in BF16", "DDP in FP32", "FSDP2 in FP8"
std::string how_torch_trains(const CellConfig& cell, Arm arm) {
  const bool quantizes = arm != Arm::kBf16 && cell.training.recipe != "bf16";
  const char* const type = quantizes ? "FP8" : cell.training.param_dtype == ParamDType::kF32 ? "FP32" : "BF16";
  return fmt::format("{}in {}", is_sharded(cell) ? "FSDP2 " : is_replicated(cell) ? "DDP " : "", type);
}

std::string torch_text(const Planned& plan, const PlannedArm& arm, const std::string& indent) {
  return fmt::format("{0}{1}, {2}, {3}\n{0}  {4}\n", indent, arm.torch->release,
                     how_torch_trains(plan.cell.config, arm.arm),
                     torch_fit(plan, arm.torch->estimate, arm.torch->release),
                     peak_text(arm.torch->estimate,
                               arm.lasting ? "peak of live bytes from the second step on, with the optimizer's state:"
                                           : "peak of live bytes"));
}

std::string runtime_text(const Planned& plan, const PlannedArm& arm, const std::string& indent) {
  const auto spare = static_cast<double>(*arm.spare);
  const std::string of = bytes_text(static_cast<double>(plan.capacity));
  const std::string fit = spare < 0 ? fmt::format("does not fit {}: {} too much", of, bytes_text(-spare))
                                    : fmt::format("fits {} with {} to spare{}", of, bytes_text(spare),
                                                  fits_tightly(plan, arm) ? kByLiveBytes : "");
  const bool is_torch = TorchMemory::is_named(plan.library);
  const char* const what = is_torch      ? "peak of live bytes"
                           : arm.lasting ? "peak from the second step on, with the optimizer's state:"
                                         : "peak";
  return fmt::format("{0}{1} {2}\n{0}  {3}\n", indent, plan.subject(),
                     is_torch ? torch_fit(plan, arm.lasting ? *arm.lasting : arm.estimate, plan.library) : fit,
                     peak_text(arm.lasting ? *arm.lasting : arm.estimate, what));
}

/// A change with the rows that it makes fit.
struct Remedy {
  const Fit* fit;
  std::string changes;
  std::vector<std::pair<std::string, std::string>> rows;  ///< their peaks then, and the titles of rows that share them
};

std::string price_text(const Fit& fit) {
  std::string out;
  for (const FitChange& change : fit.changes)
    out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", name(change.price), change.cost);
  return out;
}

/// "64.5 GiB by live bytes, torch@2.15 live 68.9 GiB"
std::string peaks_text(const Fit& fit, const Planned& plan, const PlannedArm& arm) {
  const std::string own = bytes_text(static_cast<double>(fit.peak.own));
  const std::string note = is_tight(fit.peak.own, plan.capacity) ? kByLiveBytes : "";
  if (fit.peak.torch == 0) return own + note;
  return fmt::format("{}{}, {} live {}", own, note, arm.torch->release,
                     bytes_text(static_cast<double>(fit.peak.torch)));
}

/// Adds `title` to the entry of `key`.
void group(std::vector<std::pair<std::string, std::string>>& groups, const std::string& key, const std::string& title) {
  const auto same = std::ranges::find(groups, key, &std::pair<std::string, std::string>::first);
  if (same == groups.end())
    groups.emplace_back(key, title);
  else
    same->second += "; " + title;
}

}  // namespace

std::string bytes_text(double value) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return std::abs(value) >= 0.1 * kGiB ? fmt::format("{:.1f} GiB", value / kGiB) : short_figure(value, "B");
}

TorchFit torch_fit_of(const Estimate& estimate, const std::string& release, std::int64_t capacity) {
  TorchFit out{.live = estimate.figures.at("memory.peak_bytes"), .reserved = reserved_with_margin(estimate)};
  out.is_bound = !out.reserved && MemoryProfile::is_of_gpus(release);
  if (out.is_bound) out.reserved = kMostReserved * out.live;
  const auto memory = static_cast<double>(capacity);
  out.fits = out.live <= memory;
  out.is_sure = out.fits && out.reserved.value_or(0.0) <= memory;
  return out;
}

std::string live_bytes_legend(const std::string& text, const std::string& library) {
  if (text.find(kByLiveBytes) == std::string::npos) return "";
  return fmt::format("(by live bytes: blocks of the allocator may need more{})\n",
                     library.empty() ? ", which a run on meta shows: fp8lab run FILE -d meta"
                     : TorchMemory::is_named(library)
                         ? ""
                         : fmt::format("; in recorded runs {:.0f} % more at most", 100 * (kMostReserved - 1)));
}

bool fits_tightly(const Planned& plan, const PlannedArm& arm) {
  if (!arm.spare) return false;
  const std::int64_t peak = plan.capacity - *arm.spare;
  if (plan.library.empty()) return is_tight(peak, plan.capacity);
  if (!TorchMemory::is_named(plan.library))
    return peak <= plan.capacity && kMostReserved * static_cast<double>(peak) > static_cast<double>(plan.capacity);
  const std::optional<double> reserved = reserved_with_margin(arm.lasting ? *arm.lasting : arm.estimate);
  return peak <= plan.capacity && reserved && *reserved > static_cast<double>(plan.capacity);
}

std::string text_of_changes(const Fit& fit) {
  std::string out;
  for (const FitChange& change : fit.changes)
    out += fmt::format("{}{}={}", out.empty() ? "" : ", ", change.key, change.value);
  return out;
}

std::string fit_text(const Planned& plan, const PlannedArm& arm, const std::string& indent) {
  if (!arm.cannot_run.empty()) return fmt::format("{}does not run: {}\n", indent, for_terminal(arm.cannot_run));
  std::string out;
  if (arm.spare) out += runtime_text(plan, arm, indent);
  if (arm.torch_spare) out += torch_text(plan, arm, indent);
  return out;
}

std::string remedies_text(const std::vector<PlannedRow>& rows) {
  std::vector<Remedy> remedies;
  std::vector<std::pair<std::string, std::string>> hopeless;  // what was tried, and for which rows
  std::size_t searched = 0;
  for (const PlannedRow& row : rows)
    for (const PlannedArm& arm : row.plan->arms) {
      if (!arm.search) continue;
      ++searched;
      for (const Fit& fit : arm.search->fits) {
        const std::string changes = text_of_changes(fit);
        auto known = std::ranges::find(remedies, changes, &Remedy::changes);
        if (known == remedies.end()) known = remedies.insert(remedies.end(), {&fit, changes, {}});
        group(known->rows, peaks_text(fit, *row.plan, arm), row.title);
      }
      if (arm.search->fits.empty())
        group(hopeless,
              arm.search->tried.empty()
                  ? "no change that plan tries applies"
                  : fmt::format("no change makes it fit; tried: {}", fmt::join(arm.search->tried, ", ")),
              row.title);
    }
  if (searched == 0) return "";
  std::ranges::stable_sort(remedies, {}, [](const Remedy& remedy) { return remedy.fit->cost; });
  std::string out;
  if (!remedies.empty())
    out =
        "Changes of keys, the cheapest first (`fp8lab plan --help` defines it), with their price and the rows "
        "that then\nfit the built-in runtime; PyTorch's figure, if the row has one, is then within the memory too:\n";
  for (const Remedy& remedy : remedies) {
    out += fmt::format("  {}\n    price: {}\n", remedy.changes, price_text(*remedy.fit));
    for (const auto& [peaks, titles] : remedy.rows) out += fmt::format("    {}: {}\n", peaks, titles);
  }
  for (const auto& [tried, titles] : hopeless) out += fmt::format("  {}: {}\n", titles, tried);
  return out;
}

}  // namespace fp8lab
