#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "harness/predict/predict.h"

// GPUs and models that `fp8lab plan` accepts by name.
namespace fp8lab {

struct KnownGpu {
  std::string_view name;
  std::int64_t mebibytes;  ///< size of memory, as the driver reports it
  std::string_view arch;   ///< the architecture profile that predictions use
  bool fp8;                ///< has FP8 matrix products

  /// The memory that training may use: what the driver reports less kReservedBytes.
  std::int64_t usable_bytes() const;
};

/// What plan leaves to the CUDA context, the libraries and NCCL's buffers.
inline constexpr std::int64_t kReservedBytes = std::int64_t{2} << 30;

struct KnownModel {
  std::string_view name;
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocabulary, seq;
  std::string_view form = "llama";
  bool is_tied = false;       ///< the head's matrix is the embedding's
  std::int64_t head_dim = 0;  ///< 0: hidden / heads
  bool has_qkv_bias = false;  ///< Q, K and V have biases, the other products none
  bool has_qk_norm = false;
  std::int64_t experts = 0, top_k = 0;  ///< a mixture, whose experts have the width `ffn`; 0: one MLP for all tokens
  std::int64_t shared_experts = 0;
  std::int64_t dense_layers = 0, dense_ffn = 0;  ///< layers at the start without a mixture, and the width of their MLP
  double sigmoid_scale = 0.0;                    ///< the sum of weights in proportion to sigmoids; 0: a softmax
  std::int64_t expert_groups = 0, top_groups = 0;  ///< groups of experts; 0: every expert can be chosen
  bool has_router_biases = false;                  ///< biases of the choice
  std::int64_t q_rank = 0, kv_rank = 0, rope_dim = 0, value_dim = 0;  ///< with latents; 0: one product for Q, K and V
  std::int64_t window = 0, window_every = 1;                          ///< keys of the cell; 0: no layer has a window
  bool has_all_biases = false;                                        ///< all products, and routers, have biases
  bool has_sinks = false;                                             ///< each head of attention has a learned logit
  double swiglu_limit = 0.0;  ///< the limit of clamped SwiGLU; 0: SwiGLU without limits

  std::string_view left_out = "";  ///< parts of the model that this program lacks

  /// The model as a cell of one rank, one sequence a micro-batch, Adam with FP32 masters and moments.
  CellConfig cell() const;
};

std::span<const KnownGpu> known_gpus();
std::span<const KnownModel> known_models();
/// What the layers of the model or `model_type` called `name` have and this program lacks: "GeGLU, ..."; "" if that is
/// not known.
std::string_view lacking_for(std::string_view name);
/// Throw Error with a suggestion for another name, or with what this program's layers lack.
const KnownGpu& find_gpu(const std::string& name);
const KnownModel& find_model(const std::string& name);

/// Reads "80GiB", "80 GB" or a number of bytes. Throws Error, which names `option`, for any other text.
std::int64_t parse_bytes(std::string_view option, const std::string& text);

/// What follows the options in `fp8lab plan --help`.
std::string plan_help();

}  // namespace fp8lab
