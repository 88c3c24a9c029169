#include "harness/run/fake_arms.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "core/check.h"
#include "harness/cell/temporary_folder.h"
#include "harness/scenario/scenario.h"

namespace fp8lab::sample {
namespace {

void wait_for_ever() {
  for (;;) ::pause();
}

/// Allocates more than any limit allows, piece by piece.
void exhaust_memory() {
  std::vector<std::unique_ptr<char[]>> pieces;
  for (;;) pieces.push_back(std::make_unique_for_overwrite<char[]>(std::size_t{64} << 20));
}

void spin() {
  for (volatile bool forever = true; forever;) {
  }
}

constexpr int kMomentMilliseconds = 500;

double retained(Arm arm) { return arm == Arm::kBefore ? 100 : 0; }

ArmResult measured(Arm arm) {
  ArmResult out;
  out.metrics["memory.retained_bytes"] = {retained(arm), std::nullopt, "B", ""};
  out.metrics["memory.unexplained_bytes"] = {0, std::nullopt, "B", ""};
  out.metrics["memory.unbalanced_bytes"] = {0, std::nullopt, "B", ""};
  out.metrics["memory.peak_bytes"] = {1000 + retained(arm), std::nullopt, "B", ""};
  if (arm == Arm::kBefore)
    out.retained_by_holder = {{"context of attention[0]: q, k, v", 60}, {"context of attention[1]: q, k, v", 40}};
  out.sequence_hash = "00000000000000aa";
  out.timeline_json = "{\"events\": []}";
  return out;
}

}  // namespace

ArmResult fake_arm(const CellConfig& cell, Arm arm) {
  const std::string prefix = std::string(name(arm)) + "_";
  const std::string what = cell.scenario.starts_with(prefix) ? cell.scenario.substr(prefix.size()) : "";
  ArmResult out = measured(arm);
  if (what == "segv") ::raise(SIGSEGV);
  if (what == "abort") std::abort();
  if (what == "kill") ::raise(SIGKILL);
  if (what == "litter") {
    std::fputs(make_temporary_folder("fp8lab-litter-").c_str(), stderr);
    ::raise(SIGKILL);
  }
  if (what == "exit") ::_exit(0);
  if (what == "exit3") {
    std::fputs("first line\nthe last words\n\n", stderr);
    ::_exit(3);
  }
  if (what == "hang") wait_for_ever();
  if (what == "deaf") {
    ::signal(SIGTERM, SIG_IGN);
    wait_for_ever();
  }
  if (what == "family") {
    // A grandchild that outlives its parent unless the entire process group is ended; the arm reports its process id.
    const pid_t grandchild = ::fork();
    if (grandchild == 0) wait_for_ever();
    out.retained_by_holder = {{"grandchild", grandchild}};
  }
  if (what == "oom") throw OutOfMemory("device memory: 3 GiB asked, 2 GiB left");
  if (what == "bad_alloc") throw std::bad_alloc();
  if (what == "greedy") exhaust_memory();
  if (what == "greedy_thread") std::thread(exhaust_memory).join();
  if (what == "spin") spin();
  if (what == "threads") throw std::system_error(EAGAIN, std::generic_category(), "thread");
  if (what == "error") throw Error("quantize: \"x\" <&> \x01 \xFF");
  if (what == "garbage") {
    (void)!::write(3, "{\"status\": ", 11);
    ::_exit(0);
  }
  if (what == "spam") {
    for (int i = 0; i < 100000; ++i) std::printf("line %d of much output\n", i);
    std::fflush(stdout);
    ::raise(SIGSEGV);
  }
  if (what == "signals") {
    sigset_t blocked;
    ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
    struct sigaction pipe{};
    ::sigaction(SIGPIPE, nullptr, &pipe);
    out.retained_by_holder = {{"blocks SIGTERM", sigismember(&blocked, SIGTERM)},
                              {"ignores SIGPIPE", pipe.sa_handler == SIG_IGN}};
  }
  if (what == "pid" || cell.scenario == "pids") out.retained_by_holder = {{"process", ::getpid()}};
  if (what == "gpus") {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    out.notes.emplace_back(visible != nullptr ? visible : "all");
    ::poll(nullptr, 0, 100);  // so that several run at a time
  }
  if (what == "words") std::puts("words of an arm that went well");
  if (what == "big") out.timeline_json.assign(std::size_t{8} << 20, 'x');
  if (what == "nan") out.metrics["memory.retained_bytes"].value = std::nan("");
  if (what == "absent") out.metrics["memory.retained_bytes"] = {std::nullopt, std::nullopt, "B", "the ledger was off"};
  if (what == "mebibytes") out.metrics["memory.peak_bytes"] = {1.5, std::nullopt, "MiB", ""};
  if (what == "unknown") out.metrics["memory.own_bytes"] = {1.0, std::nullopt, "B", ""};
  if (what == "broken") out.metrics["memory.retained_bytes"].value = 100;
  if (what == "unharmed") out.metrics["memory.retained_bytes"].value = 0;
  if (what == "worse") out.metrics["memory.retained_bytes"].value = 200;
  return out;
}

ArmResult fake_arm_over(const StartRanks& start, const CellConfig& cell, Arm arm) {
  bool is_culprit = false;
  CellConfig config = cell;
  const char* const launched_as = std::getenv("RANK");
  if (cell.scenario == "rank_lacks_device" && arm == Arm::kBefore && launched_as != nullptr && *launched_as == '1')
    config.device = "absent";
  start(config, [&](ProcessGroup& world) {
    world.barrier("begin");
    if (arm == Arm::kBefore && world.rank() == 1) {
      if (cell.scenario == "rank_throws") fail("boom");
      if (cell.scenario == "rank_dies") ::raise(SIGKILL);
      if (cell.scenario == "rank_hangs") wait_for_ever();
    }
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (cell.scenario == "rank_waits" || cell.scenario == "rank_hangs_late") {
      if (cell.scenario == "rank_hangs_late" && world.rank() == 1 && std::chrono::steady_clock::now() >= late)
        wait_for_ever();
      world.barrier("again");
    }
    world.barrier("end");
    is_culprit = arm == Arm::kBefore && world.rank() == 1;
  });
  if (is_culprit && cell.scenario == "rank_stops") ::raise(SIGSTOP);
  if (is_culprit && cell.scenario == "rank_stops_idle")
    std::thread([] {
      ::poll(nullptr, 0, kMomentMilliseconds);
      ::kill(::getpid(), SIGSTOP);
    }).detach();
  return fake_arm(cell, arm);
}

std::map<std::string, double> fake_prediction(const CellConfig& cell, Arm arm) {
  if (cell.scenario == "rank_stops_idle") ::poll(nullptr, 0, 2 * kMomentMilliseconds);
  if (cell.scenario == "head_stops") ::raise(SIGSTOP);
  return {{"memory.retained_bytes", cell.scenario == "before_unharmed" ? 0 : retained(arm)}};
}

}  // namespace fp8lab::sample
