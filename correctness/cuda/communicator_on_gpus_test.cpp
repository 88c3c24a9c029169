// An NCCL communicator whose other ranks do not come: no call keeps the rank's own thread waiting for ever, and none
// finds the communicator freed. Needs two GPUs.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>

#include "backend/cuda/context.h"
#include "backend/device.h"
#include "comm/nccl/calls.h"
#include "comm/nccl/communicator.h"
#include "comm/nccl/nccl_library.h"
#include "comm/ranks.h"

namespace fp8lab::nccl {
namespace {

using comm_test::error_of;
using std::chrono::steady_clock;

constexpr auto kTimeout = std::chrono::seconds(1);
constexpr auto kMuchLonger = std::chrono::seconds(20);
constexpr std::size_t kBytes = std::size_t{4} << 20;

std::string late(const std::string& call) {
  return call + " did not return on this rank within 1 s in group 'world': a rank that came to it died or hangs";
}

bool holds_in_time(const std::function<bool()>& condition) {
  const auto begin = steady_clock::now();
  while (!condition() && steady_clock::now() - begin < kMuchLonger) std::this_thread::yield();
  return condition();
}

ncclUniqueId new_id() {
  ncclUniqueId id{};
  nccl_check(api().get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

/// A rank's GPU and what its communicator is made of.
struct Rank {
  Rank(const ncclUniqueId& unique_id, int rank_number, int rank_count)
      : id(unique_id),
        number(rank_number),
        ranks(rank_count),
        device(open_device("cuda", {.rank = rank_number, .memory = {}})) {}

  cuda::CudaContext& gpu() const { return cuda::cuda_context(device->context()); }
  std::unique_ptr<Communicator> connect() const {
    return std::make_unique<Communicator>(
        Communicator::Args{.id = id,
                           .rank = number,
                           .ranks = ranks,
                           .group = "world",
                           .timeout = kTimeout,
                           .trouble = trouble,
                           .abort_flag = abort_flag,
                           .one_process = one_process,
                           .notify = [this](const std::string& line) { *notified = line; }},
        gpu());
  }
  bool aborted() const { return std::atomic_ref(*const_cast<std::uint32_t*>(abort_flag->word())).load() != 0; }
  bool is_aborted_in_time() const {
    return holds_in_time([this] { return aborted(); });
  }

  ncclUniqueId id;
  int number;
  int ranks;
  std::unique_ptr<Device> device;
  std::shared_ptr<Trouble> trouble = std::make_shared<Trouble>();
  std::shared_ptr<AbortFlag> abort_flag = std::make_shared<AbortFlag>();
  bool one_process = true;
  std::shared_ptr<std::string> notified = std::make_shared<std::string>();  ///< written before abort_flag is set
};

class CommunicatorOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (count_gpus("cuda") < 2) GTEST_SKIP() << "two GPUs are needed";
    id_ = new_id();
  }

  /// Both ranks connect, and rank 0 calls `alone`, to which rank 1 does not come.
  void on_rank_0(const std::function<void(const Rank&, Communicator&)>& alone) const {
    std::binary_semaphore ended(0);
    std::jthread other([&] {
      const Rank rank(id_, 1, 2);
      const std::unique_ptr<Communicator> communicator = rank.connect();
      ended.acquire();
      communicator->abort();
    });
    try {
      const Rank rank(id_, 0, 2);
      const std::unique_ptr<Communicator> communicator = rank.connect();
      alone(rank, *communicator);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ended.release();
  }

  ncclUniqueId id_{};
};

TEST_F(CommunicatorOnGpus, RankThatDoesNotConnectIsNotWaitedForWithoutEnd) {
  const Rank rank(id_, 0, 2);
  const auto begin = steady_clock::now();
  EXPECT_EQ(error_of([&] { rank.connect(); }), late("ncclCommInitRankConfig"));
  EXPECT_LT(steady_clock::now() - begin, kMuchLonger);
}

// Whoever comes after the others left does not wait for ever either.
TEST_F(CommunicatorOnGpus, RankThatConnectsLateFailsToo) {
  const Rank early(id_, 0, 2), after(id_, 1, 2);
  EXPECT_EQ(error_of([&] { early.connect(); }), late("ncclCommInitRankConfig"));
  const auto begin = steady_clock::now();
  error_of([&] {
    const std::unique_ptr<Communicator> communicator = after.connect();
    communicator->abort();
  });
  EXPECT_LT(steady_clock::now() - begin, kMuchLonger);
}

TEST_F(CommunicatorOnGpus, RankThatRegistersNoWindowIsNotWaitedForWithoutEnd) {
  on_rank_0([](const Rank&, Communicator& communicator) {
    void* memory = nullptr;
    ASSERT_EQ(api().mem_alloc(&memory, kBytes), ncclSuccess);
    const auto begin = steady_clock::now();
    EXPECT_EQ(error_of([&] { communicator.add_window(memory, kBytes); }), late("ncclCommWindowRegister"));
    EXPECT_LT(steady_clock::now() - begin, kMuchLonger);
    EXPECT_EQ(api().mem_free(memory), ncclSuccess);
  });
}

// The first launch connects the ranks, for which NCCL blocks; or it is launched and does not finish.
TEST_F(CommunicatorOnGpus, RankThatLaunchesNothingIsNotWaitedForWithoutEnd) {
  on_rank_0([](const Rank& rank, Communicator& communicator) {
    const cudaStream_t stream = rank.gpu().stream();
    const cuda::DeviceBytes data = rank.gpu().allocate(2 * kBytes);
    const auto begin = steady_clock::now();
    const std::string error = error_of([&] {
      Launch launch(communicator, stream);
      launch.all_gather(data.get(), data.get(), kBytes);
      launch.go();
      communicator.watch({}, stream);
    });
    if (error.empty()) {
      rank.gpu().synchronize();
      EXPECT_NE(rank.trouble->cause(), "");
    } else {
      EXPECT_EQ(error, late("ncclGroupEnd"));
    }
    EXPECT_LT(steady_clock::now() - begin, kMuchLonger);
    EXPECT_TRUE(rank.aborted());
  });
}

/// Returns once the threads of the rank's communicators have seen its trouble: another one is connected and aborted.
void let_trouble_spread(const Rank& rank) {
  Rank other(new_id(), 0, 1);
  other.trouble = rank.trouble;
  const std::unique_ptr<Communicator> idle = other.connect();
  EXPECT_TRUE(other.is_aborted_in_time());
}

TEST_F(CommunicatorOnGpus, TroubleLeavesACommunicatorInUseAlone) {
  Rank rank(id_, 0, 1);
  rank.one_process = false;
  const std::unique_ptr<Communicator> communicator = rank.connect();
  {
    const Communicator::Use use(*communicator, "ncclGroupEnd");
    rank.trouble->set("rank 3 is gone");
    let_trouble_spread(rank);
    EXPECT_FALSE(rank.aborted());
    EXPECT_EQ(error_of([&] { use.check(ncclSystemError, "ncclSend"); }), "rank 3 is gone");
  }
  EXPECT_TRUE(rank.is_aborted_in_time());
  EXPECT_EQ(error_of([&] { const Launch launch(*communicator, rank.gpu().stream()); }),
            "ncclGroupEnd in group 'world': its collectives were ended: rank 3 is gone");
}

// If ranks are processes, an abort would free the communicator under the call.
TEST_F(CommunicatorOnGpus, CallThatDoesNotReturnIsReportedAndLeftAlone) {
  Rank rank(id_, 0, 1);
  rank.one_process = false;
  const std::unique_ptr<Communicator> communicator = rank.connect();
  {
    const Communicator::Use use(*communicator, "ncclGroupEnd");
    EXPECT_TRUE(holds_in_time([&] { return rank.trouble->cause() == late("ncclGroupEnd"); }));
    let_trouble_spread(rank);
    EXPECT_FALSE(rank.aborted());
  }
  EXPECT_TRUE(rank.is_aborted_in_time());
  EXPECT_EQ(*rank.notified, "rank 0: " + late("ncclGroupEnd"));
}

}  // namespace
}  // namespace fp8lab::nccl
