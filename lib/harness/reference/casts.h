#pragma once

#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/cell/cell.h"
#include "harness/reference/matrix.h"

namespace fp8lab::reference_step {

/// A binary format with `fraction` stored bits, whose smallest normal number is 2^lowest and whose largest is
/// `largest`.
struct Format {
  int fraction;
  int lowest;
  double largest;
};
inline constexpr Format kE4M3{3, -6, 448.0};
inline constexpr Format kE5M2{2, -14, 57344.0};
inline constexpr Format kF16{10, -14, 65504.0};
inline constexpr Format kBF16{7, -126, 3.3895313892515355e38};
inline constexpr Format kF32{23, -126, 3.4028234663852886e38};

/// The number of `format` nearest to `x`; of two the one whose last bit is 0. Beyond the largest number, that one.
double rounded(double x, const Format& format);

/// How the multiplier of a block follows from its largest magnitude: a float (rounded down to a power of two, or not),
/// or a power of two that is the inverse of the block's exponent (rounded up, so that nothing clips, or down).
enum class ScaleRule { kFloat, kPowerOfTwo, kExponentUp, kExponentDown };

/// A cast with scales from the values themselves. 0 rows: one block for the entire matrix.
struct BlockCast {
  Format format;
  std::int64_t block_rows = 0;
  std::int64_t block_cols = 0;
  ScaleRule scale = ScaleRule::kFloat;
  double epsilon = 0.0;  ///< the smallest amax of a scale that is a float
};
/// `x` in eight bits and back: what their reader computes.
Matrix through(const Matrix& x, const BlockCast& cast);
/// The largest magnitude.
double amax_of(const Matrix& x);

/// What a matrix of a product is: an input, a weight, or the gradient of an output.
enum class Role { kInput, kWeight, kGradient };

/// A matrix as two products read it: with blocks along its rows (if they sum over columns), and along its columns.
struct Operand {
  Matrix by_rows;
  Matrix by_columns;
  /// In eight bits: what multiplies the data of the entire matrix, or 1 if blocks have scales of their own. Nothing
  /// for a matrix that was not cast, or whose scales are not floats.
  std::optional<double> unit{};
};

/// A largest magnitude that the runtime saw, and how far from the own one, relative to it, it may be to be taken for
/// it.
struct SeenAmax {
  double value;
  double share;
};
using SeenAmaxes = std::map<std::string, SeenAmax>;

/// The roundings of a recipe: the types in which tensors are stored, and the casts of matrices to eight bits, from the
/// recipe's definition. Amax histories live from step to step. With `exact` nothing is rounded.
class Casts {
 public:
  Casts(const CellConfig& cell, std::string_view recipe, bool exact);

  /// Casts of a layer that the recipe does not cast do nothing. Set before the layer's forward and before its backward.
  void enter_layer(std::int64_t layer) { in_plain_layer_ = layer < first_plain_ || layer >= end_of_casts_; }
  /// Rounds every element to the parameters' type.
  Matrix stored(Matrix x) const;
  /// The same, also if `exact`.
  Matrix in_stored_type(Matrix x) const;
  /// A step of the stored type, relative to a number of it.
  double stored_step() const { return std::ldexp(1.0, -storage_.fraction); }
  /// Rows to a multiple of which the tokens of an expert are padded in this layer.
  std::int64_t rows_of_group() const;
  /// Casts `x` to eight bits and back. `place` names the matrix, for its amax history.
  Operand cast(const std::string& place, Role role, const Matrix& x);
  /// True if tokens, and gradients of outputs, are cast before they travel to other ranks' experts.
  bool sends_eight_bits() const { return sends_ && !exact_ && !in_plain_layer_; }
  /// The operand of which another rank cast the rows: `like` with `rows` in place of its rows. Blocks along columns are
  /// cast here from the values that came, in the stored type.
  Operand received(Role role, Matrix rows, const Operand& like) const;
  /// The largest magnitudes of the matrices that the runtime cast in this step, by place. A tensor's scale follows from
  /// the runtime's if that is close enough: two correct steps differ in the order of FP32 additions, so the same
  /// element of both may be a step or two of the stored type apart, and another scale makes every value of the tensor
  /// round elsewhere. `seen` must outlive the step.
  void set_seen_amaxes(const SeenAmaxes* seen) { seen_amaxes_ = seen; }
  /// What was cast last at each place.
  const std::map<std::string, Matrix>& sources() const { return sources_; }
  /// True if products of attention are in eight bits in this layer. Then its matrices are cast as follows.
  bool attention() const { return attention_ && !in_plain_layer_; }
  /// False if its backward is in 16 bits.
  bool attention_backward() const { return attention_backward_ && !in_plain_layer_; }
  /// True if attention's output and the gradients of Q, K and V go through eight bits too.
  bool attention_outputs() const { return attention() && scaling_ == Scaling::kDelayed; }
  /// True if linear layers and attention exchange eight bits, so that each tensor between them is cast once.
  bool exchanges_eight_bits() const { return exchanges_ && !in_plain_layer_; }
  /// P and its gradient, for all heads: they never leave the kernel, so their scale comes from a history always.
  Matrix cast_in_kernel(const std::string& place, Role role, Matrix x);

  /// Ranks that pass together share the largest magnitudes of histories: `largest` replaces each element by the largest
  /// over all ranks, of a list that is as long on each of them.
  void set_group(std::function<void(std::vector<double>&)> largest) { largest_over_ranks_ = std::move(largest); }

  /// False: this pass reads cached weights, cast in the first of a step's passes.
  void set_casts_weights(bool casts) { casts_weights_ = casts; }
  /// The scales of the next pass come from the amaxes of this one.
  void end_forward() { end_pass(forward_); }
  void end_backward() { end_pass(backward_); }

 private:
  enum class Scaling { kNone, kDelayed, kCurrent, kBlock, kMicroscaling };
  struct History {
    Format format;
    std::deque<double> amaxes;  ///< amaxes of earlier passes, the latest last
    double latest = 0.0;        ///< amax of this pass
    double scale = 1.0;
  };
  using Histories = std::map<std::string, History>;

  Format format_of(Role role) const;
  History& history(const std::string& place, Role role);
  /// The largest magnitude of `x`, or the runtime's at this place.
  double amax_at(const std::string& place, const Matrix& x) const;
  Matrix cast_delayed(const std::string& place, Role role, Matrix x);
  void end_pass(Histories& histories) const;

  bool exact_;
  bool attention_ = false;
  bool attention_backward_ = false;
  bool exchanges_ = false;
  bool sends_ = false;
  Format storage_;
  Scaling scaling_ = Scaling::kNone;
  ScaleRule scale_ = ScaleRule::kFloat;
  std::size_t history_length_ = 1024;
  bool hybrid_ = false;  ///< gradients in E5M2
  bool most_recent_ = false;
  int margin_ = 0;
  double epsilon_ = 0.0;
  std::int64_t first_plain_ = 0;   ///< the layers before this one are not cast
  std::int64_t end_of_casts_ = 0;  ///< and so are those from this one on
  bool in_plain_layer_ = false;
  bool casts_weights_ = true;
  std::map<std::string, Operand> weights_;  ///< under delayed scaling, as they were cast last
  Histories forward_;
  Histories backward_;
  std::map<std::string, Matrix> sources_;
  const SeenAmaxes* seen_amaxes_ = nullptr;
  std::function<void(std::vector<double>&)> largest_over_ranks_;
};

}  // namespace fp8lab::reference_step
