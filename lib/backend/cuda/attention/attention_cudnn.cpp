#include <cudnn_frontend.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_scalars.h"
#include "backend/cuda/attention/cudnn_library.h"
#include "backend/cuda/kernels.h"
#include "core/check.h"
#include "core/float_bits.h"

// Attention through cuDNN's graphs. Only this file includes the frontend's headers, which take half a minute to
// compile.
namespace fp8lab::cuda {
namespace {

namespace frontend = cudnn_frontend;
using frontend::DataType_t;
using frontend::graph::Graph;
using frontend::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

// Identifiers of a graph's tensors.
enum Name : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kGradO,
  kGradQ,
  kGradK,
  kGradV,
  kInverseQ,
  kInverseK,
  kInverseV,
  kInverseO,
  kInverseGradO,
  kInverseS,
  kInverseGradP,
  kScaleS,
  kScaleO,
  kScaleGradP,
  kScaleGradQ,
  kScaleGradK,
  kScaleGradV,
  kAmaxS,
  kAmaxO,
  kAmaxGradP,
  kAmaxGradQ,
  kAmaxGradK,
  kAmaxGradV
};
enum class Direction : std::int64_t { kForward, kBackward, kFastBackward, kFloat8Forward, kFloat8Backward };

/// Everything that a plan depends on.
using Key = std::array<std::int64_t, 16>;

struct Plan {
  Key key;
  std::unique_ptr<Graph> graph;  ///< null: cuDNN has no plan for this key
  std::size_t workspace = 0;
};

/// cuDNN's handle on a GPU and the plans made so far.
class Cudnn {
 public:
  explicit Cudnn(CudaContext& context) {
    if (cudnnCreate(&handle_) != CUDNN_STATUS_SUCCESS ||
        cudnnSetStream(handle_, context.stream()) != CUDNN_STATUS_SUCCESS)
      handle_ = nullptr;  // without a handle no plan is found
    scalars_ = allocate_device(kScalars * sizeof(float));
  }
  ~Cudnn() {
    plans_.clear();
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  cudnnHandle_t handle() const { return handle_; }
  float* scalar(std::size_t index) { return reinterpret_cast<float*>(scalars_.get()) + index; }

  /// The plan for `key`. `build` fills an empty graph; it is called once for each key.
  template <class Build>
  const Plan& plan(const Key& key, Build&& build) {
    for (const Plan& plan : plans_)
      if (plan.key == key) return plan;
    Plan plan{.key = key, .graph = std::make_unique<Graph>(), .workspace = 0};
    plan.graph->set_intermediate_data_type(DataType_t::FLOAT).set_compute_data_type(DataType_t::FLOAT);
    build(*plan.graph);
    if (!finish(plan)) plan.graph.reset();
    plans_.push_back(std::move(plan));
    return plans_.back();
  }

 private:
  static constexpr std::size_t kScalars = 8;

  bool finish(Plan& plan) {
    Graph& graph = *plan.graph;
    std::int64_t workspace = 0;
    if (handle_ == nullptr || graph.validate().is_bad() || graph.build_operation_graph(handle_).is_bad() ||
        graph.create_execution_plans({frontend::HeurMode_t::A}).is_bad() || graph.check_support().is_bad() ||
        graph.build_plans().is_bad() || graph.get_workspace_size(workspace).is_bad())
      return false;
    plan.workspace = static_cast<std::size_t>(workspace);
    return true;
  }

  cudnnHandle_t handle_ = nullptr;
  DeviceBytes scalars_;
  std::vector<Plan> plans_;
};

DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return DataType_t::BFLOAT16;
    case DType::kF16: return DataType_t::HALF;
    case DType::kE4M3: return DataType_t::FP8_E4M3;
    case DType::kE5M2: return DataType_t::FP8_E5M2;
    default: return DataType_t::FLOAT;
  }
}

/// cuDNN reads 16 bytes at a time, so rows and pointers must be aligned to 16 bytes.
bool aligned(const MatrixView& view) {
  const auto bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
  return view.col_stride == 1 && view.row_stride * bytes % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
}

bool eligible(const AttentionShape& shape, const MatrixView& lse) {
  return shape.dropout == 0.0f && shape.seq > 0 && shape.batch > 0 && shape.head_dim % 16 == 0 &&
         lse.row_stride == shape.seq;
}

/// A tensor [batch, heads, seq, head_dim] with the strides that it has in a matrix of tokens.
Tensor matrix(Graph& graph, Name name, const AttentionShape& shape, std::int64_t heads, DType dtype,
              std::int64_t row_stride) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(name)
                          .set_data_type(data_type(dtype))
                          .set_dim({shape.batch, heads, shape.seq, shape.head_dim})
                          .set_stride({row_stride, shape.head_dim, shape.batch * row_stride, 1}));
}
Tensor matrix(Graph& graph, Name name, const AttentionShape& shape, std::int64_t heads, const MatrixView& view) {
  return matrix(graph, name, shape, heads, view.dtype, view.row_stride);
}
void place(const Tensor& tensor, Name name, const AttentionShape& shape, std::int64_t heads, DType dtype,
           std::int64_t row_stride) {
  tensor->set_uid(name)
      .set_output(true)
      .set_data_type(data_type(dtype))
      .set_dim({shape.batch, heads, shape.seq, shape.head_dim})
      .set_stride({row_stride, shape.head_dim, shape.batch * row_stride, 1});
}
void place_stats(const Tensor& stats, const AttentionShape& shape) {
  stats->set_uid(kStats)
      .set_output(true)
      .set_data_type(DataType_t::FLOAT)
      .set_dim({shape.batch, shape.heads, shape.seq, 1})
      .set_stride({shape.heads * shape.seq, shape.seq, 1, 1});
}
Tensor stats_of(Graph& graph, const AttentionShape& shape) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(kStats)
                          .set_data_type(DataType_t::FLOAT)
                          .set_dim({shape.batch, shape.heads, shape.seq, 1})
                          .set_stride({shape.heads * shape.seq, shape.seq, 1, 1}));
}
Tensor scalar(Graph& graph, Name name) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(name)
                          .set_data_type(DataType_t::FLOAT)
                          .set_dim({1, 1, 1, 1})
                          .set_stride({1, 1, 1, 1}));
}
void place_scalar(const Tensor& tensor, Name name) {
  tensor->set_uid(name)
      .set_output(true)
      .set_data_type(DataType_t::FLOAT)
      .set_dim({1, 1, 1, 1})
      .set_stride({1, 1, 1, 1});
}

Key key_of(Direction direction, const AttentionShape& shape, DType dtype, std::initializer_list<std::int64_t> strides) {
  Key key{static_cast<std::int64_t>(direction),
          static_cast<std::int64_t>(dtype),
          shape.seq,
          shape.batch,
          shape.heads,
          shape.kv_heads,
          shape.head_dim,
          shape.causal,
          static_cast<std::int64_t>(float_bits(shape.softmax_scale))};
  std::copy(strides.begin(), strides.end(), key.begin() + 9);
  return key;
}

using Pointers = std::unordered_map<std::int64_t, void*>;

void run(const Plan& plan, Cudnn& cudnn, Pointers& pointers, std::byte* workspace) {
  auto status = plan.graph->execute(cudnn.handle(), pointers, workspace);
  if (status.is_bad()) fail(fmt::format("cuDNN attention: {}", status.get_message()));
}

/// A result that cuDNN wrote to scratch in eight bits: row-major, without gaps.
struct ScratchData {
  std::byte* at = nullptr;
  DType dtype = DType::kE4M3;
  float* scale_inv = nullptr;
};
OperandView operand_of(const ScratchData& data, const MatrixView& result) {
  OperandView operand;
  operand.values = {.data = data.at,
                    .dtype = data.dtype,
                    .rows = result.rows,
                    .cols = result.cols,
                    .row_stride = result.cols,
                    .col_stride = 1};
  operand.scales = {.data = reinterpret_cast<std::byte*>(data.scale_inv), .dtype = DType::kF32, .storage_elems = 1};
  return operand;
}

std::size_t aligned_bytes(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

const std::string& cudnn_unavailable_reason() { return load_cudnn(); }

bool attention_cudnn_forward(const AttentionForwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  for (const MatrixView* view : {&q, &k, &v, &args.o})
    if (!aligned(*view) || view->dtype != q.dtype) return false;
  if (!eligible(shape, args.lse) || (q.dtype != DType::kBF16 && q.dtype != DType::kF16)) return false;

  auto& cudnn = context.kept<Cudnn>();
  const Key key =
      key_of(Direction::kForward, shape, q.dtype, {q.row_stride, k.row_stride, v.row_stride, args.o.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(data_type(q.dtype));
    auto [o, stats] = graph.sdpa(matrix(graph, kQ, shape, shape.heads, q), matrix(graph, kK, shape, shape.kv_heads, k),
                                 matrix(graph, kV, shape, shape.kv_heads, v),
                                 frontend::graph::SDPA_attributes()
                                     .set_generate_stats(true)
                                     .set_causal_mask(shape.causal)
                                     .set_attn_scale(shape.softmax_scale));
    place(o, kO, shape, shape.heads, args.o.dtype, args.o.row_stride);
    place_stats(stats, shape);
  });
  if (plan.graph == nullptr) return false;
  Pointers pointers{{kQ, q.data}, {kK, k.data}, {kV, v.data}, {kO, args.o.data}, {kStats, args.lse.data}};
  run(plan, cudnn, pointers, context.scratch(plan.workspace));
  return true;
}

bool attention_cudnn_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values, &o = args.o.values,
                   &grad_o = args.grad_o.values;
  for (const MatrixView* view : {&q, &k, &v, &o, &grad_o, &args.grad_q, &args.grad_k, &args.grad_v})
    if (!aligned(*view) || view->dtype != q.dtype) return false;
  if (!eligible(shape, args.lse) || (q.dtype != DType::kBF16 && q.dtype != DType::kF16)) return false;
  if (q.row_stride > INT32_MAX || o.row_stride > INT32_MAX) return false;

  auto& cudnn = context.kept<Cudnn>();
  const Key key = key_of(context.deterministic() ? Direction::kBackward : Direction::kFastBackward, shape, q.dtype,
                         {q.row_stride << 32 | o.row_stride, k.row_stride, v.row_stride, grad_o.row_stride,
                          args.grad_q.row_stride, args.grad_k.row_stride, args.grad_v.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(data_type(q.dtype));
    auto [grad_q, grad_k, grad_v] =
        graph.sdpa_backward(matrix(graph, kQ, shape, shape.heads, q), matrix(graph, kK, shape, shape.kv_heads, k),
                            matrix(graph, kV, shape, shape.kv_heads, v), matrix(graph, kO, shape, shape.heads, o),
                            matrix(graph, kGradO, shape, shape.heads, grad_o), stats_of(graph, shape),
                            frontend::graph::SDPA_backward_attributes()
                                .set_causal_mask(shape.causal)
                                .set_attn_scale(shape.softmax_scale)
                                .set_deterministic_algorithm(context.deterministic()));
    place(grad_q, kGradQ, shape, shape.heads, args.grad_q.dtype, args.grad_q.row_stride);
    place(grad_k, kGradK, shape, shape.kv_heads, args.grad_k.dtype, args.grad_k.row_stride);
    place(grad_v, kGradV, shape, shape.kv_heads, args.grad_v.dtype, args.grad_v.row_stride);
  });
  if (plan.graph == nullptr) return false;
  Pointers pointers{{kQ, q.data},
                    {kK, k.data},
                    {kV, v.data},
                    {kO, o.data},
                    {kGradO, grad_o.data},
                    {kStats, args.lse.data},
                    {kGradQ, args.grad_q.data},
                    {kGradK, args.grad_k.data},
                    {kGradV, args.grad_v.data}};
  run(plan, cudnn, pointers, context.scratch(plan.workspace));
  return true;
}

bool attention_cudnn_float8_forward(const AttentionForwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  for (const MatrixView* view : {&q, &k, &v})
    if (!aligned(*view) || view->dtype != DType::kE4M3) return false;
  if (!eligible(shape, args.lse) || args.s.scale == nullptr || args.s.payload != DType::kE4M3 ||
      args.o_cast.scale == nullptr || args.o_cast.payload != DType::kE4M3)
    return false;

  auto& cudnn = context.kept<Cudnn>();
  const std::int64_t o_stride = shape.heads * shape.head_dim;
  const Key key = key_of(Direction::kFloat8Forward, shape, q.dtype, {q.row_stride, k.row_stride, v.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(DataType_t::FP8_E4M3);
    auto [o, stats, amax_s, amax_o] = graph.sdpa_fp8(
        matrix(graph, kQ, shape, shape.heads, q), matrix(graph, kK, shape, shape.kv_heads, k),
        matrix(graph, kV, shape, shape.kv_heads, v), scalar(graph, kInverseQ), scalar(graph, kInverseK),
        scalar(graph, kInverseV), scalar(graph, kInverseS), scalar(graph, kScaleS), scalar(graph, kScaleO),
        frontend::graph::SDPA_fp8_attributes()
            .set_generate_stats(true)
            .set_causal_mask(shape.causal)
            .set_attn_scale(shape.softmax_scale));
    place(o, kO, shape, shape.heads, DType::kE4M3, o_stride);
    place_stats(stats, shape);
    place_scalar(amax_s, kAmaxS);
    place_scalar(amax_o, kAmaxO);
  });
  if (plan.graph == nullptr) return false;

  // Scratch: the workspace, then the quantized data of O.
  const std::size_t workspace = aligned_bytes(plan.workspace);
  const std::int64_t rows = shape.seq * shape.batch;
  std::byte* const scratch = context.scratch(workspace + static_cast<std::size_t>(rows * o_stride));
  const RoleScalars role_s{
      .scale = args.s.scale, .amax = args.s.amax, .inverse = cudnn.scalar(0), .seen = cudnn.scalar(1)};
  const RoleScalars role_o{
      .scale = args.o_cast.scale, .amax = args.o_cast.amax, .inverse = cudnn.scalar(2), .seen = cudnn.scalar(3)};
  const std::array roles = {role_s, role_o};
  prepare_scales(roles, context.stream());
  Pointers pointers{{kQ, q.data},
                    {kK, k.data},
                    {kV, v.data},
                    {kO, scratch + workspace},
                    {kStats, args.lse.data},
                    {kInverseQ, args.q.scales.data},
                    {kInverseK, args.k.scales.data},
                    {kInverseV, args.v.scales.data},
                    {kInverseS, role_s.inverse},
                    {kScaleS, const_cast<float*>(args.s.scale)},
                    {kScaleO, const_cast<float*>(args.o_cast.scale)},
                    {kAmaxS, cudnn.scalar(1)},
                    {kAmaxO, cudnn.scalar(3)}};
  run(plan, cudnn, pointers, scratch);
  raise_amaxes(roles, context.stream());
  if (args.o_measured != nullptr) *args.o_measured = true;
  const ScratchData data{.at = scratch + workspace, .dtype = DType::kE4M3, .scale_inv = role_o.inverse};
  dequantize({.in = operand_of(data, args.o), .out = args.o}, context);
  return true;
}

// cuDNN multiplies dS by softmax_scale before it casts it, and the definition multiplies afterwards. The scale that
// cuDNN gets is therefore divided by softmax_scale, so that the quantized data equal the definition's up to one
// rounding of the product.
bool attention_cudnn_float8_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const MatrixView &q = args.q.values, &k = args.k.values, &v = args.v.values, &o = args.o.values,
                   &grad_o = args.grad_o.values;
  for (const MatrixView* view : {&q, &k, &v, &o})
    if (!aligned(*view) || view->dtype != DType::kE4M3) return false;
  const auto casts_to = [](const AttentionRole& role, DType payload) {
    return role.scale != nullptr && role.payload == payload;
  };
  if (!aligned(grad_o) || grad_o.dtype != DType::kE5M2 || !eligible(shape, args.lse) || shape.head_dim != 128 ||
      !(shape.softmax_scale > 0.0f) || !casts_to(args.s, DType::kE4M3) || !casts_to(args.grad_p, DType::kE5M2) ||
      !casts_to(args.grad_cast, DType::kE5M2))
    return false;

  auto& cudnn = context.kept<Cudnn>();
  const Key key = key_of(Direction::kFloat8Backward, shape, q.dtype,
                         {q.row_stride, k.row_stride, v.row_stride, o.row_stride, grad_o.row_stride});
  const Plan& plan = cudnn.plan(key, [&](Graph& graph) {
    graph.set_io_data_type(DataType_t::FP8_E4M3);
    auto [grad_q, grad_k, grad_v, amax_q, amax_k, amax_v, amax_p] = graph.sdpa_fp8_backward(
        matrix(graph, kQ, shape, shape.heads, q), matrix(graph, kK, shape, shape.kv_heads, k),
        matrix(graph, kV, shape, shape.kv_heads, v), matrix(graph, kO, shape, shape.heads, o),
        matrix(graph, kGradO, shape, shape.heads, grad_o), stats_of(graph, shape), scalar(graph, kInverseQ),
        scalar(graph, kInverseK), scalar(graph, kInverseV), scalar(graph, kInverseO), scalar(graph, kInverseGradO),
        scalar(graph, kInverseS), scalar(graph, kInverseGradP), scalar(graph, kScaleS), scalar(graph, kScaleGradQ),
        scalar(graph, kScaleGradK), scalar(graph, kScaleGradV), scalar(graph, kScaleGradP),
        frontend::graph::SDPA_fp8_backward_attributes()
            .set_causal_mask(shape.causal)
            .set_attn_scale(shape.softmax_scale));
    place(grad_q, kGradQ, shape, shape.heads, DType::kE5M2, args.grad_q.cols);
    place(grad_k, kGradK, shape, shape.kv_heads, DType::kE5M2, args.grad_k.cols);
    place(grad_v, kGradV, shape, shape.kv_heads, DType::kE5M2, args.grad_v.cols);
    place_scalar(amax_q, kAmaxGradQ);
    place_scalar(amax_k, kAmaxGradK);
    place_scalar(amax_v, kAmaxGradV);
    place_scalar(amax_p, kAmaxGradP);
  });
  if (plan.graph == nullptr) return false;

  // Scratch: the workspace, then the quantized data of each gradient.
  const std::array results = {&args.grad_q, &args.grad_k, &args.grad_v};
  std::size_t bytes = aligned_bytes(plan.workspace);
  std::array<std::size_t, 3> places{};
  for (std::size_t i = 0; i < results.size(); ++i) {
    places[i] = bytes;
    bytes += aligned_bytes(static_cast<std::size_t>(results[i]->numel()));
  }
  std::byte* const scratch = context.scratch(bytes);
  const RoleScalars role_s{.scale = args.s.scale, .inverse = cudnn.scalar(0)};
  const RoleScalars role_p{.scale = args.grad_p.scale,
                           .amax = args.grad_p.amax,
                           .inverse = cudnn.scalar(1),
                           .applied = cudnn.scalar(2),
                           .seen = cudnn.scalar(3),
                           .factor = shape.softmax_scale};
  const auto role_of_gradient = [&](std::size_t seen) {
    return RoleScalars{.scale = args.grad_cast.scale,
                       .amax = args.grad_cast.amax,
                       .inverse = cudnn.scalar(4),
                       .seen = cudnn.scalar(seen)};
  };
  const std::array roles = {role_s, role_p, role_of_gradient(5), role_of_gradient(6), role_of_gradient(7)};
  prepare_scales(roles, context.stream());
  auto* const gradient_scale = const_cast<float*>(args.grad_cast.scale);
  Pointers pointers{{kQ, q.data},
                    {kK, k.data},
                    {kV, v.data},
                    {kO, o.data},
                    {kGradO, grad_o.data},
                    {kStats, args.lse.data},
                    {kGradQ, scratch + places[0]},
                    {kGradK, scratch + places[1]},
                    {kGradV, scratch + places[2]},
                    {kInverseQ, args.q.scales.data},
                    {kInverseK, args.k.scales.data},
                    {kInverseV, args.v.scales.data},
                    {kInverseO, args.o.scales.data},
                    {kInverseGradO, args.grad_o.scales.data},
                    {kInverseS, role_s.inverse},
                    {kInverseGradP, role_p.inverse},
                    {kScaleS, const_cast<float*>(args.s.scale)},
                    {kScaleGradP, role_p.applied},
                    {kScaleGradQ, gradient_scale},
                    {kScaleGradK, gradient_scale},
                    {kScaleGradV, gradient_scale},
                    {kAmaxGradP, cudnn.scalar(3)},
                    {kAmaxGradQ, cudnn.scalar(5)},
                    {kAmaxGradK, cudnn.scalar(6)},
                    {kAmaxGradV, cudnn.scalar(7)}};
  run(plan, cudnn, pointers, scratch);
  raise_amaxes(roles, context.stream());
  if (args.grad_measured != nullptr) *args.grad_measured = true;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ScratchData data{.at = scratch + places[i], .dtype = DType::kE5M2, .scale_inv = cudnn.scalar(4)};
    dequantize({.in = operand_of(data, *results[i]), .out = *results[i]}, context);
  }
  return true;
}

}  // namespace fp8lab::cuda
