#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness/record.h"
#include "harness/reports.h"

namespace fp8lab {

/// The directory that a run leaves behind. A finished cell is on disk before the next line of this class runs, so a run that is
/// killed loses only the cells that were running.
///
///   results.jsonl     a line per finished cell, appended and synced
///   results.json      all of them and the environment ("fp8lab.results/1")
///   junit.xml, summary.md, environment.json
///   timelines/        <cell id>.<arm>.json, `/` of the id being a folder
///
/// Everything throws Error when the disk is full or the directory cannot be written; what was written stays.
class ResultSet {
 public:
  /// Creates `directory` and locks it against other runs. With `resume` reads the lines that are there, otherwise starts anew.
  /// Throws Error where files of these names are there that no run has left.
  ResultSet(std::filesystem::path directory, bool resume);
  ~ResultSet();
  ResultSet(const ResultSet&) = delete;
  ResultSet& operator=(const ResultSet&) = delete;

  /// The record of an earlier run of this very cell, or nullptr. Cells that were skipped or took too long are never found: a device may be
  /// there now, or more time.
  const CellRecord* find_finished(const std::string& id, const std::string& hash) const;
  /// What had to be dropped to read an earlier run, or "".
  const std::string& notice() const { return notice_; }

  /// Before the first cell. Throws Error where an earlier run's lines are of another program, other libraries, devices or processors,
  /// by what it left there, and leaves all of it.
  void write_environment(const std::string& json);
  /// Appends a finished cell and writes its timelines.
  void append(const CellRecord& record);
  /// Writes results.json, junit.xml and summary.md, each complete or not at all.
  void finish(const std::vector<CellRecord>& records, const std::string& environment_json, const RunSummary& run);

  const std::filesystem::path& directory() const { return directory_; }
  std::string path_of(const std::string& file) const { return (directory_ / file).string(); }

 private:
  void read_earlier();
  void remove_documents() const;
  void refuse_other_measurer(const std::string& environment_json) const;
  /// Timelines are large and can be had again, so they are left to the system to sync.
  enum class Sync { kYes, kNo };
  void write_atomically(const std::string& file, const std::string& text, Sync sync = Sync::kYes);

  std::filesystem::path directory_;
  int lines_fd_ = -1;
  std::map<std::string, CellRecord> earlier_;
  std::string notice_;
};

/// results.json as text.
std::string results_json(const std::vector<CellRecord>& records, const std::string& environment_json, bool complete);

/// "timelines/attention/device=meta.before.json": where an arm's timeline lies, below the run's directory.
std::string timeline_path(const std::string& cell_id, Arm arm);

}  // namespace fp8lab
