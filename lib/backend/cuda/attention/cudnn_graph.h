#pragma once

#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/kernels.h"
#include "core/check.h"
#include "core/float_bits.h"

// cuDNN's graphs for attention: the handle and plans of a GPU, and the tensors of a graph. Each file that includes this
// header takes half a minute to compile, because of the frontend's headers.
namespace fp8lab::cuda::cudnn {

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
  kAmaxGradV,
  kSinks
};
enum class Direction : std::int64_t { kForward, kBackward, kFastBackward, kFloat8Forward, kFloat8Backward };

/// Everything that a plan depends on.
using Key = std::array<std::int64_t, 17>;

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

inline DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return DataType_t::BFLOAT16;
    case DType::kF16: return DataType_t::HALF;
    case DType::kE4M3: return DataType_t::FP8_E4M3;
    case DType::kE5M2: return DataType_t::FP8_E5M2;
    default: return DataType_t::FLOAT;
  }
}

/// cuDNN reads 16 bytes at a time, so rows and pointers must be aligned to 16 bytes.
inline bool aligned(const MatrixView& view) {
  const auto bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
  return view.col_stride == 1 && view.row_stride * bytes % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
}

inline bool eligible(const AttentionShape& shape, const MatrixView& lse) {
  return shape.dropout == 0.0f && shape.window < std::max<std::int64_t>(shape.seq, 1) && shape.seq > 0 &&
         shape.batch > 0 && shape.head_dim % 16 == 0 && shape.columns_of_value() % 16 == 0 &&
         lse.row_stride == shape.seq;
}

/// The heads of a tensor, and the columns of each.
struct Heads {
  std::int64_t count, dim;
};
inline Heads heads_of_q(const AttentionShape& shape) { return {shape.heads, shape.head_dim}; }
inline Heads heads_of_k(const AttentionShape& shape) { return {shape.kv_heads, shape.head_dim}; }
inline Heads heads_of_v(const AttentionShape& shape) { return {shape.kv_heads, shape.columns_of_value()}; }
inline Heads heads_of_o(const AttentionShape& shape) { return {shape.heads, shape.columns_of_value()}; }

/// A tensor [batch, heads, seq, columns of a head] with the strides that it has in a matrix of tokens.
inline Tensor matrix(Graph& graph, Name name, const AttentionShape& shape, Heads heads, DType dtype,
                     std::int64_t row_stride) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(name)
                          .set_data_type(data_type(dtype))
                          .set_dim({shape.batch, heads.count, shape.seq, heads.dim})
                          .set_stride({row_stride, heads.dim, shape.batch * row_stride, 1}));
}
inline Tensor matrix(Graph& graph, Name name, const AttentionShape& shape, Heads heads, const MatrixView& view) {
  return matrix(graph, name, shape, heads, view.dtype, view.row_stride);
}
inline void place(const Tensor& tensor, Name name, const AttentionShape& shape, Heads heads, DType dtype,
                  std::int64_t row_stride) {
  tensor->set_uid(name)
      .set_output(true)
      .set_data_type(data_type(dtype))
      .set_dim({shape.batch, heads.count, shape.seq, heads.dim})
      .set_stride({row_stride, heads.dim, shape.batch * row_stride, 1});
}
inline void place_stats(const Tensor& stats, const AttentionShape& shape) {
  stats->set_uid(kStats)
      .set_output(true)
      .set_data_type(DataType_t::FLOAT)
      .set_dim({shape.batch, shape.heads, shape.seq, 1})
      .set_stride({shape.heads * shape.seq, shape.seq, 1, 1});
}
inline Tensor stats_of(Graph& graph, const AttentionShape& shape) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(kStats)
                          .set_data_type(DataType_t::FLOAT)
                          .set_dim({shape.batch, shape.heads, shape.seq, 1})
                          .set_stride({shape.heads * shape.seq, shape.seq, 1, 1}));
}
/// A logit of each head.
inline Tensor sinks_of(Graph& graph, const AttentionShape& shape) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(kSinks)
                          .set_data_type(DataType_t::FLOAT)
                          .set_dim({1, shape.heads, 1, 1})
                          .set_stride({shape.heads, 1, 1, 1}));
}
inline Tensor scalar(Graph& graph, Name name) {
  return graph.tensor(Tensor_attributes()
                          .set_uid(name)
                          .set_data_type(DataType_t::FLOAT)
                          .set_dim({1, 1, 1, 1})
                          .set_stride({1, 1, 1, 1}));
}
inline void place_scalar(const Tensor& tensor, Name name) {
  tensor->set_uid(name)
      .set_output(true)
      .set_data_type(DataType_t::FLOAT)
      .set_dim({1, 1, 1, 1})
      .set_stride({1, 1, 1, 1});
}

inline Key key_of(Direction direction, const AttentionShape& shape, DType dtype,
                  std::initializer_list<std::int64_t> strides) {
  Key key{static_cast<std::int64_t>(direction),
          static_cast<std::int64_t>(dtype),
          shape.seq,
          shape.batch,
          shape.heads,
          shape.kv_heads,
          shape.head_dim,
          shape.columns_of_value(),
          shape.causal ? 1 + shape.window : 0,
          static_cast<std::int64_t>(float_bits(shape.softmax_scale))};
  std::copy(strides.begin(), strides.end(), key.begin() + 10);
  return key;
}

// What older frontends lack.
template <class Attributes>
inline constexpr bool kHasWindows = requires(Attributes attributes) { attributes.set_diagonal_band_left_bound(1); };
template <class Attributes>
inline constexpr bool kHasSinks = requires(Attributes attributes, Tensor sinks) { attributes.set_sink_token(sinks); };

/// Attributes of forward or backward, with the mask and the scale. A window requires kHasWindows.
template <class Attributes>
Attributes with_rule(Attributes attributes, const AttentionShape& shape) {
  attributes.set_causal_mask(shape.causal).set_attn_scale(shape.softmax_scale);
  if constexpr (kHasWindows<Attributes>)
    if (shape.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(shape.window));  // as AttentionShape
  return attributes;
}

/// A workspace's bytes, so that what follows it in scratch is aligned.
inline std::size_t aligned_bytes(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Requires kHasSinks.
template <class Attributes>
void add_sinks(Attributes& attributes, Graph& graph, const AttentionShape& shape) {
  if constexpr (kHasSinks<Attributes>) attributes.set_sink_token(sinks_of(graph, shape));
}

using Pointers = std::unordered_map<std::int64_t, void*>;

inline void run(const Plan& plan, Cudnn& cudnn, Pointers& pointers, std::byte* workspace) {
  auto status = plan.graph->execute(cudnn.handle(), pointers, workspace);
  if (status.is_bad()) fail("cuDNN attention: " + status.get_message());
}

}  // namespace fp8lab::cuda::cudnn
