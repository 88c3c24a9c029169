#include "harness/run/launched_ranks.h"

#include <fmt/format.h>

#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/process_groups.h"
#include "core/check.h"
#include "core/fnv1a.h"
#include "harness/run/limits.h"

namespace fp8lab {
std::optional<LaunchedRanks> LaunchedRanks::discover(const EnvironmentLookup& variable) {
  const Launch launch = discover_launch(variable);
  if (launch.size == 1) return std::nullopt;  // for example in a shell that srun opened with one task
  ProcessGroupChoice choice = choose_process_group(launch, variable, process_group_row("mpi").unavailable_reason());
  Rendezvous rendezvous;
  if (choice.row == "sockets") {
    rendezvous = discover_rendezvous(launch, variable);
    constexpr long kOfTheRun = 24;
    need_descriptors(kOfTheRun + launch.size, "start fewer ranks");
  }
  return LaunchedRanks(launch, std::move(choice), std::move(rendezvous));
}

std::string LaunchedRanks::describe() const { return fmt::format("{} ranks: {}", size(), choice_.reason); }

void LaunchedRanks::run(RunOptions options, const RankFunction& rank_function, bool on_gpus) const {
  options.ranks = size();
  options.local_rank = launch_.local_rank;
  options.rendezvous = rendezvous_;
  options.over = choice_.row;
  options.notify = [](const std::string& line) { std::fprintf(stderr, "fp8lab: %s\n", line.c_str()); };
  const bool over_nccl = on_gpus && process_group_row("nccl").unavailable_reason().empty();
  run_ranks(over_nccl ? "nccl" : choice_.row, options, rank_function);
}

void LaunchedRanks::pass_on(Order& order, const RunOptions& options) const {
  run(options, [&](ProcessGroup& world) {
    const BroadcastPart part{.data = reinterpret_cast<std::byte*>(&order), .bytes = sizeof order};
    world.broadcast(0, {&part, 1}, "order");
  });
}

LaunchedRanks::Order LaunchedRanks::hear(const RunOptions& options) const {
  Order order;
  pass_on(order, options);
  return order;
}

std::int32_t LaunchedRanks::largest(std::int32_t value, const RunOptions& options) const {
  run(options, [&](ProcessGroup& world) {
    const ReducePart part{.data = reinterpret_cast<std::byte*>(&value), .elems = 1, .dtype = DType::kI32};
    world.all_reduce(ReduceOp::kMax, {&part, 1}, "signals");
  });
  return value;
}

void LaunchedRanks::check_equal(const std::string& text, const std::string& what, const RunOptions& options) const {
  const std::uint64_t own = fnv1a(text);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size()));
  std::vector<std::int64_t> offsets(all.size() + 1, sizeof own);
  offsets.front() = 0;
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  run(options, [&](ProcessGroup& world) {
    const GatherPart part{.from = reinterpret_cast<const std::byte*>(&own),
                          .to = reinterpret_cast<std::byte*>(all.data()),
                          .offsets_bytes = offsets};
    world.all_gather({&part, 1}, "plan");
  });
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all.front())
      fail(fmt::format("rank {} has other {} than rank 0; start every rank with the same arguments and files", rank,
                       what));
}

}  // namespace fp8lab
