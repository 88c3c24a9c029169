#include "backend/cuda/elementwise/rope_table.h"

#include "backend/cuda/cuda_check.h"
#include "core/portable_math.h"
#include "core/rotary.h"

namespace fp8lab::cuda {

RopeTable RopeTables::table(std::int64_t positions, std::int64_t head_dim, double base) {
  Entry* found = nullptr;
  for (Entry& entry : entries_)
    if (entry.head_dim == head_dim && entry.base == base) found = &entry;
  if (found == nullptr) {
    entries_.push_back({.head_dim = head_dim, .base = base, .positions = 0, .memory = {}});
    found = &entries_.back();
  }
  if (found->positions < positions) make(*found, positions);
  const auto* const cosine = reinterpret_cast<const float*>(found->memory.get());
  return {.cosine = cosine, .sine = cosine + found->positions * (head_dim / 2)};
}

void RopeTables::make(Entry& entry, std::int64_t positions) {
  const std::int64_t half = entry.head_dim / 2;
  const auto count = static_cast<std::size_t>(positions * half);
  std::vector<float> host(2 * count);
  for (std::int64_t position = 0; position < positions; ++position)
    for (std::int64_t pair = 0; pair < half; ++pair) {
      const auto rotation = portable::sine_and_cosine(rotary_angle(position, pair, entry.head_dim, entry.base));
      const auto at = static_cast<std::size_t>(position * half + pair);
      host[at] = static_cast<float>(rotation.cosine);
      host[count + at] = static_cast<float>(rotation.sine);
    }
  context_.synchronize();  // launches may still read the shorter table
  entry.positions = 0;
  entry.memory = context_.allocate(host.size() * sizeof(float));
  // The copy is on the kernels' stream: a copy on the default stream may return before the data have arrived, and
  // nothing would order the kernels after it.
  cuda_check(cudaMemcpyAsync(entry.memory.get(), host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice,
                             context_.stream()),
             "cudaMemcpyAsync");
  context_.synchronize();  // `host` is destroyed at the end of this function
  entry.positions = positions;
}

}  // namespace fp8lab::cuda
