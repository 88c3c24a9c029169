#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// Google Benchmark's JSON files: benchmarks of two commits, or this program's and a peer's rows of the same names.
namespace fp8lab {

/// A row's real time, in nanoseconds, over its repetitions.
struct BenchmarkRow {
  std::string name;  ///< without the suffixes of repetitions and aggregates
  double median = 0;
  /// The shortest and the longest repetition; if a file has only aggregates, two standard deviations around the
  /// median.
  double low = 0, high = 0;
  std::size_t repetitions = 0;
};

/// The rows of a file, in its order, without those that ended with an error. Nothing if it is no Google Benchmark file
/// but perhaps a run's results. Throws Error, which names file and place, if it is broken.
std::optional<std::vector<BenchmarkRow>> load_benchmarks(const std::string& path);

/// The fewest repetitions, in each file, from which a row is judged. If two rows of n repetitions have the same
/// distribution, all of one are slower or all are faster than the other's by chance in 2 of binomial(2n, n) cases: 10 %
/// with 3 repetitions, 0.8 % with 5.
inline constexpr std::size_t kFewestRepetitions = 5;

enum class Pace {
  kSlower,        ///< every repetition is slower than every one of the baseline
  kFaster,        ///< every repetition is faster
  kWithinSpread,  ///< the repetitions overlap
  kUndecided,     ///< a file has fewer than kFewestRepetitions
};

struct BenchmarkChange {
  BenchmarkRow was, is;
  Pace pace = Pace::kUndecided;
  double ratio() const { return is.median / was.median; }
};

struct BenchmarkComparison {
  std::vector<BenchmarkChange> rows;  ///< rows of both files, the largest ratio first
  std::vector<std::string> only_baseline, only_run;

  std::size_t count(Pace pace) const;
  /// 5: no row is in both files; else 0. Times of two runs are reported, not judged.
  int exit_code() const { return rows.empty() ? 5 : 0; }
};

BenchmarkComparison compare_benchmarks(const std::vector<BenchmarkRow>& baseline, const std::vector<BenchmarkRow>& run);

std::string benchmarks_text(const BenchmarkComparison& comparison);
std::string benchmarks_markdown(const BenchmarkComparison& comparison);
std::string benchmarks_json(const BenchmarkComparison& comparison);

}  // namespace fp8lab
