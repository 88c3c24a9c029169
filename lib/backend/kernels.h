#pragma once

#include <cstdint>
#include <span>

#include "backend/expert_kernels.h"
#include "backend/latent_kernels.h"
#include "core/float_bits.h"
#include "recipe/recipe.h"
#include "tensor/view.h"

// The kernel table: the operations of a device, one argument struct per kernel. lib/ops validates arguments before a
// kernel gets them. Matrices are [tokens, features] with token = position * batch + sequence ("sbhd"); FP32 scalars are
// 1-element arrays in device memory. Element types are f32 or bf16 unless stated otherwise; arithmetic is in FP32, and
// results are rounded to the output's type once.
namespace fp8lab {

/// The place in which a kernel runs: a stream and handles on a GPU, nothing on the host.
class ExecContext {
 public:
  virtual ~ExecContext() = default;

  /// True if the same call must give the same bits on every run. If false, a kernel may add in whatever order is
  /// fastest.
  bool deterministic() const { return deterministic_; }
  void set_deterministic(bool on) { deterministic_ = on; }
  /// True if the host sums products of 8-bit data as a Hopper tensor core does (cpu/gemm/matmul.h). A GPU sums as it
  /// does.
  bool tensor_core_sums() const { return tensor_core_sums_; }
  void set_tensor_core_sums(bool on) { tensor_core_sums_ = on; }

 private:
  bool deterministic_ = true;
  bool tensor_core_sums_ = false;
};

/// A function pointer without a default constructor, so that a table with a missing kernel does not compile.
template <class Args>
class Kernel {
 public:
  using Function = void (*)(const Args&, ExecContext&);
  constexpr Kernel(Function function) : function_(function) {}
  void operator()(const Args& args, ExecContext& context) const { function_(args, context); }

 private:
  Function function_;
};

/// out = value. Any type if `value` is +0, whose bytes are all zero.
struct FillArgs {
  MatrixView out;
  float value = 0.0f;
};

/// out(i, j) from counter (seed, stream, (row_offset + i) * out.cols + j), so a shard equals its slice of the full
/// array.
struct RandomArgs {
  MatrixView out;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t row_offset = 0;
  bool normal = true;  ///< normal(mean 0, `scale`) or uniform in [0, scale)
  float scale = 1.0f;
};

/// out = in, converted. Any strides, so a transposed view on one side transposes. Between equal types bits are copied,
/// whatever the type.
struct CastArgs {
  MatrixView in;
  MatrixView out;
};

/// out = alpha * a + beta * b; out may be a or b.
struct AddArgs {
  MatrixView a;
  MatrixView b;
  MatrixView out;
  float alpha = 1.0f;
  float beta = 1.0f;
};

/// values *= factor.
struct ScaleArgs {
  MatrixView values;
  float factor = 1.0f;
};

/// out[j] = sum over rows of in(i, j), in FP32. The order of this and of all sums over rows, columns and losses is
/// defined in core/sum_order.h.
struct ColumnSumArgs {
  MatrixView in;
  MatrixView out;  ///< [1, cols]
};

/// amax = max(amax, max |in|) or, if `fresh`, max |in|, whatever was stored there before; NaN in the input gives NaN.
/// Stored at `amax`, f32[1].
struct AmaxArgs {
  MatrixView in;
  float* amax = nullptr;
  bool fresh = false;
};

/// Casts `in` to `format`. Either output may be absent (values.data null). The column-wise output is the format applied
/// to the transposed input: columnwise.values is [in.cols, in.rows]. `in` may also be f16. A matrix without elements
/// still gets its scale_inv or its padding, and leaves *amax as it is.
///
/// Per tensor: quantized data = cast(in * *scale), both scale_inv = 1 / *scale (one element, shared), and *amax =
/// max(*amax, max |in|) if `amax` is given; a NaN in either makes it NaN. Without `scale`, the scale is
/// scale_from_amax(*measured, ...) of core/float8.h by the format.
///
/// Blocks, whose sides divide 128: each block's scale comes from its own amax; scale, measured and amax are unused;
/// padding of the scales is written zero.
struct QuantizeArgs {
  MatrixView in;
  OperandView rowwise;
  OperandView columnwise;
  QuantFormat format;
  const float* scale = nullptr;
  const float* measured = nullptr;
  float* amax = nullptr;
};

/// The destination of a matrix's new values in eight bits under one scale. The values are rounded to `nominal` and cast
/// from there to either orientation or both, as QuantizeArgs defines for full tensors. Without orientations they are
/// only measured. *amax, if given, is raised to the largest magnitude of the rounded values.
struct CastTarget {
  OperandView rowwise;
  OperandView columnwise;
  QuantFormat format;
  DType nominal = DType::kF32;  ///< f32, f16 or bf16
  const float* scale = nullptr;
  float* amax = nullptr;

  bool casts() const { return rowwise.values.data != nullptr || columnwise.values.data != nullptr; }
  /// False if there is nothing to do.
  explicit operator bool() const { return casts() || amax != nullptr; }
};

/// A matrix and its target. If the target has orientations and no scale, its scale is scale_from_amax(*measured, ...)
/// by its format.
struct ListCast {
  MatrixView in;
  CastTarget target;
  const float* measured = nullptr;
};

/// Casts a list of matrices in one launch.
struct QuantizeListArgs {
  std::span<const ListCast> tensors;
};

/// out = quantized data * scale_inv.
struct DequantizeArgs {
  OperandView in;
  MatrixView out;
};

/// One delayed-scaling update of `tensors` tensors: history is f32 [length, tensors], row 0 live; scale is f32
/// [tensors]. Rule and order: lib/ops/delayed_scaling.h.
struct DelayedUpdateArgs {
  float* history = nullptr;
  float* scale = nullptr;
  std::int64_t length = 0;
  std::int64_t tensors = 0;
  std::span<const float> fp8_max;  ///< host memory, one per tensor, margin not applied
  AmaxAlgorithm algorithm = AmaxAlgorithm::kMax;
  int margin = 0;
};

/// out[m, n] = sum over k of a[m, k] * b[n, k], plus bias[n] in FP32 if given; `accumulate` adds the previous contents
/// of out. All of it happens in FP32 and is rounded to out's type once. Per-tensor operands enter the sum as quantized
/// data, and the finished sum is multiplied by their inverse scales, as matrix units do; blocks enter as quantized data
/// * scale_inv, each rounded to FP32 (exact for E8M0 scales).
struct GemmArgs {
  OperandView a;
  OperandView b;
  MatrixView out;
  MatrixView bias;  ///< [1, n] or absent (data null)
  bool accumulate = false;
  /// Lets the matrix units keep their own short accumulator (some 13 fraction bits) for the entire sum of per-tensor
  /// scaled quantized data, instead of moving it to FP32 every 128 terms. Only devices with such units, and the host
  /// if it emulates them (ExecContext::tensor_core_sums()), read this.
  bool fast_accumulation = false;
};

enum class NormKind { kLayerNorm, kRmsNorm };

/// y = (x - mean) * rstd * gamma + beta, per row; RMSNorm: y = x * rstd * gamma. mean and rstd are f32 [rows, 1].
struct NormForwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  MatrixView x;
  MatrixView gamma;  ///< [1, cols]
  MatrixView beta;   ///< LayerNorm only; absent (data null): not added
  MatrixView y;
  MatrixView mean;  ///< LayerNorm only
  MatrixView rstd;
  float epsilon = 1e-5f;
  float* amax = nullptr;  ///< if given, becomes max |y| of y as stored, like a fresh AmaxArgs
};

struct NormBackwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  MatrixView grad_y;
  MatrixView x;
  MatrixView gamma;
  MatrixView mean;
  MatrixView rstd;
  MatrixView grad_x;
  MatrixView grad_gamma;  ///< [1, cols]
  MatrixView grad_beta;   ///< LayerNorm only; absent (data null): not wanted
};

enum class ActivationKind { kGelu, kSwiglu, kGeglu };

struct Activation {
  Activation(ActivationKind of, float with_limit = 0.0f) : kind(of), limit(with_limit) {}

  ActivationKind kind;
  float limit;  ///< ActivationForwardArgs::limit
};

/// GELU (tanh form): y = gelu(x), same shape. SwiGLU: x is [rows, 2n] = (gate | up), y = silu(gate) * up is [rows, n];
/// GeGLU: the same with y = gelu(gate) * up.
struct ActivationForwardArgs {
  ActivationKind kind = ActivationKind::kGelu;
  /// Above 0, only with kSwiglu: clamped SwiGLU. With g = min(gate, limit) and u = up clamped to
  /// [-limit, limit], y = g * sigmoid(1.702 g) * (u + 1). In backward a clamped value has the derivative 0.
  float limit = 0.0f;
  MatrixView x;
  MatrixView y;
  float* amax = nullptr;  ///< if given, becomes max |y| of y as stored, like a fresh AmaxArgs
};

struct ActivationBackwardArgs {
  ActivationKind kind = ActivationKind::kGelu;
  float limit = 0.0f;
  MatrixView grad_y;
  MatrixView x;
  MatrixView grad_x;
  float* amax = nullptr;  ///< likewise for grad_x
};

/// norm_forward and then quantize of its y, bit for bit, but y is never stored: `norm.y` and `cast.in` have a type, a
/// shape and no data, and `norm.amax` is null. `cast` must be of a full tensor under a given scale, or row-wise in
/// blocks of one row.
struct NormQuantizeArgs {
  NormForwardArgs norm;
  QuantizeArgs cast;
};

/// The same for activation_forward.
struct ActivationQuantizeArgs {
  ActivationForwardArgs activation;
  QuantizeArgs cast;
};

/// The same for gemm, whose result is f32 here: quantized data and amax come from the finished sum with its bias,
/// which is not rounded to 16 bits before the cast. Equal to gemm and quantize one after the other up to the order of
/// the sum. `product.accumulate` is false.
struct GemmQuantizeArgs {
  GemmArgs product;
  QuantizeArgs cast;
};

/// Rotary embedding of [seq * batch, heads * head_dim]: dimensions d and d + head_dim/2 of a head are rotated by
/// position * base^(-2d/head_dim), with position = first_position + row / batch. `inverse` rotates back, which is its
/// gradient.
struct RopeArgs {
  MatrixView in;
  MatrixView out;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  double base = 10000.0;
  bool inverse = false;
  std::int64_t first_position = 0;
};

/// out = keep ? in / (1 - p) : 0. p is the probability rounded up to a multiple of 2^-16 (in_65536ths()). keep is drawn
/// from (seed, stream, index) with index (row_offset + row) * cols + col: an element is kept if CounterRng::half(index)
/// is not below 65536 p. The gradient is the same operation with the same key.
struct DropoutArgs {
  MatrixView in;
  MatrixView out;
  float probability = 0.0f;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t row_offset = 0;
};

/// A quantized role inside attention, scaled per tensor. A null scale leaves that operand in 16 bits.
struct AttentionRole {
  DType dtype = DType::kE4M3;
  const float* scale = nullptr;
  float* amax = nullptr;  ///< if given, raised to the largest magnitude that was cast
};

/// Causal or full attention with grouped queries: head h reads key/value head h / (heads / kv_heads). A query sees the
/// keys [first_key(query), end_key(query)). No S x S matrix is stored. P = exp(softmax_scale * Q K^T - lse), normalised
/// by rows, so |P| <= 1; P is zero in a row whose every logit is -inf. Dropout on P keeps an entry if uniform(seed,
/// stream, ((sequence * heads + head) * seq + query) * seq + key) >= p and divides it by 1 - p. With `s` given, P is
/// cast after dropout and before P V: P8 = cast(P * scale), which enters the product as P8 / scale.
struct AttentionShape {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;  ///< columns of a head of V and O; 0: head_dim
  bool causal = true;
  std::int64_t window = 0;  ///< the most keys that a query sees under a causal mask, its own included; 0: no limit
  float softmax_scale = 1.0f;
  float dropout = 0.0f;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  F8_HOST_DEVICE std::int64_t columns_of_value() const { return value_dim > 0 ? value_dim : head_dim; }
  F8_HOST_DEVICE std::int64_t first_key(std::int64_t query) const {
    return window == 0 || query < window ? 0 : query + 1 - window;
  }
  F8_HOST_DEVICE std::int64_t end_key(std::int64_t query) const { return causal ? query + 1 : seq; }
};

struct AttentionForwardArgs {
  AttentionShape shape;
  OperandView q;  ///< [seq * batch, heads * head_dim], 16-bit, f32, or FP8 per tensor
  OperandView k;
  OperandView v;
  MatrixView o;    ///< O before any cast
  MatrixView lse;  ///< f32 [batch * heads, seq]: natural log of the row's sum of exponentials, maximum included
  AttentionRole s;
  /// [1, heads], or absent (data null). The sink of each head is a logit that joins the sum of exponentials of every
  /// query, and so `lse`. It has no entry in P: rows of P add up to less than 1.
  MatrixView sinks = {};
  /// How O will be cast next, if the caller has the scale already. A kernel may then return the values of O's eight
  /// bits, whose cast gives those bits again. Only the kernel then has O's own amax: it raises `amax`, if given, to
  /// the amax of O before any rounding, and sets *o_measured, so that the later cast raises nothing. A kernel that
  /// returns O itself changes neither.
  AttentionRole o_cast = {};
  bool* o_measured = nullptr;  ///< host memory, false before the call, final when the call returns; may be null
};

/// dV = P^T dO; dP = dO V^T with forward's dropout; dS = P * (dP - rowsum(dO * O)), P without dropout; dQ =
/// softmax_scale * dS K; dK = softmax_scale * dS^T Q. With `s` given, P is cast in P^T dO as in forward; with `grad_p`
/// given, dS is cast before both of its products.
struct AttentionBackwardArgs {
  AttentionShape shape;
  OperandView q;
  OperandView k;
  OperandView v;
  OperandView o;
  OperandView grad_o;
  MatrixView lse;
  MatrixView grad_q;  ///< the gradients before any cast
  MatrixView grad_k;
  MatrixView grad_v;
  AttentionRole s;
  AttentionRole grad_p;
  MatrixView sinks = {};       ///< forward's
  MatrixView grad_sinks = {};  ///< [1, heads]: minus the sum over queries of exp(sink - lse) * rowsum(dO * O)
  /// How the gradients will be cast next, all three under one scale, if the caller has it. A kernel may then return
  /// the values of their eight bits, with `amax` raised to the largest of their own amaxes and *grad_measured set, as
  /// forward does for O.
  AttentionRole grad_cast;
  bool* grad_measured = nullptr;  ///< like forward's o_measured
};

/// Attention over two sets of keys from attention over each of them, for every query and head: `lse` becomes
/// ln(exp(lse) + exp(part_lse)), and `o` the mean of itself and `part_o` with weights exp(old lse - lse) and
/// exp(part_lse - lse). A part without visible keys, whose lse is -inf, has weight 0.
struct AttentionMergeArgs {
  MatrixView part_o;    ///< f32 [seq * batch, heads * head_dim]
  MatrixView part_lse;  ///< f32 [batch * heads, seq]
  MatrixView o;         ///< f32, as part_o
  MatrixView lse;       ///< f32, as part_lse
  std::int64_t batch = 0;
  std::int64_t heads = 0;
};

/// out(i, j) = table(tokens[i], j), plus positions(i / batch, j) if given, rounded once. Tokens are i32 [rows, 1] below
/// table.rows; others are undefined.
struct EmbeddingForwardArgs {
  MatrixView tokens;
  MatrixView table;
  float scale = 1.0f;    ///< factor of the table's rows
  MatrixView positions;  ///< [rows / batch, cols] or absent (data null)
  std::int64_t batch = 1;
  MatrixView out;
};

/// grad_table(v, j) = scale * sum over the rows i of entry v of grad_out(i, j), in FP32, in the order of sums over
/// columns (core/sum_order.h) over only those rows, so that every run gives the same bits. Row i belongs to entry
/// tokens[i] or, if tokens are absent, to entry i / batch. Entries without rows become 0. `accumulate` adds the
/// previous contents before the result is rounded, and leaves entries without rows as they are.
struct EmbeddingBackwardArgs {
  float scale = 1.0f;
  MatrixView grad_out;
  MatrixView tokens;
  std::int64_t batch = 1;
  MatrixView grad_table;
  bool accumulate = false;
};

/// losses[i] = log_sums[i] - logits(i, targets[i]) with log_sums[i] = ln of the sum over j of exp(logits(i, j)); one
/// pass over the logits, order: core/sum_order.h. Targets are i32 [rows, 1] below logits.cols; losses and log_sums are
/// f32 [rows, 1].
struct CrossEntropyForwardArgs {
  MatrixView logits;
  MatrixView targets;
  MatrixView losses;
  MatrixView log_sums;
};

/// grad_logits(i, j) = (exp(logits(i, j) - log_sums[i]) - [j == targets[i]]) * grad_loss / rows: the gradient of the
/// mean of the losses. grad_logits may be logits.
struct CrossEntropyBackwardArgs {
  MatrixView logits;
  MatrixView targets;
  MatrixView log_sums;
  MatrixView grad_loss;  ///< f32 [1, 1]
  MatrixView grad_logits;
};

/// loss = sum over all elements of x, in double, divided by `divisor`, rounded once; order: core/sum_order.h.
struct SumLossArgs {
  MatrixView x;
  MatrixView loss;  ///< f32 [1, 1]
  double divisor = 1.0;
};

/// loss = mean over all elements of (x - target)^2; backward: grad_x = 2 (x - target) / numel * grad_loss.
struct MseLossArgs {
  MatrixView x;
  MatrixView target;
  MatrixView loss;
};

struct MseLossBackwardArgs {
  MatrixView x;
  MatrixView target;
  MatrixView grad_loss;  ///< f32 [1, 1]
  MatrixView grad_x;
};

/// *sum = the sum of squares over all elements of `tensors`, accumulated in double and rounded once, in the same order
/// on every device. Each tensor's elements, in row-major order, are cut into stretches. Element i of a stretch adds its
/// square to lane i modulo kSquareSumLanes. The lanes are added pairwise: neighbours first, then these sums to their
/// neighbours, and so on. Stretch k of the list adds its sum to lane k modulo kSquareSumLanes of a second set of lanes,
/// which are added in the same way.
inline constexpr std::int64_t kSquareSumStretch = 16384;
inline constexpr std::int64_t kSquareSumLanes = 1024;
struct SquareSumArgs {
  std::span<const MatrixView> tensors;
  float* sum = nullptr;
};

/// norm = sqrt(*square_sum); coefficient = min(1, max_norm / (norm + 1e-6)). A NaN norm makes the coefficient NaN.
struct ClipCoefficientArgs {
  const float* square_sum = nullptr;
  float max_norm = 0.0f;
  float* norm = nullptr;
  float* coefficient = nullptr;
};

/// One tensor of an Adam step; `param` is always given. Moments are f32, bf16, f16 or e4m3. f16 and e4m3 moments have a
/// scale (f32[1]): value = element * scale. scale = (largest finite magnitude) / (65504 / 2 or 448) is computed
/// again in every step, and is 1 for a tensor of zeros.
///
/// `master` is absent (data null), or the f32 value of which `param` is the rounding, or, if `param` is bf16, the low
/// 16 bits of that value as i16. In the last case `param` holds the high 16 bits, plus one if the low ones are
/// negative, which is rounding to nearest with ties away from zero; a NaN keeps only its sign.
struct AdamTensor {
  MatrixView param;
  MatrixView grad;
  MatrixView exp_avg;
  MatrixView exp_avg_sq;
  MatrixView master;
  float* exp_avg_scale = nullptr;
  float* exp_avg_sq_scale = nullptr;
  CastTarget target{};  ///< also receives the new f32 value: 8-bit weights of which `param`, in f32, is the master
  // What stochastic rounding draws by: the parameter's random stream, and the index of the first element here in the
  // unsharded parameter.
  std::uint64_t stream = 0;
  std::int64_t first_element = 0;
};

/// One step over a list of tensors. Rule: lib/optim/adam.h. exp_avg_weight and exp_avg_sq_weight are the weights of the
/// new gradient, 1 - beta; bias corrections are computed on the host, in float. Gradients are first multiplied by
/// *gradient_scale if it is given.
struct AdamArgs {
  std::span<const AdamTensor> tensors;
  float learning_rate = 0.0f;
  float exp_avg_weight = 0.1f;
  float exp_avg_sq_weight = 0.001f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  bool decoupled_decay = true;
  float bias_correction1 = 1.0f;
  float bias_correction2 = 1.0f;
  const float* gradient_scale = nullptr;
  /// bf16 parameters without a master are rounded by stochastic_bf16() instead of to the nearest. Element i of the
  /// unsharded parameter draws CounterRng(seed, stream + step).bits(i).
  bool stochastic = false;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
};

/// The element-wise operations that frameworks have over lists of tensors (PyTorch: torch._foreach_*); `s` is the
/// list's scalar.
enum class ListOp {
  kScale,        ///< out = s * out
  kAdd,          ///< out = out + s
  kAddList,      ///< out = out + s * a
  kSqrt,         ///< out = sqrt(out)
  kLerp,         ///< out = lerp(out, a, s): core/lerp.h
  kLerpProduct,  ///< out = lerp(out, a * b, s)
  kAddcdiv,      ///< out = out + s * (a / b)
};

/// `a` and `b` are absent if the operation has no such list.
struct ListOpTensor {
  MatrixView out;
  MatrixView a;
  MatrixView b;
};

struct ListOpArgs {
  ListOp op = ListOp::kScale;
  std::span<const ListOpTensor> tensors;
  float scalar = 0.0f;
};

/// The list of all kernels with their arguments. Every device's table, and the declarations of the `cpu` and `cuda`
/// kernels, are made from it. A new kernel is a row here, its argument struct above, and one function in the folder of
/// each device; `meta` gets an empty one automatically.
#define FP8LAB_KERNELS(KERNEL)                             \
  KERNEL(fill, FillArgs)                                   \
  KERNEL(random, RandomArgs)                               \
  KERNEL(cast, CastArgs)                                   \
  KERNEL(add, AddArgs)                                     \
  KERNEL(scale, ScaleArgs)                                 \
  KERNEL(column_sum, ColumnSumArgs)                        \
  KERNEL(amax, AmaxArgs)                                   \
  KERNEL(quantize, QuantizeArgs)                           \
  KERNEL(quantize_list, QuantizeListArgs)                  \
  KERNEL(dequantize, DequantizeArgs)                       \
  KERNEL(delayed_update, DelayedUpdateArgs)                \
  KERNEL(gemm, GemmArgs)                                   \
  KERNEL(norm_forward, NormForwardArgs)                    \
  KERNEL(norm_backward, NormBackwardArgs)                  \
  KERNEL(activation_forward, ActivationForwardArgs)        \
  KERNEL(activation_backward, ActivationBackwardArgs)      \
  KERNEL(norm_quantize, NormQuantizeArgs)                  \
  KERNEL(activation_quantize, ActivationQuantizeArgs)      \
  KERNEL(gemm_quantize, GemmQuantizeArgs)                  \
  KERNEL(rope, RopeArgs)                                   \
  KERNEL(dropout, DropoutArgs)                             \
  KERNEL(attention_forward, AttentionForwardArgs)          \
  KERNEL(attention_backward, AttentionBackwardArgs)        \
  KERNEL(attention_merge, AttentionMergeArgs)              \
  KERNEL(latent_heads, LatentHeadsArgs)                    \
  KERNEL(latent_heads_backward, LatentHeadsBackwardArgs)   \
  KERNEL(embedding_forward, EmbeddingForwardArgs)          \
  KERNEL(embedding_backward, EmbeddingBackwardArgs)        \
  KERNEL(route, RouteArgs)                                 \
  KERNEL(route_backward, RouteBackwardArgs)                \
  KERNEL(balance_experts, BalanceExpertsArgs)              \
  KERNEL(group_rows, GroupRowsArgs)                        \
  KERNEL(permute, PermuteArgs)                             \
  KERNEL(unpermute, UnpermuteArgs)                         \
  KERNEL(unpermute_weights, UnpermuteWeightsArgs)          \
  KERNEL(cross_entropy_forward, CrossEntropyForwardArgs)   \
  KERNEL(cross_entropy_backward, CrossEntropyBackwardArgs) \
  KERNEL(sum_loss, SumLossArgs)                            \
  KERNEL(mse_loss, MseLossArgs)                            \
  KERNEL(mse_loss_backward, MseLossBackwardArgs)           \
  KERNEL(square_sum, SquareSumArgs)                        \
  KERNEL(clip_coefficient, ClipCoefficientArgs)            \
  KERNEL(adam, AdamArgs)                                   \
  KERNEL(list_op, ListOpArgs)

#define FP8LAB_KERNEL_MEMBER(name, Args) Kernel<Args> name;
struct KernelTable {
  FP8LAB_KERNELS(FP8LAB_KERNEL_MEMBER)
};
#undef FP8LAB_KERNEL_MEMBER

/// Declares a device's own function for a kernel, in that device's namespace.
#define FP8LAB_DECLARE_KERNEL(name, Args) void name(const Args& args, ExecContext& context);

}  // namespace fp8lab
