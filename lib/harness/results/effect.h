#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/results/verdict.h"

// What a confirmed cell shows: the figure in which its before and after arms differ most. Pure functions. (Findings of
// `compare`, which are differences between two runs, are in compare.h.)
namespace fp8lab {

enum class EffectKind {
  kEnding,   ///< the arms end differently: a crash, an error or too little memory before, and none after
  kParity,   ///< a figure of values by which the scenario describes the defect: weights that do not move, for example
  kBytes,    ///< bytes in memory
  kTraffic,  ///< bytes moved between ranks, or the number of collectives
  kHost,     ///< counts of host work
  kValues,   ///< a figure of values that the scenario names for the after arm only
  kTime,     ///< a time beyond the interval of its ratio, or another figure that differs from run to run
};
inline constexpr std::array kEffectKinds{EffectKind::kEnding,  EffectKind::kParity, EffectKind::kBytes,
                                         EffectKind::kTraffic, EffectKind::kHost,   EffectKind::kValues,
                                         EffectKind::kTime};
/// "ending", "parity", "bytes", "traffic", "host", "values", "time"
std::string_view name(EffectKind kind);

struct Effect {
  EffectKind kind = EffectKind::kBytes;
  std::string text;              ///< "589.5 MiB retained after backward -> 0"
  std::string metric;            ///< empty for kEnding
  std::string unit;              ///< unit of the metric; empty for kEnding
  std::optional<double> before;  ///< absent if not measured or not finite; `text` has what was measured
  std::optional<double> after;
  std::optional<double> predicted;  ///< closed form of `before`
  bool as_predicted = false;        ///< both figures have a closed form and equal it
  /// The difference: in the unit of bytes and counts, relative to the larger figure for values and times, and 1 to 4
  /// for endings (4: a signal).
  double size = 0;
};

/// True if `a` is the larger effect. The order is: endings; values by which a scenario describes the defect; bytes in
/// memory or moved, by size; counts, and arms that ran out of memory; other values; times.
bool is_larger(const Effect& a, const Effect& b);

/// The largest effect among the endings of the arms and the figures that gates name; nothing if none differs. Of equal
/// effects it is the one whose gate comes first.
std::optional<Effect> effect_of(const ArmResults& arms, const std::vector<Gate>& gates);

}  // namespace fp8lab
