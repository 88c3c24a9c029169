#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process_groups.h"
#include "reference/bytes.h"
#include "reference/test_data.h"
#include "support/error_of.h"

/// What the tests of process groups share. Under mpirun or launch_ranks the same tests run over the launched processes,
/// and each process makes the assertions of its own rank.
namespace fp8lab::comm_test {

inline const char* environment(const char* name) { return std::getenv(name); }

/// The number of processes that were launched, 0 without a launcher.
inline int launched_ranks() {
  const Launch launch = discover_launch(environment);
  return launch.launcher.empty() ? 0 : launch.size;
}
/// The process group of the launched ranks; `in_process` without a launcher.
inline std::string_view base_row() {
  return choose_process_group(discover_launch(environment), environment, process_group_row("mpi").unavailable_reason())
      .row;
}
/// The process group under test: the group that the CTest entry names, or else base_row().
inline std::string_view row() {
  const char* const named = environment("FP8LAB_TEST_ROW");
  return named != nullptr ? named : base_row();
}
/// Options of a run on row(). The timeout only ends a test that has failed.
inline RunOptions run_options(int ranks) {
  RunOptions options{.ranks = ranks, .timeout = std::chrono::seconds(60)};
  options.over = base_row();
  options.notify = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  if (launched_ranks() > 0) options.local_rank = discover_launch(environment).local_rank;
  if (base_row() == "sockets") options.rendezvous = discover_rendezvous(discover_launch(environment), environment);
  return options;
}

inline std::vector<int> rank_counts() {
  if (launched_ranks() > 0) return {launched_ranks()};
  return {1, 2, 3, 4, 7, 16};
}

/// Runs `rank_function` on `ranks` ranks of this binary's row.
inline void on_ranks(int ranks, const RankFunction& rank_function) {
  run_ranks(row(), run_options(ranks), rank_function);
}

using support::error_of;

inline std::uint64_t seed_of_rank(std::uint64_t seed, int rank) {
  return seed * 1000 + static_cast<std::uint64_t>(rank);
}

inline std::byte test_byte(std::uint64_t seed, int rank, std::int64_t index) {
  return static_cast<std::byte>(
      reference::scramble(reference::scramble(seed_of_rank(seed, rank)) ^ static_cast<std::uint64_t>(index)));
}

inline std::vector<std::byte> test_bytes(std::uint64_t seed, int rank, std::int64_t count) {
  return reference::any_bytes(count, seed_of_rank(seed, rank));
}

inline float test_value(std::uint64_t seed, int rank, std::int64_t index) {
  return static_cast<float>(reference::gaussian(seed_of_rank(seed, rank), static_cast<std::uint64_t>(index)));
}

/// test_value() of the first `count` indices.
inline std::vector<float> test_values(std::uint64_t seed, int rank, std::int64_t count) {
  return reference::gaussian_values(count, seed_of_rank(seed, rank));
}

/// A division of a tensor's elements over ranks, as offsets.
struct Sharing {
  const char* name;
  std::int64_t (*elems)(int rank, int ranks);

  std::vector<std::int64_t> offsets(int ranks) const {
    std::vector<std::int64_t> all = {0};
    for (int rank = 0; rank < ranks; ++rank) all.push_back(all.back() + elems(rank, ranks));
    return all;
  }
};

/// Even, uneven, nothing for some or all ranks, and longer than the blocks in which ranks copy.
inline constexpr Sharing kSharings[] = {
    {"even", [](int, int) -> std::int64_t { return 1024; }},
    {"uneven", [](int rank, int) -> std::int64_t { return 1 + rank * 1371 % 4099; }},
    {"last_empty", [](int rank, int ranks) -> std::int64_t { return rank + 1 == ranks ? 0 : 33; }},
    {"one_alone", [](int rank, int ranks) -> std::int64_t { return rank == ranks / 2 ? 77 : 0; }},
    {"all_empty", [](int, int) -> std::int64_t { return 0; }},
    {"long", [](int rank, int) -> std::int64_t { return rank == 0 ? 600'001 : 3; }},
};

/// Memory between guards, which must stay unchanged.
template <class Element>
class Guarded {
 public:
  explicit Guarded(std::int64_t elems, Element fill = {})
      : elems_(static_cast<std::size_t>(elems)), memory_(elems_ + 2 * kGuards, fill) {
    for (std::size_t i = 0; i < kGuards; ++i) {
      std::memset(&memory_[i], kGuard, sizeof(Element));
      std::memset(&memory_[kGuards + elems_ + i], kGuard, sizeof(Element));
    }
  }

  std::span<Element> elements() { return std::span(memory_).subspan(kGuards, elems_); }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory_.data() + kGuards); }
  std::byte* bytes_from(std::int64_t element) { return bytes() + static_cast<std::size_t>(element) * sizeof(Element); }
  bool guards_intact() const {
    const auto* all = reinterpret_cast<const unsigned char*>(memory_.data());
    const std::size_t guard = kGuards * sizeof(Element);
    for (std::size_t i = 0; i < guard; ++i)
      if (all[i] != kGuard || all[memory_.size() * sizeof(Element) - 1 - i] != kGuard) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuards = 16;
  static constexpr unsigned char kGuard = 0xA5;
  std::size_t elems_;
  std::vector<Element> memory_;
};

}  // namespace fp8lab::comm_test
