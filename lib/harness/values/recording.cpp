#include "harness/values/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/regular_file.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "fp8lab.values/2";
constexpr std::size_t kColumns = 10;
/// The line of a recorder that failed, and why.
constexpr std::string_view kIncomplete = "the recording is incomplete: ";
constexpr std::string_view kEnd = "end\t";
/// The most bytes of a rank's file.
constexpr std::size_t kMostRecordedBytes = std::size_t{4} << 30;
/// As watching/words.py calls them.
constexpr std::array<std::string_view, 6> kPhases{"setup",     "forward",
                                                  "backward",  "the time between backward and the optimizer",
                                                  "optimizer", "the time after the step"};

std::string_view environment_text(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

/// The parts of `text` between `separator`s.
std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// Reads the lines of one file.
class LineReader {
 public:
  LineReader(const fs::path& path, std::size_t line) : path_(path), line_(line) {}

  RecordedTensor tensor(std::string_view text) const {
    const std::vector<std::string_view> columns = parts_of(text, '\t');
    if (columns.size() != kColumns) refuse(fmt::format("has {} columns instead of {}", columns.size(), kColumns));
    RecordedTensor out;
    out.step = number<std::int64_t>(columns[0], "step");
    out.phase = columns[1];
    if (std::find(kPhases.begin(), kPhases.end(), columns[1]) == kPhases.end())
      refuse(fmt::format("'{}' is no phase", columns[1].substr(0, 40)));
    out.module = columns[2];
    out.name = columns[3];
    out.type = columns[4];
    out.shape = columns[5];
    out.sketch.norm = number<double>(columns[6], "norm");
    if (out.sketch.norm < 0.0) refuse(fmt::format("'{}' is no norm", columns[6].substr(0, 40)));
    out.sketch.bits = checksum(columns[7]);
    out.sketch.not_finite = checksum(columns[8]);
    const std::vector<std::string_view> sums = parts_of(columns[9], ',');
    if (sums.size() != kSketchSums) refuse(fmt::format("has {} sums instead of {}", sums.size(), kSketchSums));
    for (std::size_t i = 0; i < kSketchSums; ++i) out.sketch.sums[i] = number<double>(sums[i], "sum");
    return out;
  }

  /// The number of tensors in the last line.
  std::size_t end(std::string_view text) const { return number<std::size_t>(text.substr(kEnd.size()), "number"); }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(fmt::format("{}:{}: {}; record it again with this version of fp8lab", path_.string(), line_, what));
  }

 private:
  template <class T>
  T number(std::string_view text, std::string_view name) const {
    T out{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(static_cast<double>(out)))
      refuse(fmt::format("'{}' is no {}", text.substr(0, 40), name));
    return out;
  }
  std::uint64_t checksum(std::string_view text) const {
    std::uint64_t out = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 16);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(fmt::format("'{}' is no checksum", text.substr(0, 40)));
    return out;
  }

  const fs::path& path_;
  std::size_t line_;
};

std::string file_of(int rank) { return fmt::format("rank-{}.tsv", rank); }

/// R of "rank-R.tsv".
std::optional<int> rank_of(const std::string& name) {
  constexpr std::string_view kBegin = "rank-";
  if (!name.starts_with(kBegin)) return {};
  int rank = -1;
  std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), rank);
  if (rank < 0 || name != file_of(rank)) return {};  // another file, such as rank-00.tsv
  return rank;
}

/// The files of the ranks in `folder`.
std::map<int, fs::path> files_of(const fs::path& folder) {
  std::map<int, fs::path> out;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (const std::optional<int> rank = rank_of(entry->path().filename().string())) out[*rank] = entry->path();
  check(!error, fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  return out;
}

}  // namespace

std::optional<fs::path> recording_folder(Arm arm) {
  const std::string_view folder = environment_text(kValuesVariable);
  if (folder.empty()) return {};
  return fs::path(folder) / name(arm);
}

bool records_step(std::int64_t step) {
  const std::string_view text = environment_text(kValuesStepsVariable);
  const std::size_t colon = text.find(':');
  const auto limit = [&](std::string_view part, std::int64_t otherwise) {
    std::int64_t out = otherwise;
    if (!part.empty()) std::from_chars(part.data(), part.data() + part.size(), out);
    return out;
  };
  const std::int64_t first = limit(text.substr(0, colon), 1);
  const std::int64_t last =
      colon == std::string_view::npos ? (text.empty() ? INT64_MAX : first) : limit(text.substr(colon + 1), INT64_MAX);
  return first <= step && step <= last;
}

RecordingWriter::RecordingWriter(const fs::path& folder, int rank) : path_(folder / file_of(rank)) {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  file_.open(path_);
  check(file_.good(), fmt::format("{}: cannot be written", path_.string()));
  file_ << kSchema << '\n';
}

void RecordingWriter::add(const RecordedTensor& tensor) {
  std::string sums;
  for (const double sum : tensor.sketch.sums) sums += fmt::format("{}{:.17g}", sums.empty() ? "" : ",", sum);
  file_ << fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{:.17g}\t{:x}\t{:x}\t{}\n", tensor.step, tensor.phase, tensor.module,
                       tensor.name, tensor.type, tensor.shape, tensor.sketch.norm, tensor.sketch.bits,
                       tensor.sketch.not_finite, sums);
  ++tensors_;
}

void RecordingWriter::finish() {
  file_ << kEnd << tensors_ << '\n';
  file_.flush();
  check(file_.good(), fmt::format("{}: not everything could be written", path_.string()));
}

bool has_recording(const fs::path& folder) { return fs::is_directory(folder) && !files_of(folder).empty(); }

void clear_recording(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;
  for (const auto& [rank, file] : files_of(folder)) {
    fs::remove(file, error);
    check(!error, fmt::format("{}: cannot be removed: {}", file.string(), error.message()));
  }
}

std::map<int, fs::path> recorded_ranks(const fs::path& folder) {
  std::error_code ignored;
  check(fs::is_directory(folder, ignored),
        fmt::format("{}: no folder with a recording; `fp8lab watch --values DIR` or `fp8lab "
                    "divergence SCENARIO` makes one",
                    folder.string()));
  std::map<int, fs::path> out = files_of(folder);
  check(!out.empty(), fmt::format("{}: has no file rank-0.tsv: nothing was recorded here", folder.string()));
  return out;
}

RankRecording read_rank(const fs::path& path) {
  const std::string text = read_regular_file(path, kMostRecordedBytes);
  RankRecording out;
  std::size_t number = 1;
  bool ended = false;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    const LineReader reader(path, number);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (number == 1) {
      if (line != kSchema) break;
    } else if (line.starts_with(kIncomplete)) {
      fail(fmt::format("{}:{}: {}", path.string(), number, line));
    } else if (end == std::string::npos) {
      break;  // a program that was killed left a part of a line
    } else if (ended) {
      reader.refuse("comes after the end");
    } else if (line.starts_with(kEnd)) {
      ended = true;
      if (reader.end(line) != out.tensors.size())
        reader.refuse(fmt::format("'{}' ends {} tensors", printable(line), out.tensors.size()));
    } else {
      out.tensors.push_back(reader.tensor(line));
    }
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  if (number == 1) LineReader(path, 1).refuse(fmt::format("a recording begins with '{}'", kSchema));
  if (!ended)
    out.incomplete = fmt::format("{}: ends at line {}{}; the program was killed", path.string(), number - 1,
                                 out.tensors.empty() ? "" : fmt::format(" in step {}", out.tensors.back().step));
  return out;
}

}  // namespace fp8lab
