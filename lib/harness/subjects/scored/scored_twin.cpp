#include "harness/subjects/scored/scored_twin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "harness/measure/arms.h"
#include "harness/measure/twin/findings.h"

namespace fp8lab {
namespace {

void compare_again(const std::vector<RankValues>& ranks, TwinFindings& out) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const PassValues &seen = *ranks[rank].own_pass, &again = *ranks[rank].again_pass;
    out.expect_same(fmt::format("output, rank {}, after the last step", rank), seen.output, again.output);
    for (std::size_t i = 0; i < seen.gradients.size(); ++i) {
      const std::string name = i < ranks[rank].names.size() ? ranks[rank].names[i] : "input";
      out.expect_same(fmt::format("gradient {}, rank {}, after the last step", name, rank), seen.gradients[i],
                      again.gradients[i]);
    }
  }
}

/// A gradient's rows of all shards of the first replica.
std::vector<float> unsharded(const std::vector<RankValues>& ranks, std::size_t tensor, std::size_t shards,
                             std::size_t elements) {
  std::vector<float> out(elements);
  for (std::size_t rank = 0; rank < shards; ++rank)
    std::copy(ranks[rank].own_pass->gradients[tensor].begin(), ranks[rank].own_pass->gradients[tensor].end(),
              out.begin() + static_cast<std::ptrdiff_t>(ranks[rank].shards[tensor].begin));
  return out;
}

reference_step::Matrix matrix_of(const std::vector<float>& values, std::int64_t rows, double factor) {
  reference_step::Matrix out(rows, rows == 0 ? 0 : std::ssize(values) / rows, values);
  for (double& value : out.values) value *= factor;
  return out;
}

void compare_joined(const std::vector<RankValues>& ranks, const JsonReader& cell, TwinFindings& out) {
  const RankValues& first = ranks.front();
  const JoinedValues &joined = *first.joined, &exact = *first.exact;
  const bool in_f32 = cell.at("in_f32").flag(), sums_loss = cell.at("sums_loss").flag();
  const std::int64_t micro_batches = cell.at("micro_batches").integer(1, std::numeric_limits<std::int32_t>::max());
  const auto shards = static_cast<std::size_t>(cell.at("shards").integer(1, std::ssize(ranks)));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    out.compare(fmt::format("output, rank {}, micro-batch {}, after the last step", rank, micro_batches - 1),
                matrix_of(exact.outputs[rank], 1, 1.0), matrix_of(joined.outputs[rank], 1, 1.0),
                matrix_of(ranks[rank].own_pass->output, 1, 1.0), twin_bounds(in_f32));
  const TwinSums sums{.in_f32 = in_f32 && cell.at("reduced_in_f32").flag(),
                      .sums_loss = sums_loss,
                      .parts = std::ssize(ranks) + micro_batches};
  // Ranks average what one rank adds up, also if the loss is a sum.
  const double factor = sums_loss ? 1.0 / static_cast<double>(ranks.size()) : 1.0;
  for (std::size_t i = 0; i < first.names.size(); ++i)
    out.compare(fmt::format("gradient {}, after the last step", first.names[i]),
                matrix_of(exact.gradients[i], first.rows[i], factor),
                matrix_of(joined.gradients[i], first.rows[i], factor),
                matrix_of(unsharded(ranks, i, shards, joined.gradients[i].size()), first.rows[i], 1.0),
                twin_gradient_bounds(sums));
}

}  // namespace

void put_library_twin(ArmResult& result, const std::vector<RankValues>& ranks, const JsonReader& cell) {
  const RankValues& first = ranks.front();
  const bool all_again =
      std::ranges::all_of(ranks, [](const RankValues& rank) { return rank.again_pass && rank.own_pass; });
  const bool has_joined = first.joined && first.own_pass;
  if (!all_again && !has_joined) {
    const auto why = cell.find("why_not_joined");
    for (const char* name : kTwinMetrics)
      put(result.metrics, name, std::nullopt, why ? why->text() : "the worker recorded no plain twin");
    return;
  }
  TwinFindings found;
  if (all_again) compare_again(ranks, found);
  if (has_joined) compare_joined(ranks, cell, found);
  put_twin_findings(found, nullptr, result);
}

}  // namespace fp8lab
