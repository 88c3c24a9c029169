#include "comm_beside_products.h"

#include <functional>
#include <vector>

#include "median.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "over_gpus.h"

namespace fp8lab {
namespace {

/// One rank's work in rows of products and gathers: four BF16 products of 8192 x 8192 x 8192, and a gather of `bytes`.
class ProductsAndGather {
 public:
  ProductsAndGather(const Mode& mode, ProcessGroup& world, std::int64_t bytes)
      : world_(world),
        gpu_part_(mode, world),
        offsets_(even_offsets(bytes, world.size())),
        to_(*gpu_part_.device, bytes, mode.windows),
        from_(*gpu_part_.device, bytes / world.size(), mode.windows),
        part_{.from = from_.data(), .to = to_.data(), .offsets_bytes = offsets_},
        holder_(gpu_part_.device->holder(HolderKind::kInFlight)),
        a_(gpu_part_.device->allocate({{kSide, kSide}, DType::kBF16}, holder_)),
        b_(gpu_part_.device->allocate(a_.spec(), holder_)) {
    random_fill(*gpu_part_.device, a_, {.seed = 1});
    random_fill(*gpu_part_.device, b_, {.seed = 2});
  }

  void multiply() {
    for (int i = 0; i < kProducts; ++i)
      gemm(*gpu_part_.device, {.a = a_.operand(), .b = b_.operand(), .holder = holder_});
  }
  void gather() { gpu_part_.group->all_gather({&part_, 1}, "gather"); }
  void gather_async() { gpu_part_.group->all_gather_async({&part_, 1}, "gather"); }
  void wait_for_async() { gpu_part_.group->wait_for_async(); }

  /// Times `work`, which the GPUs start together. Only rank 0 appends its seconds to `times`.
  void time(const std::function<void()>& work, std::vector<double>& times) {
    gpu_part_.device->synchronize();
    world_.barrier("together");
    gpu_part_.group->all_gather({&part_, 1}, "in step");
    const auto begin = gpu_part_.device->moment();
    work();
    const auto end = gpu_part_.device->moment();
    const double seconds = gpu_part_.device->seconds_between(*begin, *end);
    if (world_.rank() == 0) times.push_back(seconds);
  }

 private:
  static constexpr std::int64_t kSide = 8192;
  static constexpr int kProducts = 4;
  ProcessGroup& world_;
  GpuPart gpu_part_;
  std::vector<std::int64_t> offsets_;
  Buffer to_, from_;
  GatherPart part_;
  HolderId holder_;
  Tensor a_, b_;
};

}  // namespace

void gather_beside_products(benchmark::State& state, const Mode& mode) {
  std::vector<double> alone, beside, gather, both;
  Lockstep lockstep;
  run_ranks(mode.row, mode.options(), [&](ProcessGroup& world) {
    ProductsAndGather rank(mode, world, std::int64_t{512} << 20);
    const auto batch = [&] {
      rank.time([&] { rank.multiply(); }, alone);
      rank.time([&] { rank.gather(); }, gather);
      rank.time(
          [&] {
            rank.gather_async();
            rank.multiply();
          },
          beside);
      rank.wait_for_async();
      rank.time(
          [&] {
            rank.gather_async();
            rank.multiply();
            rank.wait_for_async();
          },
          both);
    };
    batch();
    lockstep.run(state, world, batch, [&] { return both.back(); });
  });
  state.counters["slowdown"] = median_of(beside) / median_of(alone);
  state.counters["hidden"] = (median_of(alone) + median_of(gather) - median_of(both)) / median_of(gather);
  state.counters["products_us"] = 1e6 * median_of(alone);
  state.counters["gather_us"] = 1e6 * median_of(gather);
}

void products_beside_late_ranks(benchmark::State& state, const Mode& mode) {
  std::vector<double> alone, beside;
  Lockstep lockstep;
  run_ranks(mode.row, mode.options(), [&](ProcessGroup& world) {
    ProductsAndGather rank(mode, world, std::int64_t{4} << 20);
    const auto batch = [&] {
      rank.time([&] { rank.multiply(); }, alone);
      rank.time(
          [&] {
            if (world.rank() != 0) rank.multiply();
            rank.gather_async();
            rank.multiply();
          },
          beside);
      rank.wait_for_async();
    };
    batch();
    lockstep.run(state, world, batch, [&] { return beside.back(); });
  });
  state.counters["slowdown"] = median_of(beside) / median_of(alone);
  state.counters["products_us"] = 1e6 * median_of(alone);
}

}  // namespace fp8lab
