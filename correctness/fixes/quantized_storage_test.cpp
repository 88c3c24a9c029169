// Witnesses of fixes to operations on quantized storage.

#include "ops/quantized_storage.h"

#include <gtest/gtest.h>

#include <vector>

#include "fixes/witness.h"
#include "ops/rewrite.h"
#include "reference/compare.h"
#include "support/quantize.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kRows = 256, kCols = 128;

/// A quantized matrix on a device of its own.
struct Sample {
  std::unique_ptr<Device> device = support::open_poisoned_device();
  HolderId holder = support::anyone(*device);
  QuantFormat format;

  explicit Sample(const char* format_name) : format(support::format_named(format_name)) {}
  QuantizedTensor make(Orientations orientations = {true, true}) const {
    const Tensor x =
        support::make_tensor(*device, {kRows, kCols}, DType::kBF16, reference::gaussian_values(kRows * kCols, 7));
    return support::quantized(*device, x, format, {.orientations = orientations});
  }
};

/// Bytes alive beyond the bytes of a row-wise shard, after the tensor that it was cut from is freed.
std::int64_t bytes_behind_a_shard(const Sample& sample, const Behaviors& behaviors) {
  const std::int64_t before = sample.device->ledger().live_bytes();
  QuantizedTensor shard;
  {
    const QuantizedTensor unsharded = sample.make();
    shard = cut_rows(*sample.device, behaviors, unsharded,
                     {.begin = 0, .count = kRows / 2, .orientations = {true, false}, .holder = sample.holder});
  }
  return sample.device->ledger().live_bytes() - before - kRows / 2 * kCols - 4;
}
bool shards_keep_no_transpose(const Behaviors& behaviors) {
  return bytes_behind_a_shard(Sample("delayed_e4m3"), behaviors) == 0;
}

/// True if rewriting the result of new_zeros() leaves the values of the tensor that it was made like.
bool zeros_rescale_nothing(const Behaviors& behaviors) {
  const Sample sample("current_e4m3");
  Device& device = *sample.device;
  const QuantizedTensor like = sample.make();
  const auto values = [&] { return device.read(dequantize_matrix(device, like, DType::kF32, sample.holder)); };
  const std::vector<float> before = values();
  QuantizedTensor zeros = new_zeros(device, behaviors, like, kRows, sample.holder);
  const Quantizer quantizer = {.format = sample.format, .holder = sample.holder};
  const Tensor large = device.allocate({Shape{kRows, kCols}, DType::kF32}, sample.holder);
  fill(device, large, 1000.0f);
  const Rewrite rewrite = {.value = large, .to = &zeros, .quantizer = &quantizer};
  quantize_in_place(device, std::span(&rewrite, 1));
  return values() == before;
}

bool copies_keep_bytes(const Behaviors& behaviors) {
  const Sample sample("mxfp8_rceil");
  const QuantizedTensor from = sample.make();
  QuantizedTensor to = sample.make();
  const Quantizer quantizer = {.format = sample.format, .holder = sample.holder};
  copy_rows(*sample.device, behaviors, from, to, &quantizer);
  const auto same = [&](const Tensor& a, const Tensor& b) {
    return static_cast<bool>(
        reference::bitwise_equal(support::bytes_of(*sample.device, a), support::bytes_of(*sample.device, b)));
  };
  return same(to.rowwise().data, from.rowwise().data) && same(to.rowwise().scale_inv, from.rowwise().scale_inv) &&
         same(to.columnwise().data, from.columnwise().data) &&
         same(to.columnwise().scale_inv, from.columnwise().scale_inv);
}

bool slices_stay_in_eight_bits(const Behaviors& behaviors) {
  const Sample sample("mxfp8_rceil");
  const QuantizedTensor unsharded = sample.make();
  for (const std::int64_t count : {kRows, kRows / 2})
    if (slice_rows(*sample.device, behaviors, unsharded, {.count = count, .holder = sample.holder}, DType::kBF16)
            .view.empty())
      return false;
  return true;
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::quantized_storage_witnesses() {
  static constexpr Witness kWitnesses[] = {{"drop_transpose_in_make_like", shards_keep_no_transpose},
                                           {"own_scale_in_new_zeros", zeros_rescale_nothing},
                                           {"copy_bytes_between_shards", copies_keep_bytes},
                                           {"view_aligned_slices", slices_stay_in_eight_bits}};
  return kWitnesses;
}

}  // namespace fp8lab
