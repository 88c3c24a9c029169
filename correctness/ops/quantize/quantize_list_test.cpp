// Casts of lists that round before the cast: bitwise equal to rounding into a temporary and quantizing one by one.

#include <gtest/gtest.h>

#include <limits>

#include "reference/compare.h"
#include "support/quantize.h"

namespace fp8lab {
namespace {

using reference::bitwise_equal;
using support::bytes_of;
using support::Placement;
using support::scalar;

// Empty, odd, one tile of the GPU, several with uneven ends, rows that are no multiple of 16 bytes.
const Shape kListShapes[] = {{0, 64}, {1, 1}, {5, 811}, {64, 64}, {272, 512}, {60, 100}, {1028, 4}};

/// The orientations of a tensor, allocated but not filled.
QuantizedTensor empty_orientations(Device& device, const QuantFormat& format, const Shape& shape,
                                   Orientations orientations) {
  QuantizedTensor q(shape, format);
  const Tensor scale_inv = scalar(device, -1.0f);
  const auto data = [&](const OrientationLayout& layout) {
    return device.allocate(layout.data, support::anyone(device));
  };
  if (orientations.rowwise)
    q.rowwise() = {.data = data(rowwise_layout(format, shape.rows(), shape.cols())), .scale_inv = scale_inv};
  if (orientations.columnwise)
    q.columnwise() = {.data = data(columnwise_layout(format, shape.rows(), shape.cols())), .scale_inv = scale_inv};
  return q;
}

class QuantizeList : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  const QuantFormat format_ = support::format_named(GetParam());
  const bool measures_ = format_.amax_source == AmaxSource::kTensor;

  /// Values of many magnitudes; every other matrix has infinities and NaNs.
  std::vector<float> values(std::size_t index, const Shape& shape) const {
    std::vector<float> values = support::varied_values(shape.numel(), index);
    if (index % 2 == 1 && values.size() > 20) {
      values[1] = std::numeric_limits<float>::infinity();
      values[17] = std::numeric_limits<float>::quiet_NaN();
    }
    return values;
  }
};

TEST_P(QuantizeList, EqualsRoundingAndQuantizingOneByOne) {
  std::size_t index = 0;
  for (const Placement placement : support::kPlacements)
    for (const DType nominal : {DType::kBF16, DType::kF16, DType::kF32})
      for (const Orientations orientations : {Orientations{true, false}, {true, true}, {false, true}}) {
        std::vector<Tensor> xs, amaxes, measured;
        std::vector<QuantizedTensor> made;
        std::vector<ListCast> list;
        const Tensor scale = scalar(*device_, 24.0f);
        for (const Shape& shape : kListShapes) {
          xs.push_back(support::place(*device_, shape, DType::kF32, values(++index, shape), placement));
          amaxes.push_back(scalar(*device_, 0.5f));
          measured.push_back(scalar(*device_, 0.0f));
          made.push_back(empty_orientations(*device_, format_, shape, orientations));
        }
        for (std::size_t i = 0; i < xs.size(); ++i)  // the same amaxes without casts
          list.push_back({.in = xs[i].view(),
                          .target = {.rowwise = {},
                                     .columnwise = {},
                                     .format = format_,
                                     .nominal = nominal,
                                     .scale = nullptr,
                                     .amax = measured[i].data<float>()}});
        if (measures_) device_->launch(&KernelTable::quantize_list, QuantizeListArgs{.tensors = list});
        for (std::size_t i = 0; i < xs.size(); ++i) {
          list[i].target.scale = measures_ ? nullptr : scale.data<const float>();
          list[i].target.amax = amaxes[i].data<float>();
          list[i].measured = measures_ ? measured[i].data<const float>() : nullptr;
          if (orientations.rowwise) list[i].target.rowwise = made[i].rowwise_operand();
          if (orientations.columnwise) list[i].target.columnwise = made[i].columnwise_operand(false);
        }
        device_->launch(&KernelTable::quantize_list, QuantizeListArgs{.tensors = list});

        for (std::size_t i = 0; i < xs.size(); ++i) {
          SCOPED_TRACE(testing::Message()
                       << to_string(xs[i].shape()) << " " << support::name_of(placement) << " " << name(nominal));
          const Tensor amax = scalar(*device_, 0.5f);
          const Tensor rounded = cast(*device_, xs[i], nominal, support::anyone(*device_));
          const QuantizedTensor expected = quantize(*device_, rounded,
                                                    {.format = format_,
                                                     .orientations = orientations,
                                                     .scale = measures_ ? Tensor{} : scale,
                                                     .amax = amax,
                                                     .holder = support::anyone(*device_)});
          for (const auto& [actual_orientation, expected_orientation] :
               {std::pair{made[i].rowwise(), expected.rowwise()}, {made[i].columnwise(), expected.columnwise()}}) {
            if (!actual_orientation) continue;
            EXPECT_TRUE(bitwise_equal(bytes_of(*device_, actual_orientation.data),
                                      bytes_of(*device_, expected_orientation.data)));
            EXPECT_TRUE(bitwise_equal(device_->read(actual_orientation.scale_inv),
                                      device_->read(expected_orientation.scale_inv)));
          }
          EXPECT_TRUE(reference::is_close(support::read(*device_, amaxes[i]).front(),
                                          support::read(*device_, amax).front(), {}));
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeList,
                         ::testing::Values("delayed_e4m3", "delayed_e5m2", "current_e4m3", "current_e5m2",
                                           "current_pow2", "current_epsilon"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fp8lab
