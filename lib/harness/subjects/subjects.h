#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/run/arm_process.h"
#include "harness/scenario/scenario.h"
#include "harness/subjects/abilities.h"

namespace fp8lab {

/// What a worker reports about a library under one Python.
struct SubjectState {
  std::string subject;
  std::string python;  ///< the Python that would run it
  bool available = false;
  std::string reason;                                          ///< why it is not available
  std::string version;                                         ///< the library's own
  std::vector<std::pair<std::string, std::string>> libraries;  ///< name and version of what it stands on
};

/// The libraries that can be subjects of cells, and the worker that drives them: the Python package fp8lab_subjects.
class Subjects {
 public:
  /// `package_folder`: the folder that contains the package; environment variable FP8LAB_WORKER names another one. Both
  /// need not exist. Virtual environments of releases are folders SUBJECT-RELEASE of environment variable
  /// FP8LAB_SUBJECTS, by default of fp8lab/subjects in the user's data folder.
  explicit Subjects(const std::string& package_folder);

  /// The command line of the worker for an arm; of this program for an arm of a script.
  ArmCommand command(const CellConfig& cell, Arm arm) const;

  /// Gives each cell whose library cannot run it on any machine, and that is not skipped yet, the reason. Runs no code
  /// of the library.
  void skip_unable(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) const;

  /// As skip_unable(), and for each cell whose library, release or folder is not on this machine. Runs no code either.
  void skip_missing(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) const;

  /// As skip_missing(), and for each cell that the worker refuses. Starts Python for each different question, and once
  /// for a library that is not installed; so it runs code of the folders that `versions` names, and is for commands
  /// that run cells.
  void skip_impossible(std::vector<PlannedCell>& cells, const Vocabulary& vocabulary);

  /// The installed one of each library, and the releases that have a virtual environment.
  std::vector<SubjectState> states() const;

  /// The folder of virtual environments.
  const std::string& folder() const { return folder_; }
  /// The folder with the package fp8lab_subjects.
  const std::string& package_folder() const { return package_folder_; }

 private:
  std::string python_of(const std::string& subject, const std::string& version) const;
  std::vector<std::string> worker(const std::string& subject, const std::string& version) const;
  std::string missing(const CellConfig& cell, Arm arm) const;
  std::string asked(const CellConfig& cell, Arm arm);
  std::string without_pytorch(const CellConfig& cell, Arm arm);
  std::string without_gpus(const CellConfig& cell, Arm arm);
  SubjectState state_of(const std::string& subject, const std::string& version) const;

  std::string package_folder_, folder_;
  Abilities abilities_;
  /// What a library's Python sees of the machine.
  struct Machine {
    std::string reason;  ///< why the library cannot be imported
    std::int64_t gpus = 0;
  };

  std::map<std::string, std::string> answers_;  ///< the worker's reason by question
  std::map<std::string, std::string> absent_;   ///< the reason of all cells, by library and command line
  std::map<std::string, Machine> machines_;     ///< by command line
};

}  // namespace fp8lab
