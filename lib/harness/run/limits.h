#pragma once

#include <string>
#include <string_view>

// Names of the limits that users, shells and service managers set on processes (`ulimit`), for messages: the error of a
// call that reached a limit names only the symptom.
namespace fp8lab {

/// Appends to `reason` the limits that may be its cause, if it contains the system's text for such an error: "rank 1:
/// Resource temporarily unavailable; the limit on processes and threads is 64 (`ulimit -u`)".
std::string with_limits(std::string reason);
/// Appends the limits on memory to `reason`, whatever its text, because messages on lack of memory differ.
std::string with_memory_limits(std::string reason);

/// The probable cause of the death of a process by `signal`, for messages; "" if the signal's name is enough.
std::string_view cause_of_death(int signal, double processor_seconds);

/// True if the processor time of a process is limited; then no process should run several arms.
bool limits_processor_time();

/// Ensures that `count` descriptors can be open at the same time, and raises the soft limit up to the hard limit if
/// needed. Throws Error, which names the limit and `remedy`, another thing that the user can do: "run fewer arms at a
/// time (--jobs)".
void need_descriptors(long count, std::string_view remedy);

}  // namespace fp8lab
