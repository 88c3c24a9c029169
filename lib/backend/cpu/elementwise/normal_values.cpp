#include "backend/cpu/elementwise/normal_values.h"

#include <algorithm>
#include <array>

#include "backend/cpu/vectorized.h"

namespace fp8lab::cpu {
namespace {

constexpr int kBlocks = 32, kOfABlock = 4, kValues = kBlocks * kOfABlock;

template <class T>
using PerBlock = std::array<T, kBlocks>;

/// The two values of a pair of words, of each block.
void pairs(const PerBlock<std::uint32_t>& radii, const PerBlock<std::uint32_t>& angles, PerBlock<float>& even,
           PerBlock<float>& odd) {
  for (int b = 0; b < kBlocks; ++b) {
    const float radius = CounterRng::radius(radii[b]), t = CounterRng::octant_angle(angles[b]);
    const float sine = detail::sin_octant(t), cosine = detail::cos_octant(t);
    const std::uint32_t quadrant = angles[b] >> 30;
    even[b] = CounterRng::projected(radius, quadrant, sine, cosine);
    odd[b] = CounterRng::projected(radius, (quadrant - 1u) & 3u, sine, cosine);
  }
}

/// The values of kBlocks blocks from block `first` on.
void values_of_blocks(const CounterRng& rng, std::uint64_t first, float* values) {
  std::array<PerBlock<std::uint32_t>, kOfABlock> words;
  for (int b = 0; b < kBlocks; ++b) {
    const PhiloxBlock block = rng.block(first + static_cast<std::uint64_t>(b));
    for (int i = 0; i < kOfABlock; ++i) words[i][b] = block.words[i];
  }
  std::array<PerBlock<float>, kOfABlock> drawn;
  pairs(words[0], words[1], drawn[0], drawn[1]);
  pairs(words[2], words[3], drawn[2], drawn[3]);
  for (int b = 0; b < kBlocks; ++b)
    for (int i = 0; i < kOfABlock; ++i) values[kOfABlock * b + i] = drawn[i][b];
}

}  // namespace

void normal_values(const CounterRng& rng, std::uint64_t first, std::int64_t count, float* values) {
  std::uint64_t block = first / kOfABlock;
  std::int64_t before = static_cast<std::int64_t>(first % kOfABlock);  // values of the first block that come before
  for (std::int64_t done = 0; done < count; block += kBlocks, before = 0) {
    std::array<float, kValues> drawn;
    vectorized([=, to = drawn.data()] { values_of_blocks(rng, block, to); });
    const std::int64_t taken = std::min(kValues - before, count - done);
    std::copy_n(drawn.begin() + before, taken, values + done);
    done += taken;
  }
}

}  // namespace fp8lab::cpu
