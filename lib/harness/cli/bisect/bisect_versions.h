#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/run/run_folder.h"

// What `fp8lab bisect` searches: releases of a library, or commits of a git checkout.
namespace fp8lab {

/// The releases from `good` to `bad`, ascending, from `listed`; both ends are always in the list.
/// Throws Error if good is not older than bad.
std::vector<std::string> releases_between(std::vector<std::string> listed, const std::string& good,
                                          const std::string& bad);

/// The releases of a library that have an environment below `folder`.
std::vector<std::string> installed_releases(const std::string& folder, const std::string& library);

/// A clone of a git checkout in the folder for temporary files. The checkout itself is only read. The clone is removed
/// with this object, or by the next run after a SIGKILL.
class CommitClone {
 public:
  /// Throws Error if `checkout` is no git checkout, or without git.
  explicit CommitClone(const std::filesystem::path& checkout);
  ~CommitClone();
  CommitClone(const CommitClone&) = delete;
  CommitClone& operator=(const CommitClone&) = delete;

  /// The commits from `good` to `bad` along first parents, with both, as full hashes. Throws Error for an unknown
  /// commit, and if good does not precede bad.
  std::vector<std::string> commits_between(const std::string& good, const std::string& bad) const;
  /// "a1b2c3d subject".
  std::string title_of(const std::string& commit) const;
  /// Checks out the commit; files that git does not track stay, so that builds may reuse them. Then runs `build`, a
  /// command of the user's shell, if it is not empty. Returns why that failed, or "".
  std::string prepare(const std::string& commit, const std::string& build, double limit_s) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::string git(std::vector<std::string> words) const;

  std::shared_ptr<const RunFolder> run_folder_;
  std::filesystem::path path_;
};

}  // namespace fp8lab
