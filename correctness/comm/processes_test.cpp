#include "comm/processes/group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/ranks.h"

// One rank of two, whose other one is a script: it makes the same calls, and sends no bytes.
namespace fp8lab::processes {
namespace {

using comm_test::error_of;

class SilentPeer final : public Transport {
 public:
  explicit SilentPeer(Farewell farewell) : Transport("a script", 0, 2), farewell_(std::move(farewell)) {}

  void receive(std::byte* to, std::int64_t bytes, int, Tag tag) override {
    if (bytes == 0) return;
    if (tag.data)
      stalled_ = true;
    else
      call_ = to;
  }
  void send(const std::byte* from, std::int64_t bytes, int, Tag tag) override {
    if (tag.context == 0) {
      (*farewells_)[1] = farewell_;
      farewell_came_ = true;
    } else if (!tag.data) {
      std::memcpy(call_, from, static_cast<std::size_t>(bytes));
    }
  }
  bool finished() override { return !stalled_; }
  std::vector<int> unfinished_ranks() override { return stalled_ ? std::vector{1} : std::vector<int>{}; }
  bool abandon() override {
    stalled_ = false;
    return true;
  }
  void pause() override {
    if (std::chrono::steady_clock::now() > give_up_) throw std::runtime_error("it waits for ever");
  }
  void expect_farewells(std::shared_ptr<Farewells> farewells) override { farewells_ = std::move(farewells); }
  bool farewell_came(int) override { return farewell_came_; }

 private:
  Farewell farewell_;
  std::shared_ptr<Farewells> farewells_;
  std::byte* call_ = nullptr;
  bool stalled_ = false;
  bool farewell_came_ = false;
  std::chrono::steady_clock::time_point give_up_ = std::chrono::steady_clock::now() + std::chrono::seconds(20);
};

/// The error of a run in which the other rank comes to an all-gather, sends nothing, and ends with `farewell`.
std::string error_beside(const Farewell& farewell) {
  SilentPeer peer(farewell);
  return error_of([&] {
    run_rank(peer, {.ranks = 2, .timeout = std::chrono::milliseconds(50)}, [](ProcessGroup& group) {
      std::vector<std::byte> own(8), whole(16);
      const std::vector<std::int64_t> offsets = {0, 8, 16};
      const GatherPart part{.from = own.data(), .to = whole.data(), .offsets_bytes = offsets};
      group.all_gather({&part, 1}, "w");
    });
  });
}

TEST(SilentPeer, IsWaitedForNoLongerThanTheTimeout) {
  const std::string error = error_beside({});
  EXPECT_NE(error.find("all_gather 'w' (#1"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
}

// That a rank waited in vain follows from another's end, whichever became known first.
TEST(SilentPeer, ItsDeathIsTheCauseOfTheWait) {
  Farewell farewell{.ending = Ending::kByDeath};
  std::strcpy(farewell.reason.data(), "no disk left");
  EXPECT_EQ(error_beside(farewell), "rank 1: no disk left");
}

}  // namespace
}  // namespace fp8lab::processes
