#pragma once

#include <atomic>
#include <cstdint>

namespace fp8lab::in_process {

/// Counts arrivals towards targets. It can be closed before a target is reached; then the target is never reached. So
/// all ranks that wait for a target agree on whether it was reached.
class Arrivals {
 public:
  /// Counts an arrival. Returns false, without counting, once closed.
  bool add() {
    std::uint64_t seen = state_.load();
    do {
      if ((seen & kClosed) != 0) return false;
    } while (!state_.compare_exchange_weak(seen, seen + 1));
    return true;
  }

  bool reached(std::uint64_t target) const { return count(state_.load()) >= target; }

  /// Closes. Returns false, and stays open, if the target has been reached.
  bool close_short_of(std::uint64_t target) {
    std::uint64_t seen = state_.load();
    do {
      if (count(seen) >= target) return false;
    } while (!state_.compare_exchange_weak(seen, seen | kClosed));
    return true;
  }

 private:
  static constexpr std::uint64_t kClosed = std::uint64_t{1} << 63;
  static std::uint64_t count(std::uint64_t state) { return state & ~kClosed; }

  std::atomic<std::uint64_t> state_{0};
};

}  // namespace fp8lab::in_process
