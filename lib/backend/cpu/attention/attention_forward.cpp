#include <algorithm>
#include <vector>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/kernels.h"
#include "core/elementary.h"
#include "core/shape.h"

namespace fp8lab::cpu {
namespace {

using namespace attention;

/// Operands of one key/value head, and buffers for one tile of queries. Its size grows with seq, never with seq
/// squared: the logits of kQueryTile queries are kept in full, so that the second pass does not compute them again.
struct ForwardScratch {
  ForwardScratch(const AttentionShape& shape, const MatrixView& sinks_of_heads)
      : dim(round_up(shape.head_dim, kLanes)),
        value_dim(round_up(shape.columns_of_value(), kLanes)),
        keys(round_up(shape.seq, kLanes)),
        rows(static_cast<std::size_t>(keys * std::max(dim, value_dim))),
        k_packed(static_cast<std::size_t>(keys * shape.head_dim)),
        logits(static_cast<std::size_t>(kQueryTile * keys)),
        q(static_cast<std::size_t>(kQueryTile * dim)),
        o(static_cast<std::size_t>(kQueryTile * value_dim)),
        sinks(read_sinks(sinks_of_heads)),
        dropout(static_cast<std::size_t>(keys)) {}

  std::int64_t dim;
  std::int64_t value_dim;
  std::int64_t keys;
  std::vector<float> rows;  ///< K until it is packed, then V
  std::vector<float> k_packed;
  std::vector<float> logits;
  std::vector<float> q;
  std::vector<float> o;
  std::vector<float> sinks;
  std::vector<float> dropout;
};

void load_keys_and_values(const AttentionForwardArgs& args, HeadRows head, ForwardScratch& scratch) {
  load_rows(args.k.values, head, scratch.rows.data(), scratch.dim);
  pack_transposed(scratch.rows.data(), scratch.dim, head.count, head.head_dim, scratch.k_packed.data());
  load_rows(args.v.values, values_of(args.shape, head), scratch.rows.data(), scratch.value_dim);
}

void forward_tile(const AttentionForwardArgs& args, const HeadRows& rows, RoleCast& s_cast, ForwardScratch& scratch) {
  const LogitRule rule(args.shape, args.q, args.k);
  const DropoutRule dropout(args.shape, rows.sequence, rows.head);
  const std::int64_t first_key = rule.first_tile(rows.begin);
  const std::int64_t visible = rule.key_limit(rows.begin + rows.count - 1) - first_key;
  const std::int64_t keys = round_up(visible, kLanes);

  load_rows(args.q.values, rows, scratch.q.data(), scratch.dim);
  compute_logits({.rule = &rule,
                  .q = scratch.q.data(),
                  .q_stride = scratch.dim,
                  .k_packed = scratch.k_packed.data() + first_key * rows.head_dim,
                  .head_dim = rows.head_dim,
                  .queries = rows.count,
                  .keys = keys,
                  .first_query = rows.begin,
                  .first_key = first_key,
                  .logits = scratch.logits.data(),
                  .stride = scratch.keys});

  float* lse = args.lse.as<float>() + (rows.sequence * args.shape.heads + rows.head) * args.lse.row_stride;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* row = scratch.logits.data() + i * scratch.keys;
    const std::int64_t query = rows.begin + i;
    lse[query] = log_sum_exp(row, keys);
    if (!scratch.sinks.empty())
      lse[query] = merge_log_sums(lse[query], scratch.sinks[static_cast<std::size_t>(rows.head)]).log_sum;
    softmax_from_lse(row, keys, lse[query]);
    if (dropout.active()) {
      dropout.factors(query, first_key, keys, scratch.dropout.data());
      for (std::int64_t j = 0; j < keys; ++j) row[j] *= scratch.dropout[static_cast<std::size_t>(j)];
    }
    s_cast.apply(row, keys);
  }

  for (std::int64_t key = 0; key < visible; key += kKeyTile) {
    multiply({.m = rows.count,
              .n = scratch.value_dim,
              .k = std::min(kKeyTile, visible - key),
              .a = scratch.logits.data() + key,
              .a_row_stride = scratch.keys,
              .b = scratch.rows.data() + (first_key + key) * scratch.value_dim,
              .b_row_stride = scratch.value_dim,
              .c = scratch.o.data(),
              .c_row_stride = scratch.value_dim,
              .accumulate = key > 0});
  }
  store_rows(args.o, values_of(args.shape, rows), scratch.o.data(), scratch.value_dim,
             joint_factor(s_cast.scale_inv(), scale_inv_of(args.v)));
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, ExecContext&) {
  const AttentionShape& shape = args.shape;
  const std::int64_t heads_per_kv_head = shape.heads / shape.kv_heads;
  ForwardScratch scratch(shape, args.sinks);
  RoleCast s_cast(args.s);
  for (std::int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      HeadRows rows{.batch = shape.batch,
                    .sequence = sequence,
                    .head = head / heads_per_kv_head,
                    .head_dim = shape.head_dim,
                    .begin = 0,
                    .count = shape.seq};
      if (head % heads_per_kv_head == 0) load_keys_and_values(args, rows, scratch);
      rows.head = head;
      for (rows.begin = 0; rows.begin < shape.seq; rows.begin += kQueryTile) {
        rows.count = std::min(kQueryTile, shape.seq - rows.begin);
        forward_tile(args, rows, s_cast, scratch);
      }
    }
  }
  s_cast.store_amax();
}

}  // namespace fp8lab::cpu
