#include "backend/cpu/column_sums.h"

#include <algorithm>

#include "backend/cpu/rows.h"
#include "core/sum_order.h"

namespace fp8lab::cpu {
namespace {

void move_into(float* from, float* to, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) to[j] += from[j];
  std::fill_n(from, count, 0.0f);
}

}  // namespace

ColumnSums::ColumnSums(std::int64_t rows, std::int64_t cols, int first_slot)
    : cols_(cols),
      rows_in_part_(rows_in_part(rows)),
      part_(scratch(first_slot, cols)),
      group_(scratch(first_slot + 1, cols)),
      total_(scratch(first_slot + 2, cols)) {
  for (float* sums : {part_, group_, total_}) std::fill_n(sums, cols, 0.0f);
}

void ColumnSums::end_row() {
  if (++row_ == rows_in_part_) end_part();
}

void ColumnSums::end_part() {
  row_ = 0;
  move_into(part_, group_, cols_);
  if (++part_number_ == kPartsInGroup) end_group();
}

void ColumnSums::end_group() {
  part_number_ = 0;
  move_into(group_, total_, cols_);
}

const float* ColumnSums::total() {
  if (row_ > 0) end_part();
  if (part_number_ > 0) end_group();
  return total_;
}

}  // namespace fp8lab::cpu
