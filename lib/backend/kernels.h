#pragma once

#include <cstdint>
#include <span>

#include "recipe/recipe.h"
#include "tensor/view.h"

// The kernel table: what a device can do, one argument struct per kernel. Arguments are validated by lib/ops before a
// kernel sees them. Matrices are [tokens, features] with token = position * batch + sequence ("sbhd"); FP32 scalars
// live in device memory as 1-element arrays. Element types are f32 or bf16 unless stated otherwise; arithmetic is in
// FP32, results are rounded to the output's type once.
namespace fp8lab {

/// Where a kernel runs: a stream and handles on a GPU, nothing on the host.
class ExecContext {
 public:
  virtual ~ExecContext() = default;

  /// Whether the same call must give the same bits on every run. Where not, a kernel may add in whatever order is
  /// fastest.
  bool deterministic() const { return deterministic_; }
  void set_deterministic(bool on) { deterministic_ = on; }

 private:
  bool deterministic_ = true;
};

/// A function pointer that cannot be forgotten: no default constructor, so a table with a gap does not compile.
template <class Args>
class Kernel {
 public:
  using Function = void (*)(const Args&, ExecContext&);
  constexpr Kernel(Function function) : function_(function) {}
  void operator()(const Args& args, ExecContext& context) const { function_(args, context); }

 private:
  Function function_;
};

/// Any type where `value` is +0: its bytes are zero then.
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

/// out = in, converted; any strides, so that a transposed view on one side transposes. Within a type bits are copied,
/// whatever they mean.
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

/// out[j] = sum over rows of in(i, j), in FP32. Order, here and wherever sums run over rows, columns or losses:
/// core/sum_order.h.
struct ColumnSumArgs {
  MatrixView in;
  MatrixView out;  ///< [1, cols]
};

/// amax = max(amax, max |in|), or, where `fresh`, max |in|, whatever was there before; NaN in the input gives NaN.
/// Stored at `amax`, f32[1].
struct AmaxArgs {
  MatrixView in;
  float* amax = nullptr;
  bool fresh = false;
};

/// Casts `in` to `format`. Either output may be absent (values.data null). The column-wise output is the format applied
/// to the transposed input: columnwise.values is [in.cols, in.rows]. Per tensor: quantized data = cast(in * *scale),
/// both scale_inv = 1 / *scale (one element, shared), and *amax = max(*amax, max |in|) where `amax` is given; a NaN in
/// either makes it NaN. Without `scale`, the scale is scale_from_amax(*measured, ...) of core/float8.h by the format.
/// Blocks, whose sides divide 128: each block's scale from its own amax; scale, measured and amax are unused; padding
/// of the scales is written zero. `in` may also be f16. A matrix without elements still gets its scale_inv or its
/// padding, and leaves *amax as it is.
struct QuantizeArgs {
  MatrixView in;
  OperandView rowwise;
  OperandView columnwise;
  QuantFormat format;
  const float* scale = nullptr;
  const float* measured = nullptr;
  float* amax = nullptr;
};

/// Where new values of a matrix go in eight bits under one scale: they are rounded to `nominal` and cast from there as
/// QuantizeArgs says of full tensors, to either orientation or both. Without orientations they are only measured.
/// *amax, where given, is raised to the largest magnitude of the rounded values.
struct CastTarget {
  OperandView rowwise;
  OperandView columnwise;
  QuantFormat format;
  DType nominal = DType::kF32;  ///< f32, f16 or bf16
  const float* scale = nullptr;
  float* amax = nullptr;

  bool casts() const { return rowwise.values.data != nullptr || columnwise.values.data != nullptr; }
  /// False where there is nothing to do.
  explicit operator bool() const { return casts() || amax != nullptr; }
};

/// A matrix for a target. Where the target has orientations and no scale, its scale is scale_from_amax(*measured, ...)
/// by its format.
struct ListCast {
  MatrixView in;
  CastTarget target;
  const float* measured = nullptr;
};

/// Casts of a list of matrices, at once.
struct QuantizeListArgs {
  std::span<const ListCast> tensors;
};

/// out = quantized data * scale_inv.
struct DequantizeArgs {
  OperandView in;
  MatrixView out;
};

/// One delayed-scaling update over `tensors` tensors: history is f32 [length, tensors], row 0 live; scale f32
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

/// out[m, n] = sum over k of a[m, k] * b[n, k], plus bias[n] in FP32 where given; `accumulate` adds to what out holds.
/// All of it happens in FP32 and is rounded to out's type once. Per-tensor operands enter as quantized data, and the
/// finished sum is multiplied by their inverse scales, as matrix units do; blocks enter as quantized data * scale_inv,
/// each rounded to FP32 (exact for E8M0 scales).
struct GemmArgs {
  OperandView a;
  OperandView b;
  MatrixView out;
  MatrixView bias;  ///< [1, n] or absent (data null)
  bool accumulate = false;
  /// Lets the matrix units keep their own short accumulator (some 13 fraction bits) for a full sum of per-tensor
  /// scaled quantized data instead of moving it to FP32 every 128 terms. Read by devices with such units alone.
  bool fast_accumulation = false;
};

enum class NormKind { kLayerNorm, kRmsNorm };

/// y = (x - mean) * rstd * gamma + beta, per row; RMSNorm: y = x * rstd * gamma. mean and rstd are f32 [rows, 1].
struct NormForwardArgs {
  NormKind kind = NormKind::kLayerNorm;
  MatrixView x;
  MatrixView gamma;  ///< [1, cols]
  MatrixView beta;   ///< LayerNorm only
  MatrixView y;
  MatrixView mean;  ///< LayerNorm only
  MatrixView rstd;
  float epsilon = 1e-5f;
  float* amax = nullptr;  ///< where given, becomes max |y| of y as it is stored, as a fresh AmaxArgs has it
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
  MatrixView grad_beta;   ///< LayerNorm only
};

enum class ActivationKind { kGelu, kSwiglu };

/// GELU (tanh form): y = gelu(x), same shape. SwiGLU: x is [rows, 2n] = (gate | up), y = silu(gate) * up is [rows, n].
struct ActivationForwardArgs {
  ActivationKind kind = ActivationKind::kGelu;
  MatrixView x;
  MatrixView y;
  float* amax = nullptr;  ///< where given, becomes max |y| of y as it is stored, as a fresh AmaxArgs has it
};

struct ActivationBackwardArgs {
  ActivationKind kind = ActivationKind::kGelu;
  MatrixView grad_y;
  MatrixView x;
  MatrixView grad_x;
  float* amax = nullptr;  ///< the same of grad_x
};

/// norm_forward and then quantize of its y, bit for bit, but y is never stored: `norm.y` and `cast.in` have a type, a
/// shape and no data, and `norm.amax` is null. `cast` is of a full tensor under a given scale, or row-wise in blocks
/// of one row.
struct NormQuantizeArgs {
  NormForwardArgs norm;
  QuantizeArgs cast;
};

/// The same of activation_forward.
struct ActivationQuantizeArgs {
  ActivationForwardArgs activation;
  QuantizeArgs cast;
};

/// The same of gemm, whose result is f32 here: quantized data and amax are of the finished sum with its bias, which
/// nothing rounds to 16 bits before the cast. Equal to the two one after the other up to the order of the sum.
/// `product.accumulate` is false.
struct GemmQuantizeArgs {
  GemmArgs product;
  QuantizeArgs cast;
};

/// Rotary embedding of [seq * batch, heads * head_dim]: dimensions d and d + head_dim/2 of a head are rotated by
/// position * base^(-2d/head_dim). `inverse` rotates back, which is its gradient.
struct RopeArgs {
  MatrixView in;
  MatrixView out;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  double base = 10000.0;
  bool inverse = false;
};

/// out = keep ? in / (1 - p) : 0, keep drawn from (seed, stream, (row_offset + row) * cols + col): kept where
/// uniform >= p. Its own gradient when given the same key.
struct DropoutArgs {
  MatrixView in;
  MatrixView out;
  float probability = 0.0f;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t row_offset = 0;
};

/// Quantized roles inside attention, all per tensor. A null scale leaves that operand in 16 bits.
struct AttentionRole {
  DType payload = DType::kE4M3;
  const float* scale = nullptr;
  float* amax = nullptr;  ///< where given, raised to the largest magnitude that was cast
};

/// Causal or full attention with grouped queries: head h reads key/value head h / (heads / kv_heads). Never holds S x
/// S. P = exp(softmax_scale * Q K^T - lse), normalised by rows, so |P| <= 1; zero in a row whose every logit is -inf.
/// Dropout on P keeps an entry where uniform(seed, stream, ((sequence * heads + head) * seq + query) * seq + key) >= p
/// and divides it by 1 - p. With `s` given, P is cast after dropout and before P V: P8 = cast(P * scale), read back by
/// 1 / scale.
struct AttentionShape {
  std::int64_t seq = 0;
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  bool causal = true;
  float softmax_scale = 1.0f;
  float dropout = 0.0f;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
};

struct AttentionForwardArgs {
  AttentionShape shape;
  OperandView q;  ///< [seq * batch, heads * head_dim], 16-bit, f32, or FP8 per tensor
  OperandView k;
  OperandView v;
  MatrixView o;  ///< before any cast of O
  MatrixView
      lse;  ///< f32 [batch * heads, seq]: log of the row's sum of exponentials, base e, with the row maximum in it
  AttentionRole s;
  /// How O will be cast next, where the caller knows the scale already. A kernel may then give what O's eight bits say,
  /// whose cast is those bits again. O's own amax is then its to know: it raises `amax`, where given, to that of O
  /// before any rounding, and sets *o_measured, so that the cast to come raises nothing. A kernel that gives O itself
  /// leaves both alone.
  AttentionRole o_cast = {};
  bool* o_measured = nullptr;  ///< host memory, false before the call and final when it returns; may be null
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
  MatrixView grad_q;  ///< before any cast
  MatrixView grad_k;
  MatrixView grad_v;
  AttentionRole s;
  AttentionRole grad_p;
  /// How the gradients are cast next, all three under one scale, where that is known: they may come as what their eight
  /// bits say, with `amax` raised to the largest of their own and *grad_measured set, as forward has it of O.
  AttentionRole grad_cast;
  bool* grad_measured = nullptr;  ///< as forward's o_measured
};

/// loss = sum over all elements of x, in double, rounded once; order: core/sum_order.h.
struct SumLossArgs {
  MatrixView x;
  MatrixView loss;  ///< f32 [1, 1]
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

/// *sum = the sum of squares over all elements of `tensors`, accumulated in double and rounded once, in this order on
/// every device: each tensor's elements, in row-major order, are cut into stretches; element i of a stretch adds its
/// square to lane i modulo kSquareSumLanes; lanes are added to their neighbours, these sums to theirs, and so on;
/// stretch k of the list adds its sum to one of as many lanes again, which are added in the same way.
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

/// One tensor of an Adam step; `param` is always there. Moments are f32, bf16, f16 or e4m3; f16 and e4m3 moments have a
/// scale (f32[1]): value = element * scale, where scale = (largest finite magnitude) / (65504 / 2 or 448) is found anew
/// in every step, and is 1 for a tensor of zeros. `master` is absent (data null), the f32 value that `param` is the
/// rounding of, or, where `param` is bf16, the low 16 bits of that value as i16: `param` then holds the high ones, plus
/// one if the low ones are negative, which is rounding to nearest with ties away from zero. A NaN keeps its sign only.
struct AdamTensor {
  MatrixView param;
  MatrixView grad;
  MatrixView exp_avg;
  MatrixView exp_avg_sq;
  MatrixView master;
  float* exp_avg_scale = nullptr;
  float* exp_avg_sq_scale = nullptr;
  CastTarget target{};  ///< where the new f32 value goes besides: eight-bit weights, of which `param` is the master
};

/// One step over a list of tensors. Rule: lib/optim/adam.h. Weights are those of the new gradient, 1 - beta; bias
/// corrections come from the host, in float. Gradients are first multiplied by *gradient_scale where it is given.
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
};

/// The element-wise operations that a framework has over lists of tensors; `s` is the list's scalar.
enum class ListOp {
  kScale,        ///< out = s out
  kAdd,          ///< out = out + s
  kAddList,      ///< out = out + s a
  kSqrt,         ///< out = sqrt(out)
  kLerp,         ///< out = lerp(out, a, s): core/lerp.h
  kLerpProduct,  ///< out = lerp(out, a b, s)
  kAddcdiv,      ///< out = out + s (a / b)
};

/// `a` and `b` are absent where the operation has no such list.
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

/// The one list of kernels, each with its arguments. A device's table, and the declarations of the `cpu` and `cuda`
/// kernels, are made from it: a new kernel is a row here, its argument struct above and one function in each device's
/// folder; `meta` has an empty one of every kernel.
#define FP8LAB_KERNELS(KERNEL)                        \
  KERNEL(fill, FillArgs)                              \
  KERNEL(random, RandomArgs)                          \
  KERNEL(cast, CastArgs)                              \
  KERNEL(add, AddArgs)                                \
  KERNEL(scale, ScaleArgs)                            \
  KERNEL(column_sum, ColumnSumArgs)                   \
  KERNEL(amax, AmaxArgs)                              \
  KERNEL(quantize, QuantizeArgs)                      \
  KERNEL(quantize_list, QuantizeListArgs)             \
  KERNEL(dequantize, DequantizeArgs)                  \
  KERNEL(delayed_update, DelayedUpdateArgs)           \
  KERNEL(gemm, GemmArgs)                              \
  KERNEL(norm_forward, NormForwardArgs)               \
  KERNEL(norm_backward, NormBackwardArgs)             \
  KERNEL(activation_forward, ActivationForwardArgs)   \
  KERNEL(activation_backward, ActivationBackwardArgs) \
  KERNEL(norm_quantize, NormQuantizeArgs)             \
  KERNEL(activation_quantize, ActivationQuantizeArgs) \
  KERNEL(gemm_quantize, GemmQuantizeArgs)             \
  KERNEL(rope, RopeArgs)                              \
  KERNEL(dropout, DropoutArgs)                        \
  KERNEL(attention_forward, AttentionForwardArgs)     \
  KERNEL(attention_backward, AttentionBackwardArgs)   \
  KERNEL(sum_loss, SumLossArgs)                       \
  KERNEL(mse_loss, MseLossArgs)                       \
  KERNEL(mse_loss_backward, MseLossBackwardArgs)      \
  KERNEL(square_sum, SquareSumArgs)                   \
  KERNEL(clip_coefficient, ClipCoefficientArgs)       \
  KERNEL(adam, AdamArgs)                              \
  KERNEL(list_op, ListOpArgs)

#define FP8LAB_KERNEL_MEMBER(name, Args) Kernel<Args> name;
struct KernelTable {
  FP8LAB_KERNELS(FP8LAB_KERNEL_MEMBER)
};
#undef FP8LAB_KERNEL_MEMBER

/// The declaration of a device's own function, in that device's namespace.
#define FP8LAB_DECLARE_KERNEL(name, Args) void name(const Args& args, ExecContext& context);

}  // namespace fp8lab
