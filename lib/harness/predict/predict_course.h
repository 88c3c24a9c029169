#pragma once

#include <algorithm>
#include <cstdint>

// The algebra behind peaks in the closed forms of predict.h.
namespace fp8lab::closed_form {

using Bytes = std::int64_t;

/// How a stretch of the schedule moves the account of live bytes: by `net` in all, and meanwhile up to `high` above
/// where it began. Stretches that follow each other add up; order matters to `high` alone.
struct Course {
  Bytes net = 0;
  Bytes high = 0;

  friend constexpr Course operator+(Course a, Course b) {
    return {.net = a.net + b.net, .high = std::max(a.high, a.net + b.high)};
  }
  constexpr Course& operator+=(Course next) { return *this = *this + next; }
};

constexpr Course take(Bytes bytes) { return {.net = bytes, .high = bytes}; }
constexpr Course give(Bytes bytes) { return {.net = -bytes, .high = 0}; }

/// The same stretch `count` times over: highest the last time if it leaves more than it found, else the first.
constexpr Course repeat(std::int64_t count, Course course) {
  if (count <= 0) return {};
  return {.net = count * course.net, .high = std::max<Bytes>(0, (count - 1) * course.net) + course.high};
}

}  // namespace fp8lab::closed_form
