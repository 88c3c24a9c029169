#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

using Clock = std::chrono::steady_clock;

/// What an arm does; measure_arm in the program, inventions in the tests.
using ArmFunction = std::function<ArmResult(const CellConfig&, Arm)>;

/// The program that runs arms; it must end up in run_arms_in_child(). The default is this program's hidden command.
struct ArmCommand {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments{"__arm"};
};

/// A process that runs arms, one after another: a process group of its own, standard output and error captured.
/// Descriptor 3 is a file in memory, which holds what is asked for, then what came of it; a byte on standard input says
/// that there is something to do, a byte back that it is done. The process dies with this one, however this one ends.
/// Destruction kills it.
class ArmProcess {
 public:
  /// Whether the process is there for another arm after one.
  enum class Then { kEnd, kStay };

  /// Throws Error when no process can be made.
  explicit ArmProcess(const ArmCommand& command);
  /// Of one arm.
  ArmProcess(const ArmCommand& command, const CellConfig& cell, Arm arm) : ArmProcess(command) {
    start(cell, arm, Then::kEnd);
  }
  ~ArmProcess();
  ArmProcess(const ArmProcess&) = delete;
  ArmProcess& operator=(const ArmProcess&) = delete;

  /// Of a process that is ready().
  void start(const CellConfig& cell, Arm arm, Then then);
  /// False once it has died or was asked to end.
  bool ready();

  /// To poll for reading: what the process prints, and what it says when an arm is through. -1, which poll() passes
  /// over, once there is nothing to wait for.
  int output_fd() const { return output_open_ ? output_fd_ : -1; }
  int answer_fd() const { return then_ == Then::kStay && running_ ? control_fd_ : -1; }
  /// Takes what was printed so far.
  void drain();
  /// True once the arm is through, with its process unless that stays; result() may then be asked for.
  bool ended();
  /// How it went. A process that ended without a result has crashed; status timeout if time_out() was called.
  ArmResult result() const;

  /// Asks the group to end, remembering that it took longer than `limit_s`.
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
  int control_fd_ = -1;
  int exchange_fd_ = -1;
  int output_fd_ = -1;
  int wait_status_ = 0;
  Then then_ = Then::kStay;
  bool fresh_ = true;     ///< asked for nothing yet
  bool running_ = false;  ///< an arm
  bool gone_ = false;     ///< the process
  bool output_open_ = true;
  double limit_s_ = 0;  ///< above 0 after time_out()
  Clock::time_point started_;
  double seconds_ = 0;
  double processor_seconds_ = 0;  ///< of a process that is gone
  std::string tail_;              ///< the last bytes printed
};

/// `text` as ArmResult::reason has it.
std::string one_line(std::string text);

/// What `arm_function` makes of the cell, its exceptions included: status out_of_memory or error, with their message.
ArmResult run_arm_guarded(const ArmFunction& arm_function, const CellConfig& cell, Arm arm);

/// The child's side: for every arm asked for runs `arm_function` and writes what came of it. Returns the exit status.
int run_arms_in_child(const ArmFunction& arm_function);

}  // namespace fp8lab
