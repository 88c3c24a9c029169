#include "harness/subjects/profile/profiled_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fp8lab {

using eager::Block;
using eager::Bytes;

namespace {

Bytes bytes_of(const TermsByKind& kinds, const Sizes& sizes) {
  double sum = 0.0;
  for (const auto& [kind, terms] : kinds) sum += sizes.of(terms);
  return std::llround(sum);
}

}  // namespace

ProfiledLayer::ProfiledLayer(const ProfileRow& row, const Sizes& sizes, const eager::Numbers& numbers,
                             eager::Heap& heap, Bytes index)
    : row_(row),
      adding_(adding_gradients(row)),
      sizes_(sizes),
      numbers_(numbers),
      heap_(heap),
      is_first_(index == 0),
      recomputed_(numbers.checkpoint_every > 0 && (index + 1) % numbers.checkpoint_every == 0) {
  for (std::size_t i = 0; i < row_.weights.size(); ++i) {
    const double rows = rows_of(row_, i, sizes_);
    parameters.push_back({.rows = std::llround(rows), .columns = std::llround(sizes_.of(row_.weights[i]) / rows)});
  }
  for (const auto& [term, times] : row_.vectors)
    for (Bytes i = 0; i < std::llround(times); ++i)
      parameters.push_back({.rows = std::llround(sizes_.of(term).value()), .columns = 1});
}

void ProfiledLayer::make_buffers() { heap_.allocate(row_.state, eager::Owner::kParameters); }

Block ProfiledLayer::allocate(const Terms& terms) {
  return heap_.allocate(std::llround(sizes_.of(terms)), eager::Owner::kSaved);
}

void ProfiledLayer::pass(const std::vector<TermsByKind>& moments) {
  for (const TermsByKind& moment : moments) {
    Block block = heap_.allocate(std::max<Bytes>(0, bytes_of(moment, sizes_)), eager::Owner::kTemporaries);
    heap_.free(block);
  }
}

Block ProfiledLayer::save() { return heap_.allocate(bytes_of(row_.forward, sizes_) - stream(), eager::Owner::kSaved); }

Block ProfiledLayer::forward(Block input, bool keeps_input) {
  if (is_first_) before_ = allocate(row_.before);
  pass(row_.forward_moments);
  input_ = input;
  owns_input_ = !keeps_input;
  const Block output = heap_.allocate(stream(), eager::Owner::kSaved);
  if (!recomputed_) saved_ = save();
  return output;
}

Block ProfiledLayer::backward(Block gradient) {
  if (recomputed_) {
    pass(row_.forward_moments);
    saved_ = save();
  }
  const bool adds = parameters.front().gradient != 0;
  pass(adds ? adding_.backward_moments : row_.backward_moments);
  heap_.free(saved_);
  if (owns_input_) heap_.free(input_);
  if (!adds)
    for (eager::Parameter& parameter : parameters) eager::make_gradient(numbers_, heap_, parameter);
  const Block of_input = heap_.allocate(stream(), eager::Owner::kTemporaries);
  heap_.free(gradient);
  heap_.free(before_);
  return of_input;
}

}  // namespace fp8lab
