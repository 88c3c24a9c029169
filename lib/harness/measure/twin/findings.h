#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "harness/reference/compare.h"

// What a comparison with a plain twin finds, and its metrics.
namespace fp8lab {

inline constexpr std::array kTwinMetrics{"parity.twin_faults", "parity.twin_tensors", "parity.twin_noise"};

/// How much of the twin's noise N a distance from it may have. It is 2 N if the cell's noise is as large and
/// independent; either varies by half in tensors of a few dozen elements, and with the values that a scale of an entire
/// tensor follows from.
inline constexpr double kTwinShare = 6.0;

/// How a gradient of a cell and of its twin come about.
struct TwinSums {
  bool in_f32 = false;     ///< tensors are stored, and gradients are added up, in FP32
  bool sums_loss = false;  ///< the loss is a sum, so that every output has the same gradient
  std::int64_t parts = 1;  ///< ranks and micro-batches, whose gradients are added up
};
/// The bounds of outputs, and of gradients. Each addition rounds to the type in which it is made.
reference_step::Bounds twin_bounds(bool in_f32);
reference_step::Bounds twin_gradient_bounds(const TwinSums& sums);

/// Tensors that were compared, and those that differ.
struct TwinFindings {
  /// What is wrong, in words; of a length that ranks can exchange.
  using Fault = std::array<char, 256>;

  void add_fault(const std::string& text);
  /// Bits, so that NaN may equal NaN: parity.loss_gap shows whether values are finite.
  void expect_same(const std::string& what, const std::vector<float>& seen, const std::vector<float>& expected);
  /// `exact`: without the recipe's roundings, `rounded`: the twin's.
  void compare(const std::string& what, const reference_step::Matrix& exact, const reference_step::Matrix& rounded,
               const reference_step::Matrix& seen, const reference_step::Bounds& bounds);

  std::int64_t tensors = 0;
  double noise = 0.0;
  std::vector<Fault> faults;
};

/// Puts the metrics of what all ranks found, and notes with the first faults. Collective over `world`, which is null
/// if one rank has found everything.
void put_twin_findings(const TwinFindings& mine, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab
