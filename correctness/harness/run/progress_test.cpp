#include "harness/cli/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What a run prints on terminals, and on files that only resemble one.
namespace fp8lab {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// Sets variables of the environment for as long as it lives.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      const char* before = std::getenv(name.c_str());
      before_.emplace_back(name, before ? std::optional<std::string>(before) : std::nullopt);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

/// What a terminal of `columns` columns receives while one of two cells is skipped.
std::string shown(unsigned short columns, const Variables& variables, const std::string& reason = "why") {
  const Environment environment(variables);
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ::grantpt(terminal);
  ::unlockpt(terminal);
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  std::FILE* out = ::fdopen(::open(::ptsname(terminal), O_RDWR | O_NOCTTY), "w");
  if (!out || ::ioctl(terminal, TIOCSWINSZ, &size) != 0) return "no terminal";
  Progress progress(out, 2);
  progress.tick(1000000000);
  CellRecord record;
  record.config.id = "cell";
  record.verdict = Verdict::kSkipped;
  record.reason = reason;
  progress.finished(record);
  progress.close();
  std::string text;
  pollfd readable{terminal, POLLIN, 0};
  while (::poll(&readable, 1, 0) == 1) {
    char buffer[4096];
    const ssize_t n = ::read(terminal, buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  std::fclose(out);
  ::close(terminal);
  return text;
}

const Variables kXterm{{"TERM", "xterm"}};
const std::string kErased = "\r\033[K";

/// What a file receives while cells run and none ends.
std::string logged(std::chrono::duration<double> quiet) {
  std::FILE* out = std::tmpfile();
  Progress progress(out, 2, quiet);
  progress.tick(3);
  progress.tick(2);
  progress.close();
  std::rewind(out);
  std::string text(200, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out));
  std::fclose(out);
  return text;
}

TEST(Progress, LogsSayWhatRunsAfterSilence) {
  EXPECT_EQ(logged(std::chrono::seconds(0)), "[0/2] 3 running\n[0/2] 2 running\n");
  EXPECT_EQ(logged(std::chrono::hours(1)), "");
}

TEST(Progress, RewritesOneLineCutToTheWidthOfTheTerminal) {
  const std::string first = "[0/2] 1000000000 running", second = "[1/2] 1000000000 running";
  for (const unsigned short columns : {200, 80, 21, 20, 10, 2, 1})
    EXPECT_EQ(shown(columns, kXterm),
              first.substr(0, columns - 1u) + kErased + second.substr(0, columns - 1u) + kErased);
  EXPECT_EQ(shown(0, kXterm), shown(80, kXterm)) << "it does not know";
}

TEST(Progress, WritesALinePerCellIfLinesCannotBeRewritten) {
  const Variables cases[] = {
      {{"TERM", "dumb"}},
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}},
  };
  for (const Variables& variables : cases) {
    Variables all = kXterm;
    all.insert(all.end(), variables.begin(), variables.end());
    EXPECT_EQ(shown(80, all), "[1/2] skipped        cell  (why)\r\n") << variables.front().first;
  }
  const Variables shell{{"TERM", "xterm"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  EXPECT_EQ(shown(80, shell), shown(80, kXterm)) << "srun --pty opens shells";
}

TEST(Progress, ReasonWithControlCharacters_IsEscapedAndEndsNoLine) {
  EXPECT_EQ(shown(80, {{"TERM", "dumb"}}, "x\n::error::y\x1b[31m\a"),
            "[1/2] skipped        cell  (x\\n::error::y\\x1b[31m\\x07)\r\n");
}

TEST(ProgressLine, HasTheTimeThatTheCellMeasures) {
  std::FILE* out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  Progress progress(out, 2);
  CellRecord record;
  record.config.id = "timed";
  record.config.measure = {"memory", "time"};
  record.verdict = Verdict::kPass;
  record.arms[Arm::kBefore].metrics["time.step_ms"].value = 3.125;
  record.arms[Arm::kAfter].metrics["time.step_ms"].value = 3;
  progress.finished(record);
  record.config.measure = {"memory"};
  progress.finished(record);
  std::rewind(out);
  char text[256] = {};
  std::fread(text, 1, sizeof text - 1, out);
  std::fclose(out);
  EXPECT_EQ(std::string(text),
            "[1/2] pass           timed  0.00 s; time.step_ms: before 3.125 ms, after 3 ms\n"
            "[2/2] pass           timed  0.00 s\n");
}

}  // namespace
}  // namespace fp8lab
