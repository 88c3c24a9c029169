#include "comm/sockets/connector.h"

#include <errno.h>
#include <fmt/core.h>
#include <link.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/fnv1a.h"

namespace fp8lab::sockets {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  check(path.size() < sizeof address.sun_path, "the path of a socket is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor make_socket() {
  Descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.is_open()) fail(fmt::format("a socket for the other ranks: {}", std::strerror(errno)));
  return made;
}

ucred owner_of(const Descriptor& socket) {
  ucred owner{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = static_cast<gid_t>(-1)};
  socklen_t bytes = sizeof owner;
  ::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &owner, &bytes);
  return owner;
}

/// Adds the notes of the program to a hash. One of them is the id that the linker made of its content.
int hash_notes(dl_phdr_info* info, std::size_t, void* hash) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const auto* const notes = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
    auto& sum = *static_cast<std::uint64_t*>(hash);
    if (part.p_type == PT_NOTE) sum = fnv1a({notes, part.p_memsz}, sum);
  }
  return 1;  // the first object is the program
}

bool binds(const Descriptor& socket, const std::string& path) {
  const sockaddr_un address = address_of(path);
  return ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

/// False, with errno, if no process listens there, or if too many connections wait.
bool connects(const Descriptor& socket, const std::string& path) {
  const sockaddr_un address = address_of(path);
  return ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

std::string user_folder(std::string path) {
  if (path.empty()) path = fmt::format("/tmp/fp8lab-{}", ::geteuid());
  const auto refuse = [&](std::string_view why) {
    fail(fmt::format("{}: no folder for sockets of ranks: {}", path, why));
  };
  struct stat status{};
  if ((::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) || ::lstat(path.c_str(), &status) != 0)
    refuse(std::strerror(errno));
  if (!S_ISDIR(status.st_mode)) refuse("something else has its name");
  if (status.st_uid != ::geteuid()) refuse("it belongs to another user");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) refuse("others have access to it; chmod go-rwx");
  return path;
}

std::string path_of_listener(const Rendezvous& rank) {
  return fmt::format("{}/{:016x}-{}", user_folder(), fnv1a(rank.job), rank.rank);
}

std::string path_of_link(const Rendezvous& rank, int lower) {
  std::uint64_t build = kFnv1aBasis;
  ::dl_iterate_phdr(hash_notes, &build);
  return fmt::format("{}-to-{}-of-{}-{:016x}", path_of_listener(rank), lower, rank.size, build);
}

Connector::Connector(const Rendezvous& rendezvous, std::function<void(const std::string&)> notify)
    : own_(rendezvous), notify_(std::move(notify)) {
  const std::string path = path_of_listener(own_);
  if (!listen()) {
    // A process that has ended may have left it.
    if (errno == EADDRINUSE && (connects(make_socket(), path) || errno == EAGAIN))
      fail(fmt::format("two processes were started as rank {}", own_.rank));
    ::unlink(path.c_str());
    if (!listen()) fail(fmt::format("{}: {}", path, std::strerror(errno)));
  }
  for (int lower = 0; lower < own_.rank; ++lower) {
    const std::string link = path_of_link(own_, lower);
    ::unlink(link.c_str());
    if (!binds(to_lower_.emplace_back(make_socket()), link)) fail(fmt::format("{}: {}", link, std::strerror(errno)));
  }
}

Connector::~Connector() {
  if (listener_.is_open()) ::unlink(path_of_listener(own_).c_str());
  for (int lower = 0; lower < own_.rank; ++lower) ::unlink(path_of_link(own_, lower).c_str());
}

/// False, with errno, if that fails.
bool Connector::listen() {
  Descriptor made = make_socket();
  if (!binds(made, path_of_listener(own_)) || ::listen(made.number(), SOMAXCONN) != 0) return false;
  listener_ = std::move(made);
  return true;
}

std::vector<Connector::Link> Connector::wait(std::chrono::milliseconds longest) {
  std::vector<Link> links;
  Rendezvous other = own_;
  for (other.rank = 0; other.rank < own_.rank; ++other.rank)
    if (Descriptor& socket = to_lower_[static_cast<std::size_t>(other.rank)];
        socket.is_open() && connects(socket, path_of_listener(other))) {
      if (owner_of(socket).uid != ::geteuid()) fail(fmt::format("rank {} is another user's process", other.rank));
      links.push_back({.rank = other.rank, .socket = std::move(socket)});
    }
  pollfd waiting{listener_.number(), POLLIN, 0};
  ::poll(&waiting, 1, links.empty() ? static_cast<int>(longest.count()) : 0);
  for (;;) {
    Descriptor accepted(::accept4(listener_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.is_open()) return links;
    int rank = -1;
    const std::string problem = admit(accepted, rank);
    if (problem.empty())
      links.push_back({.rank = rank, .socket = std::move(accepted)});
    else if (refused_.insert(problem).second && notify_)
      notify_(
          fmt::format("rank {} refused a connection from process {}: {}", own_.rank, owner_of(accepted).pid, problem));
  }
}

/// Sets `rank` to the connected process's rank, or returns why that process is none of the expected ranks.
std::string Connector::admit(const Descriptor& accepted, int& rank) {
  if (owner_of(accepted).uid != ::geteuid()) return "it is another user's";
  sockaddr_un address{};
  socklen_t bytes = sizeof address - 1;
  ::getpeername(accepted.number(), reinterpret_cast<sockaddr*>(&address), &bytes);
  const std::string_view name = address.sun_path;
  Rendezvous other = own_;
  for (other.rank = own_.rank + 1; other.rank < own_.size; ++other.rank) {
    if (!name.starts_with(fmt::format("{}-to-{}-", path_of_listener(other), own_.rank))) continue;
    rank = other.rank;
    if (name != path_of_link(other, own_.rank))
      return fmt::format(
          "rank {} is another build of fp8lab, or one of another number of ranks; start every rank alike", rank);
    return admitted_.insert(rank).second ? "" : fmt::format("two processes were started as rank {}", rank);
  }
  return "it is no rank of this job";
}

}  // namespace fp8lab::sockets
