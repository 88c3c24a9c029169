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
    {.name = "gemma",
     .norm_parameters = 1,
     .norm_statistics = 1,
     .activation_inputs = 2,
     .bias = false,
     .rotary = true},
};

constexpr Bytes one_scale(std::int64_t, std::int64_t) { return kF32; }
/// One f32 per 1 x 128 block: an array [ceil(cols / 128), rows padded to a multiple of 4].
constexpr Bytes scales_1x128(std::int64_t rows, std::int64_t cols) {
  return kF32 * ceil_div(cols, 128) * round_up(rows, 4);
}
constexpr Bytes scales_128x128(std::int64_t rows, std::int64_t cols) {
  return kF32 * ceil_div(rows, 128) * round_up(ceil_div(cols, 128), 4);
}
/// One byte per block, in tiles of 128 x 4.
constexpr Bytes scales_1x32(std::int64_t rows, std::int64_t cols) {
  return round_up(rows, 128) * round_up(ceil_div(cols, 32), 4);
}

constexpr Bytes sent_1x128(std::int64_t cols) { return kF32 * ceil_div(cols, 128); }
constexpr Bytes sent_1x32(std::int64_t cols) { return ceil_div(cols, 32); }

constexpr Bytes row_128x128(std::int64_t cols) { return kF32 * round_up(ceil_div(cols, 128), 4); }
constexpr Bytes row_1x32(std::int64_t cols) { return round_up(ceil_div(cols, 32), 4); }
constexpr Bytes row_32x1(std::int64_t cols) { return round_up(cols, 128); }

constexpr RecipeNumbers kRecipes[] = {
    {.name = "bf16"},
    {.name = "delayed",
     .activation_scales = one_scale,
     .weight_scales = one_scale,
     .group_rows = 16,
     .per_tensor = true,
     .histories = true,
     .attention = {.casts = true, .casts_output = true, .has_shells = true, .histories = 3}},
    {.name = "current",
     .activation_scales = one_scale,
     .weight_scales = one_scale,
     .group_rows = 16,
     .per_tensor = true,
     .measures_first = true,
     .attention = {.casts = true, .histories = 1, .history_rows = 1}},
    {.name = "block",
     .activation_scales = scales_1x128,
     .weight_scales = scales_128x128,
     .group_rows = 128,
     .weight_block = 128,
     .gathered_rowwise = {.block = 128, .row = row_128x128},
     .sent_scales = sent_1x128},
    {.name = "mxfp8",
     .activation_scales = scales_1x32,
     .weight_scales = scales_1x32,
     .group_rows = 32,
     .weight_block = 32,
     .orientations_differ = true,
     .gathered_rowwise = {.multiple = 128, .row = row_1x32},
     .gathered_columnwise = {.block = 32, .multiple = 4, .row = row_32x1},
     .sent_scales = sent_1x32},
};
constexpr std::int64_t kHistoryRows = 1024;

struct ArchNumbers {
  std::string_view name;
  bool any_orientation;
};
constexpr ArchNumbers kArchs[] = {{"hopper", false}, {"blackwell", true}};

/// The decision that each fix reverts. No figure depends on fixes that are not listed.
struct FixNumbers {
  std::string_view name;
  void (*revert)(Decisions&);
};
constexpr FixNumbers kFixes[] = {
    {"release_attention_tensors", [](Decisions& d) { d.attention_shells = Shells::kKeptByBackward; }},
    {"release_fuser_tensors", [](Decisions& d) { d.fuser_shells = Shells::kKeptByBackward; }},
    {"release_grouped_tensors", [](Decisions& d) { d.grouped_shells = Shells::kKeptByBackward; }},
    {"release_module_tensors", [](Decisions& d) { d.module_shells = Shells::kKeptByBackward; }},
    {"empty_module_shells", [](Decisions& d) { d.module_shells = Shells::kNeverEmptied; }},
    {"gather_eight_bits", [](Decisions& d) { d.gather_eight_bits = false; }},
    {"share_amax_over_shards", [](Decisions& d) { d.share_amax_over_shards = false; }},
    {"choose_usage_by_pass", [](Decisions& d) { d.choose_usage_by_pass = false; }},
    {"validate_usage_by_pass", [](Decisions& d) { d.validate_usage_by_pass = false; }},
    {"use_weight_quantizer", [](Decisions& d) { d.validate_usage_by_pass = false; }},
    {"keep_fp8_init_metadata", [](Decisions& d) { d.keep_fp8_init_metadata = false; }},
    {"strip_scale_padding", [](Decisions& d) { d.strip_scale_padding = false; }},
    {"nearest_sharding_state", [](Decisions& d) { d.choose_usage_by_pass = false; }},
    {"gather_blocks_row_wise", [](Decisions& d) { d.gather_blocks_row_wise = false; }},
    {"split_in_eight_bits", [](Decisions& d) { d.split_in_eight_bits = false; }},
    {"drop_transpose_in_make_like", [](Decisions& d) { d.drop_transpose_in_make_like = false; }},
    {"own_scale_in_new_zeros", [](Decisions& d) { d.own_scale_in_new_zeros = false; }},
    {"copy_bytes_between_shards", [](Decisions& d) { d.copy_bytes_between_shards = false; }},
    {"view_aligned_slices", [](Decisions& d) { d.view_aligned_slices = false; }},
    {"flatten_without_copy", [](Decisions& d) { d.flatten_without_copy = false; }},
    {"unwrap_shards_in_adam", [](Decisions& d) { d.unwrap_shards_in_adam = false; }},
    {"shard_optimizer_state", [](Decisions& d) { d.shard_optimizer_state = false; }},
    {"fuse_moment_casts", [](Decisions& d) { d.fuse_moment_casts = false; }},
    {"cast_blocks_in_adam", [](Decisions& d) { d.cast_blocks_in_adam = false; }},
    {"measure_scale_in_adam", [](Decisions& d) { d.measure_scale_in_adam = false; }},
    {"requantize_in_backward", [](Decisions& d) { d.requantize_in_backward = false; }},
    {"clear_gathered_transposes", [](Decisions& d) { d.clear_gathered_transposes = false; }},
    {"write_back_list_updates", [](Decisions& d) { d.write_back_list_updates = false; }},
    {"rebind_amax_on_resize", [](Decisions& d) { d.rebind_amax_on_resize = false; }},
    {"reset_incomplete_workspaces", [](Decisions& d) { d.reset_incomplete_workspaces = false; }},
    {"skip_cached_casts", [](Decisions& d) { d.skip_cached_casts = false; }},
    {"skip_casts_of_experts", [](Decisions& d) { d.skip_casts_of_experts = false; }},
    {"pad_only_eight_bits", [](Decisions& d) { d.pad_only_eight_bits = false; }},
    {"pad_groups_to_blocks", [](Decisions& d) { d.pad_groups_to_blocks = false; }},
    {"stash_inner_scales", [](Decisions& d) { d.stash_inner_scales = false; }},
    {"differentiate_quantized_inputs", [](Decisions& d) { d.differentiate_quantized_inputs = false; }},
    {"divide_adam_lists", [](Decisions& d) { d.divide_adam_lists = false; }},
    {"count_in_64_bits", [](Decisions& d) { d.count_in_64_bits = false; }},
};

template <class Row, std::size_t N>
const Row& row_called(std::string_view name, const Row (&rows)[N], std::string_view what) {
  for (const Row& row : rows)
    if (row.name == name) return row;
  fail(fmt::format("predict: {} '{}' has no closed form; add a row to its table in predict_sizes.cpp", what, name));
}

/// Without biases a layer norm has no beta either.
FormNumbers form_numbers(const ModelConfig& model) {
  FormNumbers form = row_called(model.form, kForms, "form");
  if (model.bias) form.bias = *model.bias == Bias::kAll;
  if (form.norm_parameters == 2 && !form.bias) form.norm_parameters = 1;
  return form;
}

ShardingNumbers sharding_numbers(const CellConfig& config) {
  if (!is_sharded(config)) return {.replicated = is_replicated(config)};
  const MeshText mesh = mesh_of(config);
  return {.sharded = true,
          .replicas = mesh.replicas,
          .shards = mesh.shards,
          .reshards = config.reshard_after_forward,
          .ahead = config.gather_ahead,
          .deferred = defers_init(config)};
}

}  // namespace

Bytes ScaleRows::padded(std::int64_t rows, std::int64_t cols) const {
  return row ? round_up(ceil_div(rows, block), multiple) * row(cols) : 0;
}

Bytes ScaleRows::filled(std::int64_t rows, std::int64_t cols) const {
  return row ? ceil_div(rows, block) * row(cols) : 0;
}

ShapeNumbers::ShapeNumbers(const CellConfig& config)
    : form(form_numbers(config.model)),
      element(config.training.param_dtype == ParamDType::kF32 ? 4 : 2),
      reduced(!config.reduce_dtype                        ? element
              : *config.reduce_dtype == ReduceDType::kF32 ? 4
                                                          : 2),
      context_ranks(config.context_parallel),
      expert_ranks(config.expert_parallel),
      fp8_dispatch(config.training.fp8_dispatch && config.expert_parallel > 1),
      tokens(seq_of_rank(config) * config.model.batch),
      seq(config.model.seq),
      hidden(config.model.hidden),
      heads(config.model.heads),
      kv_heads(config.model.kv_heads == 0 ? heads : config.model.kv_heads),
      head_dim(config.model.head_dim == 0 ? hidden / heads : config.model.head_dim),
      ffn(mlp_width(config.model)),
      vocabulary(config.model.vocabulary),
      tied_head(config.model.head == HeadWeight::kTied),
      learned_positions(config.model.positions.value_or(form.rotary ? Positions::kNone : Positions::kLearned) ==
                        Positions::kLearned),
      q_rank(config.model.q_rank),
      kv_rank(config.model.kv_rank),
      rope_dim(has_latents(config.model) ? config.model.rope_dim : 0),
      value_dim(value_dim_of(config.model)),
      attended(heads * value_dim),
      packed((heads + kv_heads) * (head_dim + rope_dim) + kv_heads * value_dim),
      activated(form.activation_inputs * ffn),
      experts(config.model.experts),
      top_k(config.model.top_k),
      shared_experts(config.model.shared_experts),
      router_biases(static_cast<float>(config.model.router_bias_rate) > 0.0f),
      aux_loss(static_cast<float>(config.model.router_aux_loss) > 0.0f),
      sigmoid_router(config.model.router == RouterScore::kSigmoid),
      grouped(config.model.layer == "grouped_linear"),
      qkv_bias(form.bias || config.model.bias == Bias::kQkv),
      attention_sinks(config.model.attention_sinks),
      qk_norm(config.model.qk_norm),
      rewrites_qkv(form.rotary || qk_norm),
      uneven_split(config.model.split == GroupSplit::kUneven),
      fused_mlp(config.model.op_fuser == OpFuser::kMlp),
      dropout(static_cast<float>(config.model.dropout) > 0.0f),
      checkpoint(config.training.checkpoint != Recompute::kNone),
      recompute(config.training.checkpoint) {}

CastNumbers::CastNumbers(const CellConfig& config, Arm arm)
    : recipe(row_called(arm == Arm::kBf16 ? "bf16" : config.training.recipe, kRecipes, "recipe")),
      history_rows(config.training.recipe_options.amax_history_length.value_or(kHistoryRows)),
      built_history_rows(recipe.histories && config.training.initial_history_length > 0
                             ? config.training.initial_history_length
                             : history_rows),
      any_orientation(row_called(config.arch, kArchs, "arch").any_orientation),
      operands(recipe.activation_scales != nullptr),
      attention(recipe.attention.casts && config.training.fp8_attention),
      attention_backward(attention && config.training.fp8_attention_backward),
      exchanges_eight_bits(attention_backward && config.training.fp8_mha && recipe.attention.casts_output),
      // A norm or activation can write eight bits only with a scale that is known beforehand, as in delayed scaling.
      // Block scaling has its scales in time, but needs the other orientation too.
      unstored(recipe.histories && config.training.fused_quantize),
      rows_unstored(operands && !recipe.measures_first && config.training.fused_quantize),
      measured_early(recipe.measures_first && config.training.fused_quantize),
      weights(operands && config.training.quantized_weights),
      keeps_initial_on_host(weights && config.training.masters_from == MastersFrom::kHostCopy) {}

CellNumbers::CellNumbers(const CellConfig& config, Arm arm)
    : shape(config), casts(config, arm), sharding(sharding_numbers(config)) {
  phase.resizes = casts.built_history_rows != casts.history_rows && config.training.validation_batches == 0;
  if (config.training.cache_weights && casts.operands && !casts.weights && !sharding.sharded)
    phase.cached = config.training.validation_batches > 0 ? Cached::kWidened : Cached::kMade;
  frozen = config.training.frozen_layers > 0;
  if (arm != Arm::kBefore) return;
  for (const FixNumbers& fix : kFixes)
    if (fix.name == config.fix) fix.revert(decisions);
}

CellNumbers CellNumbers::without_backward() const {
  CellNumbers out = *this;
  out.phase.evaluates = true;
  if (phase.cached == Cached::kWidened) out.phase.cached = Cached::kAgain;
  // There are no shells if nothing is saved.
  Decisions& decided = out.decisions;
  decided.module_shells = decided.grouped_shells = decided.fuser_shells = decided.attention_shells = Shells::kEmpty;
  return out;
}

CellNumbers CellNumbers::in_validation(bool first) const {
  CellNumbers validation = without_backward();
  validation.phase.resizes = first && casts.built_history_rows != casts.history_rows;
  if (phase.cached != Cached::kNever) validation.phase.cached = first ? Cached::kMade : Cached::kAgain;
  return validation;
}

CellNumbers CellNumbers::of_product(int index) const {
  CellNumbers product = *this;
  const bool alternates = shape.recompute == Recompute::kSelectiveAlternate;
  product.shape.keeps_product = keeps_attention() && (!alternates || index % 2 == 0);
  return product;
}

CellNumbers CellNumbers::of_mlp_product(int index) const { return of_product(products_before_attention() + 1 + index); }

CellNumbers CellNumbers::in_later_steps() const {
  CellNumbers later = *this;
  later.phase.resizes = false;
  if (phase.cached != Cached::kNever) later.phase.cached = Cached::kAgain;
  // If forward gathers for both passes, nothing drops the transposes of tensors under one scale.
  later.phase.finds_transposes = !decisions.clear_gathered_transposes && casts.recipe.per_tensor && !sharding.reshards;
  return later;
}

CellNumbers CellNumbers::in_later_micro_batches() const {
  CellNumbers later = in_later_steps();
  later.phase.adds_gradients = !sharding.sharded;
  if (phase.cached != Cached::kNever) later.phase.cached = casts_copies_again() ? Cached::kAgain : Cached::kRead;
  return later;
}

/// Kernels of MXFP8 cannot skip, nor kernels of one scale that make only rows.
bool CellNumbers::casts_copies_again() const {
  if (shape.grouped && !decisions.skip_casts_of_experts) return true;
  const bool cannot_skip = casts.recipe.per_tensor ? casts.any_orientation : casts.recipe.orientations_differ;
  return cannot_skip && !decisions.skip_cached_casts;
}

Schedule CellNumbers::resized_histories(std::int64_t tensors, bool keeps_old) const {
  if (casts.built_history_rows == casts.history_rows) return {};
  return allocate(kF32 * tensors * casts.history_rows, Owner::kScales) +
         release(keeps_old ? 0 : kF32 * tensors * casts.built_history_rows, Owner::kScales);
}

Schedule CellNumbers::reduction(const GradientBytes& of) const {
  const auto made = [](Bytes bytes) { return allocate(bytes, Owner::kGradients); };
  const auto freed = [](Bytes bytes) { return release(bytes, Owner::kGradients); };
  if (shape.reduced == shape.element)
    return made(of.padded) + freed(of.short_of_rows) + made(of.shards) +
           freed(of.padded + of.unsharded - of.short_of_rows);
  const Bytes copies = in_reduction(of.moved), sums = in_reduction(of.shards);
  return made(copies) + freed(of.unsharded) + made(sums) + freed(copies) + made(of.shards) + freed(sums);
}

OrientationBytes CellNumbers::orientations(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const {
  const Bytes data = rows * cols;
  if (casts.recipe.per_tensor)
    return {.rowwise = data, .columnwise = casts.any_orientation ? 0 : data, .scale = scales(rows, cols)};
  return {.rowwise = data + scales(rows, cols), .columnwise = data + scales(cols, rows)};
}

Cast CellNumbers::cast(ScaleBytes scales, std::int64_t rows, std::int64_t cols) const {
  if (!scales) return {};
  const OrientationBytes made = orientations(scales, rows, cols);
  const Bytes rowwise = made.rowwise + made.scale, scratch = casts.recipe.measures_first ? kF32 : 0;
  if (phase.evaluates) return {.both = rowwise, .kept = rowwise, .scratch = scratch};
  return {.both = made.both(),
          .kept = (made.columnwise > 0 ? made.columnwise : made.rowwise) + made.scale,
          .scratch = scratch};
}

Cast CellNumbers::cast_rowwise(std::int64_t cols) const {
  if (!casts.recipe.activation_scales) return {};
  const OrientationBytes made = orientations(casts.recipe.activation_scales, shape.tokens, cols);
  const Bytes rows = made.rowwise + made.scale;
  return {.both = rows, .kept = rows, .scratch = casts.recipe.measures_first ? kF32 : 0};
}

Cast CellNumbers::cast_columnwise(std::int64_t cols) const {
  if (!casts.recipe.activation_scales || phase.evaluates) return {};
  const Bytes columns = orientations(casts.recipe.activation_scales, shape.tokens, cols).columnwise;
  // Blocks along columns are cast from dequantized values; everything else is transposed.
  return {.both = columns, .kept = columns, .scratch = casts.recipe.per_tensor ? 0 : plain(cols)};
}

Cast CellNumbers::cast_weight_rowwise(std::int64_t out, std::int64_t in) const {
  if (!casts.recipe.weight_scales) return {};
  const OrientationBytes made = weight_orientations(out, in);
  const Bytes rows = made.rowwise + made.scale;
  return {.both = rows, .kept = rows, .scratch = casts.recipe.measures_first ? kF32 : 0};
}

}  // namespace fp8lab::closed_form
