#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "harness/results/record.h"

namespace fp8lab {

/// Tells how a run is going: on a terminal one line that is rewritten, with an estimate of the time left, above it the
/// cells that need attention; in a log, under launchers of ranks and where TERM is dumb a line per cell.
class Progress {
 public:
  Progress(std::FILE* out, std::size_t total);

  void finished(const CellRecord& record);
  void tick(int running);
  /// Ends the rewritten line.
  void close();

 private:
  std::string line_of(const CellRecord& record) const;
  std::string coloured(Verdict verdict) const;
  void erase();

  std::FILE* out_;
  bool terminal_;  ///< whose lines can be rewritten
  bool colour_;
  std::size_t total_;
  std::size_t done_ = 0;
  std::size_t timed_ = 0;  ///< of those, the ones that ran
  int running_ = 0;
  bool line_open_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// "40 s", "3 min", "1.5 h"
std::string duration_text(double seconds);

}  // namespace fp8lab
