#include "harness/measure/reference/mean_over_ranks.h"

#include <utility>
#include <vector>

#include "harness/cell/sharding_keys.h"
#include "harness/measure/over_ranks.h"

namespace fp8lab {

using reference_step::Matrix;

Matrix mean_over_ranks(const CellConfig& cell, ProcessGroup* world, const reference_step::Casts& storage,
                       const Matrix& mine, bool rounds) {
  if (world == nullptr) return mine;
  const bool in_bf16 =
      cell.reduce_dtype ? *cell.reduce_dtype == ReduceDType::kBF16 : cell.training.param_dtype == ParamDType::kBF16;
  const reference_step::Format& format = in_bf16 ? reference_step::kBF16 : reference_step::kF32;
  const auto round = [&](Matrix& values) {
    for (double& value : values.values)
      if (rounds) value = reference_step::rounded(value, format);
  };
  // DistributedDataParallel divides before it adds up, FSDP2 afterwards.
  const double ranks = world->size(), before = is_replicated(cell) ? ranks : 1.0;
  Matrix sent = mine;
  round(sent);
  for (double& value : sent.values) value /= before;
  round(sent);
  const std::vector<double> all = of_all_ranks(world, sent.values, "reference gradients");
  const MeshText mesh = mesh_of(cell);
  Matrix sum(mine.rows, mine.cols);
  auto from = all.begin();
  for (int replica = 0; replica < mesh.replicas; ++replica) {
    Matrix of_replica(mine.rows, mine.cols);
    for (int shard = 0; shard < mesh.shards; ++shard)
      for (double& value : of_replica.values) value += *from++;
    round(of_replica);
    sum = reference_step::sum(sum, of_replica);
  }
  round(sum);
  for (double& value : sum.values) value /= ranks / before;
  round(sum);
  return rounds ? storage.stored(std::move(sum)) : sum;
}

}  // namespace fp8lab
