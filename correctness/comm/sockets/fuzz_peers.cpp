#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "comm/processes/messages.h"
#include "comm/sockets/frames.h"
#include "comm/sockets/inbox.h"
#include "harness/run/launched_ranks.h"

// Feeds arbitrary bytes to everything that a rank reads from others, under libFuzzer. The first byte chooses the
// reader. A message that is read must be equal when it is written again. Memory outside of the expected buffers must
// stay as it is, which AddressSanitizer checks.
namespace {

using fp8lab::sockets::Bytes;
using fp8lab::sockets::Inbox;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_peers: %s\n", what);
  std::abort();
}

/// Numbers and bytes from the input; zeros when it is used up.
class Input {
 public:
  explicit Input(Bytes left) : left_(left) {}
  template <class Plain>
  Plain take() {
    Plain plain{};
    const std::size_t bytes = std::min(sizeof plain, left_.size());
    if (bytes > 0) std::memcpy(&plain, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return plain;
  }
  Bytes take(std::size_t most) {
    const Bytes taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  bool over() const { return left_.empty(); }

 private:
  Bytes left_;
};

void read_handshake(Input input) {
  using namespace fp8lab::sockets;
  const std::optional<Frame> frame = read_frame(input.take(1 << 20));
  const std::optional<Handshake> handshake = frame ? fp8lab::sockets::read_handshake(*frame) : std::nullopt;
  if (handshake)
    require(fp8lab::sockets::read_handshake(*read_frame(write(*handshake))) == handshake,
            "a handshake changed on its way");
}

void read_roster(Input input) {
  using namespace fp8lab::sockets;
  const int size = input.take<std::uint8_t>();
  const std::optional<Frame> frame = read_frame(input.take(1 << 20));
  const auto roster = frame ? fp8lab::sockets::read_roster(*frame, size) : std::nullopt;
  if (roster)
    require(fp8lab::sockets::read_roster(*read_frame(write(*roster)), size) == roster, "a roster changed on its way");
}

void read_refusal(Input input) {
  using namespace fp8lab::sockets;
  const std::optional<Frame> frame = read_frame(input.take(1 << 20));
  const std::optional<std::string> text = frame ? fp8lab::sockets::read_refusal(*frame) : std::nullopt;
  if (text) require(fp8lab::sockets::read_refusal(*read_frame(write(*text))) == text, "a refusal changed on its way");
}

void read_shutdown(Input input) {
  using namespace fp8lab::processes;
  const auto largest = input.take<std::uint64_t>() / 2;
  const auto message = std::make_unique<ShutdownBytes>(input.take<ShutdownBytes>());
  const std::optional<Shutdown> shutdown = fp8lab::processes::read_shutdown(*message, largest);
  if (!shutdown) return;
  require(shutdown->next_context <= largest + 1, "a context is out of range");
  require(fp8lab::processes::read_shutdown(write(*shutdown), largest)->reason == shutdown->reason,
          "a reason changed on its way");
}

void read_call(Input input) {
  using namespace fp8lab::processes;
  const auto call = std::make_unique<Call>(input.take<Call>());
  if (is_valid(*call, 1000)) describe_mismatch("world", 0, {}, 1, call->signature);
}

void read_order(Input input) {
  using Order = fp8lab::LaunchedRanks::Order;
  const auto cells = input.take<std::uint16_t>();
  const auto order = input.take<Order>();
  if (!fp8lab::LaunchedRanks::is_valid(order, cells)) return;
  require(order.cell < cells && order.exit_code >= 0 && order.exit_code < 256, "an order is out of range");
}

/// A rank's own steps, chosen by the input, between the frames of another rank.
void feed_inbox(Input input) {
  const auto shutdown = std::make_unique<fp8lab::processes::ShutdownBytes>();
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory;
  Inbox inbox;
  inbox.expect_shutdown(shutdown.get());
  static std::vector<std::byte> frame(fp8lab::sockets::kLargestFrame);
  const auto tag = [&] {
    return fp8lab::processes::Tag{.context = input.take<std::uint8_t>() / 2u,
                                  .data = input.take<std::uint8_t>() % 2 != 0};
  };
  bool has_large = false;
  while (!input.over()) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0: {
        const fp8lab::processes::Tag expected = tag();
        const std::size_t bytes = expected.data ? input.take<std::uint16_t>() + 1u : sizeof(fp8lab::processes::Call);
        memory.push_back(std::make_unique<std::vector<std::byte>>(bytes));
        inbox.expect(memory.back()->data(), static_cast<std::int64_t>(bytes), expected);
        break;
      }
      case 1: {  // longer than a frame; one call is enough, since the sanitizer is slow
        if (has_large) break;
        has_large = true;
        const std::size_t bytes = fp8lab::sockets::kChunkBytes + input.take<std::uint16_t>();
        memory.push_back(std::make_unique<std::vector<std::byte>>(bytes));
        inbox.expect(memory.back()->data(), static_cast<std::int64_t>(bytes),
                     {.context = input.take<std::uint8_t>(), .data = true});
        break;
      }
      case 2:
        inbox.abandon();
        memory.clear();
        break;
      case 3: inbox.expect_shutdown(shutdown.get()); break;
      case 4: {  // a call or a shutdown message of the right length
        const std::uint64_t number = 2u * input.take<std::uint8_t>();
        const std::size_t bytes =
            number == 0 ? sizeof(fp8lab::processes::ShutdownBytes) : sizeof(fp8lab::processes::Call);
        inbox.take(fp8lab::sockets::write_frame(number, Bytes(frame).first(bytes)));
        break;
      }
      case 5: {  // a frame of a right length
        fp8lab::sockets::FrameHead head{
            .tag = input.take<std::uint8_t>(), .total = input.take<std::uint32_t>(), .offset = 0};
        head.offset = input.take<std::uint8_t>() * fp8lab::sockets::kChunkBytes;
        const std::size_t payload =
            head.offset < head.total ? fp8lab::sockets::chunk_bytes(head.total, head.offset) : 0;
        std::memcpy(frame.data(), &head, sizeof head);
        inbox.take(Bytes(frame).first(sizeof head + payload));
        break;
      }
      default: {  // any bytes
        const Bytes bytes = input.take(input.take<std::uint8_t>());
        inbox.take(std::vector<std::byte>(bytes.begin(), bytes.end()));
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr void (*kReaders[])(Input) = {read_handshake, read_roster, read_refusal, read_shutdown,
                                         read_call,      read_order,  feed_inbox};
  Input input(std::as_bytes(std::span(data, size)));
  const auto reader = input.take<std::uint8_t>();
  kReaders[reader % std::size(kReaders)](input);
  return 0;
}
