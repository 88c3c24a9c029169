#include "harness/values/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "core/check.h"

namespace fp8lab {
namespace {

using ByKey = std::unordered_map<std::string, const RecordedTensor*>;

std::string place_of(const RecordedTensor& tensor) {
  return fmt::format("{}{}{}: {}", tensor.phase, tensor.module.empty() ? "" : ", ", tensor.module, tensor.name);
}

/// Names of tensors, of which each occurs once: a module that is called twice has two outputs.
class Keys {
 public:
  std::string next(const RecordedTensor& tensor) {
    const std::string name = fmt::format("{}\t{}\t{}\t{}", tensor.step, tensor.phase, tensor.module, tensor.name);
    return fmt::format("{}\t{}", name, times_[name]++);
  }

 private:
  std::unordered_map<std::string, int> times_;
};

ByKey by_key(const std::vector<RecordedTensor>& tensors) {
  ByKey out;
  Keys keys;
  for (const RecordedTensor& tensor : tensors) out[keys.next(tensor)] = &tensor;
  return out;
}

const std::vector<RecordedTensor>& rank_in(const Recording& recording, int rank) {
  const auto found = recording.find(rank);
  check(found != recording.end(), fmt::format("one recording has rank {}, and another has not", rank));
  return found->second;
}

/// The relative difference of two tensors; infinity, with the reason, for another shape and values that are not finite.
double difference_of(const RecordedTensor& a, const RecordedTensor& b, std::string& why) {
  if (a.shape != b.shape) {
    why = fmt::format("shape {} instead of {}", b.shape, a.shape);
    return std::numeric_limits<double>::infinity();
  }
  const double size = relative_difference(a.sketch, b.sketch);
  if (!std::isfinite(size))
    why = fmt::format("a value is not finite in {}", std::isfinite(b.sketch.norm)   ? "the first"
                                                     : std::isfinite(a.sketch.norm) ? "the second"
                                                                                    : "both");
  return size;
}

/// The comparison of one rank.
class RankComparison {
 public:
  RankComparison(int rank, const std::vector<RecordedTensor>& a, const std::vector<RecordedTensor>& b, Divergence& out)
      : rank_(rank), a_(a), b_(by_key(b)), out_(out) {
    Keys keys;
    for (const RecordedTensor& tensor : a) keys_.push_back(keys.next(tensor));
    count_unpaired(b);
  }

  /// Adds what equal runs differ by.
  void add_noise(const std::vector<RecordedTensor>& one, const std::vector<RecordedTensor>& other) {
    const ByKey others = by_key(other);
    Keys keys;
    for (const RecordedTensor& tensor : one) {
      const std::string key = keys.next(tensor);
      const auto found = others.find(key);
      if (found == others.end()) continue;
      std::string ignored;
      const double size = difference_of(tensor, *found->second, ignored);
      if (!std::isfinite(size)) continue;
      double& noise = noise_[key];
      noise = std::max(noise, size);
      if (size <= out_.largest_noise) continue;
      out_.largest_noise = size;
      out_.noisiest = fmt::format("step {}, {}", tensor.step, place_of(tensor));
    }
  }

  void compare(double tolerance) {
    double before = 0.0;
    for (std::size_t i = 0; i < a_.size(); ++i) {
      const auto found = b_.find(keys_[i]);
      if (found == b_.end()) continue;
      ++out_.tensors;
      const auto noisy = noise_.find(keys_[i]);
      const double own = noisy == noise_.end() ? 0.0 : noisy->second;
      Difference seen{.rank = rank_,
                      .step = a_[i].step,
                      .place = place_of(a_[i]),
                      .size = 0,
                      .norm = a_[i].sketch.norm,
                      .other_norm = found->second->sketch.norm,
                      .noise = std::max(own, before),
                      .order = i,
                      .why = {},
                      .types = {}};
      before = own;
      seen.size = difference_of(a_[i], *found->second, seen.why);
      if (!(seen.size > std::max(tolerance, kTimesNoise * seen.noise))) continue;
      ++out_.different;
      const std::string &type = a_[i].type, &other = found->second->type;
      if (type != other) seen.types = fmt::format("{} instead of {}", other, type);
      add(std::move(seen), a_[i].phase);
    }
  }

 private:
  void add(Difference&& seen, const std::string& phase) {
    const auto [place, is_new] = largest_in_.try_emplace(phase, largest_);
    double& largest = place->second;
    if (largest > 0.0 && seen.size / largest > std::max(out_.rise_factor, kSteep)) {
      out_.rise_factor = seen.size / largest;
      out_.rise = seen;
    }
    largest = is_new ? seen.size : std::max(largest, seen.size);
    largest_ = std::max(largest_, seen.size);
    const bool earlier = !out_.first || seen.order < out_.first->order ||
                         (seen.order == out_.first->order && seen.size > out_.first->size);
    if (earlier) out_.first = std::move(seen);
  }

  void count_unpaired(const std::vector<RecordedTensor>& b) {
    const auto note = [&](const RecordedTensor& tensor, const char* which) {
      if (out_.only_in_one++ == 0)
        out_.first_only = fmt::format("step {}, {} (only in {})", tensor.step, place_of(tensor), which);
    };
    for (std::size_t i = 0; i < a_.size(); ++i)
      if (!b_.contains(keys_[i])) note(a_[i], "the first");
    const std::unordered_map<std::string, const RecordedTensor*> ours = by_key(a_);
    Keys keys;
    for (const RecordedTensor& tensor : b)
      if (!ours.contains(keys.next(tensor))) note(tensor, "the second");
  }

  int rank_;
  const std::vector<RecordedTensor>& a_;
  ByKey b_;
  Divergence& out_;
  std::vector<std::string> keys_;  ///< the keys of `a_`
  std::unordered_map<std::string, double> noise_;
  std::unordered_map<std::string, double> largest_in_;  ///< largest difference so far, by phase
  double largest_ = 0.0;                                ///< the largest of all phases
};

}  // namespace

Divergence compare_recordings(const Recording& a, const Recording& b, const std::vector<Repeat>& repeats,
                              double tolerance) {
  check(a.size() == b.size(), fmt::format("one recording has {} ranks, the other one {}", a.size(), b.size()));
  Divergence out;
  for (const auto& [rank, tensors] : a) {
    RankComparison comparison(rank, tensors, rank_in(b, rank), out);
    for (const Repeat& repeat : repeats) comparison.add_noise(rank_in(*repeat.one, rank), rank_in(*repeat.other, rank));
    comparison.compare(tolerance);
  }
  check(out.tensors > 0,
        fmt::format("no tensor is in both recordings{}; they may have recorded other steps, or another "
                    "program",
                    out.first_only.empty() ? "" : ", such as " + out.first_only));
  return out;
}

}  // namespace fp8lab
