#pragma once

#include "harness/eager/trained_layer.h"
#include "harness/subjects/profile/profile_rows.h"

namespace fp8lab {

/// A layer of a library in an eager program, as its row of a profile has it: each moment of the row is a block that is
/// freed at once, and what the layer saves is one block. Weights are parameters of 16 bits an element, in which FP8
/// weights have both orientations.
class ProfiledLayer : public eager::TrainedLayer {
 public:
  /// `row`: as the program has it, see profile_rows.h. `numbers` and `heap` must outlive the layer.
  ProfiledLayer(const ProfileRow& row, const Sizes& sizes, const eager::Numbers& numbers, eager::Heap& heap,
                eager::Bytes index);

  void make_buffers() override;
  eager::Block forward(eager::Block input, bool keeps_input) override;
  eager::Block backward(eager::Block gradient) override;

 private:
  eager::Block allocate(const Terms& terms);
  void pass(const std::vector<TermsByKind>& moments);
  /// What forward leaves, without its output.
  eager::Block save();
  eager::Bytes stream() const { return numbers_.rows(numbers_.hidden); }

  ProfileRow row_, adding_;
  Sizes sizes_;
  const eager::Numbers& numbers_;
  eager::Heap& heap_;
  bool is_first_, recomputed_;
  bool owns_input_ = false;
  eager::Block input_ = 0, saved_ = 0, before_ = 0;
};

}  // namespace fp8lab
