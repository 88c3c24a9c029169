#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/ranks.h"

// A program for mpirun or launch_ranks whose rank 1 comes to the end that its first argument names, after some rounds of collectives.
namespace {

using fp8lab::GatherPart;
using fp8lab::ProcessGroup;

constexpr int kRounds = 20;

void meet_the_end(std::string_view end) {
  if (end == "killed") raise(SIGKILL);
  if (end == "crashed") raise(SIGSEGV);
  if (end == "stopped") raise(SIGSTOP);
  if (end == "exited") _exit(0);
  if (end == "thrown") fp8lab::fail("boom");
  while (end == "silent") pause();
}

void work(ProcessGroup& group, std::string_view end) {
  constexpr std::int64_t kBytes = std::int64_t{4} << 20;
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= group.size(); ++rank) offsets.push_back(kBytes * rank);
  std::vector<std::byte> own(kBytes);
  std::vector<std::byte> all(static_cast<std::size_t>(offsets.back()));
  const GatherPart part{.from = own.data(), .to = all.data(), .offsets_bytes = offsets};
  std::atomic<int> rounds{0};
  std::jthread killer;
  if (group.rank() == 1 && end == "killed-in-flight")
    killer = std::jthread([&] {
      for (int seen = rounds; seen < kRounds; seen = rounds) rounds.wait(seen);
      raise(SIGKILL);
    });
  for (;;) {
    group.all_gather({&part, 1}, "weights");
    ++rounds;
    rounds.notify_all();
    if (group.rank() == 1 && rounds == kRounds) meet_the_end(end);
    if (end == "well" && rounds == kRounds) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  using namespace fp8lab::comm_test;
  try {
    fp8lab::RunOptions options = run_options(launched_ranks());
    options.timeout = std::chrono::seconds(2);
    fp8lab::run_ranks(row(), options, [&](ProcessGroup& group) { work(group, argv[1]); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
