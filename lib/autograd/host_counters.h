#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace fp8lab {

/// Host work from entering a wrapped layer to its first kernel. Time in collectives is left out, because there a rank
/// waits for others.
struct PreForwardSample {
  std::int64_t nanoseconds = 0;
  std::int64_t heap_allocations = 0;
  std::int64_t quantizer_copies = 0;
};

/// Counters of the host's work. Clocks are read only if `samples` is set.
class HostCounters {
 public:
  std::int64_t quantizer_copies = 0;
  std::int64_t fusion_plans = 0;  ///< plans that fused chains made
  /// One sample per layer and step is appended. Reserve it, so that measuring does not allocate. Null: no measurement.
  std::vector<PreForwardSample>* samples = nullptr;
  /// Returns this thread's allocations so far; null if no one counts them.
  std::int64_t (*heap_allocations)() = nullptr;

  /// Measures the time of its scope as one pre-forward.
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

  /// Excludes the time of its scope from the enclosing PreForward.
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
