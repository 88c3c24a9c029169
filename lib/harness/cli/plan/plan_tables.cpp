#include "harness/cli/plan/plan_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/predict/fit.h"

namespace fp8lab {
namespace {

// Memory in MiB as nvidia-smi lists it, with ECC.
constexpr std::array kGpus{
    KnownGpu{"a100-40gb", 40960, "hopper", false}, KnownGpu{"a100-80gb", 81920, "hopper", false},
    KnownGpu{"l40s", 46068, "hopper", true},       KnownGpu{"h100", 81559, "hopper", true},
    KnownGpu{"h100-nvl", 95830, "hopper", true},   KnownGpu{"h200", 143771, "hopper", true},
    KnownGpu{"b200", 183359, "blackwell", true},
};

constexpr KnownModel qwen2_5(std::string_view name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                             std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocabulary, bool is_tied = false) {
  return {name, layers, hidden, heads, kv_heads, ffn, vocabulary, 8192, "llama", is_tied, 0, true, false};
}

constexpr KnownModel qwen3(std::string_view name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                           std::int64_t ffn, bool is_tied = false) {
  return {name, layers, hidden, heads, 8, ffn, 151936, 8192, "llama", is_tied, 128, false, true};
}

constexpr KnownModel qwen3_moe(std::string_view name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                               std::int64_t expert_ffn) {
  return {name, layers, hidden, heads, 4, expert_ffn, 151936, 8192, "llama", false, 128, false, true, 128, 8};
}

constexpr KnownModel gpt_oss(std::string_view name, std::int64_t layers, std::int64_t experts) {
  return {.name = name,
          .layers = layers,
          .hidden = 2880,
          .heads = 64,
          .kv_heads = 8,
          .ffn = 2880,
          .vocabulary = 201088,
          .seq = 8192,
          .head_dim = 64,
          .experts = experts,
          .top_k = 4,
          .window = 128,
          .window_every = 2,
          .has_all_biases = true,
          .has_sinks = true,
          .swiglu_limit = 7.0};
}

// From the models' published configurations. Sequences of models with long contexts have 8192 tokens, as in training.
constexpr std::array kModels{
    KnownModel{"gpt3-6.7b", 32, 4096, 32, 32, 16384, 50257, 2048, "gpt", true},
    KnownModel{"gpt3-175b", 96, 12288, 96, 96, 49152, 50257, 2048, "gpt", true},
    KnownModel{"llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096},
    KnownModel{"llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096},
    KnownModel{"llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096},
    KnownModel{"mistral-7b", 32, 4096, 32, 8, 14336, 32000, 8192},
    KnownModel{"mistral-7b-v0.3", 32, 4096, 32, 8, 14336, 32768, 8192},
    KnownModel{"llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192},
    KnownModel{"llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192},
    KnownModel{"llama3-405b", 126, 16384, 128, 8, 53248, 128256, 8192},
    KnownModel{"mistral-nemo-12b", 40, 5120, 32, 8, 14336, 131072, 8192, "llama", false, 128},
    KnownModel{"mistral-small-24b", 40, 5120, 32, 8, 32768, 131072, 8192, "llama", false, 128},
    KnownModel{"llama3.1-8b", 32, 4096, 32, 8, 14336, 128256, 8192},
    KnownModel{"llama3.1-70b", 80, 8192, 64, 8, 28672, 128256, 8192},
    KnownModel{"llama3.1-405b", 126, 16384, 128, 8, 53248, 128256, 8192},
    KnownModel{"llama3.3-70b", 80, 8192, 64, 8, 28672, 128256, 8192},
    KnownModel{"llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, 8192, "llama", true},
    KnownModel{"llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, 8192, "llama", true},
    qwen2_5("qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, true),
    qwen2_5("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, true),
    qwen2_5("qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936, true),
    qwen2_5("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064),
    qwen2_5("qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064),
    qwen2_5("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064),
    qwen2_5("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064),
    qwen3("qwen3-0.6b", 28, 1024, 16, 3072, true),
    qwen3("qwen3-1.7b", 28, 2048, 16, 6144, true),
    qwen3("qwen3-4b", 36, 2560, 32, 9728, true),
    qwen3("qwen3-8b", 36, 4096, 32, 12288),
    qwen3("qwen3-14b", 40, 5120, 40, 17408),
    qwen3("qwen3-32b", 64, 5120, 64, 25600),
    qwen3_moe("qwen3-30b-a3b", 48, 2048, 32, 768),
    qwen3_moe("qwen3-235b-a22b", 94, 4096, 64, 1536),
    KnownModel{"gemma-2b", 18, 2048, 8, 1, 16384, 256000, 8192, "gemma", true, 256},
    KnownModel{"gemma-7b", 28, 3072, 16, 16, 24576, 256000, 8192, "gemma", true, 256},
    KnownModel{"mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 8192, "llama", false, 0, false, false, 8, 2},
    gpt_oss("gpt-oss-20b", 24, 32),
    gpt_oss("gpt-oss-120b", 36, 128),
    KnownModel{.name = "deepseek-v3",
               .layers = 61,
               .hidden = 7168,
               .heads = 128,
               .kv_heads = 128,
               .ffn = 2048,
               .vocabulary = 129280,
               .seq = 4096,
               .head_dim = 128,
               .experts = 256,
               .top_k = 8,
               .shared_experts = 1,
               .dense_layers = 3,
               .dense_ffn = 18432,
               .sigmoid_scale = 2.5,
               .expert_groups = 8,
               .top_groups = 4,
               .has_router_biases = true,
               .q_rank = 1536,
               .kv_rank = 512,
               .rope_dim = 64,
               .value_dim = 128,
               .left_out = "the module that predicts further tokens"},
};

/// By how much biases changed in a step of DeepSeek-V3's training, for most of its tokens. No figure of a plan depends
/// on it.
constexpr double kDeepSeekRate = 0.001;

/// Families of models by the beginnings of their names and `model_type`s, of which this program lacks layers.
struct Lacking {
  std::string_view begin, what;
};
constexpr std::array kLacking{
    Lacking{"gemma3", "norms behind attention and MLP, and sliding windows in five of six layers"},
    Lacking{"gemma-3", "norms behind attention and MLP, and sliding windows in five of six layers"},
    Lacking{"gemma2", "norms behind attention and MLP, and caps of logits"},
    Lacking{"gemma-2-", "norms behind attention and MLP, and caps of logits"},
    Lacking{"qwen2_moe", "a gate of the shared expert"},
    Lacking{"llama4", "layers without rotary embedding, and attention in chunks"},
    Lacking{"llama-4", "layers without rotary embedding, and attention in chunks"},
    Lacking{"deepseek-v2", "groups of experts that are chosen by a softmax"},
    Lacking{"deepseek_v2", "groups of experts that are chosen by a softmax"},
    Lacking{"deepseek-v3.2", "attention to chosen tokens"},
    Lacking{"deepseek_v32", "attention to chosen tokens"},
};

template <class Rows>
const auto& row_called(const Rows& rows, const std::string& name, std::string_view option) {
  std::vector<std::string> names;
  for (const auto& row : rows) {
    if (row.name == name) return row;
    names.emplace_back(row.name);
  }
  fail(fmt::format("{}: `{}` is not known.{}", option, quotable(name), suggestion(name, names)));
}

}  // namespace

std::int64_t KnownGpu::usable_bytes() const { return (mebibytes << 20) - kReservedBytes; }

CellConfig KnownModel::cell() const {
  CellConfig out;
  out.scenario = out.id = name;
  out.device = "meta";
  out.model = {.layer = "transformer_layer",
               .form = std::string(form),
               .layers = layers,
               .hidden = hidden,
               .heads = heads,
               .kv_heads = kv_heads,
               .head_dim = head_dim * heads == hidden ? 0 : head_dim,
               .qk_norm = has_qk_norm,
               .ffn = ffn,
               .seq = seq};
  if (top_k > 0) {
    out.model.experts = experts;
    out.model.top_k = top_k;
    out.model.expert_ffn = ffn;
    out.model.ffn = dense_ffn;
    out.model.shared_experts = shared_experts;
    out.model.dense_layers = dense_layers;
  }
  if (sigmoid_scale > 0.0) {
    out.model.router = RouterScore::kSigmoid;
    out.model.router_scale = sigmoid_scale;
    out.model.expert_groups = expert_groups;
    out.model.top_groups = top_groups;
    if (has_router_biases) out.model.router_bias_rate = kDeepSeekRate;
  }
  if (kv_rank > 0) {
    out.model.kv_heads = 0;
    out.model.q_rank = q_rank;
    out.model.kv_rank = kv_rank;
    out.model.rope_dim = rope_dim;
    out.model.value_dim = value_dim;
  }
  if (has_qkv_bias) out.model.bias = Bias::kQkv;
  if (has_all_biases) out.model.bias = Bias::kAll;
  out.model.window = window;
  out.model.window_every = window_every;
  out.model.attention_sinks = has_sinks;
  out.model.swiglu_limit = swiglu_limit;
  out.model.vocabulary = vocabulary;
  out.model.head = is_tied ? HeadWeight::kTied : HeadWeight::kOwn;
  out.training.loss = Loss::kCrossEntropy;
  out.training.steps = 2;
  out.training.optimizer = Optimizer::kAdam;
  out.training.master_weights = Master::kF32;
  out.gather_ahead = true;  // as FSDP2 does
  out.measure = {"memory", "traffic"};
  return out;
}

std::span<const KnownGpu> known_gpus() { return kGpus; }
std::span<const KnownModel> known_models() { return kModels; }
const KnownGpu& find_gpu(const std::string& name) { return row_called(kGpus, name, "--gpu"); }

std::string_view lacking_for(std::string_view name) {
  if (std::ranges::find(kModels, name, &KnownModel::name) != kModels.end()) return {};
  const auto* const row =
      std::ranges::find_if(kLacking, [&](const Lacking& one) { return name.starts_with(one.begin); });
  return row == kLacking.end() ? std::string_view{} : row->what;
}

const KnownModel& find_model(const std::string& name) {
  if (const std::string_view what = lacking_for(name); !what.empty())
    fail(fmt::format("--model: {} has {}, which this program's layers lack", quotable(name), what));
  return row_called(kModels, name, "--model");
}

std::int64_t parse_bytes(std::string_view option, const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const std::size_t unit = digits == std::string::npos ? digits : text.find_first_not_of(' ', digits);
  const auto number = decimal_number(text.substr(0, digits));
  const auto factor = in_base_units(unit == std::string::npos ? "B" : text.substr(unit), "B");
  const double bytes = number && factor ? *number * *factor : 0;
  if (!(bytes >= 1 && bytes <= 9007199254740992.0))
    fail(fmt::format("{}: `{}` is no size of memory; give a number with {}, for example 80GiB", option, quotable(text),
                     listed(units_of("B"))));
  return static_cast<std::int64_t>(bytes);
}

std::string plan_help() {
  const auto names = [](const auto& rows) {
    std::vector<std::string> out;
    for (const auto& row : rows) out.emplace_back(row.name);
    return listed(out);
  };
  return fmt::format(
      "Nothing is allocated. Figures belong to the built-in runtime: closed forms of the scenario, which every run is\n"
      "compared with; next to them are PyTorch's live bytes for cells in bf16, and under recipe current torchao's,\n"
      "with --model also Transformer Engine's under delayed and block. --as predicts the figures of a library instead: "
      "--as torch@2.15 states also how its figures were compared with "
      "runs.\n"
      "Every line names the runtime or library that its figures belong to, in JSON the field figures_of: own, or the\n"
      "library with its release.\n\n"
      "With --gpu or --capacity a cell fits if the built-in runtime's peak is within the memory, and so are PyTorch's\n"
      "live bytes (a library's with --model), if they are known. The reason is printed if they are not. The line of a\n"
      "library states what PyTorch's allocator reserves: with a margin of 2 %, for Transformer Engine the most of\n"
      "recorded runs.\n"
      "Expectations of a scenario are judged by the built-in runtime's predictions.\n\n"
      "Peaks are live bytes; caching allocators have reserved up to 70 % more. If less than three quarters of the\n"
      "peak are to spare, the line contains `by live bytes`, and JSON has reserved_may_exceed_capacity. A run on meta "
      "shows\n"
      "what the built-in runtime reserves, at full size and without a GPU: fp8lab run FILE -d meta.\n\n"
      "{}\n\n"
      "With --model a rank has one sequence of the model's length, Adam has FP32 masters and moments, FSDP spans all\n"
      "ranks and gathers ahead, and --ranks is 8,64,512,4096 unless they are given; --set changes any key. --gpu "
      "leaves\n"
      "2 GiB to CUDA and NCCL. A rank receives (N - 1) / N of the arrays that N shards gather, and sends as much of\n"
      "the arrays that they reduce.\n\n"
      "OUT of `fp8lab watch -o OUT` plans the program's model, as the program trains it, with PyTorch's figures next "
      "to\n"
      "what was measured: over other --ranks, in the memory of a --gpu, with other keys by --set. A model without a\n"
      "Hugging Face config is named by --model. OUT of `fp8lab run` plans its cells next to what was measured.\n\n"
      "Examples:\n"
      "  fp8lab plan scenarios -d meta -f 405b\n"
      "  fp8lab plan my.yaml --capacity 80GiB\n"
      "  fp8lab plan OUT --gpu h100 --ranks 8,64\n"
      "  fp8lab plan --model llama3-70b --gpu h100 --ranks 64\n"
      "  fp8lab plan --model Llama-3.1-8B/config.json --gpu h100 --set seq=4096\n"
      "  fp8lab plan --as torch@2.15 --model llama3-8b --gpu h100 --ranks 8\n"
      "  fp8lab plan --model llama3-405b --gpu h200 --ranks 64,1024,16384 --set training.checkpoint=full\n"
      "  fp8lab plan --model deepseek-v3 --gpu h100 --ranks 2048 --set expert_parallel=64\n\n"
      "GPUs: {}.\nModels: {}.\n\n"
      "Exit codes: 0 all good, 1 an expectation fails, or something does not fit or run on the --gpu or --capacity "
      "given,\n"
      "or the scenario's own, 2 bad usage or files, 3 nothing is predicted, 5 no cell matches.\n",
      meaning_of_cheapest(), names(known_gpus()), names(known_models()));
}

}  // namespace fp8lab
