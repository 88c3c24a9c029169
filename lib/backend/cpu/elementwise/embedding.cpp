#include <vector>

#include "backend/cpu/column_sums.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"

namespace fp8lab::cpu {
namespace {

// ColumnSums use three slots.
enum Slot { kRow, kOther, kSums };

/// The rows of each entry, in order: entry v has rows[begins[v]] ... rows[begins[v + 1] - 1].
struct RowsOfEntries {
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> rows;

  template <class EntryOf>
  RowsOfEntries(std::int64_t entries, std::int64_t count, const EntryOf& entry_of)
      : begins(static_cast<std::size_t>(entries) + 1), rows(static_cast<std::size_t>(count)) {
    for (std::int64_t i = 0; i < count; ++i) ++begins[static_cast<std::size_t>(entry_of(i)) + 1];
    for (std::size_t v = 1; v < begins.size(); ++v) begins[v] += begins[v - 1];
    std::vector<std::int64_t> next(begins.begin(), begins.end() - 1);
    for (std::int64_t i = 0; i < count; ++i)
      rows[static_cast<std::size_t>(next[static_cast<std::size_t>(entry_of(i))]++)] = i;
  }
};

std::int64_t token_at(const MatrixView& tokens, std::int64_t row) {
  return tokens.as<const std::int32_t>()[row * tokens.row_stride];
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, ExecContext&) {
  const std::int64_t cols = args.out.cols;
  float* out = scratch(kRow, cols);
  float* position = scratch(kOther, cols);
  for (std::int64_t i = 0; i < args.out.rows; ++i) {
    load(args.table, token_at(args.tokens, i), 0, cols, out);
    for (std::int64_t j = 0; j < cols; ++j) out[j] *= args.scale;
    if (args.positions.data != nullptr) {
      load(args.positions, i / args.batch, 0, cols, position);
      for (std::int64_t j = 0; j < cols; ++j) out[j] += position[j];
    }
    store(out, cols, args.out, i, 0);
  }
}

void embedding_backward(const EmbeddingBackwardArgs& args, ExecContext&) {
  const std::int64_t entries = args.grad_table.rows, cols = args.grad_table.cols;
  const bool has_tokens = args.tokens.data != nullptr;
  const RowsOfEntries of(entries, args.grad_out.rows,
                         [&](std::int64_t i) { return has_tokens ? token_at(args.tokens, i) : i / args.batch; });
  float* row = scratch(kRow, cols);
  float* before = scratch(kOther, cols);
  for (std::int64_t v = 0; v < entries; ++v) {
    const std::int64_t begin = of.begins[static_cast<std::size_t>(v)], end = of.begins[static_cast<std::size_t>(v) + 1];
    if (args.accumulate && begin == end) continue;
    ColumnSums sums(end - begin, cols, kSums);
    for (std::int64_t k = begin; k < end; ++k, sums.end_row()) {
      load(args.grad_out, of.rows[static_cast<std::size_t>(k)], 0, cols, row);
      float* part = sums.part();
      for (std::int64_t j = 0; j < cols; ++j) part[j] += row[j];
    }
    const float* total = sums.total();
    for (std::int64_t j = 0; j < cols; ++j) row[j] = total[j] * args.scale;
    if (args.accumulate) {
      load(args.grad_table, v, 0, cols, before);
      for (std::int64_t j = 0; j < cols; ++j) row[j] += before[j];
    }
    store(row, cols, args.grad_table, v, 0);
  }
}

}  // namespace fp8lab::cpu
