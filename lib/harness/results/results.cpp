#include "harness/results/results.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/fnv1a.h"
#include "harness/results/document_file.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLines = "results.jsonl";
constexpr const char* kResults = "results.json";
constexpr const char* kJunit = "junit.xml";
constexpr const char* kTimelines = "timelines";
constexpr const char* kEnvironment = "environment.json";
constexpr std::array kDocuments = {kResults, kJunit, "summary.md", "comparison.json", kModelFile, "run_exit_code"};
constexpr const char* kPart = ".part";  ///< ends the name of a file that is being written
constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
/// The beginning of every line of results.jsonl.
constexpr std::string_view kLineBegins = "{\"id\":\"";

[[noreturn]] void cannot_write(const fs::path& path) {
  fail(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
}

/// Writes all of `text`; returns false with errno set on failure.
bool write_fully(int fd, std::string_view text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

void make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail(fmt::format("{}: cannot be made a directory: {}", directory.string(), error.message()));
}

/// True if the file reports that a run came to no results.
bool is_of_no_results(const fs::path& file) {
  return file.filename() == kJunit && fs::is_regular_file(fs::symlink_status(file)) &&
         is_junit_of_no_results(read_regular_file(file));
}

/// Throws Error if the directory has files that this run would replace and that no earlier run wrote. A file belongs to
/// an earlier run if a results.jsonl is next to it.
void refuse_foreign(const fs::path& directory) {
  std::vector<const char*> replaced(kDocuments.begin(), kDocuments.end());
  replaced.push_back(kEnvironment);
  for (const char* name : replaced) refuse_in_the_way(directory / (name + std::string(kPart)));
  const auto refuse = [&](const char* name, const std::string& why) {
    fail(fmt::format(
        "{}: a run would replace it, and it does not come from a run: {}; give another directory with -o, or remove it",
        (directory / name).string(), why));
  };
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(directory / kLines, ignored))) {
    std::string begin(kLineBegins.size(), '\0');
    const OpenFile lines = OpenFile::for_appending(directory / kLines);
    const ssize_t n = ::pread(lines.descriptor(), begin.data(), begin.size(), 0);
    if (!kLineBegins.starts_with(begin.substr(0, n < 0 ? 0 : static_cast<std::size_t>(n))))
      refuse(kLines, "it does not begin as a cell");
    if (fs::is_symlink(directory / kTimelines, ignored)) refuse(kTimelines, "it is a link");
    return;
  }
  replaced.push_back(kTimelines);
  for (const char* name : replaced)
    if (fs::exists(fs::symlink_status(directory / name, ignored)) && !is_of_no_results(directory / name))
      refuse(name, fmt::format("there is no {} next to it", kLines));
}

/// Makes the directory, and opens the lines of its cells, of which there may be some already. Throws Error, and writes
/// nothing, if the directory is not of a run, or if another run writes there.
OpenFile lines_of(const fs::path& directory) {
  make_directory(directory);
  refuse_foreign(directory);
  OpenFile lines = OpenFile::for_appending(directory / kLines);
  if (::flock(lines.descriptor(), LOCK_EX | LOCK_NB) != 0)
    fail(fmt::format("{}: another run writes here; give this one its own -o", directory.string()));
  return lines;
}

/// The values of environment.json on which figures depend, by key; empty for an empty text. Unavailable devices are
/// left out, because they measured nothing. Throws Error, which names the path, for JSON that no run has written.
std::map<std::string, std::string> measured_with(const std::string& environment_json) {
  std::map<std::string, std::string> out;
  if (environment_json.empty()) return out;
  const JsonDocument document(environment_json);
  const JsonReader environment = document.root();
  const auto add = [&](const std::string& key, const std::string& text) {
    if (!text.starts_with("unavailable")) out[key] = text;
  };
  for (const char* part : {"program", "libraries", "devices"})
    if (const auto found = environment.find(part))
      found->each_member([&](const std::string& key, const JsonReader& value) {
        add(fmt::format("{}.{}", part, key), value.text_of_scalar());
      });
  if (const auto cpu = environment.find("cpu"))
    if (const auto model = cpu->find("model")) add("cpu.model", model->text());
  return out;
}

}  // namespace

ResultSet::ResultSet(fs::path directory, bool resume) : directory_(std::move(directory)), lines_(lines_of(directory_)) {
  if (resume) {
    read_earlier();
    take_lines_of_document();
    return;
  }
  if (::ftruncate(lines_.descriptor(), 0) != 0) cannot_write(directory_ / kLines);
  remove_documents();
  fs::remove_all(directory_ / kTimelines);
}

void ResultSet::read_earlier() {
  const fs::path path = directory_ / kLines;
  std::ifstream in(path, std::ios::binary);
  off_t offset = 0;
  int number = 0;
  for (std::string line; std::getline(in, line); offset += static_cast<off_t>(line.size() + 1)) {
    ++number;
    if (in.eof()) {  // no newline
      notice_ = fmt::format("{}: the last line was cut short by the end of an earlier run; its cell runs again",
                            path.string());
      if (::ftruncate(lines_.descriptor(), offset) != 0) cannot_write(path);
      return;
    }
    try {
      const CellRecord record = record_from_json(line);
      cells_.insert_or_assign(record.config.id, Cell{head_of(record), record.hash, offset, line.size(), fnv1a(line)});
    } catch (const Error& error) {
      fail(
          fmt::format("{}:{}: not a line of an earlier run ({}); remove the line to continue, or run without --resume "
                      "to start again",
                      path.string(), number, error.what()));
    }
  }
}

/// A complete run leaves its cells in results.json only: each on a line of its own, as in results.jsonl, and a comma.
void ResultSet::take_lines_of_document() {
  const fs::path path = directory_ / kResults;
  std::ifstream in(path, std::ios::binary);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!line.starts_with(kLineBegins)) continue;
    if (line.ends_with(',')) line.pop_back();
    CellRecord record;
    try {
      record = record_from_json(line);
    } catch (const Error& error) {
      fail(fmt::format("{}:{}: not a cell of an earlier run ({}); run without --resume to start again", path.string(),
                       number, error.what()));
    }
    if (!cells_.contains(record.config.id)) append_line(record, std::move(line), Sync::kNo);
  }
}

const ResultSet::Cell* ResultSet::find_finished(const std::string& id, const std::string& hash) const {
  const auto it = cells_.find(id);
  if (it == cells_.end() || it->second.hash != hash) return nullptr;
  const Verdict verdict = it->second.head.verdict;
  const bool again = verdict == Verdict::kSkipped || verdict == Verdict::kTimeout || verdict == Verdict::kCrashed;
  return again ? nullptr : &it->second;
}

std::size_t ResultSet::count_others(const std::set<std::string>& ids) const {
  return static_cast<std::size_t>(
      std::count_if(cells_.begin(), cells_.end(), [&](const auto& cell) { return !ids.contains(cell.first); }));
}

void ResultSet::write_environment(const std::string& json) {
  if (!cells_.empty()) refuse_other_environment(json);
  if (::fsync(lines_.descriptor()) != 0) cannot_write(directory_ / kLines);  // results.json may have had them too
  remove_documents();
  write_atomically(kEnvironment, Sync::kYes, [&](const TextSink& out) { out(json + "\n"); });
}

/// Removes the documents of an earlier run: if this run is killed, they would contradict its lines.
void ResultSet::remove_documents() const {
  for (const char* old : kDocuments) fs::remove_all(directory_ / old);
}

void ResultSet::refuse_other_environment(const std::string& environment_json) const {
  const fs::path file = directory_ / kEnvironment;
  std::map<std::string, std::string> was;
  try {
    std::error_code ignored;
    const bool exists = fs::exists(fs::symlink_status(file, ignored));
    was = measured_with(exists ? read_regular_file(file) : "");
  } catch (const Error& error) {
    fail(
        fmt::format("{}: not the file of a run ({}), so the program that measured its cells is unknown; run without "
                    "--resume to start again, "
                    "or give another directory with -o",
                    file.string(), error.what()));
  }
  const std::map<std::string, std::string> is = measured_with(environment_json);
  for (const auto& [key, value] : was)
    if (const auto now = is.find(key); now == is.end() || now->second != value)
      fail(
          fmt::format("{}: its cells were measured by another program or elsewhere: {} was {}, and is {} now; run "
                      "without --resume to "
                      "start again, or give another directory with -o",
                      directory_.string(), key, value, now == is.end() ? "not there" : now->second));
}

void ResultSet::write_timeline(const std::string& id, Arm arm, const std::string& text) {
  const std::string path = timeline_path(id, arm);
  if (text.empty()) {
    std::error_code ignored;
    fs::remove(directory_ / path, ignored);  // the timeline of an earlier run
    return;
  }
  make_directory((directory_ / path).parent_path());
  // Timelines are large and can be measured again, so they are not synced.
  write_atomically(path, Sync::kNo, [&](const TextSink& out) { out(compressed(text)); });
  timelines_.insert(path);
}

void ResultSet::append(const CellRecord& record) {
  const std::string& id = record.config.id;
  for (const Arm arm : kArms) {
    const auto result = record.arms.find(arm);
    const bool ran = result != record.arms.end();
    if (ran && result->second.timeline_json.empty() && timelines_.erase(timeline_path(id, arm)) > 0) continue;
    write_timeline(id, arm, ran ? result->second.timeline_json : "");
    timelines_.erase(timeline_path(id, arm));
    if (ran && result->second.timeline_json.empty() && !result->second.measured_in.empty())
      share_timeline(timeline_path(result->second.measured_in, arm), timeline_path(id, arm));
  }
  CellRecord placed = record;
  placed.timelines.clear();
  std::error_code ignored;
  for (const auto& [arm, result] : record.arms)
    if (fs::exists(directory_ / timeline_path(id, arm), ignored)) placed.timelines[arm] = timeline_path(id, arm);
  append_line(placed, record_to_json(placed), Sync::kYes);
}

void ResultSet::update(const CellRecord& record) { append_line(record, record_to_json(record), Sync::kNo); }

void ResultSet::append_line(const CellRecord& record, std::string line, Sync sync) {
  const off_t offset = ::lseek(lines_.descriptor(), 0, SEEK_END);
  const Cell cell{head_of(record), record.hash, offset, line.size(), fnv1a(line)};
  line += '\n';
  if (write_fully(lines_.descriptor(), line) && (sync == Sync::kNo || ::fsync(lines_.descriptor()) == 0)) {
    cells_.insert_or_assign(record.config.id, cell);
    return;
  }
  const int error = errno;
  // Remove the part of the line that was written: it would corrupt the next line.
  (void)!::ftruncate(lines_.descriptor(), offset);
  errno = error;
  cannot_write(directory_ / kLines);
}

void ResultSet::empty_lines() {
  if (::ftruncate(lines_.descriptor(), 0) != 0) cannot_write(directory_ / kLines);
  cells_.clear();
}

/// Makes `to` a hard link to `from`, or a copy if the file system has no links. Links save space: shared timelines may
/// be most of the bytes that a run writes.
void ResultSet::share_timeline(const std::string& from, const std::string& to) const {
  std::error_code error;
  if (from == to || !fs::exists(directory_ / from, error)) return;
  make_directory((directory_ / to).parent_path());
  fs::create_hard_link(directory_ / from, directory_ / to, error);
  if (error) fs::copy_file(directory_ / from, directory_ / to, error);
  if (error) fail(fmt::format("{}: cannot be written: {}", (directory_ / to).string(), error.message()));
}

std::string ResultSet::line(const Cell& cell) const {
  std::string text(cell.bytes, '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n =
        ::pread(lines_.descriptor(), text.data() + done, text.size() - done, cell.offset + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(fmt::format("{}: cannot be read back: {}", path_of(kLines),
                       n < 0 ? std::strerror(errno) : "something has cut it short"));
    done += static_cast<std::size_t>(n);
  }
  if (fnv1a(text) != cell.checksum)
    fail(fmt::format("{}: cannot be read back: something else has written to it", path_of(kLines)));
  return text;
}

CellRecord ResultSet::read(const std::string& id) const { return record_from_json(line(cells_.at(id))); }

RecordList ResultSet::records(const std::vector<std::string>& ids) const {
  RecordList out;
  for (const std::string& id : ids) out.heads.push_back(cells_.at(id).head);
  out.read = [this, ids](std::size_t i) { return read(ids.at(i)); };
  return out;
}

void ResultSet::write_json(const std::vector<std::string>& ids, const std::string& environment_json,
                           const RunSummary& run, const TextSink& out) const {
  write_results_json(ids.size(), [&](std::size_t i) { return line(cells_.at(ids[i])); }, environment_json, run, out);
}

void ResultSet::finish(const std::vector<std::string>& ids, const std::string& environment_json,
                       const RunSummary& run) {
  std::error_code ignored;
  for (const std::string& path : timelines_) fs::remove(directory_ / path, ignored);
  timelines_.clear();
  const RecordList list = records(ids);
  remove_undrawn_timelines(list);
  write_atomically(kResults, Sync::kYes, [&](const TextSink& out) { write_json(ids, environment_json, run, out); });
  write_atomically(kJunit, Sync::kYes, [&](const TextSink& out) { write_junit_xml(list, run, out); });
  write_atomically("summary.md", Sync::kYes, [&](const TextSink& out) { write_summary_markdown(list, run, out); });
  if (run.comparison != nullptr) write_document("comparison.json", comparison_json(*run.comparison));
}

void ResultSet::write_document(const std::string& file, const std::string& text) const {
  write_atomically(file, Sync::kYes, [&](const TextSink& out) { out(text); });
}

void ResultSet::remove_undrawn_timelines(const RecordList& list) const {
  std::error_code error;
  std::uintmax_t bytes = 0;
  for (fs::recursive_directory_iterator at(directory_ / kTimelines, error), end; !error && at != end;
       at.increment(error))
    if (at->is_regular_file(error)) bytes += at->file_size(error);
  if (bytes <= kMostTimelineBytes) return;
  const auto weight = [](const RecordList::Head& head) {
    if (!head.has_before) return head.peak_bytes;
    return head.effect && head.effect->kind == EffectKind::kBytes ? head.effect->size : 0;
  };
  std::map<std::pair<std::string, std::string>, std::size_t> drawn;  // a place in the list by scenario and fix
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RecordList::Head& head = list.heads[i];
    if (!fs::exists(directory_ / timeline_path(head.id, Arm::kAfter), error)) continue;
    const auto [place, added] = drawn.try_emplace({head.scenario, head.fix}, i);
    if (!added && weight(head) > weight(list.heads[place->second])) place->second = i;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RecordList::Head& head = list.heads[i];
    const auto place = drawn.find({head.scenario, head.fix});
    if (!is_good(head.verdict) || (place != drawn.end() && place->second == i)) continue;
    for (const Arm arm : kArms) fs::remove(directory_ / timeline_path(head.id, arm), error);
  }
}

void ResultSet::write_atomically(const std::string& file, Sync sync,
                                 const std::function<void(const TextSink&)>& write) const {
  const fs::path path = directory_ / file;
  const fs::path temporary = path.string() + kPart;
  const OpenFile part = OpenFile::created(temporary);
  const int fd = part.descriptor();
  try {
    std::string pending;  // collects short pieces
    const auto flush = [&] {
      if (!write_fully(fd, pending)) cannot_write(path);
      pending.clear();
    };
    write([&](std::string_view text) {
      if (pending.size() + text.size() > kBufferBytes) flush();
      if (text.size() < kBufferBytes)
        pending += text;
      else if (!write_fully(fd, text))
        cannot_write(path);
    });
    flush();
    if (sync == Sync::kYes && ::fsync(fd) != 0) cannot_write(path);
    if (::rename(temporary.c_str(), path.c_str()) != 0) cannot_write(path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void leave_no_results(const fs::path& directory, const std::string& junit) {
  make_directory(directory);
  refuse_foreign(directory);
  for (const char* old : kDocuments) fs::remove_all(directory / old);
  const OpenFile file = OpenFile::created(directory / kJunit);
  if (!write_fully(file.descriptor(), junit)) cannot_write(directory / kJunit);
}

void write_results_json(std::size_t cells, const std::function<std::string(std::size_t)>& line,
                        const std::string& environment_json, const RunSummary& run, const TextSink& out) {
  std::vector<std::string> unseen;
  for (const UnseenFix& one : run.unseen_fixes) unseen.push_back(one.text);
  out(fmt::format(
      "{{\"schema\": \"{}\", \"complete\": {}, \"findings\": {}, \"unseen_fixes\": {}, \"environment\": {}, "
      "\"cells\": [",
      kResultsSchema, run.complete, findings_to_json(run.findings), texts_to_json(unseen), environment_json));
  for (std::size_t i = 0; i < cells; ++i) {
    out(i == 0 ? "\n" : ",\n");
    out(line(i));
  }
  out("\n]}\n");
}

std::string timeline_path(const std::string& cell_id, Arm arm) {
  // A file name holds at most 255 bytes on common file systems.
  constexpr std::size_t kLongest = 200;
  std::string safe;
  for (const char c : cell_id) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::strchr("/=,._-+", c) != nullptr;
    safe += plain && c != '\0' ? c : '_';
  }
  // An axis may hold a path, and "../" would leave the folder.
  for (std::size_t at = 0; (at = safe.find("..", at)) != std::string::npos; at += 2) safe.replace(at, 2, "__");
  if (safe.size() > kLongest || safe != cell_id)
    safe = fmt::format("{}~{:016x}", safe.substr(0, kLongest), fnv1a(cell_id));
  return fmt::format("{}/{}.{}.json.gz", kTimelines, safe, name(arm));
}

}  // namespace fp8lab
