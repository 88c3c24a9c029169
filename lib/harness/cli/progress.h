#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "harness/results/record.h"

namespace fp8lab {

/// Prints the progress of a run. On a terminal: one line that is rewritten, with an estimate of the time left, and
/// above it the cells that need attention. In a log, under a launcher of ranks, or if TERM is dumb: one line per
/// cell, and a line with the running cells whenever nothing was printed for `quiet`.
class Progress {
 public:
  Progress(std::FILE* out, std::size_t total, std::chrono::duration<double> quiet = std::chrono::seconds(30));

  void finished(const CellRecord& record);
  void tick(int running);
  /// Ends the rewritten line.
  void close();

 private:
  std::string line_of(const CellRecord& record) const;
  std::string running_line() const;
  std::string coloured(Verdict verdict) const;
  void erase();

  std::FILE* out_;
  bool terminal_;  ///< `out` is a terminal whose lines can be rewritten
  bool colour_;
  std::size_t total_;
  std::size_t done_ = 0;
  std::size_t timed_ = 0;  ///< number of done cells that ran
  int running_ = 0;
  bool line_open_ = false;
  std::chrono::duration<double> quiet_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point printed_ = start_;  ///< when the last line of a log was printed
};

/// "40 s", "3 min", "1.5 h"
std::string duration_text(double seconds);

}  // namespace fp8lab
