#include "harness/cli/standard_streams.h"

#include <fcntl.h>
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

bool standard_output_arrived() {
  const bool flushed = std::fflush(stdout) == 0;
  return flushed && std::ferror(stdout) == 0;
}

}  // namespace fp8lab
