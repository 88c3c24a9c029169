#pragma once

#include <sys/types.h>

#include <optional>

#include "harness/run/child_process.h"

namespace fp8lab {

/// A program that runs below a supervisor. What the program starts becomes the supervisor's child when its own parent
/// has ended, also in another session or process group, as ranks of torchrun are. The supervisor ends all of them when
/// the program has ended, when this object is destroyed, and when this process has ended, however that happens.
class SupervisedChild {
 public:
  /// Starts the program. If there is no process for it, errno is set and started() is false.
  explicit SupervisedChild(const ChildSetup& setup);
  /// Waits until all that the program started has ended.
  ~SupervisedChild();
  SupervisedChild(const SupervisedChild&) = delete;
  SupervisedChild& operator=(const SupervisedChild&) = delete;

  bool started() const { return supervisor_ > 0; }
  /// A descriptor that is readable after the program has ended.
  int fd() const { return line_; }
  /// Sends a signal to the program's process group; SIGKILL to all that the program started.
  void signal(int number) const;
  /// The program's status, as waitpid() returns it, if it has ended.
  std::optional<int> ended();

 private:
  pid_t supervisor_ = -1;
  int line_ = -1;  ///< signals go to the supervisor, and the program's status comes back
  std::optional<int> status_;
};

}  // namespace fp8lab
