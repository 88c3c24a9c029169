#include "backend/cpu/kernels.h"
#include "core/elementary.h"

namespace fp8lab::cpu {

void attention_merge(const AttentionMergeArgs& args, ExecContext&) {
  const std::int64_t head_dim = args.o.cols / args.heads;
  for (std::int64_t row = 0; row < args.o.rows; ++row) {
    const std::int64_t position = row / args.batch, sequence = row % args.batch;
    for (std::int64_t head = 0; head < args.heads; ++head) {
      const std::int64_t lse_row = sequence * args.heads + head;
      float& lse = args.lse.as<float>()[lse_row * args.lse.row_stride + position];
      const float part_lse = args.part_lse.as<const float>()[lse_row * args.part_lse.row_stride + position];
      const MergedLogSums merged = merge_log_sums(lse, part_lse);
      lse = merged.log_sum;
      float* o = args.o.as<float>() + row * args.o.row_stride + head * head_dim;
      const float* part_o = args.part_o.as<const float>() + row * args.part_o.row_stride + head * head_dim;
      for (std::int64_t d = 0; d < head_dim; ++d) o[d] = o[d] * merged.share_of_a + part_o[d] * merged.share_of_b;
    }
  }
}

}  // namespace fp8lab::cpu
