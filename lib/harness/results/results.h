#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/results/record.h"
#include "harness/results/reports.h"

namespace fp8lab {

/// The directory that a run leaves behind. A finished cell is on disk before the next line of this class runs, so a run
/// that is killed loses only the cells that were running. Of a finished cell memory holds a few words; its record is
/// read from its line again where a document needs it.
///
///   results.jsonl     a line per finished cell, appended and synced
///   results.json      all of them and the environment ("fp8lab.results/1")
///   junit.xml, summary.md, environment.json
///   timelines/        <cell id>.<arm>.json, `/` of the id being a folder
///
/// Everything throws Error when the disk is full or the directory cannot be written; what was written stays.
class ResultSet {
 public:
  /// A finished cell.
  struct Cell {
    RecordList::Head head;
    std::string hash;
    off_t offset = 0;       ///< of its line
    std::size_t bytes = 0;  ///< of its line, without the newline
  };

  /// Creates `directory` and locks it against other runs. With `resume` reads the lines that are there, otherwise
  /// starts anew. Throws Error where files of these names are there that no run has left.
  ResultSet(std::filesystem::path directory, bool resume);
  ~ResultSet();
  ResultSet(const ResultSet&) = delete;
  ResultSet& operator=(const ResultSet&) = delete;

  /// What an earlier run found of this very cell, or nullptr. A cell that was skipped, took too long or crashed is
  /// never found, unless the scenario expects the crash, which is another verdict then: there may be a device now, more
  /// time, or no one who kills its processes.
  const Cell* find_finished(const std::string& id, const std::string& hash) const;
  /// What had to be dropped to read an earlier run, or "".
  const std::string& notice() const { return notice_; }

  /// Before the first cell. Throws Error where an earlier run's lines are of another program, other libraries, devices
  /// or processors, by what it left there, and leaves all of it.
  void write_environment(const std::string& json);
  /// The timeline of an arm whose cell is not finished yet; of an empty one removes what an earlier run left.
  void write_timeline(const std::string& id, Arm arm, const std::string& text);
  /// Appends a finished cell. Of its arms' timelines writes those that it still holds; one that was measured in another
  /// cell shares that cell's file, and what an earlier run left of the others goes.
  void append(const CellRecord& record);
  /// Appends another line for a finished cell, which takes the place of the one before.
  void update(const CellRecord& record);

  /// The record of a finished cell.
  CellRecord read(const std::string& id) const;
  /// Records of finished cells, for as long as this object lives.
  RecordList records(const std::vector<std::string>& ids) const;
  /// results.json of finished cells as text.
  void write_json(const std::vector<std::string>& ids, const std::string& environment_json, bool complete,
                  const TextSink& out) const;
  /// Writes results.json, junit.xml and summary.md of these finished cells, each complete or not at all. Timelines of
  /// cells that did not finish go.
  void finish(const std::vector<std::string>& ids, const std::string& environment_json, const RunSummary& run);

  const std::filesystem::path& directory() const { return directory_; }
  std::string path_of(const std::string& file) const { return (directory_ / file).string(); }

 private:
  enum class Sync { kYes, kNo };
  void read_earlier();
  void remove_documents() const;
  void refuse_other_measurer(const std::string& environment_json) const;
  void append_line(const CellRecord& record, Sync sync);
  std::string line(const Cell& cell) const;
  void share_timeline(const std::string& from, const std::string& to) const;
  void write_atomically(const std::string& file, Sync sync, const std::function<void(const TextSink&)>& write) const;

  std::filesystem::path directory_;
  int lines_fd_ = -1;
  std::map<std::string, Cell> cells_;  ///< by id
  std::set<std::string> timelines_;    ///< paths written for cells that are not finished
  std::string notice_;
};

/// results.json as text; `line(i)` is that of its i-th cell.
void write_results_json(std::size_t cells, const std::function<std::string(std::size_t)>& line,
                        const std::string& environment_json, bool complete, const TextSink& out);

/// "timelines/attention/device=meta.before.json": where an arm's timeline lies, below the run's directory.
std::string timeline_path(const std::string& cell_id, Arm arm);

}  // namespace fp8lab
