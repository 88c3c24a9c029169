#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace fp8lab {

/// Host work between entering a wrapped layer and its first kernel, time in collectives left out: there one waits for
/// others.
struct PreForwardSample {
  std::int64_t nanoseconds = 0;
  std::int64_t heap_allocations = 0;
  std::int64_t quantizer_copies = 0;
};

/// What the host does before layers, counted. Clocks are read only where `samples` is set.
class HostCounters {
 public:
  std::int64_t quantizer_copies = 0;
  /// One per layer and step, appended; reserve it, so that the measure does not allocate. Null: nothing is measured.
  std::vector<PreForwardSample>* samples = nullptr;
  /// This thread's allocations so far; null where nobody counts them.
  std::int64_t (*heap_allocations)() = nullptr;

  /// Measures its scope as one pre-forward.
  class PreForward {
   public:
    explicit PreForward(HostCounters& host) : host_(host) {
      if (host_.samples == nullptr) return;
      host_.waited_ = {};
      start_ = {.nanoseconds = 0, .heap_allocations = host_.allocated(), .quantizer_copies = host_.quantizer_copies};
      began_ = Clock::now();
    }
    ~PreForward() {
      if (host_.samples == nullptr) return;
      const Clock::duration took = Clock::now() - began_ - host_.waited_;
      host_.samples->push_back({.nanoseconds = std::chrono::nanoseconds(took).count(),
                                .heap_allocations = host_.allocated() - start_.heap_allocations,
                                .quantizer_copies = host_.quantizer_copies - start_.quantizer_copies});
    }
    PreForward(const PreForward&) = delete;
    PreForward& operator=(const PreForward&) = delete;

   private:
    HostCounters& host_;
    PreForwardSample start_;
    std::chrono::steady_clock::time_point began_;
  };

  /// Takes its scope out of the pre-forward around it.
  class Waiting {
   public:
    explicit Waiting(HostCounters& host) : host_(host) {
      if (host_.samples != nullptr) began_ = Clock::now();
    }
    ~Waiting() {
      if (host_.samples != nullptr) host_.waited_ += Clock::now() - began_;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    HostCounters& host_;
    std::chrono::steady_clock::time_point began_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t allocated() const { return heap_allocations != nullptr ? heap_allocations() : 0; }

  Clock::duration waited_{};
};

}  // namespace fp8lab
