#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// The search of `fp8lab bisect` for the first bad version, and the file from which it resumes.
namespace fp8lab {

enum class Answer { kGood, kBad, kFailed, kSkipped };

/// One run of a version.
struct Trial {
  std::string version;  ///< a release, or a commit's full hash
  Answer answer = Answer::kSkipped;
  std::optional<double> figure;  ///< the oracle's metric, in its unit
  std::string reason;            ///< why the version was skipped, how its run failed, or which gate failed
  double seconds = 0;
};

std::string_view name(Answer answer);

/// The versions from good to bad, in order, and the runs so far.
class BisectSearch {
 public:
  /// The first of `versions` is good, the last is bad; there are at least two.
  explicit BisectSearch(std::vector<std::string> versions) : versions_(std::move(versions)) {}

  /// Records a run. A version that answered differently before makes the search unclear().
  void add(Trial trial);
  const std::vector<Trial>& trials() const { return trials_; }
  const std::vector<std::string>& versions() const { return versions_; }

  /// The version to run next: first each end twice, then the middle of what is left, at last the two versions between
  /// which the search ended a second time. Nothing if the search has ended or is unclear.
  std::optional<std::string> next() const;
  /// Why there is no result: an end whose result is not as stated, or a version with two results; or "".
  std::string unclear() const;
  /// The last good and the first bad version. Versions between them were skipped.
  std::size_t last_good() const;
  std::size_t first_bad() const;
  /// The last run of the version; null: there is none.
  const Trial* last_of(const std::string& version) const;

 private:
  std::size_t runs_of(const std::string& version) const;
  /// Failed counts as bad if the bad end fails too; else the version cannot be judged.
  Answer meaning(const Trial& trial) const;
  std::optional<Answer> answer_of(const std::string& version) const;

  std::vector<std::string> versions_;
  std::vector<Trial> trials_;
};

/// The runs in `file`, or none if there is no such file. `search`: what is searched, as text. Throws Error if the file
/// belongs to another search, names another version than `versions`, or cannot be read.
std::vector<Trial> read_trials(const std::filesystem::path& file, const std::string& search,
                               const std::vector<std::string>& versions);

/// Replaces `file`, which is complete at any time. Throws Error.
void write_trials(const std::filesystem::path& file, const std::string& search, const std::vector<Trial>& trials);

}  // namespace fp8lab
