#include <algorithm>
#include <vector>

#include "backend/cpu/attention/attention_tiles.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/vectorized.h"
#include "core/elementary.h"
#include "core/shape.h"

namespace fp8lab::cpu {
namespace {

using namespace attention;

using Floats = std::vector<float>;

/// Operands and gradients of one key/value head, and buffers for one tile of queries by keys. Its size grows with seq,
/// never with seq squared.
struct BackwardScratch {
  explicit BackwardScratch(const AttentionShape& shape)
      : dim(round_up(shape.head_dim, kLanes)),
        value_dim(round_up(shape.columns_of_value(), kLanes)),
        keys(round_up(shape.seq, kLanes)) {
    const auto floats = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    k.resize(floats(keys * std::max(dim, value_dim)));
    for (Floats* matrix : {&grad_k, &group_grad_k}) matrix->resize(floats(keys * dim));
    for (Floats* matrix : {&grad_v, &group_grad_v}) matrix->resize(floats(keys * value_dim));
    k_packed.resize(floats(keys * shape.head_dim));
    v_packed.resize(floats(keys * shape.columns_of_value()));
    for (Floats* matrix : {&q, &grad_q}) matrix->resize(floats(kQueryTile * dim));
    for (Floats* matrix : {&o, &grad_o}) matrix->resize(floats(kQueryTile * value_dim));
    for (Floats* matrix : {&p, &grad_p}) matrix->resize(kQueryTile * kKeyTile);
    row_dots.resize(kQueryTile);
    dropout.resize(kKeyTile);
  }

  std::int64_t dim;
  std::int64_t value_dim;
  std::int64_t keys;
  Floats k;  ///< V until it is packed, then K
  Floats k_packed;
  Floats v_packed;
  Floats grad_k;  ///< gradient of one query head
  Floats grad_v;
  Floats group_grad_k;  ///< sum over the query heads of the group so far, added head by head
  Floats group_grad_v;
  Floats q;
  Floats o;
  Floats grad_o;
  Floats grad_q;
  Floats row_dots;  ///< rowsum(dO * O)
  Floats p;
  Floats grad_p;
  Floats dropout;
};

/// Arguments, rules and casts that every tile of queries uses.
struct Pass {
  const AttentionBackwardArgs& args;
  LogitRule rule;
  RoleCast s_cast;
  RoleCast grad_p_cast;
  float grad_p_factor;  ///< dP = this * (product of stored dO and V)
  float dot_factor;     ///< rowsum(dO * O) = this * (sum of products of stored elements)
  std::vector<float> sinks;
  std::vector<double> grad_sinks;

  explicit Pass(const AttentionBackwardArgs& a)
      : args(a),
        rule(a.shape, a.q, a.k),
        s_cast(a.s),
        grad_p_cast(a.grad_p),
        grad_p_factor(joint_factor(scale_inv_of(a.grad_o), scale_inv_of(a.v))),
        dot_factor(joint_factor(scale_inv_of(a.grad_o), scale_inv_of(a.o))),
        sinks(read_sinks(a.sinks)),
        grad_sinks(sinks.size()) {}
};

void load_keys_and_values(const AttentionBackwardArgs& args, const HeadRows& head, BackwardScratch& scratch) {
  const HeadRows values = values_of(args.shape, head);
  load_rows(args.v.values, values, scratch.k.data(), scratch.value_dim);
  pack_transposed(scratch.k.data(), scratch.value_dim, values.count, values.head_dim, scratch.v_packed.data());
  load_rows(args.k.values, head, scratch.k.data(), scratch.dim);
  pack_transposed(scratch.k.data(), scratch.dim, head.count, head.head_dim, scratch.k_packed.data());
}

void load_queries(const Pass& pass, const HeadRows& rows, BackwardScratch& scratch) {
  load_rows(pass.args.q.values, rows, scratch.q.data(), scratch.dim);
  const HeadRows values = values_of(pass.args.shape, rows);
  load_rows(pass.args.o.values, values, scratch.o.data(), scratch.value_dim);
  load_rows(pass.args.grad_o.values, values, scratch.grad_o.data(), scratch.value_dim);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* o = scratch.o.data() + i * scratch.value_dim;
    const float* grad_o = scratch.grad_o.data() + i * scratch.value_dim;
    // In double: dS = P * (dP - dot) is a difference, so an FP32 error of the dot would be large relative to dS.
    double dot = 0;
    for (std::int64_t d = 0; d < values.head_dim; ++d)
      dot += static_cast<double>(o[d]) * static_cast<double>(grad_o[d]);
    scratch.row_dots[static_cast<std::size_t>(i)] = static_cast<float>(dot * static_cast<double>(pass.dot_factor));
  }
}

/// Adds the part of a tile of queries to the gradient of their head's sink, after load_queries().
void add_sink_gradient(Pass& pass, const HeadRows& rows, const BackwardScratch& scratch) {
  if (pass.sinks.empty()) return;
  const auto head = static_cast<std::size_t>(rows.head);
  const MatrixView& lse = pass.args.lse;
  const float* head_lse =
      lse.as<float>() + (rows.sequence * pass.args.shape.heads + rows.head) * lse.row_stride + rows.begin;
  for (std::int64_t i = 0; i < rows.count; ++i)
    pass.grad_sinks[head] -= static_cast<double>(exponential(pass.sinks[head] - head_lse[i])) *
                             static_cast<double>(scratch.row_dots[static_cast<std::size_t>(i)]);
}

void store_sink_gradients(const Pass& pass) {
  if (pass.sinks.empty()) return;
  std::vector<float> sums(pass.grad_sinks.begin(), pass.grad_sinks.end());
  store(sums.data(), std::ssize(sums), pass.args.grad_sinks, 0, 0);
}

/// In place: rows of logits become P as the product for dV reads it (after dropout and cast), and rows of dO V^T become
/// dS as the products for dQ and dK read it (cast).
void differentiate_softmax(Pass& pass, const HeadRows& rows, std::int64_t first_key, std::int64_t keys,
                           BackwardScratch& scratch) {
  const AttentionShape& shape = pass.args.shape;
  const DropoutRule dropout(shape, rows.sequence, rows.head);
  const MatrixView& lse = pass.args.lse;
  const float* head_lse = lse.as<float>() + (rows.sequence * shape.heads + rows.head) * lse.row_stride;
  std::fill(scratch.dropout.begin(), scratch.dropout.end(), 1.0f);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* p = scratch.p.data() + i * kKeyTile;
    float* grad = scratch.grad_p.data() + i * kKeyTile;
    const float* factors = scratch.dropout.data();
    const float dot = scratch.row_dots[static_cast<std::size_t>(i)];
    softmax_from_lse(p, keys, head_lse[rows.begin + i]);
    if (dropout.active()) dropout.factors(rows.begin + i, first_key, keys, scratch.dropout.data());
    vectorized([=, factor = pass.grad_p_factor] {
      for (std::int64_t j = 0; j < keys; ++j) {
        const float grad_p = (grad[j] * factor) * factors[j];
        grad[j] = p[j] * (grad_p - dot);
        p[j] *= factors[j];
      }
    });
    pass.s_cast.apply(p, keys);
    pass.grad_p_cast.apply(grad, keys);
  }
}

void backward_tile(Pass& pass, const HeadRows& rows, std::int64_t first_key, BackwardScratch& scratch) {
  const std::int64_t dim = scratch.dim, value_dim = scratch.value_dim;
  const std::int64_t value_columns = pass.args.shape.columns_of_value();
  const std::int64_t limit = pass.rule.key_limit(rows.begin + rows.count - 1) - first_key;
  const std::int64_t visible = std::min(kKeyTile, limit);
  const std::int64_t keys = round_up(visible, kLanes);

  compute_logits({.rule = &pass.rule,
                  .q = scratch.q.data(),
                  .q_stride = dim,
                  .k_packed = scratch.k_packed.data() + first_key * rows.head_dim,
                  .head_dim = rows.head_dim,
                  .queries = rows.count,
                  .keys = keys,
                  .first_query = rows.begin,
                  .first_key = first_key,
                  .logits = scratch.p.data(),
                  .stride = kKeyTile});
  multiply({.m = rows.count,
            .n = keys,
            .k = value_columns,
            .a = scratch.grad_o.data(),
            .a_row_stride = value_dim,
            .b = scratch.v_packed.data() + first_key * value_columns,
            .b_group_stride = value_columns * kLanes,
            .b_row_stride = kLanes,
            .c = scratch.grad_p.data(),
            .c_row_stride = kKeyTile,
            .accumulate = false});
  differentiate_softmax(pass, rows, first_key, keys, scratch);

  TileProduct key_gradient{.m = keys,
                           .n = value_dim,
                           .k = rows.count,
                           .a = scratch.p.data(),
                           .a_row_stride = 1,
                           .a_col_stride = kKeyTile,
                           .b = scratch.grad_o.data(),
                           .b_row_stride = value_dim,
                           .c = scratch.grad_v.data() + first_key * value_dim,
                           .c_row_stride = value_dim};
  multiply(key_gradient);
  key_gradient.n = key_gradient.b_row_stride = key_gradient.c_row_stride = dim;
  key_gradient.a = scratch.grad_p.data();
  key_gradient.b = scratch.q.data();
  key_gradient.c = scratch.grad_k.data() + first_key * dim;
  multiply(key_gradient);
  multiply({.m = rows.count,
            .n = dim,
            .k = visible,
            .a = scratch.grad_p.data(),
            .a_row_stride = kKeyTile,
            .b = scratch.k.data() + first_key * dim,
            .b_row_stride = dim,
            .c = scratch.grad_q.data(),
            .c_row_stride = dim,
            .accumulate = first_key > pass.rule.first_tile(rows.begin)});
}

void backward_query_head(Pass& pass, HeadRows rows, BackwardScratch& scratch) {
  const AttentionBackwardArgs& args = pass.args;
  std::fill(scratch.grad_k.begin(), scratch.grad_k.end(), 0.0f);
  std::fill(scratch.grad_v.begin(), scratch.grad_v.end(), 0.0f);
  const float grad_q_factor =
      joint_factor(pass.grad_p_cast.scale_inv(), scale_inv_of(args.k), args.shape.softmax_scale);
  for (rows.begin = 0; rows.begin < args.shape.seq; rows.begin += kQueryTile) {
    rows.count = std::min(kQueryTile, args.shape.seq - rows.begin);
    load_queries(pass, rows, scratch);
    add_sink_gradient(pass, rows, scratch);
    const std::int64_t limit = pass.rule.key_limit(rows.begin + rows.count - 1);
    for (std::int64_t key = pass.rule.first_tile(rows.begin); key < limit; key += kKeyTile)
      backward_tile(pass, rows, key, scratch);
    store_rows(args.grad_q, rows, scratch.grad_q.data(), scratch.dim, grad_q_factor);
  }
}

void add(const Floats& from, Floats& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

}  // namespace

void attention_backward(const AttentionBackwardArgs& args, ExecContext&) {
  const AttentionShape& shape = args.shape;
  const std::int64_t heads_per_kv_head = shape.heads / shape.kv_heads;
  BackwardScratch scratch(shape);
  Pass pass(args);
  const float grad_k_factor = joint_factor(pass.grad_p_cast.scale_inv(), scale_inv_of(args.q), shape.softmax_scale);
  const float grad_v_factor = joint_factor(pass.s_cast.scale_inv(), scale_inv_of(args.grad_o));
  for (std::int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      HeadRows rows{.batch = shape.batch,
                    .sequence = sequence,
                    .head = kv_head,
                    .head_dim = shape.head_dim,
                    .begin = 0,
                    .count = shape.seq};
      load_keys_and_values(args, rows, scratch);
      std::fill(scratch.group_grad_k.begin(), scratch.group_grad_k.end(), 0.0f);
      std::fill(scratch.group_grad_v.begin(), scratch.group_grad_v.end(), 0.0f);
      for (std::int64_t member = 0; member < heads_per_kv_head; ++member) {
        HeadRows query_rows = rows;
        query_rows.head = kv_head * heads_per_kv_head + member;
        backward_query_head(pass, query_rows, scratch);
        add(scratch.grad_k, scratch.group_grad_k);
        add(scratch.grad_v, scratch.group_grad_v);
      }
      store_rows(args.grad_k, rows, scratch.group_grad_k.data(), scratch.dim, grad_k_factor);
      store_rows(args.grad_v, values_of(shape, rows), scratch.group_grad_v.data(), scratch.value_dim, grad_v_factor);
    }
  }
  store_sink_gradients(pass);
  pass.s_cast.store_amax();
  pass.grad_p_cast.store_amax();
}

}  // namespace fp8lab::cpu
