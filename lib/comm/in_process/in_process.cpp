#include "comm/in_process/in_process.h"

#include <fmt/core.h>

#include <exception>
#include <memory>
#include <numeric>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "comm/in_process/group.h"
#include "comm/in_process/group_state.h"
#include "comm/in_process/world.h"

namespace fp8lab {
namespace {

using in_process::GroupState;
using in_process::World;

void run_rank(World& world, GroupState& group_state, std::vector<int> world_ranks, int rank, const RunOptions& options,
              const RankFunction& rank_function) noexcept {
  try {
    const auto group = in_process::make_group(world, group_state, std::move(world_ranks), rank, options.moves_data);
    rank_function(*group);
  } catch (...) {
    world.abort(current_failure(), rank);
  }
  world.leave(rank);
}

}  // namespace

std::string in_process_unavailable_reason() { return {}; }

void run_in_process(const RunOptions& options, const RankFunction& rank_function) {
  World world(options);
  std::vector<int> everyone(static_cast<std::size_t>(options.ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  GroupState& group_state = world.group_state({}, "world", everyone);
  {
    const std::stop_callback stopped(options.stop, [&] { world.abort({.reason = std::string(kStoppedFromOutside)}); });
    std::vector<std::jthread> threads;
    threads.reserve(everyone.size());
    try {
      for (const int rank : everyone)
        threads.emplace_back([&, rank] { run_rank(world, group_state, everyone, rank, options, rank_function); });
    } catch (const std::exception& error) {
      world.abort(
          {.reason = fmt::format("the thread of rank {} could not be started: {}", threads.size(), error.what())});
    }
  }
  world.throw_cause();
}

}  // namespace fp8lab
