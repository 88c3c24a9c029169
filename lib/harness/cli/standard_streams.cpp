#include "harness/cli/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <initializer_list>

namespace fp8lab {

void hold_standard_streams() {
  // open() returns the lowest free descriptor, which is the stream's.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)!::open("/dev/null", O_RDWR);
}

std::string lost_output() {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return "";
  // A pipe without a reader is in a state of error.
  pollfd pipe{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0)
    return "the program that reads standard output has ended, and the rest is lost; what was written to files is there";
  return "standard output cannot be written, and some of it is lost; is its disk full?";
}

}  // namespace fp8lab
