#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "support/test_device.h"

// A program for mpirun or launch_ranks. After some rounds of collectives its rank 1 ends as the first argument
// specifies. The buffers lie in host memory or on the device that the CTest entry names.
namespace {

using fp8lab::GatherPart;
using fp8lab::ProcessGroup;

constexpr int kRounds = 20;

/// Prints first that it ends: a launch that never got this far must not count as a launch that did.
void die_by(std::string_view end) {
  if (end == "well") return;
  std::fprintf(stderr, "ends now: %.*s\n", static_cast<int>(end.size()), end.data());
  if (end.starts_with("killed")) raise(SIGKILL);
  if (end == "crashed") raise(SIGSEGV);
  if (end == "stopped") raise(SIGSTOP);
  if (end == "exited") _exit(0);
  if (end == "thrown") fp8lab::fail("boom");
  while (end == "silent") pause();
}

/// Bytes of a rank: more than sockets hold at once, and on GPUs enough that gathers take a while.
std::int64_t bytes_of_rank() { return std::int64_t{fp8lab::support::test_device() == "cpu" ? 1 : 4} << 20; }

struct Buffers {
  std::byte* own;
  std::byte* all;
};

void work(ProcessGroup& group, std::span<const Buffers> gathered, std::string_view end) {
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= group.size(); ++rank) offsets.push_back(bytes_of_rank() * rank);
  std::vector<GatherPart> parts;
  for (const Buffers& buffers : gathered)
    parts.push_back({.from = buffers.own, .to = buffers.all, .offsets_bytes = offsets});
  std::atomic<int> rounds{0};
  std::jthread killer;
  if (group.rank() == 1 && end == "killed-in-flight")
    killer = std::jthread([&] {
      for (int seen = rounds; seen < kRounds; seen = rounds) rounds.wait(seen);
      die_by(end);
    });
  for (;;) {
    group.all_gather(parts, "weights");
    ++rounds;
    rounds.notify_all();
    if (group.rank() == 1 && rounds == kRounds && !killer.joinable()) die_by(end);
    if (end == "well" && rounds == kRounds) return;
  }
}

void work_in_host_memory(ProcessGroup& world, std::string_view end) {
  const auto bytes = static_cast<std::size_t>(bytes_of_rank()), ranks = static_cast<std::size_t>(world.size());
  std::vector<std::byte> own(bytes), all(bytes * ranks);
  const Buffers buffers{own.data(), all.data()};
  work(world, {&buffers, 1}, end);
}

void work_on_device(ProcessGroup& world, std::string_view end) {
  using namespace fp8lab;
  const auto device = open_device(support::test_device(), {.rank = world.local_rank(), .memory = {}});
  const auto group = world.for_device(*device);
  device->memory().gather_from(group->gather_source());
  const HolderId anywhere = device->holder(HolderKind::kWorkspace), shared = device->holder(HolderKind::kUnsharded);
  device->memory().place(shared, Pool::kGathered);
  std::vector<Tensor> tensors;
  std::vector<Buffers> gathered;
  // Memory that other GPUs reach, and any other memory, so that gathers take both paths.
  for (const HolderId holder : {anywhere, shared}) {
    const Tensor& own = tensors.emplace_back(device->allocate({Shape{bytes_of_rank()}, DType::kU8}, holder));
    std::byte* const own_bytes = own.view().data;
    const Tensor& all =
        tensors.emplace_back(device->allocate({Shape{bytes_of_rank() * world.size()}, DType::kU8}, holder));
    gathered.push_back({own_bytes, all.view().data});
  }
  work(*group, gathered, end);
  device->synchronize();
  tensors.clear();
  device->memory().gather_from(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  using namespace fp8lab::comm_test;
  try {
    fp8lab::RunOptions options = run_options(launched_ranks());
    options.notify = {};
    const bool on_device = fp8lab::support::test_device() != "cpu";
    options.timeout = std::chrono::seconds(on_device ? 5 : 2);  // GPUs take a while to open
    fp8lab::run_ranks(row(), options, [&](ProcessGroup& world) {
      on_device ? work_on_device(world, argv[1]) : work_in_host_memory(world, argv[1]);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
