#include "harness/values/recording.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/check.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "fp8lab.values/1";
constexpr std::size_t kColumns = 9;
/// The line of a recorder that failed, and why.
constexpr std::string_view kIncomplete = "the recording is incomplete: ";

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
    out.module = columns[2];
    out.name = columns[3];
    out.type = columns[4];
    out.shape = columns[5];
    if (columns[6] == "nan")
      out.sketch.norm = std::numeric_limits<double>::quiet_NaN();
    else
      out.sketch.norm = number<double>(columns[6], "norm");
    out.sketch.bits = checksum(columns[7]);
    if (std::isnan(out.sketch.norm)) return out;
    const std::vector<std::string_view> sums = parts_of(columns[8], ',');
    if (sums.size() != kSketchSums) refuse(fmt::format("has {} sums instead of {}", sums.size(), kSketchSums));
    for (std::size_t i = 0; i < kSketchSums; ++i) out.sketch.sums[i] = number<double>(sums[i], "sum");
    return out;
  }

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

std::vector<RecordedTensor> read_rank(const fs::path& path) {
  std::ifstream file(path);
  check(file.good(), fmt::format("{}: cannot be read", path.string()));
  std::vector<RecordedTensor> out;
  std::string line;
  if (!std::getline(file, line) || line != kSchema)
    LineReader(path, 1).refuse(fmt::format("a recording begins with '{}'", kSchema));
  for (std::size_t number = 2; std::getline(file, line); ++number) {
    const LineReader reader(path, number);
    if (line.starts_with(kIncomplete)) fail(fmt::format("{}:{}: {}", path.string(), number, line));
    if (file.eof()) break;  // a program that was killed left a part of a line
    out.push_back(reader.tensor(line));
  }
  return out;
}

/// R of "rank-R.tsv".
std::optional<int> rank_of(const std::string& name) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".tsv";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return {};
  int rank = -1;
  const char* last = name.data() + name.size() - kEnd.size();
  const auto [end, error] = std::from_chars(name.data() + kBegin.size(), last, rank);
  if (error != std::errc() || end != last || rank < 0) return {};
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

RecordingWriter::RecordingWriter(const fs::path& folder, int rank) : path_(folder / fmt::format("rank-{}.tsv", rank)) {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  file_.open(path_);
  check(file_.good(), fmt::format("{}: cannot be written", path_.string()));
  file_ << kSchema << '\n';
}

void RecordingWriter::add(const RecordedTensor& tensor) {
  std::string sums;
  if (!std::isnan(tensor.sketch.norm))
    for (const double sum : tensor.sketch.sums) sums += fmt::format("{}{:.17g}", sums.empty() ? "" : ",", sum);
  file_ << fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{:.17g}\t{:x}\t{}\n", tensor.step, tensor.phase, tensor.module,
                       tensor.name, tensor.type, tensor.shape, tensor.sketch.norm, tensor.sketch.bits, sums);
}

void RecordingWriter::finish() {
  file_.flush();
  check(file_.good(), fmt::format("{}: not everything could be written", path_.string()));
}

bool has_recording(const fs::path& folder) { return fs::is_directory(folder) && !files_of(folder).empty(); }

void clear_recording(const fs::path& folder) {
  if (!fs::is_directory(folder)) return;
  std::error_code error;
  for (const auto& [rank, file] : files_of(folder)) {
    fs::remove(file, error);
    check(!error, fmt::format("{}: cannot be removed: {}", file.string(), error.message()));
  }
}

Recording read_recording(const fs::path& folder) {
  check(fs::is_directory(folder), fmt::format("{}: no folder with a recording; `fp8lab watch --values DIR` or `fp8lab "
                                              "divergence SCENARIO` makes one",
                                              folder.string()));
  Recording out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (const std::optional<int> rank = rank_of(entry.path().filename().string())) out[*rank] = read_rank(entry.path());
  check(!out.empty(), fmt::format("{}: has no file rank-0.tsv: nothing was recorded here", folder.string()));
  return out;
}

}  // namespace fp8lab
