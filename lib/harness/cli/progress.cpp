#include "harness/cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "comm/launch.h"
#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/units.h"

namespace fp8lab {
namespace {

/// True if `out` is a terminal whose last line can be rewritten. Not under a launcher: launchers mix the lines of
/// ranks, and Open MPI gives even a single rank a pseudo-terminal, wherever its output goes. A launch of one process by
/// another launcher is allowed: it may be a shell that srun opened.
bool rewrites_lines(std::FILE* out) {
  const char* term = std::getenv("TERM");
  if (::isatty(::fileno(out)) != 1 || (term && std::string_view(term) == "dumb")) return false;
  const Launch launch = discover_launch([](const char* name) { return std::getenv(name); });
  return launch.size == 1 && launch.launcher != "mpirun";
}

bool wants_colour(bool terminal) {
  const char* no_colour = std::getenv("NO_COLOR");
  return terminal && !(no_colour && *no_colour);
}

/// The width of the terminal in columns; 80 if the terminal does not report one.
std::size_t width_of(std::FILE* out) {
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

const char* colour_of(Verdict verdict) {
  if (verdict == Verdict::kSkipped) return "\033[2m";
  if (verdict == Verdict::kInconclusive) return "\033[33m";
  return is_good(verdict) ? "\033[32m" : "\033[31m";
}

/// "; time.step_ms: before 3.102 ms, after 3.004 ms": the main figure of each measured group with `MetricGroup::alone`.
std::string timings_of(const CellRecord& record) {
  std::string out;
  for (const MetricGroup& group : metric_groups()) {
    if (!group.alone || std::ranges::find(record.config.measure, group.name) == record.config.measure.end()) continue;
    const Metric& metric = *find_metric(group.main.front());
    std::string figures;
    for (const Side side : {Side::kBefore, Side::kAfter, Side::kBf16})
      if (const auto value = measured(record.arms, side, std::string(metric.name)).value)
        figures += fmt::format("{}{} {}", figures.empty() ? "" : ", ", name(side), figure(*value, metric.unit));
    if (!figures.empty()) out += fmt::format("; {}: {}", metric.name, figures);
  }
  return out;
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

Progress::Progress(std::FILE* out, std::size_t total, std::chrono::duration<double> quiet)
    : out_(out), terminal_(rewrites_lines(out)), colour_(wants_colour(terminal_)), total_(total), quiet_(quiet) {}

std::string Progress::coloured(Verdict verdict) const {
  const std::string word = fmt::format("{:<14}", name(verdict));
  return colour_ ? fmt::format("{}{}\033[0m", colour_of(verdict), word) : word;
}

std::string Progress::line_of(const CellRecord& record) const {
  const int digits = static_cast<int>(std::to_string(total_).size());
  const std::string head =
      fmt::format("[{:>{}}/{}] {} {}", done_, digits, total_, coloured(record.verdict), for_terminal(record.config.id));
  if (record.verdict == Verdict::kSkipped) return fmt::format("{}  ({})", head, for_terminal(record.reason));
  std::string line =
      fmt::format("{}  {}{:.2f} s{}", head, record.effect ? for_terminal(record.effect->text) + "  " : "",
                  record.seconds, timings_of(record));
  if (!record.reason.empty())
    line += fmt::format("\n{:>{}}{}:{}: {}", "", 2 * digits + 4, for_terminal(record.file), line_of_failure(record),
                        for_terminal(record.reason));
  return line;
}

void Progress::erase() {
  if (line_open_) std::fputs("\r\033[K", out_);
  line_open_ = false;
}

void Progress::finished(const CellRecord& record) {
  ++done_;
  if (record.verdict != Verdict::kSkipped) ++timed_;
  erase();
  if (!terminal_ || !is_good(record.verdict) || !timings_of(record).empty())
    std::fprintf(out_, "%s\n", line_of(record).c_str());
  std::fflush(out_);
  printed_ = std::chrono::steady_clock::now();
  tick(running_);
}

std::string Progress::running_line() const {
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string line = fmt::format("[{}/{}] {} running", done_, total_, running_);
  if (timed_ > 0)
    line += fmt::format(", about {} left",
                        duration_text(elapsed / static_cast<double>(timed_) * static_cast<double>(total_ - done_)));
  return line;
}

void Progress::tick(int running) {
  running_ = running;
  if (!terminal_) {
    const auto now = std::chrono::steady_clock::now();
    if (now - printed_ < quiet_) return;
    printed_ = now;
    std::fprintf(out_, "%s\n", running_line().c_str());
    std::fflush(out_);
    return;
  }
  const std::string line = running_line();
  erase();
  std::fputs(line.substr(0, width_of(out_) - 1).c_str(), out_);
  std::fflush(out_);
  line_open_ = true;
}

void Progress::close() {
  erase();
  std::fflush(out_);
}

}  // namespace fp8lab
