#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/device.h"
#include "reference/compare.h"
#include "reference/test_data.h"
#include "support/dense.h"

// The host and the GPU: the same matrices on both, the same kernel on both, and the differences.
namespace fp8lab::support {

class BothDevices {
 public:
  static constexpr std::size_t kSides = 2;

  /// Runs the kernel on both with the arguments that make_args(side) returns.
  template <class Args, class MakeArgs>
  void launch(Kernel<Args> KernelTable::* kernel, const MakeArgs& make_args) {
    for (std::size_t side = 0; side < kSides; ++side) {
      const Args args = make_args(side);
      devices_[side]->launch(kernel, args);
    }
  }
  Device& operator[](std::size_t side) { return *devices_[side]; }

 private:
  std::array<std::unique_ptr<Device>, kSides> devices_{open_device("cpu"), open_device("cuda")};
};

/// The places of elements in memory.
enum class Layout {
  kContiguous,
  kPadded,      ///< columns of a wider matrix, rows at multiples of 16 bytes
  kOdd,         ///< columns of a wider matrix, rows anywhere
  kTransposed,  ///< padded columns
  kOddTransposed,
  kStrided,  ///< every second element of a row
};
inline constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kPadded,        Layout::kOdd,
                                      Layout::kTransposed, Layout::kOddTransposed, Layout::kStrided};

/// A matrix of one layout on both devices. The memory around its elements is compared too.
class Matrix {
 public:
  Matrix() = default;
  Matrix(BothDevices& both, DType dtype, std::int64_t rows, std::int64_t cols, Layout layout = Layout::kContiguous)
      : both_(&both) {
    view_ = {.data = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
    switch (layout) {
      case Layout::kContiguous: break;
      case Layout::kPadded:
        view_.row_stride = (cols + 31) / 16 * 16;
        first_ = 16;
        break;
      case Layout::kOdd:
        view_.row_stride = cols + 3;
        first_ = 1;
        break;
      case Layout::kTransposed:
        view_.row_stride = 1;
        view_.col_stride = (rows + 31) / 16 * 16;
        break;
      case Layout::kOddTransposed:
        view_.row_stride = 1;
        view_.col_stride = rows + 5;
        first_ = 3;
        break;
      case Layout::kStrided:
        view_.row_stride = 2 * cols + 1;
        view_.col_stride = 2;
        break;
    }
    const std::int64_t last =
        rows == 0 || cols == 0 ? 0 : (rows - 1) * view_.row_stride + (cols - 1) * view_.col_stride;
    const TensorSpec spec{Shape{first_ + last + 9}, dtype};
    for (std::size_t side = 0; side < BothDevices::kSides; ++side)
      storage_[side] = both[side].allocate(spec, anyone(both[side]));
  }

  Matrix& gaussian(std::uint64_t seed, float mean = 0.0f) {
    std::vector<float> values = reference::gaussian_values(storage_[0].numel(), seed);
    for (float& value : values) value += mean;
    for (std::size_t side = 0; side < BothDevices::kSides; ++side) (*both_)[side].write(storage_[side], values);
    return *this;
  }
  /// Fills the matrix with arbitrary bits, NaNs among them.
  Matrix& scrambled(std::uint64_t seed) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(storage_[0].bytes()));
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(reference::scramble(seed ^ i) >> 56);
    for (std::size_t side = 0; side < BothDevices::kSides; ++side) (*both_)[side].write_bytes(storage_[side], bytes);
    return *this;
  }

  MatrixView operator[](std::size_t side) const {
    MatrixView view = view_;
    view.data = storage_[side].view().data + first_ * static_cast<std::int64_t>(size_bytes(view.dtype));
    return view;
  }

  /// Describes the first byte that differs; empty if there is none.
  std::string difference() const {
    const std::vector<std::byte> host = (*both_)[0].read_bytes(storage_[0]), gpu = (*both_)[1].read_bytes(storage_[1]);
    const std::size_t at = reference::first_difference(host, gpu);
    if (at == host.size()) return {};
    return "element " + std::to_string(static_cast<std::int64_t>(at / size_bytes(view_.dtype)) - first_) + " of " +
           std::string(name(view_.dtype));
  }

 private:
  BothDevices* both_ = nullptr;
  MatrixView view_;
  std::int64_t first_ = 0;
  std::array<Tensor, BothDevices::kSides> storage_;
};

}  // namespace fp8lab::support
