#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/cell/regular_file.h"
#include "harness/results/record.h"
#include "harness/results/reports.h"

namespace fp8lab {

/// The bytes of timelines above which a run keeps only those that a report draws.
inline constexpr std::uintmax_t kMostTimelineBytes = std::uintmax_t{32} << 20;

/// The file of a result set that `fp8lab watch` made: which model the program trains, and how.
inline constexpr const char* kModelFile = "model.json";

/// The directory of a run's results. append() returns only when the finished cell is on disk, so a run that is killed
/// loses only the cells that were running. Memory holds a few words of a finished cell; its record is read again from
/// its line where a document needs it.
///
///   results.jsonl     a line per finished cell, appended and synced; empty after a complete run
///   results.json      all finished cells and the environment ("fp8lab.results/1")
///   junit.xml, summary.md, environment.json
///   comparison.json   of a run that was compared with a baseline
///   model.json        of a watched program
///   run_exit_code     of a run with --annotate, without the comparison
///   timelines/        <cell id>.<arm>.json.gz; a `/` of the id separates folders
///
/// All functions throw Error if the disk is full or the directory cannot be written; files that were written stay. No
/// link is followed below the directory, which others may be able to write to.
class ResultSet {
 public:
  /// A finished cell.
  struct Cell {
    RecordList::Head head;
    std::string hash;
    off_t offset = 0;            ///< the beginning of its line in results.jsonl
    std::size_t bytes = 0;       ///< length of the line, without the newline
    std::uint64_t checksum = 0;  ///< fnv1a() of the line: another program may have written to the file
  };

  /// Creates `directory` and locks it against other runs. With `resume` reads the cells of an earlier run from
  /// results.jsonl, and from results.json those that are not there; otherwise removes them. Throws Error if the
  /// directory has files of these names that no run has written.
  ResultSet(std::filesystem::path directory, bool resume);
  ResultSet(const ResultSet&) = delete;
  ResultSet& operator=(const ResultSet&) = delete;

  /// The result of the same cell in an earlier run, or nullptr. Cells with verdict skipped, timeout or crashed are
  /// never found, so that they run again: there may be a device now, more time, or no one who kills the process. (A
  /// cell that expects a crash has another verdict.)
  const Cell* find_finished(const std::string& id, const std::string& hash) const;
  /// The number of cells that an earlier run left a record of and that are none of `ids`.
  std::size_t count_others(const std::set<std::string>& ids) const;
  /// A message if the last line of an earlier run was cut short and therefore dropped; else "".
  const std::string& notice() const { return notice_; }

  /// Writes environment.json; call it before the first cell. Throws Error, and changes nothing, if the environment.json
  /// of the resumed run names another program, or other libraries, devices or processors.
  void write_environment(const std::string& json);
  /// Writes the timeline of an arm whose cell is not finished yet. An empty text removes the file of an earlier run.
  void write_timeline(const std::string& id, Arm arm, const std::string& text);
  /// Appends a finished cell. Writes the timelines that its arms still hold. An arm that was measured in another cell
  /// shares that cell's file. Timelines of an earlier run of the cell's other arms are removed.
  void append(const CellRecord& record);
  /// Appends another line for a finished cell, which replaces the one before.
  void update(const CellRecord& record);

  /// The record of a finished cell.
  CellRecord read(const std::string& id) const;
  /// The records of finished cells; the list reads from this object, which must outlive it.
  RecordList records(const std::vector<std::string>& ids) const;
  /// Writes the text of results.json for these finished cells to `out`.
  void write_json(const std::vector<std::string>& ids, const std::string& environment_json, const RunSummary& run,
                  const TextSink& out) const;
  /// Writes results.json, junit.xml, summary.md and comparison.json of these finished cells, each file complete or not
  /// at all. Removes timelines of cells that did not finish; and, if the timelines exceed kMostTimelineBytes, those
  /// that no report draws: it draws cells that need attention, and of each scenario and fix the cell with the largest
  /// difference in memory, or without a before arm with the largest peak.
  void finish(const std::vector<std::string>& ids, const std::string& environment_json, const RunSummary& run);

  /// Removes the lines of results.jsonl, because results.json has every cell. Call it last: no record can be read
  /// afterwards.
  void empty_lines();
  /// True if `ids` are all cells, also of earlier runs.
  bool has_only(const std::vector<std::string>& ids) const { return cells_.size() == ids.size(); }

  /// Writes comparison.json, model.json or run_exit_code.
  void write_document(const std::string& file, const std::string& text) const;

  const std::filesystem::path& directory() const { return directory_; }
  std::string path_of(const std::string& file) const { return (directory_ / file).string(); }

 private:
  enum class Sync { kYes, kNo };
  void read_earlier();
  void take_lines_of_document();
  void remove_documents() const;
  void refuse_other_environment(const std::string& environment_json) const;
  void append_line(const CellRecord& record, std::string line, Sync sync);
  std::string line(const Cell& cell) const;
  void remove_undrawn_timelines(const RecordList& records) const;
  void share_timeline(const std::string& from, const std::string& to) const;
  void write_atomically(const std::string& file, Sync sync, const std::function<void(const TextSink&)>& write) const;

  std::filesystem::path directory_;
  OpenFile lines_;                     ///< results.jsonl
  std::map<std::string, Cell> cells_;  ///< by id
  std::set<std::string> timelines_;    ///< paths of timelines of cells that are not finished
  std::string notice_;
};

/// Leaves in `directory`, in place of an earlier run's documents, only the junit.xml of a run that came to no results.
/// Throws Error as the constructor of ResultSet.
void leave_no_results(const std::filesystem::path& directory, const std::string& junit);

/// Writes the text of results.json to `out`; `line(i)` returns the line of the i-th cell.
void write_results_json(std::size_t cells, const std::function<std::string(std::size_t)>& line,
                        const std::string& environment_json, const RunSummary& run, const TextSink& out);

/// The path of an arm's timeline below the run's directory: "timelines/attention/device=meta.before.json.gz".
std::string timeline_path(const std::string& cell_id, Arm arm);

}  // namespace fp8lab
