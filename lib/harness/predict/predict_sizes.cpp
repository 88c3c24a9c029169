#include "harness/predict/predict_sizes.h"

#include <fmt/core.h>

#include "core/check.h"
#include "core/shape.h"
#include "harness/cell/sharding_keys.h"

namespace fp8lab::closed_form {
namespace {

constexpr FormNumbers kForms[] = {
    {.name = "gpt", .norm_parameters = 2, .norm_statistics = 2, .activation_inputs = 1, .bias = true, .rotary = false},
    {.name = "llama",
     .norm_parameters = 1,
     .norm_statistics = 1,
     .activation_inputs = 2,
     .bias = false,
     .rotary = true},
};

constexpr Bytes kF32 = 4;

constexpr Bytes one_scale(std::int64_t, std::int64_t) { return kF32; }
/// f32, a row of blocks after the other, each padded to a multiple of four rows.
constexpr Bytes scales_1x128(std::int64_t rows, std::int64_t cols) {
  return kF32 * ceil_div(cols, 128) * round_up(rows, 4);
}
constexpr Bytes scales_128x128(std::int64_t rows, std::int64_t cols) {
  return kF32 * ceil_div(rows, 128) * round_up(ceil_div(cols, 128), 4);
}
/// One byte each, in tiles of 128 x 4.
constexpr Bytes scales_1x32(std::int64_t rows, std::int64_t cols) {
  return round_up(rows, 128) * round_up(ceil_div(cols, 32), 4);
}

constexpr Bytes row_128x128(std::int64_t cols) { return kF32 * round_up(ceil_div(cols, 128), 4); }
constexpr Bytes row_1x32(std::int64_t cols) { return round_up(ceil_div(cols, 32), 4); }
constexpr Bytes row_32x1(std::int64_t cols) { return round_up(cols, 128); }

constexpr RecipeNumbers kRecipes[] = {
    {.name = "bf16"},
    {.name = "delayed",
     .activation_scales = one_scale,
     .weight_scales = one_scale,
     .per_tensor = true,
     .histories = true,
     .attention = {.casts = true, .casts_output = true, .histories = 3}},
    {.name = "current",
     .activation_scales = one_scale,
     .weight_scales = one_scale,
     .per_tensor = true,
     .measures_first = true,
     .attention = {.casts = true, .histories = 1, .history_rows = 1}},
    {.name = "block",
     .activation_scales = scales_1x128,
     .weight_scales = scales_128x128,
     .weight_block = 128,
     .gathered_rowwise = {.block = 128, .row = row_128x128}},
    {.name = "mxfp8",
     .activation_scales = scales_1x32,
     .weight_scales = scales_1x32,
     .weight_block = 32,
     .orientations_differ = true,
     .gathered_rowwise = {.multiple = 128, .row = row_1x32},
     .gathered_columnwise = {.block = 32, .multiple = 4, .row = row_32x1}},
};
constexpr std::int64_t kHistoryRows = 1024;

struct ArchNumbers {
  std::string_view name;
  bool any_orientation;
};
constexpr ArchNumbers kArchs[] = {{"hopper", false}, {"blackwell", true}};

/// What each fix decided otherwise before. Null: no figure depends on it.
struct FixNumbers {
  std::string_view name;
  void (*revert)(Decisions&) = nullptr;
};
constexpr FixNumbers kFixes[] = {
    {"release_attention_tensors", [](Decisions& d) { d.attention_shells = Shells::kKeptByBackward; }},
    {"release_fuser_tensors", [](Decisions& d) { d.fuser_shells = Shells::kKeptByBackward; }},
    {"release_module_tensors", [](Decisions& d) { d.module_shells = Shells::kKeptByBackward; }},
    {"empty_module_shells", [](Decisions& d) { d.module_shells = Shells::kNeverEmptied; }},
    {"gather_eight_bits", [](Decisions& d) { d.gathers_quantized = false; }},
    {"share_amax_over_shards", [](Decisions& d) { d.shares_amaxes = false; }},
    {"choose_usage_by_pass", [](Decisions& d) { d.gathers_by_pass = false; }},
    {"validate_usage_by_pass", [](Decisions& d) { d.transposes_in_backward = false; }},
    {"keep_own_quantizer", [](Decisions& d) { d.keeps_quantizers = false; }},
    {"initialize_local_shard", [](Decisions& d) { d.initializes_shards = false; }},
    {"strip_scale_padding", [](Decisions& d) { d.strips_padding = false; }},
    {"nearest_sharding_state", [](Decisions& d) { d.gathers_by_pass = false; }},
    {"reuse_quantizer_at_gather"},
    {"split_both_orientations", [](Decisions& d) { d.splits_columnwise = false; }},
    {"slice_transpose_in_make_like", [](Decisions& d) { d.drops_transposes = false; }},
    {"own_scale_in_new_zeros", [](Decisions& d) { d.owns_scales = false; }},
    {"copy_bytes_between_shards", [](Decisions& d) { d.copies_bytes = false; }},
    {"view_aligned_slices", [](Decisions& d) { d.slices_as_views = false; }},
    {"keep_transpose_in_views", [](Decisions& d) { d.views_keep_transposes = false; }},
    {"unwrap_shards_in_adam", [](Decisions& d) { d.finds_shards = false; }},
    {"write_back_list_updates", [](Decisions& d) { d.writes_lists_back = false; }},
};

template <class Row, std::size_t N>
const Row& row_called(std::string_view name, const Row (&rows)[N], std::string_view what) {
  for (const Row& row : rows)
    if (row.name == name) return row;
  fail(fmt::format("predict: {} '{}' has no closed form; release its table in predict_sizes.cpp a row", what, name));
}

ShardingNumbers sharding_numbers(const CellConfig& cell) {
  if (!is_sharded(cell)) return {};
  const MeshText mesh = mesh_of(cell);
  return {.sharded = true,
          .replicas = mesh.replicas,
          .shards = mesh.shards,
          .reshards = cell.reshard_after_forward,
          .ahead = cell.gather_ahead,
          .deferred = defers_init(cell)};
}

}  // namespace

Bytes ScaleRows::padded(std::int64_t rows, std::int64_t cols) const {
  return row ? round_up(ceil_div(rows, block), multiple) * row(cols) : 0;
}

Bytes ScaleRows::filled(std::int64_t rows, std::int64_t cols) const {
  return row ? ceil_div(rows, block) * row(cols) : 0;
}

Scenario::Scenario(const CellConfig& cell, Arm arm)
    : form(row_called(cell.model.form, kForms, "form")),
      recipe(row_called(arm == Arm::kBf16 ? "bf16" : cell.training.recipe, kRecipes, "recipe")),
      element(cell.training.param_dtype == ParamDType::kF32 ? 4 : 2),
      tokens(cell.model.seq * cell.model.batch),
      hidden(cell.model.hidden),
      heads(cell.model.heads),
      ffn(cell.model.ffn == 0 ? 4 * hidden : cell.model.ffn),
      packed(hidden + 2 * (hidden / heads) * (cell.model.kv_heads == 0 ? heads : cell.model.kv_heads)),
      activated(form.activation_inputs * ffn),
      history_rows(cell.training.recipe_options.amax_history_length.value_or(kHistoryRows)),
      any_orientation(row_called(cell.arch, kArchs, "arch").any_orientation),
      casts(recipe.activation_scales != nullptr),
      casts_attention(recipe.attention.casts && cell.training.fp8_attention),
      // A scale must be known beforehand; blocks would do if one orientation were enough.
      casts_unstored(recipe.histories && cell.training.fused_quantize),
      measured_early(recipe.measures_first && cell.training.fused_quantize),
      casts_weights(casts && cell.training.quantized_weights),
      fused_mlp(cell.model.op_fuser == OpFuser::kMlp),
      dropout(static_cast<float>(cell.model.dropout) > 0.0f),
      checkpoint(cell.training.checkpoint == Recompute::kFull),
      sharding(sharding_numbers(cell)) {
  if (arm != Arm::kBefore || cell.fix.empty()) return;
  const FixNumbers& fix = row_called(cell.fix, kFixes, "fix");
  if (fix.revert) fix.revert(decisions);
}

OrientationBytes Scenario::orientations(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const {
  const Bytes data = rows * cols;
  if (recipe.per_tensor)
    return {.rowwise = data, .columnwise = any_orientation ? 0 : data, .scale = scales(rows, cols)};
  return {.rowwise = data + scales(rows, cols), .columnwise = data + scales(cols, rows)};
}

Cast Scenario::cast(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const {
  if (!scales) return {};
  const OrientationBytes made = orientations(scales, rows, cols);
  return {.both = made.both(),
          .kept = (made.columnwise > 0 ? made.columnwise : made.rowwise) + made.scale,
          .scratch = recipe.measures_first ? kF32 : 0};
}

Cast Scenario::cast_rowwise(std::int64_t cols) const {
  const Cast unsharded = cast_activation(cols);
  return {.both = unsharded.kept, .kept = unsharded.kept, .scratch = unsharded.scratch};
}

}  // namespace fp8lab::closed_form
