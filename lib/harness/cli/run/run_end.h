#pragma once

#include <string>
#include <vector>

#include "harness/results/reports.h"

// The end of `run`: what it found, its counts, its files and its exit code in words.
namespace fp8lab {

/// The most lines that a run ends with.
inline constexpr std::size_t kMostEndLines = 15;

/// "all 2438 cells that ran came out as their scenarios expect; 22 did not run: torch is not installed".
/// The text names the cells that decided the code.
std::string exit_words(int code, const RecordList& records);

/// The findings, largest effect first, then `tail`: at most kMostEndLines lines, if `tail` has at most 12.
std::string end_of_run(const std::vector<RunFinding>& findings, const std::vector<std::string>& tail);

}  // namespace fp8lab
