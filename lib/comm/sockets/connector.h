#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "comm/sockets/descriptor.h"

namespace fp8lab::sockets {

/// The folder of this user's sockets: `path`, or "/tmp/fp8lab-0" of user 0 if it is empty. It is made if it is absent.
/// Throws Error unless it is a folder of this user that other users cannot enter.
std::string user_folder(std::string path = {});

/// The name under which a rank listens, and the name of the socket by which it connects to a lower one. That name holds
/// all that two ranks must agree on: the job, their ranks, their number and the build of fp8lab.
std::string path_of_listener(const Rendezvous& rank);
std::string path_of_link(const Rendezvous& rank, int lower);

/// Connects this rank with the others of its job: it listens to higher ranks, and connects to all lower ones. Sockets
/// that an ended process left are replaced.
class Connector {
 public:
  /// Begins to listen. `notify` gets a line for each kind of connection that is no rank's. Throws Error if another
  /// process is this rank already.
  Connector(const Rendezvous& rendezvous, std::function<void(const std::string&)> notify);
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;
  ~Connector();

  struct Link {
    int rank;
    Descriptor socket;
  };
  /// The connections that have been made since the last call; waits for one at most for `longest`.
  std::vector<Link> wait(std::chrono::milliseconds longest);

 private:
  bool listen();
  std::string admit(const Descriptor& accepted, int& rank);

  Rendezvous own_;
  std::function<void(const std::string&)> notify_;
  Descriptor listener_;
  std::vector<Descriptor> to_lower_;  ///< by rank; none once it is connected
  std::set<int> admitted_;            ///< higher ranks that are connected
  std::set<std::string> refused_;     ///< reasons that have been reported
};

}  // namespace fp8lab::sockets
