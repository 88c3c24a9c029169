#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/processes/group.h"
#include "comm/ranks.h"

// One of two ranks. The other one is a script that makes the same calls and sends no bytes.
namespace fp8lab::processes {
namespace {

using comm_test::error_of;

class SilentPeer final : public Transport {
 public:
  explicit SilentPeer(const ShutdownBytes& shutdown) : Transport("a script", 0, 2), shutdown_(shutdown) {}

  void receive(std::byte* to, std::int64_t bytes, int, Tag tag) override {
    if (bytes == 0) return;
    if (tag.data)
      stalled_ = true;
    else
      call_ = to;
  }
  void send(const std::byte* from, std::int64_t bytes, int, Tag tag) override {
    if (tag.context == 0) {
      (*messages_)[1] = shutdown_;
      shutdown_received_ = true;
    } else if (!tag.data) {
      std::memcpy(call_, from, static_cast<std::size_t>(bytes));
    }
  }
  bool finished(Awaited awaited) override {
    calls_after_abandon += abandoned;
    const bool stalled = stalled_ && awaited == Awaited::kAll;
    if (stalled && no_memory) throw std::bad_alloc();
    return !stalled;
  }
  std::vector<int> unfinished_ranks(Awaited awaited) override {
    return stalled_ && awaited == Awaited::kAll ? std::vector{1} : std::vector<int>{};
  }
  bool abandon(const std::vector<bool>&) override {
    stalled_ = false;
    abandoned = true;
    return abandons_clean;
  }
  void pause() override {
    if (std::chrono::steady_clock::now() > give_up_) throw std::runtime_error("it waits for ever");
  }
  void expect_shutdowns(std::shared_ptr<ShutdownMessages> messages) override { messages_ = std::move(messages); }
  bool shutdown_received(int) override {
    calls_after_abandon += abandoned;
    return shutdown_received_;
  }

  bool no_memory = false;      ///< for what it would send
  bool abandons_clean = true;  ///< false: a message goes on using its memory
  bool abandoned = false;
  int calls_after_abandon = 0;

 private:
  ShutdownBytes shutdown_;
  std::shared_ptr<ShutdownMessages> messages_;
  std::byte* call_ = nullptr;
  bool stalled_ = false;
  bool shutdown_received_ = false;
  std::chrono::steady_clock::time_point give_up_ = std::chrono::steady_clock::now() + std::chrono::seconds(20);
};

/// The error of a run in which the other rank calls an all-gather and sends nothing.
std::string error_beside(SilentPeer& peer) {
  return error_of([&] {
    run_rank(peer, {.ranks = 2, .timeout = std::chrono::milliseconds(50)}, [](ProcessGroup& group) {
      std::vector<std::byte> own(8), gathered(16);
      const std::vector<std::int64_t> offsets = {0, 8, 16};
      const GatherPart part{.from = own.data(), .to = gathered.data(), .offsets_bytes = offsets};
      group.all_gather({&part, 1}, "w");
    });
  });
}

/// The same, if the other rank ends with `shutdown`.
std::string error_beside(const ShutdownBytes& shutdown) {
  SilentPeer peer(shutdown);
  return error_beside(peer);
}

TEST(SilentPeer, IsAwaitedUntilTheTimeout) {
  const std::string error = error_beside(write(Shutdown{}));
  EXPECT_NE(error.find("all_gather 'w' (#1"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
}

// Rank 0 waits without result because the other rank died. The death is the cause, whichever of the two is known first.
TEST(SilentPeer, DeathIsReportedAsTheCauseOfTheWait) {
  EXPECT_EQ(error_beside(write(Shutdown{.ending = Ending::kByDeath, .reason = "no disk left"})),
            "rank 1: no disk left");
}

// What is under way is abandoned before its memory is freed, also if the transport throws.
TEST(SilentPeer, IsAbandonedWhereTheTransportHasNoMemory) {
  SilentPeer peer(write(Shutdown{}));
  peer.no_memory = true;
  error_beside(peer);
  EXPECT_TRUE(peer.abandoned);
  EXPECT_FALSE(peer.broken());
}

// A message that cannot be abandoned uses memory which is freed by then; so the transport is not called again.
TEST(SilentPeer, IsNotCalledAgainWhereAMessageCannotBeAbandoned) {
  SilentPeer peer(write(Shutdown{}));
  peer.abandons_clean = false;
  const std::string error = error_beside(peer);
  EXPECT_TRUE(peer.broken());
  EXPECT_EQ(peer.calls_after_abandon, 0);
  EXPECT_NE(error.find("can no longer be used in this process: rank 1 came to all_gather 'w' (#1"), std::string::npos)
      << error;
}

constexpr std::uint64_t kLargestContext = 1000;

TEST(Shutdown, ReadsBackAsWritten) {
  const Shutdown sent{
      .ending = Ending::kByFinding, .out_of_memory = true, .next_context = 17, .reason = std::string(5000, 'x')};
  const std::optional<Shutdown> read = read_shutdown(write(sent), kLargestContext);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ending, sent.ending);
  EXPECT_EQ(read->out_of_memory, sent.out_of_memory);
  EXPECT_EQ(read->next_context, sent.next_context);
  EXPECT_EQ(read->reason, sent.reason.substr(0, 2047));
}

/// A shutdown message with some bytes changed.
template <class Plain>
ShutdownBytes changed(std::size_t at, Plain plain) {
  ShutdownBytes bytes = write(Shutdown{});
  std::memcpy(bytes.data() + at, &plain, sizeof plain);
  return bytes;
}

TEST(Shutdown, IsRefusedWhereAFieldIsOutOfRange) {
  EXPECT_TRUE(read_shutdown(changed(8, kLargestContext + 1), kLargestContext));
  EXPECT_FALSE(read_shutdown(changed(8, kLargestContext + 2), kLargestContext));
  EXPECT_FALSE(read_shutdown(changed(8, std::numeric_limits<std::uint64_t>::max()), kLargestContext));
  for (const int ending : {-1, 4, 1 << 30}) EXPECT_FALSE(read_shutdown(changed(0, ending), kLargestContext));
  EXPECT_FALSE(read_shutdown(changed(4, 2u), kLargestContext));
  ShutdownBytes endless = write(Shutdown{});
  std::memset(endless.data() + 16, 'x', endless.size() - 16);
  EXPECT_FALSE(read_shutdown(endless, kLargestContext));
  EXPECT_EQ(error_beside(changed(0, 99)), "rank 1: it sent a shutdown message that cannot be read");
}

TEST(Call, IsInvalidWhereAFieldIsOutOfRange) {
  Call call;
  call.signature.set_label("weights");
  EXPECT_TRUE(is_valid(call, kLargestContext));
  Call other = call;
  other.signature.label.fill('x');
  EXPECT_FALSE(is_valid(other, kLargestContext));
  other = call;
  other.signature.kind = static_cast<CollectiveKind>(kCollectiveKinds);
  EXPECT_FALSE(is_valid(other, kLargestContext));
  other = call;
  other.signature.op = static_cast<ReduceOp>(2);
  EXPECT_FALSE(is_valid(other, kLargestContext));
  other = call;
  other.next_context = kLargestContext + 2;
  EXPECT_FALSE(is_valid(other, kLargestContext));
}

}  // namespace
}  // namespace fp8lab::processes
