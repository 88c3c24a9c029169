#include "harness/measure/twin/library_twin.h"

#include <fmt/core.h>

#include <cstdint>

#include "harness/cell/sharding_keys.h"

namespace fp8lab {
namespace {

/// Values of the input of all ranks and micro-batches.
constexpr std::int64_t kMostValues = 1 << 22;

}  // namespace

std::string why_no_library_twin(const CellConfig& cell, const std::string& recipe) {
  const bool quantized_weights = recipe != "bf16" && cell.training.quantized_weights;
  // Buckets of DistributedDataParallel's first step add up three ranks or more in another order than later ones.
  const bool other_order = is_replicated(cell) && cell.ranks > 2;
  if (cell.device == "cpu" && !quantized_weights && !other_order) return {};  // whose bits are equal
  if (cell.model.dropout > 0.0 || cell.model.layer == "grouped_linear")
    return "masks of dropout and groups of experts follow from a token's place in its batch";
  if (routes_tokens(cell.model)) return "sums in another order give a token of nearly equal scores another expert";
  if (recipe == "delayed" || (recipe != "bf16" && cell.training.fp8_attention))
    return "newly built layers have no passes before, from which scales of a history follow";
  const std::int64_t batches = data_parallel_ranks(cell) * cell.training.micro_batches;
  if (batches * cell.model.seq * cell.model.batch * cell.model.hidden > kMostValues)
    return fmt::format("the plain twin would read more than {} values", kMostValues);
  return {};
}

}  // namespace fp8lab
