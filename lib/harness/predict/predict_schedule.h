#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

// Schedules of allocations and frees, from which the closed forms of predict.h compute peaks.
namespace fp8lab::closed_form {

using Bytes = std::int64_t;
inline constexpr Bytes kF32 = 4;  ///< bytes of an element of type f32

/// What live bytes are for.
enum class Owner {
  kParameters,
  kScales,
  kGathered,
  kGradients,
  kOptimizer,
  kCachedCopies,
  kActivations,
  kLogits,
  kBuckets,
  kInput,  ///< profiles of libraries only, see subjects/profile/memory_profile.h; so are the two below
  kBuffers,
  kTemporaries
};
inline constexpr std::array<std::string_view, 12> kOwnerNames{"parameters",
                                                              "scales and amax histories",
                                                              "unsharded parameters",
                                                              "gradients",
                                                              "the optimizer's state",
                                                              "cached copies of weights",
                                                              "activations and FP8 copies",
                                                              "logits and their gradients",
                                                              "buckets of gradients",
                                                              "input",
                                                              "FSDP2's buffers",
                                                              "temporaries"};

/// Bytes by owner.
struct ByOwner {
  std::array<Bytes, kOwnerNames.size()> bytes{};

  constexpr Bytes& operator[](Owner owner) { return bytes[static_cast<std::size_t>(owner)]; }
  constexpr Bytes operator[](Owner owner) const { return bytes[static_cast<std::size_t>(owner)]; }
  constexpr ByOwner plus(const ByOwner& other, std::int64_t times = 1) const {
    ByOwner sum = *this;
    for (std::size_t i = 0; i < bytes.size(); ++i) sum.bytes[i] += times * other.bytes[i];
    return sum;
  }
};

/// A sequence of allocations and frees: it changes the live bytes by `net`, and on the way they rise to at most `high`
/// above their number at the start. a + b is b after a; the order matters to `high` only.
struct Schedule {
  Bytes net = 0;
  Bytes high = 0;
  ByOwner nets{};     ///< `net` by owner
  ByOwner at_high{};  ///< `high` by owner

  friend constexpr Schedule operator+(const Schedule& a, const Schedule& b) {
    const bool in_b = a.net + b.high > a.high;
    return {.net = a.net + b.net,
            .high = in_b ? a.net + b.high : a.high,
            .nets = a.nets.plus(b.nets),
            .at_high = in_b ? a.nets.plus(b.at_high) : a.at_high};
  }
  constexpr Schedule& operator+=(const Schedule& next) { return *this = *this + next; }
};

/// `schedule` with all its bytes assigned to `owner`.
constexpr Schedule owned_by(Owner owner, Schedule schedule) {
  schedule.nets = schedule.at_high = {};
  schedule.nets[owner] = schedule.net;
  schedule.at_high[owner] = schedule.high;
  return schedule;
}

constexpr Schedule allocate(Bytes bytes, Owner owner = Owner::kActivations) {
  return owned_by(owner, {.net = bytes, .high = bytes});
}
constexpr Schedule release(Bytes bytes, Owner owner = Owner::kActivations) {
  return owned_by(owner, {.net = -bytes, .high = 0});
}

/// `schedule` repeated `count` times. Its peak is in the last repetition if a repetition leaves more bytes than it
/// found, else in the first.
constexpr Schedule repeat(std::int64_t count, const Schedule& schedule) {
  if (count <= 0) return {};
  const std::int64_t before = schedule.net > 0 ? count - 1 : 0;
  return {.net = count * schedule.net,
          .high = before * schedule.net + schedule.high,
          .nets = ByOwner{}.plus(schedule.nets, count),
          .at_high = schedule.at_high.plus(schedule.nets, before)};
}

/// Allocations and frees at one moment: live bytes change by `bytes` without a rise on the way.
constexpr Schedule at_once(const ByOwner& bytes) {
  Schedule out{.nets = bytes, .at_high = bytes};
  for (const Bytes each : bytes.bytes) out.net += each;
  out.high = out.net;
  return out;
}
/// What `bytes` allocates and frees, and at once the reverse.
constexpr Schedule for_a_moment(const ByOwner& bytes) {
  Schedule out = at_once(bytes);
  out.net = 0;
  out.nets = {};
  return out;
}

/// The highest point of a phase.
struct Peak {
  Bytes bytes = 0;
  ByOwner by_owner{};
};

/// The live bytes while schedules are applied one after the other.
class Level {
 public:
  void pass(const Schedule& schedule) { so_far_ += schedule; }
  void pass(const Schedule& schedule, Peak& highest) {
    if (so_far_.net + schedule.high > highest.bytes)
      highest = {so_far_.net + schedule.high, so_far_.nets.plus(schedule.at_high)};
    so_far_ += schedule;
  }
  Bytes bytes() const { return so_far_.net; }
  const ByOwner& by_owner() const { return so_far_.nets; }

 private:
  Schedule so_far_;
};

/// The owners of bytes, largest first.
inline std::vector<std::pair<std::string_view, Bytes>> largest_first(const ByOwner& owners) {
  std::vector<std::pair<std::string_view, Bytes>> out;
  for (std::size_t i = 0; i < kOwnerNames.size(); ++i)
    if (owners.bytes[i] != 0) out.emplace_back(kOwnerNames[i], owners.bytes[i]);
  std::ranges::stable_sort(out, std::greater<>(), [](const auto& entry) { return entry.second; });
  return out;
}

/// A phase's name, and its highest point.
using PhasePeak = std::pair<std::string_view, Peak>;
/// The highest of several phases; the first one of equals.
constexpr PhasePeak highest_of(std::initializer_list<PhasePeak> phases) {
  PhasePeak highest = *phases.begin();
  for (const PhasePeak& phase : phases)
    if (phase.second.bytes > highest.second.bytes) highest = phase;
  return highest;
}

}  // namespace fp8lab::closed_form
