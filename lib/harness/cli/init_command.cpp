#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/spelling.h"
#include "harness/cli/program.h"

namespace fp8lab {
namespace {

/// A scenario to start from. Tests load and run every one.
struct Template {
  std::string_view kind, title, text;
};

constexpr Template kTemplates[] = {
    {"memory", "memory of training, by holder, without a GPU",
     R"(# Memory of four layers of Llama-3 8B, computed only from shapes: no GPU, a fraction of a second.
version: 1
name: memory
title: Every byte of training is explained, and none outlives backward
model: {layer: transformer_layer, form: llama, layers: 4, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, seq: 4096, batch: 4}
training: {steps: 2, optimizer: adam, master_weights: f32}   # from the second step on the optimizer has its state
matrix:                                  # one cell for each combination
  device: [meta]                         # cpu computes values too, cuda runs on NVIDIA GPUs
  recipe: [bf16, delayed, current, mxfp8]
  checkpoint: [none, full]               # full: recompute activations in backward
measure: [memory]
expect:                                  # `fp8lab metrics` lists what can be gated
  - {metric: memory.retained_bytes, arm: after, equals: 0}
  - {metric: memory.peak_bytes, arm: after, equals: predicted}
)"},
    {"sharded", "bytes that sharded training gathers and reduces",
     R"(# FSDP over 8 ranks: what each rank keeps, and what travels in a step. Only shapes, no GPU.
version: 1
name: sharded
title: Sharded FP8 weights are gathered in eight bits
ranks: 8
model: {layer: transformer_layer, form: llama, layers: 4, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, seq: 4096, batch: 1}
training: {optimizer: adam, master_weights: f32, recipe: delayed}
matrix:
  device: [meta]
  quantized_weights: [false, true]       # true: weights live in eight bits
  reshard_after_forward: [true, false]   # false: gathered weights stay until backward is through
measure: [memory, traffic]
expect:
  - {metric: traffic.all_gather_bytes, arm: after, equals: predicted}
  - {metric: traffic.reduce_scatter_bytes, arm: after, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)"},
    {"parity", "losses and gradients of each recipe compared with BF16's",
     R"(# A small transformer, computed on the CPU under every recipe and in BF16.
version: 1
name: parity
title: Every recipe trains like BF16
model: {layer: transformer_layer, form: llama, layers: 2, hidden: 128, heads: 2, ffn: 256, seq: 64, batch: 2}
training: {steps: 10, optimizer: adam, master_weights: f32, learning_rate: 0.003, loss: mse, data: teacher}
matrix:
  device: [cpu]
  recipe: [delayed, current, block, mxfp8]
measure: [parity]                        # trains in BF16 too, and compares gradients of BF16 layers with the same weights
expect:
  - {metric: parity.weights_moved, arm: after, equals: 1}
  - {metric: parity.loss_progress, arm: after, at_least: 0.2}  # part of the loss that training has removed
  - {metric: parity.loss_gap, arm: after, at_most: 0.02}   # relative distance of the last loss from BF16's
)"},
    {"time", "time of a training step",
     R"(# Times of a small model on the CPU. Times are reported; only exact figures are gated.
version: 1
name: time
title: Time of a training step
model: {layer: transformer_layer, form: gpt, layers: 2, hidden: 256, heads: 4, seq: 128, batch: 2}
training: {steps: 5, optimizer: adam}
matrix:
  device: [cpu]
  recipe: [bf16, delayed]
measure: [memory, time]                  # cells that measure time run alone
expect:
  - {metric: memory.unexplained_bytes, arm: after, equals: 0}
)"},
    {"fix", "one defect, before and after its fix",
     R"(# A defect of Transformer Engine before and after its fix; `fp8lab fixes` lists all of them.
version: 1
name: fix
title: Attention under FP8 keeps Q, K and V after backward
fix: release_attention_tensors           # the `before` arm reverts it
model: {layer: transformer_layer, form: gpt, layers: 3, hidden: 2048, heads: 16, ffn: 6144, seq: 1048, batch: 32}
training: {optimizer: adam, recipe: delayed, fp8_attention: true}
matrix: {device: [meta], checkpoint: [none, full]}
measure: [memory]
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)"},
};

const Template& template_of(const std::string& kind) {
  std::vector<std::string> kinds;
  for (const Template& row : kTemplates) {
    if (row.kind == kind) return row;
    kinds.emplace_back(row.kind);
  }
  fail(fmt::format("init: `{}` is no kind of scenario.{}", quotable(kind), suggestion(kind, kinds)));
}

/// Makes the file's folder if there is none. Throws if the file exists and `force` is false.
void write_file(const std::string& path, std::string_view text, bool force) {
  std::error_code none;  // open() reports what remains
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, none);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL), 0666);
  check(file >= 0 || errno != EEXIST,
        fmt::format("init: {} exists; give --force to replace it, or another file with -o", path));
  check(file >= 0, fmt::format("init: cannot write {}: {}; give another file with -o", path, std::strerror(errno)));
  std::size_t written = 0;
  int error = 0;
  while (written < text.size() && error == 0) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count >= 0)
      written += static_cast<std::size_t>(count);
    else if (errno != EINTR)
      error = errno;
  }
  if (::close(file) != 0 && error == 0) error = errno;
  check(error == 0, fmt::format("init: cannot write {}: {}; give another file with -o", path, std::strerror(error)));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> scenario_kinds() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Template& row : kTemplates) out.emplace_back(row.kind, row.title);
  return out;
}

int init_command(const InitRequest& request) {
  check(request.list || !request.json, "init: --json prints the list of kinds; give --list with it");
  if (request.list) {
    auto json = nlohmann::ordered_json::array();
    std::string text;
    for (const Template& row : kTemplates) {
      json.push_back({{"kind", row.kind}, {"title", row.title}});
      text += fmt::format("{:<8} {}\n", row.kind, row.title);
    }
    std::fputs(request.json ? (json.dump(2) + "\n").c_str() : text.c_str(), stdout);
    return 0;
  }
  const Template& chosen = template_of(request.kind);
  if (request.out == "-") {
    std::fwrite(chosen.text.data(), 1, chosen.text.size(), stdout);
    return 0;
  }
  const std::string path = request.out.empty() ? request.kind + ".yaml" : request.out;
  write_file(path, chosen.text, request.force);
  std::fputs(fmt::format("wrote {}\nnext: fp8lab run {} -o out\n", path, path).c_str(), stdout);
  return 0;
}

}  // namespace fp8lab
