#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/run/child_process.h"
#include "harness/run/run_folder.h"

namespace fp8lab {

using Clock = std::chrono::steady_clock;

/// Runs an arm: measure_arm() in the program, a fake in tests.
using ArmFunction = std::function<ArmResult(const CellConfig&, Arm)>;

/// The command line of the process that runs arms; the program must call run_arms_in_child(). The default is the hidden
/// command of this program.
struct ArmCommand {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments{"__arm"};
  std::map<std::string, std::string> environment{};  ///< variables that differ from this process's
};

/// A child process that runs arms, one after another, in a process group of its own; its standard output and error are
/// captured. Descriptor kExchangeFd of the child is a file in memory, which holds the request and afterwards the
/// result. A byte on standard input, a socket, starts an arm; a byte back reports its end. The child dies when this
/// process ends, however that happens, and when this object is destroyed.
class ArmProcess {
 public:
  /// What the process does after an arm: end, or wait for another arm.
  enum class Then { kEnd, kStay };

  /// Starts the process. Throws Error if that fails.
  explicit ArmProcess(const ArmCommand& command);
  /// Starts a process for one arm.
  ArmProcess(const ArmCommand& command, const CellConfig& cell, Arm arm) : ArmProcess(command) {
    start(cell, arm, Then::kEnd);
  }
  ~ArmProcess();
  ArmProcess(const ArmProcess&) = delete;
  ArmProcess& operator=(const ArmProcess&) = delete;

  /// Starts an arm. The process must be new or ready().
  void start(const CellConfig& cell, Arm arm, Then then);
  /// True if the process can be asked for another arm.
  bool ready();

  /// Descriptors to poll for reading: the output of the process, and the byte that reports the end of an arm. -1, which
  /// poll() ignores, if nothing more can come.
  int output_fd() const { return output_open_ ? output_fd_ : -1; }
  int answer_fd() const { return then_ == Then::kStay && running_ ? control_fd_ : -1; }
  /// Reads the output so far, at most a mebibyte: an arm may write as fast as it is read.
  void drain();
  /// True once the arm has ended, and with it the process unless that stays. Then result() may be called.
  bool ended();
  /// The result of the arm. A process that ended without a result has crashed; status timeout if time_out() was called.
  ArmResult result() const;

  /// Sends SIGTERM to the process group, and records that the arm took longer than `limit_s`.
  void time_out(double limit_s);
  void terminate();
  void kill();

  Clock::time_point started() const { return started_; }

 private:
  ArmResult crashed(std::string reason) const;
  bool answered() const;
  void end_by(int signal);
  bool reaped();

  pid_t pid_ = -1;
  std::shared_ptr<const RunFolder> run_folder_;
  std::filesystem::path folder_;  ///< for temporary files of the process
  int control_fd_ = -1;
  int exchange_fd_ = -1;
  int output_fd_ = -1;
  int wait_status_ = 0;
  Then then_ = Then::kStay;
  bool fresh_ = true;     ///< no arm has been started yet
  bool running_ = false;  ///< an arm runs
  bool gone_ = false;     ///< the process has ended
  bool output_open_ = true;
  double limit_s_ = 0;  ///< above 0 after time_out()
  Clock::time_point started_;
  double seconds_ = 0;
  double processor_seconds_ = 0;  ///< CPU time of the process, once it has ended
  std::string tail_;              ///< the last bytes of its output
};

/// `text` on one line, for ArmResult::reason, which tables and terminals show: control characters and runs of spaces
/// become one space.
std::string one_line(std::string text);

/// Calls `arm_function`. An exception becomes a result of status out_of_memory or error with its message.
ArmResult run_arm_guarded(const ArmFunction& arm_function, const CellConfig& cell, Arm arm);

/// The main function of the child: calls `arm_function` for every requested arm and writes its result. Returns the exit
/// status.
int run_arms_in_child(const ArmFunction& arm_function);

}  // namespace fp8lab
