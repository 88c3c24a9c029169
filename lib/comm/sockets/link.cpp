#include "comm/sockets/link.h"

#include <errno.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/sockets/address.h"
#include "core/check.h"

namespace fp8lab::sockets {
namespace {

// A connection that has ended is not made again, because the other process is gone.
constexpr int kNeverMilliseconds = 1 << 30;

Bytes open_frame() {
  struct OpenFrame {
    FrameHead head{.tag = kOpenTag, .total = 1, .offset = 0};
    std::byte payload{};
  };
  static const OpenFrame frame;
  return Bytes(reinterpret_cast<const std::byte*>(&frame), sizeof frame.head + sizeof frame.payload);
}

bool is_open_frame(Bytes bytes) {
  const std::optional<Frame> frame = read_frame(bytes);
  return frame && frame->head.tag == kOpenTag;
}

}  // namespace

Link::Link(const Context& context, const Security& security, Complaints* complaints)
    : socket_(context, kLargestFrame), connections_(context, socket_, complaints), complaints_(complaints) {
  socket_.stay_on_one_thread();
  complaints != nullptr ? security.guard_listener(socket_) : security.guard_connector(socket_);
}

std::unique_ptr<Link> Link::listen(const Context& context, const Security& security, Complaints& complaints,
                                   const std::string& address) {
  std::unique_ptr<Link> link(new Link(context, security, &complaints));
  if (!link->socket_.bind(endpoint(address, 0)))
    fail(fmt::format("cannot listen at {} for another rank: {}", address, zmq_strerror(errno)));
  return link;
}

std::unique_ptr<Link> Link::connect(const Context& context, const Security& security, const std::string& id,
                                    const std::string& endpoint) {
  std::unique_ptr<Link> link(new Link(context, security, nullptr));
  link->id_ = id;
  link->socket_.set(ZMQ_RECONNECT_IVL, kNeverMilliseconds);
  link->socket_.set(ZMQ_ROUTING_ID, id);
  link->socket_.connect_as(id, endpoint);
  link->socket_.send_to(id, open_frame());
  return link;
}

bool Link::open() {
  connections_.process_events();
  while (!connection_) {
    std::optional<Router::Received> received = socket_.receive_from();
    if (!received) return false;
    if (received->id.text() == id_ && is_open_frame(received->message.bytes())) {
      connections_.process_events();
      connection_ = connections_.number_of(received->message.descriptor());
      connections_.expect_end(*connection_);
      if (complaints_ != nullptr) socket_.send_to(id_, open_frame());
    } else if (complaints_ != nullptr) {
      complaints_->add(peer_of(received->message.descriptor()), "it is no rank of this run");
    }
  }
  return true;
}

void Link::send(const std::byte* from, std::int64_t bytes, std::uint64_t tag) {
  if (bytes == 0) return;
  Outgoing& message = outgoing_.emplace_back();
  message.tag = tag;
  message.bytes = static_cast<std::uint64_t>(bytes);
  if (message.bytes <= message.copy.size())
    std::copy_n(from, bytes, message.copy.begin());
  else
    message.from = from;
}

void Link::receive(std::byte* to, std::int64_t bytes, std::uint64_t tag) {
  inbox_.expect(to, bytes, tag);
  if (!inbox_.problem().empty()) lose(inbox_.problem());
}

void Link::abandon() {
  inbox_.abandon();
  // Calls and a shutdown message are still sent. Data behind data that is dropped would be taken for it. The other side
  // notices an abandoned message by the next frame.
  std::size_t kept = first_outgoing_;
  for (std::size_t i = first_outgoing_; i < outgoing_.size(); ++i) {
    if (processes::Tag::is_collective_data(outgoing_[i].tag)) continue;
    if (kept != i) outgoing_[kept] = outgoing_[i];
    ++kept;
  }
  outgoing_.resize(kept);
  sent_bytes_ = 0;
}

void Link::progress() {
  write();
  read();
}

std::optional<zmq_pollitem_t> Link::wanted() const {
  if (!usable()) return std::nullopt;
  const int events = (unsent() > 0 ? ZMQ_POLLOUT : 0) | (reads() && !held_ ? ZMQ_POLLIN : 0);
  if (events == 0) return std::nullopt;
  return socket_.events(static_cast<short>(events));
}

void Link::write() {
  while (unsent() > 0 && usable()) {
    const Outgoing& message = outgoing_[first_outgoing_];
    // If the other rank is gone, check_connection() finds out, after everything that it sent has been read.
    if (socket_.address_to(id_) != Router::Sent::kYes) return;
    const std::size_t chunk = chunk_bytes(message.bytes, sent_bytes_);
    const FrameHead head{.tag = message.tag, .total = message.bytes, .offset = sent_bytes_};
    Message frame(sizeof head + chunk);
    std::memcpy(frame.bytes().data(), &head, sizeof head);
    const std::byte* from = message.from != nullptr ? message.from : message.copy.data();
    std::memcpy(frame.bytes().data() + sizeof head, from + sent_bytes_, chunk);
    check(socket_.send(frame, false), "libzmq takes no frame");
    sent_bytes_ += chunk;
    if (sent_bytes_ < message.bytes) continue;
    sent_bytes_ = 0;
    ++first_outgoing_;
  }
  if (unsent() > 0) return;
  outgoing_.clear();
  first_outgoing_ = 0;
}

void Link::read() {
  while (reads()) {
    if (!held_) {
      std::optional<Router::Received> received = socket_.receive_from();
      if (!received) return;
      if (received->id.text() != id_) {
        complaints_->add(peer_of(received->message.descriptor()), "it is no rank of this run");
        continue;
      }
      held_ = std::move(received->message);
    }
    switch (inbox_.take(held_->bytes())) {
      case Inbox::Taken::kNotYet: return;
      case Inbox::Taken::kInvalid: return lose(inbox_.problem());
      case Inbox::Taken::kDone: held_.reset();
    }
  }
}

void Link::check_connection() {
  if (!usable() || (inbox_.shutdown_came() && unsent() == 0)) return;
  connections_.process_events();
  if (connections_.is_open(*connection_) || held_) return;
  // The last frames may still be on their way from libzmq's thread. The second call is sure.
  if (std::exchange(ended_, true)) lose("its process has ended, or closed the connection");
}

void Link::lose(const std::string& why) {
  lost_ = why;
  if (!hung_up_) socket_.set(ZMQ_LINGER, 0);
  hang_up();
}

void Link::hang_up() {
  if (std::exchange(hung_up_, true)) return;
  held_.reset();
  connections_.stop();
  socket_.close();
}

}  // namespace fp8lab::sockets
