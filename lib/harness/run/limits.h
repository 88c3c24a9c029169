#pragma once

#include <string>
#include <string_view>

// Limits that users, shells and service managers put on processes (`ulimit`), by their names: what a call says that has
// met one names the symptom alone.
namespace fp8lab {

/// `reason` and, where it holds the system's words for a limit that may be behind it, that limit with its value: "rank
/// 1: Resource temporarily unavailable; the limit on processes and threads is 64 (`ulimit -u`)".
std::string with_limits(std::string reason);
/// The same for want of memory, which has words of its own wherever it is noticed.
std::string with_memory_limits(std::string reason);

/// What ended a process by `signal` after so many seconds of processor time, for a person; "" where the signal says it
/// all.
std::string_view cause_of_death(int signal, double processor_seconds);

/// Whether a process's processor time is limited, which it then should not spend on the work of several arms.
bool limits_processor_time();

/// Makes sure that so many descriptors can be open at a time: raises the soft limit on them where the hard one allows
/// it. Throws Error that names the limit; `remedy` is what else the user can do: "run fewer arms at a time (--jobs)".
void need_descriptors(long count, std::string_view remedy);

}  // namespace fp8lab
