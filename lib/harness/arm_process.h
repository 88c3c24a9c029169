#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/cell.h"

namespace fp8lab {

using Clock = std::chrono::steady_clock;

/// What an arm does; measure_arm in the program, inventions in the tests.
using ArmFunction = std::function<ArmResult(const CellConfig&, Arm)>;

/// The program that runs an arm; it must end up in run_arm_in_child(). The default is this program's hidden command.
struct ArmCommand {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments{"__arm"};  ///< the arm's name follows
};

/// One arm in a process of its own: a new process group, standard output and error captured, the cell on standard
/// input, the result on descriptor 3. The process dies with this one, however this one ends. Destruction kills it.
class ArmProcess {
 public:
  /// Throws Error when no process can be made.
  ArmProcess(const ArmCommand& command, const CellConfig& cell, Arm arm);
  ~ArmProcess();
  ArmProcess(const ArmProcess&) = delete;
  ArmProcess& operator=(const ArmProcess&) = delete;

  /// To poll for reading: what the process prints. -1, which poll() passes over, once it prints no more.
  int output_fd() const { return output_open_ ? output_fd_ : -1; }
  /// Takes what was printed so far.
  void drain();
  /// True once the process has ended; result() may then be asked for.
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

  pid_t pid_ = -1;
  int result_fd_ = -1;
  int output_fd_ = -1;
  int wait_status_ = 0;
  bool ended_ = false;
  bool output_open_ = true;
  double limit_s_ = 0;  ///< above 0 after time_out()
  Clock::time_point started_;
  double seconds_ = 0;
  std::string tail_;  ///< the last bytes printed
};

/// `text` as ArmResult::reason has it.
std::string one_line(std::string text);

/// What `arm_function` makes of the cell, its exceptions included: status out_of_memory or error, with their message.
ArmResult run_arm_guarded(const ArmFunction& arm_function, const CellConfig& cell, Arm arm);

/// The child's side: reads a cell, runs `arm_function`, writes what came of it. Returns the exit status.
int run_arm_in_child(const std::string& arm_name, const ArmFunction& arm_function);

}  // namespace fp8lab
