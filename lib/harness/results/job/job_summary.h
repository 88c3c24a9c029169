#pragma once

#include <cstddef>
#include <string>

#include "harness/results/job/annotations.h"

namespace fp8lab {

/// GitHub drops the summary of a step above this size.
inline constexpr std::size_t kMostSummaryBytes = std::size_t{1} << 20;

/// Markdown of at most `budget` bytes: what is wrong first, then the sections of `summary`, the text of summary.md,
/// that fit.
std::string job_summary(const JobReport& report, const std::string& summary, std::size_t budget);

/// Appends job_summary() to the file that $GITHUB_STEP_SUMMARY names, if there is one, up to kMostSummaryBytes of that
/// file. Returns why that failed, or "".
std::string append_job_summary(const JobReport& report, const std::string& summary);

}  // namespace fp8lab
