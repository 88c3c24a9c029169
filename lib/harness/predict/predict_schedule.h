#pragma once

#include <algorithm>
#include <cstdint>

// Schedules of allocations and frees, from which the closed forms of predict.h compute peaks.
namespace fp8lab::closed_form {

using Bytes = std::int64_t;

/// A sequence of allocations and frees: it changes the live bytes by `net`, and on the way they rise to at most `high`
/// above their number at the start. a + b is b after a; the order matters to `high` only.
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

/// `schedule` repeated `count` times. Its peak is in the last repetition if a repetition leaves more bytes than it
/// found, else in the first.
constexpr Schedule repeat(std::int64_t count, Schedule schedule) {
  if (count <= 0) return {};
  return {.net = count * schedule.net, .high = std::max<Bytes>(0, (count - 1) * schedule.net) + schedule.high};
}

}  // namespace fp8lab::closed_form
