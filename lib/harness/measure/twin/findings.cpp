#include "harness/measure/twin/findings.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "harness/measure/arms.h"
#include "harness/measure/over_ranks.h"
#include "harness/measure/scores.h"

namespace fp8lab {

using reference_step::Bounds;
using reference_step::Matrix;

namespace {

constexpr std::size_t kMostNamedFaults = 8;

}  // namespace

Bounds twin_bounds(bool in_f32) {
  return {.share = kTwinShare, .step = in_f32 ? reference_step::kF32Steps : reference_step::kBF16Steps};
}

Bounds twin_gradient_bounds(const TwinSums& sums) {
  Bounds out = twin_bounds(sums.in_f32);
  out.together = sums.sums_loss;
  out.additions = (sums.in_f32 ? 0x1p-24 : 0x1p-9) * std::sqrt(static_cast<double>(sums.parts));
  return out;
}

void TwinFindings::add_fault(const std::string& text) {
  Fault& out = faults.emplace_back();
  std::copy_n(text.begin(), std::min(text.size(), out.size() - 1), out.begin());
}

void TwinFindings::expect_same(const std::string& what, const std::vector<float>& seen,
                               const std::vector<float>& expected) {
  ++tensors;
  if (equal_bits(seen, expected)) return;
  std::size_t count = seen.size() == expected.size() ? 0 : 1, first = 0;
  for (std::size_t i = std::min(seen.size(), expected.size()); i-- > 0;)
    if (std::memcmp(&seen[i], &expected[i], sizeof(float)) != 0) ++count, first = i;
  const bool is_there = first < std::min(seen.size(), expected.size());
  add_fault(fmt::format("{}: {} of {} values differ from the plain twin's, one is {:.7g} instead of {:.7g}", what,
                        count, seen.size(), is_there ? seen[first] : 0.0F, is_there ? expected[first] : 0.0F));
}

void TwinFindings::compare(const std::string& what, const Matrix& exact, const Matrix& rounded, const Matrix& seen,
                           const Bounds& bounds) {
  const reference_step::Distance found = reference_step::compare(exact, rounded, seen, bounds);
  ++tensors;
  noise = std::isnan(noise) || noise >= found.noise ? noise : found.noise;
  if (!found.fault.empty()) add_fault(fmt::format("{}: {}", what, found.fault));
}

void put_twin_findings(const TwinFindings& mine, ProcessGroup* world, ArmResult& result) {
  const std::vector<std::size_t> counts =
      of_all_ranks(world, std::vector{mine.faults.size()}, "numbers of twin faults");
  std::vector<TwinFindings::Fault> named = mine.faults;
  named.resize(kMostNamedFaults);
  const std::vector<TwinFindings::Fault> all = of_all_ranks(world, named, "twin faults");
  const std::vector<double> noise = of_all_ranks(world, std::vector{mine.noise}, "twin noise");
  const std::vector<std::int64_t> tensors = of_all_ranks(world, std::vector{mine.tensors}, "twin tensors");
  std::size_t faults = 0;
  std::int64_t compared = 0;
  for (const std::size_t count : counts) faults += count;
  for (const std::int64_t count : tensors) compared += count;
  std::size_t shown = 0;
  std::string first;
  for (const TwinFindings::Fault& text : all) {
    if (text[0] == '\0' || shown == kMostNamedFaults) continue;
    if (shown++ == 0) first = text.data();
    result.notes.push_back(fmt::format("twin: {}", text.data()));
  }
  if (faults > shown) result.notes.push_back(fmt::format("twin: {} more differ", faults - shown));
  put(result.metrics, "parity.twin_faults", static_cast<double>(faults), first);
  put(result.metrics, "parity.twin_tensors", static_cast<double>(compared));
  put(result.metrics, "parity.twin_noise", noise.front(), std::isnan(noise.front()) ? "a value is not finite" : "");
}

}  // namespace fp8lab
