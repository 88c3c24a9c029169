#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/compare.h"
#include "reference/test_data.h"
#include "support/dense.h"

/// Tensors on the host and on the GPU, for tests that compare their bytes.
namespace fp8lab::list_test {

/// The same tensors on the host and on the GPU.
class Pair {
 public:
  static constexpr std::size_t kSides = 2;
  std::array<std::unique_ptr<Device>, kSides> devices{
      open_device("cpu", {.memory = {.capacity_bytes = 0, .poison = true}}),
      open_device("cuda", {.memory = {.capacity_bytes = 0, .poison = true}})};

  template <class Use>
  void each(const Use& use) {
    for (std::size_t side = 0; side < kSides; ++side) use(side, *devices[side]);
  }
};

using Both = std::array<Tensor, Pair::kSides>;

inline Both make(Pair& pair, const TensorSpec& spec, const std::vector<float>& values) {
  Both both;
  pair.each([&](std::size_t side, Device& device) {
    both[side] = device.allocate(spec, support::anyone(device));
    device.write(both[side], values);
  });
  return both;
}

inline Both make_from_bytes(Pair& pair, const TensorSpec& spec, const std::vector<std::byte>& bytes) {
  Both both;
  pair.each([&](std::size_t side, Device& device) {
    both[side] = device.allocate(spec, support::anyone(device));
    device.write_bytes(both[side], bytes);
  });
  return both;
}

/// Arbitrary bits, for types without an order such as remainders in i16.
inline Both make_bytes(Pair& pair, const TensorSpec& spec, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(spec.bytes()));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(reference::scramble(seed ^ i) >> 56);
  return make_from_bytes(pair, spec, bytes);
}

/// Describes the first byte that differs; empty if there is none.
inline std::string difference(Pair& pair, const Both& both) {
  if (!both[0]) return {};
  const std::vector<std::byte> host = pair.devices[0]->read_bytes(both[0]), gpu = pair.devices[1]->read_bytes(both[1]);
  if (host.size() != gpu.size()) return "sizes";
  const std::size_t at = reference::first_difference(host, gpu);
  return at == host.size() ? std::string() : "byte " + std::to_string(at) + " of " + std::to_string(host.size());
}

// Empty, one element, less than a vector, odd, a vector more than a step, exactly one piece, several pieces and an odd
// rest.
inline const Shape kShapes[] = {{0, 7}, {1, 1}, {3}, {5, 811}, {1028, 4}, {128, 128}, {3, 16387}, {7, 8192}};

/// Orientations of a matrix in eight bits under one scale.
struct TwoOrientations {
  Both rowwise, columnwise, scale_inv, scale, amax;
};

struct CastCase {
  const char* label;
  bool rowwise;
  bool columnwise;
  DType dtype;
  DType nominal;
};
inline const CastCase kCasts[] = {
    {"rowwise", true, false, DType::kE4M3, DType::kBF16},   {"both", true, true, DType::kE4M3, DType::kBF16},
    {"columnwise", false, true, DType::kE5M2, DType::kF32}, {"both_e5m2", true, true, DType::kE5M2, DType::kF16},
    {"measured", false, false, DType::kE4M3, DType::kBF16},
};

// Empty, one tile, several with uneven ends, rows that are no multiple of 16 bytes, and rows of 4 columns.
inline const Shape kMatrices[] = {{0, 64}, {64, 64}, {80, 272}, {60, 100}, {5, 811}, {1028, 4}, {272, 512}, {1, 16}};

inline TwoOrientations make_orientations(Pair& pair, const CastCase& c, const Shape& shape, float scale) {
  TwoOrientations orientations;
  const TensorSpec flat{shape, c.dtype}, transposed{{shape.cols(), shape.rows()}, c.dtype};
  const std::vector<float> none(static_cast<std::size_t>(shape.numel()), 0.0f);
  if (c.rowwise) orientations.rowwise = make(pair, flat, none);
  if (c.columnwise) orientations.columnwise = make(pair, transposed, none);
  orientations.scale_inv = make(pair, {Shape{1}, DType::kF32}, {-1.0f});
  orientations.scale = make(pair, {Shape{1}, DType::kF32}, {scale});
  orientations.amax = make(pair, {Shape{1}, DType::kF32}, {0.25f});
  return orientations;
}

inline CastTarget target_of(const TwoOrientations& orientations, const CastCase& c, std::size_t side) {
  const ScaleView scale_inv{.data = orientations.scale_inv[side].view().data, .storage_elems = 1};
  const auto operand = [&](const Both& data) {
    return data[side] ? OperandView{.values = data[side].view(), .scales = scale_inv} : OperandView{};
  };
  return {.rowwise = operand(orientations.rowwise),
          .columnwise = operand(orientations.columnwise),
          .format = {.dtype = c.dtype, .amax_source = AmaxSource::kHistory},
          .nominal = c.nominal,
          .scale = orientations.scale[side].data<const float>(),
          .amax = orientations.amax[side].data<float>()};
}

}  // namespace fp8lab::list_test
