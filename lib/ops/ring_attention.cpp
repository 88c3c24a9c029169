#include "ops/ring_attention.h"

#include <fmt/core.h>

#include <span>
#include <utility>

#include "core/check.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

/// Attention of one of this rank's chunks of queries over one of another rank's chunks of keys.
struct ChunkPair {
  std::int64_t queries;
  std::int64_t keys;
  bool causal;  ///< both are the same tokens; otherwise every query sees every key
};
constexpr ChunkPair kOwn[] = {{0, 0, true}, {1, 1, true}, {1, 0, false}};
constexpr ChunkPair kOfEarlierRank[] = {{0, 0, false}, {1, 0, false}};
constexpr ChunkPair kOfLaterRank[] = {{1, 0, false}, {1, 1, false}};
constexpr ChunkPair kUnmasked[] = {{0, 0, false}, {1, 1, false}, {0, 1, false}, {1, 0, false}};

/// The pairs that `rank` computes while it has the keys of rank `source`.
std::span<const ChunkPair> pairs(bool causal, int rank, int source) {
  if (!causal) return kUnmasked;
  if (source == rank) return kOwn;
  return source < rank ? std::span<const ChunkPair>(kOfEarlierRank) : kOfLaterRank;
}

/// Sizes of a chunk, and how a pair of chunks is computed.
struct Chunks {
  explicit Chunks(const AttentionShape& shape)
      : of_pair(shape),
        rows(shape.seq / 2 * shape.batch),
        q_columns(shape.heads * shape.head_dim),
        k_columns(shape.kv_heads * shape.head_dim) {
    of_pair.seq = shape.seq / 2;
  }

  AttentionShape shape(const ChunkPair& pair) const {
    AttentionShape shape = of_pair;
    shape.causal = pair.causal;
    return shape;
  }
  template <class Matrix>
  Matrix rows_of(const Matrix& matrix, std::int64_t chunk) const {
    return matrix.row_range(chunk * rows, rows);
  }
  /// K or V among the columns of both.
  template <class Matrix>
  Matrix keys(const Matrix& kv) const {
    return kv.columns(0, k_columns);
  }
  template <class Matrix>
  Matrix values(const Matrix& kv) const {
    return kv.columns(k_columns, k_columns);
  }

  AttentionShape of_pair;
  std::int64_t rows;
  std::int64_t q_columns;
  std::int64_t k_columns;
};

void check_split(std::string_view op, const AttentionShape& shape, const AttentionMatrix& kv) {
  if (shape.seq % 2 != 0)
    fail(fmt::format("{}: seq is {}; a rank has two chunks of equal length of every sequence", op, shape.seq));
  if (shape.dropout != 0.0f)
    fail(
        fmt::format("{}: dropout is {}; masks are not drawn by the tokens' places in the sequence", op, shape.dropout));
  if (shape.window != 0)
    fail(fmt::format("{}: window is {}; ranks that split sequences see all keys before a query", op, shape.window));
  const Tensor& values = kv.values;
  if (!values.contiguous() || values.rows() != shape.seq * shape.batch ||
      values.cols() != 2 * shape.kv_heads * shape.head_dim)
    fail(
        fmt::format("{}: kv is {}; it must be a contiguous [seq * batch, 2 * kv_heads * head_dim] = [{} * {}, 2 * {} * "
                    "{}]",
                    op, to_string(values.shape()), shape.seq, shape.batch, shape.kv_heads, shape.head_dim));
}

Tensor allocate_like(Device& device, const Tensor& tensor, HolderId holder) {
  return tensor ? device.allocate(tensor.spec(), holder) : Tensor();
}

/// The parts of one exchange.
class Exchange {
 public:
  void add(const Tensor& from, const Tensor& to, Content content = Content::kPayload) {
    if (from)
      parts_[count_++] = {.from = from.view().data, .to = to.view().data, .bytes = from.bytes(), .content = content};
  }
  void add(const AttentionMatrix& from, const AttentionMatrix& to) {
    add(from.values, to.values);
    add(from.scale_inv, to.scale_inv, Content::kScales);
  }
  std::span<const ExchangePart> parts() const { return std::span(parts_).first(count_); }

 private:
  std::array<ExchangePart, 3> parts_{};
  std::size_t count_ = 0;
};

AttentionMatrix like(Device& device, const AttentionMatrix& matrix, HolderId holder) {
  return {allocate_like(device, matrix.values, holder), allocate_like(device, matrix.scale_inv, holder)};
}

void merge(Device& device, const AttentionShape& shape, const AttentionOutputs& part, const Tensor& o,
           const Tensor& lse) {
  device.launch(&KernelTable::attention_merge, AttentionMergeArgs{.part_o = part.o.view(),
                                                                  .part_lse = part.lse.view(),
                                                                  .o = o.view(),
                                                                  .lse = lse.view(),
                                                                  .batch = shape.batch,
                                                                  .heads = shape.heads});
}

}  // namespace

OperandView AttentionMatrix::operand() const {
  OperandView view = values.operand();
  if (scale_inv)
    view.scales = {.data = scale_inv.view().data, .dtype = scale_inv.dtype(), .storage_elems = scale_inv.numel()};
  return view;
}

AttentionMatrix AttentionMatrix::row_range(std::int64_t begin, std::int64_t count) const {
  return {values.row_range(begin, count), scale_inv};
}

AttentionMatrix AttentionMatrix::columns(std::int64_t begin, std::int64_t count) const {
  return {values.columns(begin, count), scale_inv};
}

RingAttentionOutputs ring_attention_forward(Device& device, RingAttentionInputs inputs) {
  check_split("ring_attention_forward", inputs.shape, inputs.kv);
  const Chunks chunks(inputs.shape);
  ProcessGroup& ranks = inputs.ranks;
  RingAttentionOutputs outputs;
  AttentionMatrix& kv = outputs.kv;
  kv = std::exchange(inputs.kv, {});
  for (int step = 0; step < ranks.size(); ++step) {
    if (step > 0) {
      AttentionMatrix received = like(device, kv, inputs.holder);
      Exchange exchange;
      exchange.add(kv, received);
      ranks.ring_exchange(1, exchange.parts(), inputs.label);
      kv = std::move(received);
    }
    const int source = (ranks.rank() - step + ranks.size()) % ranks.size();
    for (const ChunkPair& pair : pairs(inputs.shape.causal, ranks.rank(), source)) {
      const AttentionMatrix of_keys = chunks.rows_of(kv, pair.keys);
      AttentionOutputs part = attention_forward(device, {.shape = chunks.shape(pair),
                                                         .q = chunks.rows_of(inputs.q, pair.queries).operand(),
                                                         .k = chunks.keys(of_keys).operand(),
                                                         .v = chunks.values(of_keys).operand(),
                                                         .s = inputs.s,
                                                         .out_dtype = DType::kF32,
                                                         .o_holder = inputs.holder,
                                                         .lse_holder = inputs.holder});
      const auto chunk = static_cast<std::size_t>(pair.queries);
      if (outputs.o[chunk]) {
        merge(device, inputs.shape, part, outputs.o[chunk], outputs.lse[chunk]);
      } else {
        outputs.o[chunk] = std::move(part.o);
        outputs.lse[chunk] = std::move(part.lse);
      }
    }
  }
  return outputs;
}

RingAttentionGradients ring_attention_backward(Device& device, const RingAttentionBackwardInputs& inputs) {
  const AttentionShape& shape = inputs.shape;
  check_split("ring_attention_backward", shape, inputs.kv);
  const Chunks chunks(shape);
  ProcessGroup& ranks = inputs.ranks;
  const auto zeros = [&](std::int64_t columns) {
    Tensor tensor = device.allocate({Shape{2 * chunks.rows, columns}, DType::kF32}, inputs.holder);
    fill(device, tensor, 0.0f);
    return tensor;
  };
  RingAttentionGradients gradients{.q = zeros(chunks.q_columns), .kv = zeros(2 * chunks.k_columns)};
  AttentionMatrix kv = inputs.kv;
  for (int step = 0; step < ranks.size(); ++step) {
    if (step > 0) {
      AttentionMatrix received = like(device, kv, inputs.holder);
      Tensor received_gradient = allocate_like(device, gradients.kv, inputs.holder);
      Exchange exchange;
      exchange.add(kv, received);
      exchange.add(gradients.kv, received_gradient);
      ranks.ring_exchange(-1, exchange.parts(), inputs.label);
      kv = std::move(received);
      gradients.kv = std::move(received_gradient);
    }
    const int source = (ranks.rank() + 1 + step) % ranks.size();
    for (const ChunkPair& pair : pairs(shape.causal, ranks.rank(), source)) {
      const AttentionMatrix of_keys = chunks.rows_of(kv, pair.keys);
      const Tensor grad_q = device.allocate({Shape{chunks.rows, chunks.q_columns}, DType::kF32}, inputs.holder);
      const Tensor grad_kv = device.allocate({Shape{chunks.rows, 2 * chunks.k_columns}, DType::kF32}, inputs.holder);
      attention_backward(device, {.shape = chunks.shape(pair),
                                  .q = chunks.rows_of(inputs.q, pair.queries).operand(),
                                  .k = chunks.keys(of_keys).operand(),
                                  .v = chunks.values(of_keys).operand(),
                                  .o = chunks.rows_of(inputs.o, pair.queries).operand(),
                                  .grad_o = chunks.rows_of(inputs.grad_o, pair.queries).operand(),
                                  .lse = inputs.lse[static_cast<std::size_t>(pair.queries)],
                                  .s = inputs.s,
                                  .grad_p = inputs.grad_p,
                                  .out = {grad_q, chunks.keys(grad_kv), chunks.values(grad_kv)}});
      add_into(device, chunks.rows_of(gradients.q, pair.queries), grad_q);
      add_into(device, chunks.rows_of(gradients.kv, pair.keys), grad_kv);
    }
  }
  return gradients;
}

}  // namespace fp8lab
