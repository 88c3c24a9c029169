#include "harness/subjects/scored/scored_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/check.h"
#include "harness/measure/arms.h"
#include "harness/measure/scores.h"
#include "harness/results/json_reader.h"
#include "harness/subjects/scored/rank_values.h"
#include "harness/subjects/scored/scored_twin.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

using Ranks = std::vector<RankValues>;

std::vector<double> mean_losses(const Ranks& ranks) {
  std::vector<float> all;
  for (const RankValues& rank : ranks) all.insert(all.end(), rank.losses.begin(), rank.losses.end());
  return mean_by_step(all, ranks.front().losses.size());
}

void check_alike(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  check(a.size() == b.size(), fmt::format("{} has {} values in one arm and {} in BF16", what, a.size(), b.size()));
}

/// Puts the noise of every tensor between the arm's pass and the BF16 layers' pass, and the least SQNR of all: a
/// product that reads stale weights changes only the gradients behind it.
void put_pass_noise(ArmResult& result, const Ranks& ranks) {
  std::vector<std::string> names = ranks.front().names;
  names.emplace_back("input");
  std::vector<Noise> outputs, gradients;
  for (const RankValues& rank : ranks) {
    if (!rank.own_pass || !rank.bf16_pass) return;
    check_alike(rank.own_pass->output, rank.bf16_pass->output, "the output with the trained weights");
    outputs.push_back(noise_of(rank.bf16_pass->output, rank.own_pass->output));
    for (std::size_t i = 0; i < names.size(); ++i)
      gradients.push_back(noise_of(rank.bf16_pass->gradients[i], rank.own_pass->gradients[i]));
  }
  put_noise(result, "parity.same_weights_output_sqnr_db", "output with the same weights", {"output"}, outputs);
  put_least_sqnr(result, "parity.same_weights_grad_sqnr_db", "gradient with the same weights", names, gradients);
}

void put_norm_ratio(ArmResult& result, const std::string& metric, double squares, double squares_of_bf16) {
  const NormRatio ratio(squares, squares_of_bf16);
  put(result.metrics, metric, ratio.value, ratio.reason);
}

/// Sizes of gradients and updates relative to BF16's.
void put_norm_ratios(ArmResult& result, const Ranks& ranks, const Ranks& reference) {
  double gradients = 0.0, of_bf16 = 0.0;
  for (const RankValues& rank : ranks) gradients += squares_of(rank.gradients);
  for (const RankValues& rank : reference) of_bf16 += squares_of(rank.gradients);
  put_norm_ratio(result, "parity.grad_norm_ratio", gradients, of_bf16);
  const auto update = [](const RankValues& rank) { return squares_of_difference(rank.weights, rank.initial); };
  put_norm_ratio(result, "parity.update_norm_ratio", update(ranks.front()), update(reference.front()));
}

void put_noise_of(ArmResult& result, const std::string& metric, const std::string& of, Lists RankValues::* tensors,
                  const Ranks& ranks, const Ranks& reference) {
  const std::vector<std::string>& names = ranks.front().names;
  std::vector<Noise> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::vector<float>&from = (reference[rank].*tensors)[i], &seen = (ranks[rank].*tensors)[i];
      check_alike(seen, from, fmt::format("the {} of {}", of, names[i]));
      all.push_back(noise_of(from, seen));
    }
  put_noise(result, metric, of, names, all);
}

void put_output_noise(ArmResult& result, const Ranks& ranks, const Ranks& reference) {
  std::vector<Noise> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    check_alike(ranks[rank].output, reference[rank].output, "the output");
    all.push_back(noise_of(reference[rank].output, ranks[rank].output));
  }
  put_noise(result, "parity.output_sqnr_db", "output", {"output"}, all);
}

void put_of_ranks(ArmResult& result, const Ranks& ranks, bool sharded, bool has_ranks) {
  auto& metrics = result.metrics;
  Moved least, least_of_shards;
  bool finite = true, equal = true;
  std::optional<bool> gathered;
  std::vector<std::uint64_t> weights, losses;
  for (const RankValues& rank : ranks) {
    const auto by_fraction = [](const Moved& a, const Moved& b) { return a.fraction < b.fraction; };
    least = std::min(least, moved(rank.names, rank.initial, rank.weights), by_fraction);
    least_of_shards =
        std::min(least_of_shards, shards_moved(rank.names, rank.initial, rank.weights, rank.shards), by_fraction);
    finite = finite && std::ranges::all_of(rank.weights, all_finite);
    weights.push_back(hash_of(rank.weights));
    losses.push_back(hash_of(rank.losses));
    equal = equal && weights.back() == weights.front();
    if (rank.gathered_equals_unsharded) gathered = gathered.value_or(true) && *rank.gathered_equals_unsharded;
  }
  result.values_hash = fmt::format("{:016x}", values_hash(weights, losses));
  put(metrics, "parity.weights_moved", least.fraction, least.reason);
  constexpr const char* kNotSharded = "nothing is sharded";
  if (!has_ranks)
    put(metrics, "parity.ranks_equal", std::nullopt, kNotSharded);
  else if (finite)
    put(metrics, "parity.ranks_equal", equal ? 1.0 : 0.0);
  else
    put(metrics, "parity.ranks_equal", std::numeric_limits<double>::quiet_NaN(), "a weight is not finite");
  if (!sharded) {
    for (const char* name : {"parity.shards_moved", "parity.gathered_equals_unsharded"})
      put(metrics, name, std::nullopt, kNotSharded);
    return;
  }
  put(metrics, "parity.shards_moved", least_of_shards.fraction, least_of_shards.reason);
  if (gathered)
    put(metrics, "parity.gathered_equals_unsharded", *gathered ? 1.0 : 0.0);
  else
    put(metrics, "parity.gathered_equals_unsharded", std::nullopt, "the library has no parameter in 16 or 32 bits");
}

bool equal_values(const RankValues& a, const RankValues& b) {
  return equal_bits(a.losses, b.losses) && equal_bits(a.output, b.output) &&
         std::ranges::equal(a.gradients, b.gradients, equal_bits) &&
         std::ranges::equal(a.weights, b.weights, equal_bits);
}

}  // namespace

ArmResult score_values(const fs::path& folder) {
  const JsonDocument cell(file_text(folder / "cell.json"));
  const int count = static_cast<int>(cell.root().at("ranks").integer(1, kMostRanks));
  const Ranks ranks = rank_values(folder / "arm", count), reference = rank_values(folder / "bf16", count);
  check(ranks.front().names == reference.front().names, "the arm and BF16 have different parameters");
  ArmResult result;
  result.losses = mean_losses(ranks);
  const LossGap gap(result.losses.back(), mean_losses(reference).back());
  put(result.metrics, "parity.loss_gap", gap.value, gap.reason);
  const LossProgress progress(result.losses, {});
  put(result.metrics, "parity.loss_progress", progress.value, progress.reason);
  put_output_noise(result, ranks, reference);
  put_noise_of(result, "parity.grad_sqnr_db", "gradient", &RankValues::gradients, ranks, reference);
  // Every rank has the same unsharded weights, so one of them is enough; ranks_equal finds those that differ.
  const Ranks first{ranks.front()}, first_reference{reference.front()};
  put_noise_of(result, "parity.weight_sqnr_db", "weight", &RankValues::weights, first, first_reference);
  put_pass_noise(result, ranks);
  put_norm_ratios(result, ranks, reference);
  put_library_twin(result, ranks, cell.root());
  put_of_ranks(result, ranks, cell.root().at("sharded").flag(), cell.root().at("has_ranks").flag());
  for (const char* name : {"parity.clip_fraction", "parity.underflow_fraction", "parity.values_cast"})
    put(result.metrics, name, std::nullopt, "a library does not show the values that it casts");
  if (fs::is_directory(folder / "after"))
    put(result.metrics, "parity.bitwise_equal",
        std::ranges::equal(ranks, rank_values(folder / "after", count), equal_values) ? 1.0 : 0.0);
  else
    put(result.metrics, "parity.bitwise_equal", std::nullopt, "two versions of a library run in different processes");
  return result;
}

}  // namespace fp8lab
