#pragma once

#include <algorithm>
#include <cstdint>

// The algebra behind peaks in the closed forms of predict.h.
namespace fp8lab::closed_form {

using Bytes = std::int64_t;

/// How a stretch of the schedule moves the account of live bytes: by `net` in all, and meanwhile up to `high` above
/// where it began. Stretches that follow each other add up; order matters to `high` alone.
struct Schedule {
  Bytes net = 0;
  Bytes high = 0;

  friend constexpr Schedule operator+(Schedule a, Schedule b) {
    return {.net = a.net + b.net, .high = std::max(a.high, a.net + b.high)};
  }
  constexpr Schedule& operator+=(Schedule next) { return *this = *this + next; }
};

constexpr Schedule allocate(Bytes bytes) { return {.net = bytes, .high = bytes}; }
constexpr Schedule release(Bytes bytes) { return {.net = -bytes, .high = 0}; }

/// The same stretch `count` times over: highest the last time if it leaves more than it found, else the first.
constexpr Schedule repeat(std::int64_t count, Schedule schedule) {
  if (count <= 0) return {};
  return {.net = count * schedule.net, .high = std::max<Bytes>(0, (count - 1) * schedule.net) + schedule.high};
}

}  // namespace fp8lab::closed_form
