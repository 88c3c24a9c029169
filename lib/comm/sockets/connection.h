#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/socket.h"

namespace fp8lab::sockets {

/// The messages between this rank and one other, framed on one stream: tag and length, the bytes, and a word that says
/// whether they are whole, since a sender that gives up must still fill the frame.
///
/// What comes before it is asked for waits in the stream, but for one call of a collective: ranks that are in different
/// groups each wait for the other's, and must get past it to hear a farewell. After a farewell nothing is read until the
/// next run, whose messages may follow at once.
class Connection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  void send(const std::byte* from, std::int64_t bytes, std::uint64_t tag);
  void receive(std::byte* to, std::int64_t bytes, std::uint64_t tag);
  /// Whether every message begun is through.
  bool finished() const { return unsent() == 0 && unreceived_ == 0; }
  void abandon();

  /// Begins a run, whose farewell goes to `farewell`.
  void expect_farewell(processes::Farewell* farewell);
  bool farewell_came() const { return farewell_came_; }
  /// What nobody has asked for is dropped from now on.
  void await_only_farewell() { drops_ = true; }

  /// Moves what can be moved without waiting.
  void progress();
  int descriptor() const { return socket_.descriptor(); }
  /// The events of poll() after which progress() may get further.
  short wanted_events() const;
  /// Why the other side can no longer be reached, or nothing.
  const std::string& lost() const { return lost_; }
  void hang_up() { socket_ = {}; }

 private:
  static constexpr std::size_t kSmallBytes = 256;
  struct Head {
    std::uint64_t tag = 0;
    std::int64_t bytes = 0;
  };
  enum class Ending : std::uint64_t { kWhole = 0x57686F6C65, kAbandoned = 0x476F6E65 };
  struct Outgoing {
    Head head;
    const std::byte* from = nullptr;  ///< null: zeros, the rest of an abandoned message
    bool small = false;               ///< lies in `copy`
    std::array<std::byte, kSmallBytes> copy{};
    Ending ending = Ending::kWhole;

    std::size_t frame_bytes() const { return sizeof(Head) + static_cast<std::size_t>(head.bytes) + sizeof(Ending); }
  };
  struct Expected {
    Head head;
    std::byte* to = nullptr;
    bool begun = false;
  };
  /// Where the frame that is being read goes.
  enum class Place : std::uint8_t { kUndecided, kExpected, kEarly, kFarewell, kDropped };

  std::size_t unsent() const { return outgoing_.size() - first_outgoing_; }
  void write();
  void read();
  bool reads() const { return lost_.empty() && socket_ && !farewell_came_; }
  bool read_head();
  bool read_rest();
  Place decide();
  void finish_frame();
  std::int64_t receive_some(std::byte* body, std::size_t body_bytes, std::byte* tail, std::size_t tail_bytes);
  void lose(int error);

  Socket socket_;
  std::string lost_;

  std::vector<Outgoing> outgoing_;  ///< from first_outgoing_ on; that one has been sent up to sent_bytes_
  std::size_t first_outgoing_ = 0;
  std::size_t sent_bytes_ = 0;

  std::vector<Expected> expected_;
  std::size_t first_unbegun_ = 0;
  std::size_t unreceived_ = 0;

  Head head_;
  std::size_t read_bytes_ = 0;  ///< of the frame, head included
  Place place_ = Place::kUndecided;
  std::byte* to_ = nullptr;
  Ending ending_ = Ending::kWhole;

  bool has_early_ = false;
  Head early_head_;
  std::array<std::byte, kSmallBytes> early_{};

  processes::Farewell* farewell_ = nullptr;
  bool farewell_came_ = true;
  bool drops_ = false;
};

}  // namespace fp8lab::sockets
