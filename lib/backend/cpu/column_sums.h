#pragma once

#include <cstdint>

namespace fp8lab::cpu {

/// Column sums in the order of core/sum_order.h: add each row to part(), then call end_row(). Uses three slots of
/// scratch() from `first_slot` on.
class ColumnSums {
 public:
  ColumnSums(std::int64_t rows, std::int64_t cols, int first_slot);

  float* part() { return part_; }
  void end_row();
  /// The sums; call it after the last row.
  const float* total();

 private:
  void end_part();
  void end_group();

  std::int64_t cols_;
  std::int64_t rows_in_part_;
  std::int64_t row_ = 0;
  std::int64_t part_number_ = 0;
  float* part_;
  float* group_;
  float* total_;
};

}  // namespace fp8lab::cpu
