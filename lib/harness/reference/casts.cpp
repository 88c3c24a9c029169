#include "harness/reference/casts.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fp8lab::reference_step {
namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

/// largest / amax as one division of floats, kept finite and normal. 1 if there is nothing to scale.
double quotient(double largest, double amax) {
  if (!(amax > 0.0 && amax <= kFloatMax)) return 1.0;
  const float scale = static_cast<float>(largest) / static_cast<float>(amax);
  return std::clamp(static_cast<double>(scale), 0x1p-126, kFloatMax);
}

/// What multiplies the data: the scale's inverse, which is a float.
double unit_of(double scale) { return static_cast<double>(1.0f / static_cast<float>(scale)); }

/// As a user of the format reads the data: scaled, rounded, and multiplied by the scale's inverse.
double through(double x, double scale, const Format& format) {
  const float scaled = static_cast<float>(x) * static_cast<float>(scale);
  return rounded(static_cast<double>(scaled), format) * unit_of(scale);
}

/// The multiplier of a block with that largest magnitude.
double scale_of(double amax, const BlockCast& cast) {
  if (cast.scale == ScaleRule::kFloat || cast.scale == ScaleRule::kPowerOfTwo) {
    const double scale = quotient(cast.format.largest, std::max(amax, cast.epsilon));
    return cast.scale == ScaleRule::kPowerOfTwo ? std::ldexp(1.0, std::ilogb(scale)) : scale;
  }
  constexpr int kLowest = -127;
  if (amax == 0.0) return std::ldexp(1.0, -kLowest);
  int exponent = std::ilogb(amax) - std::ilogb(cast.format.largest);  // rounded down
  if (cast.scale == ScaleRule::kExponentUp && std::ldexp(cast.format.largest, exponent) < amax) ++exponent;
  return std::ldexp(1.0, -std::max(exponent, kLowest));
}

}  // namespace

double amax_of(const Matrix& x) {
  double amax = 0.0;
  for (const double value : x.values) amax = std::max(amax, std::abs(value));
  return amax;
}

Matrix through(const Matrix& x, const BlockCast& cast) {
  const std::int64_t block_rows = cast.block_rows == 0 ? std::max<std::int64_t>(x.rows, 1) : cast.block_rows;
  const std::int64_t block_cols = cast.block_rows == 0 ? std::max<std::int64_t>(x.cols, 1) : cast.block_cols;
  Matrix out(x.rows, x.cols);
  for (std::int64_t top = 0; top < x.rows; top += block_rows) {
    const std::int64_t bottom = std::min(top + block_rows, x.rows);
    for (std::int64_t left = 0; left < x.cols; left += block_cols) {
      const std::int64_t right = std::min(left + block_cols, x.cols);
      double amax = 0.0;
      for (std::int64_t i = top; i < bottom; ++i)
        for (std::int64_t j = left; j < right; ++j) amax = std::max(amax, std::abs(x.row(i)[j]));
      const double scale = scale_of(amax, cast);
      for (std::int64_t i = top; i < bottom; ++i)
        for (std::int64_t j = left; j < right; ++j) out.row(i)[j] = through(x.row(i)[j], scale, cast.format);
    }
  }
  return out;
}

double rounded(double x, const Format& format) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), format.lowest) - format.fraction;
  // std::nearbyint rounds ties to even. Scaling by powers of two is exact.
  return std::clamp(std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent), -format.largest, format.largest);
}

Casts::Casts(const CellConfig& cell, std::string_view recipe, bool exact)
    : exact_(exact),
      storage_(cell.training.param_dtype == ParamDType::kF32 ? kF32 : kBF16),
      first_plain_(cell.training.first_layers_bf16),
      end_of_casts_(cell.model.layers - cell.training.last_layers_bf16) {
  const RecipeOptions& options = cell.training.recipe_options;
  if (recipe == "delayed") scaling_ = Scaling::kDelayed;
  if (recipe == "current") scaling_ = Scaling::kCurrent;
  if (recipe == "block") scaling_ = Scaling::kBlock;
  if (recipe == "mxfp8") scaling_ = Scaling::kMicroscaling;
  attention_ = cell.training.fp8_attention && (scaling_ == Scaling::kDelayed || scaling_ == Scaling::kCurrent);
  const bool per_tensor = scaling_ == Scaling::kDelayed || scaling_ == Scaling::kCurrent;
  hybrid_ = options.fp8_format ? *options.fp8_format == "hybrid" : per_tensor;
  attention_backward_ = attention_ && cell.training.fp8_attention_backward;
  exchanges_ = attention_backward_ && cell.training.fp8_mha && scaling_ == Scaling::kDelayed;
  sends_ = cell.training.fp8_dispatch && cell.expert_parallel > 1 && scaling_ != Scaling::kNone;
  history_length_ = static_cast<std::size_t>(options.amax_history_length.value_or(1024));
  most_recent_ = options.amax_algorithm.value_or("max") == "most_recent";
  margin_ = static_cast<int>(options.margin.value_or(0));
  epsilon_ = options.epsilon.value_or(0.0);
  if (options.power_of_two_scales.value_or(scaling_ == Scaling::kBlock)) scale_ = ScaleRule::kPowerOfTwo;
  if (scaling_ == Scaling::kMicroscaling)
    scale_ = options.scale_rounding.value_or("rceil") == "floor" ? ScaleRule::kExponentDown : ScaleRule::kExponentUp;
}

Matrix Casts::in_stored_type(Matrix x) const {
  for (double& value : x.values) value = rounded(value, storage_);
  return x;
}

Matrix Casts::stored(Matrix x) const { return exact_ ? x : in_stored_type(std::move(x)); }

std::int64_t Casts::rows_of_group() const {
  if (in_plain_layer_) return 1;
  switch (scaling_) {
    case Scaling::kNone: return 1;
    case Scaling::kDelayed:
    case Scaling::kCurrent: return 16;
    case Scaling::kBlock: return 128;
    case Scaling::kMicroscaling: return 32;
  }
  return 1;
}

Format Casts::format_of(Role role) const { return hybrid_ && role == Role::kGradient ? kE5M2 : kE4M3; }

Operand Casts::cast(const std::string& place, Role role, const Matrix& x) {
  if (exact_ || scaling_ == Scaling::kNone || in_plain_layer_) return {x, x};
  sources_[place] = x;
  if (scaling_ == Scaling::kDelayed) {
    if (role == Role::kWeight && !casts_weights_) return weights_.at(place);
    const Matrix made = cast_delayed(place, role, x);
    const Operand out{made, made, unit_of(history(place, role).scale)};
    if (role == Role::kWeight) weights_.insert_or_assign(place, out);
    return out;
  }
  BlockCast cast{.format = format_of(role), .scale = scale_, .epsilon = epsilon_};
  if (scaling_ == Scaling::kBlock && role == Role::kWeight) cast.block_rows = cast.block_cols = 128;
  if (cast.block_rows > 0) {
    const Matrix made = through(x, cast);
    return {made, made, 1.0};
  }
  if (scaling_ == Scaling::kCurrent) {
    const double scale = scale_of(amax_at(place, x), cast);
    Matrix made = x;
    for (double& value : made.values) value = through(value, scale, cast.format);
    return {made, made, unit_of(scale)};
  }
  const std::int64_t along = scaling_ == Scaling::kBlock ? 128 : 32;
  cast.block_rows = 1, cast.block_cols = along;
  Matrix by_rows = through(x, cast);
  cast.block_rows = along, cast.block_cols = 1;
  Operand out{std::move(by_rows), through(x, cast)};
  if (scaling_ == Scaling::kBlock) out.unit = 1.0;
  return out;
}

Operand Casts::received(Role role, Matrix rows, const Operand& like) const {
  if (scaling_ == Scaling::kDelayed) return {rows, rows, like.unit};
  BlockCast cast{.format = format_of(role), .block_cols = 1, .scale = scale_, .epsilon = epsilon_};
  cast.block_rows = scaling_ == Scaling::kBlock ? 128 : 32;
  Matrix by_columns = through(in_stored_type(rows), cast);
  return {std::move(rows), std::move(by_columns), like.unit};
}

Casts::History& Casts::history(const std::string& place, Role role) {
  Histories& histories = role == Role::kGradient ? backward_ : forward_;
  return histories.try_emplace(place, History{.format = format_of(role), .amaxes = {}}).first->second;
}

double Casts::amax_at(const std::string& place, const Matrix& x) const {
  const double own = amax_of(x);
  if (seen_amaxes_ == nullptr) return own;
  const auto seen = seen_amaxes_->find(place);
  if (seen == seen_amaxes_->end()) return own;
  const auto& [value, share] = seen->second;
  return std::abs(value - own) <= share * own ? value : own;
}

Matrix Casts::cast_delayed(const std::string& place, Role role, Matrix x) {
  History& of = history(place, role);
  of.latest = std::max(of.latest, amax_at(place, x));
  for (double& value : x.values) value = through(value, of.scale, of.format);
  return x;
}

Matrix Casts::cast_in_kernel(const std::string& place, Role role, Matrix x) {
  return exact_ ? x : cast_delayed(place, role, std::move(x));
}

void Casts::end_pass(Histories& histories) const {
  // Under current scaling only the matrices inside attention have one, of one step.
  const bool delayed = scaling_ == Scaling::kDelayed;
  const std::size_t length = delayed ? history_length_ : 1;
  if (largest_over_ranks_ && !histories.empty()) {
    std::vector<double> latest;
    for (const auto& [place, of] : histories) latest.push_back(of.latest);
    largest_over_ranks_(latest);
    auto next = latest.begin();
    for (auto& [place, of] : histories) of.latest = *next++;
  }
  for (auto& [place, of] : histories) {
    if (of.latest == 0.0) continue;  // not cast in this pass, or all zeros
    of.amaxes.push_back(of.latest);
    if (of.amaxes.size() > length) of.amaxes.pop_front();
    const double amax = most_recent_ ? of.latest : *std::max_element(of.amaxes.begin(), of.amaxes.end());
    of.scale = quotient(std::ldexp(of.format.largest, delayed ? -margin_ : 0), amax);
    of.latest = 0.0;
  }
}

}  // namespace fp8lab::reference_step
