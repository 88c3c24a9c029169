#include "harness/subjects/scored_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>

#include "core/check.h"
#include "harness/measure/arms.h"
#include "harness/measure/scores.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// One forward and backward with the trained weights. The last of the gradients is the input's.
struct PassValues {
  std::vector<float> output;
  Lists gradients;
};

/// What one rank of a run left.
struct RankValues {
  std::vector<std::string> names;
  std::vector<ElementRange> shards;
  std::optional<bool> gathered_equals_unsharded;
  std::vector<float> losses, output;
  Lists initial, weights, gradients;
  std::optional<PassValues> own_pass, bf16_pass;  ///< the second: BF16 layers with the same weights
};

std::ifstream opened(const fs::path& path) {
  std::error_code ignored;  // a pipe would never end
  std::ifstream file;
  if (fs::is_regular_file(path, ignored)) file.open(path, std::ios::binary);
  check(file.is_open(),
        fmt::format("'{}' cannot be read; a worker must write it before it requests scores", path.string()));
  return file;
}

std::string text_of(const fs::path& path) {
  std::ifstream file = opened(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Reads in one piece: a layer of full size leaves gigabytes.
std::vector<float> floats_of(const fs::path& path) {
  std::ifstream file = opened(path);
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  check(!error && bytes % sizeof(float) == 0, fmt::format("'{}' is no file of 32-bit floats", path.string()));
  std::vector<float> values(bytes / sizeof(float));
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(bytes));
  check(file.good(), fmt::format("'{}' cannot be read to its end", path.string()));
  return values;
}

/// The tensors that a file holds one after the other.
Lists lists_of(const fs::path& path, const std::vector<std::int64_t>& sizes) {
  const std::vector<float> all = floats_of(path);
  Lists out;
  std::size_t begin = 0;
  for (const std::int64_t size : sizes) {
    const std::size_t end = begin + static_cast<std::size_t>(size);
    check(end <= all.size(), fmt::format("'{}' holds fewer values than its description states", path.string()));
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
  }
  check(begin == all.size(), fmt::format("'{}' holds more values than its description states", path.string()));
  return out;
}

RankValues values_of(const fs::path& folder, int rank) {
  const JsonDocument document(text_of(folder / fmt::format("rank-{}.json", rank)));
  RankValues out;
  std::vector<std::int64_t> elements, gradients;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  document.root().at("tensors").each_item([&](const JsonReader& tensor) {
    out.names.push_back(tensor.at("name").text());
    elements.push_back(tensor.at("elements").integer(0, kMost));
    gradients.push_back(tensor.at("gradient").integer(0, elements.back()));
    const std::int64_t begin = tensor.at("begin").integer(0, elements.back());
    out.shards.push_back({.begin = begin, .end = tensor.at("end").integer(begin, elements.back())});
  });
  if (const auto equal = document.root().find("gathered_equals_unsharded"))
    out.gathered_equals_unsharded = equal->flag();
  const auto file = [&](const char* kind) { return folder / fmt::format("{}-{}.f32", kind, rank); };
  out.losses = floats_of(file("losses"));
  check(!out.losses.empty(), fmt::format("'{}' holds no loss", file("losses").string()));
  out.output = floats_of(file("output"));
  out.initial = lists_of(file("initial"), elements);
  out.weights = lists_of(file("weights"), elements);
  out.gradients = lists_of(file("gradients"), gradients);
  if (!fs::exists(file("own_pass_output"))) return out;
  gradients.push_back(document.root().at("input_gradient").integer(0, kMost));
  out.own_pass = {floats_of(file("own_pass_output")), lists_of(file("own_pass_gradients"), gradients)};
  out.bf16_pass = {floats_of(file("bf16_pass_output")), lists_of(file("bf16_pass_gradients"), gradients)};
  return out;
}

using Ranks = std::vector<RankValues>;

Ranks ranks_of(const fs::path& folder, int count) {
  Ranks out;
  for (int rank = 0; rank < count; ++rank) out.push_back(values_of(folder, rank));
  return out;
}

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
    if (!rank.own_pass) return;
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

void put_of_ranks(ArmResult& result, const Ranks& ranks, bool sharded) {
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
  if (!sharded) {
    for (const char* name : {"parity.shards_moved", "parity.ranks_equal", "parity.gathered_equals_unsharded"})
      put(metrics, name, std::nullopt, "nothing is sharded");
    return;
  }
  put(metrics, "parity.shards_moved", least_of_shards.fraction, least_of_shards.reason);
  if (finite)
    put(metrics, "parity.ranks_equal", equal ? 1.0 : 0.0);
  else
    put(metrics, "parity.ranks_equal", std::numeric_limits<double>::quiet_NaN(), "a weight is not finite");
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
  const JsonDocument cell(text_of(folder / "cell.json"));
  const int count = static_cast<int>(cell.root().at("ranks").integer(1, kMostRanks));
  const Ranks ranks = ranks_of(folder / "arm", count), reference = ranks_of(folder / "bf16", count);
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
  put_of_ranks(result, ranks, cell.root().at("sharded").flag());
  for (const char* name : {"parity.clip_fraction", "parity.underflow_fraction", "parity.values_cast"})
    put(result.metrics, name, std::nullopt, "a library does not show the values that it casts");
  if (fs::is_directory(folder / "after"))
    put(result.metrics, "parity.bitwise_equal",
        std::ranges::equal(ranks, ranks_of(folder / "after", count), equal_values) ? 1.0 : 0.0);
  else
    put(result.metrics, "parity.bitwise_equal", std::nullopt, "two versions of a library run in different processes");
  return result;
}

}  // namespace fp8lab
