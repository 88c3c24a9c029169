#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "core/portable_math.h"
#include "core/rotary.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kIn, kOut, kCosine, kSine };

}  // namespace

void rope(const RopeArgs& args, ExecContext&) {
  const std::int64_t cols = args.in.cols;
  const std::int64_t head_dim = args.heads == 0 ? 0 : cols / args.heads;
  const std::int64_t half = head_dim / 2;
  float* in = scratch(kIn, cols);
  float* out = scratch(kOut, cols);
  float* cosine = scratch(kCosine, half);
  float* sine = scratch(kSine, half);

  std::vector<double> step;  // angles of position 1, whose multiples are all others' angles
  for (std::int64_t d = 0; d < half; ++d) step.push_back(rotary_angle(1, d, head_dim, args.base));

  for (std::int64_t row = 0; row < args.in.rows; ++row) {
    if (row % args.batch == 0) {
      const auto position = static_cast<double>(args.first_position + row / args.batch);
      for (std::int64_t d = 0; d < half; ++d) {
        const auto rotation = portable::sine_and_cosine(position * step[static_cast<std::size_t>(d)]);
        cosine[d] = static_cast<float>(rotation.cosine);
        sine[d] = static_cast<float>(args.inverse ? -rotation.sine : rotation.sine);
      }
    }
    load(args.in, row, 0, cols, in);
    for (std::int64_t head = 0; head < args.heads; ++head) {
      const float* low = in + head * head_dim;
      const float* high = low + half;
      float* rotated = out + head * head_dim;
      for (std::int64_t d = 0; d < half; ++d) {
        rotated[d] = low[d] * cosine[d] - high[d] * sine[d];
        rotated[half + d] = high[d] * cosine[d] + low[d] * sine[d];
      }
    }
    store(out, cols, args.out, row, 0);
  }
}

}  // namespace fp8lab::cpu
