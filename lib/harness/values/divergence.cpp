#include "harness/values/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "core/check.h"
#include "harness/values/pairs.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

std::string place_of(const RecordedTensor& tensor) {
  return fmt::format("{}{}{}: {}", tensor.phase, tensor.module.empty() ? "" : ", ", tensor.module, tensor.name);
}

/// The relative difference of two tensors; infinity, with the reason, for another shape, and if other elements are not
/// finite.
double difference_of(const RecordedTensor& a, const RecordedTensor& b, std::string& why) {
  if (a.shape != b.shape) {
    why = fmt::format("shape {} instead of {}", b.shape, a.shape);
    return std::numeric_limits<double>::infinity();
  }
  const double size = relative_difference(a.sketch, b.sketch);
  if (!std::isfinite(size))
    why = a.sketch.not_finite == 0   ? "a value is not finite in the second"
          : b.sketch.not_finite == 0 ? "a value is not finite in the first"
                                     : "other values are not finite";
  return size;
}

/// The comparison of one rank.
class RankComparison {
 public:
  RankComparison(int rank, const std::vector<RecordedTensor>& a, const std::vector<RecordedTensor>& b, Divergence& out)
      : rank_(rank), a_(a), b_(b), pairs_(pairs_of(a, b)), out_(out), noise_(a.size(), 0.0) {
    for_each_unpaired(a_, b_, pairs_, [&](const RecordedTensor& tensor, const char* which) {
      if (out_.only_in_one++ == 0)
        out_.first_only = fmt::format("step {}, {} (only in {})", tensor.step, place_of(tensor), which);
    });
  }

  /// Adds what equal runs differ by.
  void add_noise(const std::vector<RecordedTensor>& one, const std::vector<RecordedTensor>& other) {
    const Pairs pairs = pairs_of(one, other), in_a = pairs_of(a_, one);
    const auto note = [&](const RecordedTensor& tensor, const std::string& why) {
      if (out_.unlike++ == 0) out_.first_unlike = fmt::format("step {}, {}: {}", tensor.step, place_of(tensor), why);
    };
    for_each_unpaired(one, other, pairs,
                      [&](const RecordedTensor& tensor, const char*) { note(tensor, "only in one of two runs"); });
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (pairs.of_a[i] == Pairs::kNone) continue;
      std::string why;
      const double size = difference_of(one[i], other[pairs.of_a[i]], why);
      if (!std::isfinite(size)) {
        note(one[i], why);
        continue;
      }
      if (in_a.of_b[i] != Pairs::kNone) noise_[in_a.of_b[i]] = std::max(noise_[in_a.of_b[i]], size);
      if (size <= out_.largest_noise) continue;
      out_.largest_noise = size;
      out_.noisiest = fmt::format("step {}, {}", one[i].step, place_of(one[i]));
    }
  }

  void compare(double tolerance) {
    double before = 0.0;
    for (std::size_t i = 0; i < a_.size(); ++i) {
      if (pairs_.of_a[i] == Pairs::kNone) continue;
      const RecordedTensor& paired = b_[pairs_.of_a[i]];
      ++out_.tensors;
      Difference seen{.rank = rank_,
                      .step = a_[i].step,
                      .place = place_of(a_[i]),
                      .size = 0,
                      .norm = a_[i].sketch.norm,
                      .other_norm = paired.sketch.norm,
                      .noise = std::max(noise_[i], before),
                      .order = i,
                      .why = {},
                      .types = {}};
      before = noise_[i];
      seen.size = difference_of(a_[i], paired, seen.why);
      if (!(seen.size > std::max(tolerance, kTimesNoise * seen.noise))) continue;
      ++out_.different;
      if (a_[i].type != paired.type) seen.types = fmt::format("{} instead of {}", paired.type, a_[i].type);
      add(std::move(seen), a_[i].phase);
    }
  }

 private:
  template <class Note>
  static void for_each_unpaired(const std::vector<RecordedTensor>& a, const std::vector<RecordedTensor>& b,
                                const Pairs& pairs, const Note& note) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (pairs.of_a[i] == Pairs::kNone) note(a[i], "the first");
    for (std::size_t i = 0; i < b.size(); ++i)
      if (pairs.of_b[i] == Pairs::kNone) note(b[i], "the second");
  }

  void add(Difference&& seen, const std::string& phase) {
    const auto [place, is_new] = largest_in_.try_emplace(phase, largest_);
    double& largest = place->second;
    if (largest > 0.0 && seen.size / largest > std::max(out_.rise_factor, kSteep)) {
      out_.rise_factor = seen.size / largest;
      out_.rise = seen;
    }
    largest = is_new ? seen.size : std::max(largest, seen.size);
    largest_ = std::max(largest_, seen.size);
    const auto key = [](const Difference& one) { return std::tuple(one.step, one.order, -one.size); };
    if (!out_.first || key(seen) < key(*out_.first)) out_.first = std::move(seen);
  }

  int rank_;
  const std::vector<RecordedTensor>&a_, &b_;
  Pairs pairs_;
  Divergence& out_;
  std::vector<double> noise_;                           ///< noise of each tensor in `a_`
  std::unordered_map<std::string, double> largest_in_;  ///< largest difference so far, by phase
  double largest_ = 0.0;                                ///< the largest of all phases
};

/// The files of the ranks in two folders.
struct RankFiles {
  std::map<int, fs::path> one, other;
};

RankFiles files_of_both(const FolderPair& folders) {
  RankFiles out{.one = recorded_ranks(folders.one), .other = recorded_ranks(folders.other)};
  const auto check_all_in = [](const std::map<int, fs::path>& files, const fs::path& folder,
                               const std::map<int, fs::path>& others) {
    for (const auto& [rank, other] : others)
      check(files.contains(rank),
            fmt::format("{}: has no rank {}, which {} has", folder.string(), rank, other.parent_path().string()));
  };
  check_all_in(out.one, folders.one, out.other);
  check_all_in(out.other, folders.other, out.one);
  return out;
}

}  // namespace

void RecordingComparison::add(int rank, const RankRecording& a, const RankRecording& b,
                              const std::vector<Repeat>& repeats) {
  RankComparison comparison(rank, a.tensors, b.tensors, out_);
  const auto note = [&](const RankRecording& one) {
    if (!one.incomplete.empty()) out_.incomplete.insert(one.incomplete);
  };
  note(a);
  note(b);
  for (const Repeat& repeat : repeats) {
    comparison.add_noise(repeat.one->tensors, repeat.other->tensors);
    note(*repeat.one);
    note(*repeat.other);
  }
  comparison.compare(tolerance_);
}

const Divergence& RecordingComparison::result() const {
  if (out_.tensors > 0) return out_;
  check(!out_.first_only.empty(),
        "no tensor is in either recording; the programs may have ended before the steps that "
        "are recorded");
  fail(
      fmt::format("no tensor is in both recordings, such as {}; they may have recorded other steps, or another "
                  "program",
                  out_.first_only));
}

Divergence compare_folders(const FolderPair& compared, const std::vector<FolderPair>& repeats, double tolerance) {
  const RankFiles files = files_of_both(compared);
  std::vector<RankFiles> again;
  for (const FolderPair& repeat : repeats) {
    again.push_back(files_of_both(repeat));
    files_of_both({compared.one, repeat.one});
  }
  RecordingComparison comparison(tolerance);
  for (const auto& [rank, path] : files.one) {
    std::map<fs::path, RankRecording> read;  // by file: a repeat names one of the two that are compared
    const auto recording = [&](const fs::path& file) -> const RankRecording& {
      const auto found = read.find(file);
      return found != read.end() ? found->second : read.emplace(file, read_rank(file)).first->second;
    };
    std::vector<Repeat> of_rank;
    for (const RankFiles& one : again)
      of_rank.push_back({&recording(one.one.at(rank)), &recording(one.other.at(rank))});
    comparison.add(rank, recording(path), recording(files.other.at(rank)), of_rank);
  }
  return comparison.result();
}

}  // namespace fp8lab
