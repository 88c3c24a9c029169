#include "harness/results/document_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace fp8lab {
namespace {

/// What gzip makes of the content of a file that is open from its beginning.
std::string expanded(const OpenFile& file, const std::filesystem::path& path, std::size_t most) {
  const auto refuse = [&](const std::string& why) -> void {
    fail(fmt::format("{}: cannot be uncompressed: {}", path.string(), why));
  };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, file.descriptor(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::array<char, 5> program{"gzip"}, options{"-dc"};
  char* arguments[] = {program.data(), options.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, program.data(), &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string out;
  std::array<char, 65536> buffer{};
  for (ssize_t n = 1; error == 0 && n != 0 && out.size() <= most;) {
    n = ::read(ends[0], buffer.data(), buffer.size());
    if (n < 0 && errno != EINTR) break;
    if (n > 0) out.append(buffer.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);  // of a file that expands further, gzip ends by SIGPIPE
  if (error != 0) refuse(fmt::format("the program gzip cannot be started: {}", std::strerror(error)));
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (out.size() > most)
    refuse(fmt::format("it expands to more than {} bytes, the most that is read of such a file", most));
  if (status != 0) refuse("gzip refuses it");
  return out;
}

}  // namespace

std::string read_document(const std::filesystem::path& path, std::size_t most) {
  std::string text = read_regular_file(path, most);
  return text.starts_with("\x1f\x8b") ? expanded(OpenFile::for_reading(path), path, most) : text;
}

}  // namespace fp8lab
