#pragma once

#include <string>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// The model of `plan --model`.
struct PlannedModel {
  CellConfig cell;                 ///< as KnownModel::cell()
  std::vector<std::string> notes;  ///< what its figures leave out: "the biases of Q, K and V, ..."
};

/// True if `--model` names a file: it ends with .json or contains a slash.
bool is_model_file(const std::string& model);

/// The model that a Hugging Face config.json describes: `model_type` gpt2, llama, mistral or qwen2. Its sequences are
/// as long as the model allows, but at most 8192 tokens. Throws Error, which names file and key, for other types, for a
/// file that is none, and for layers that this program does not have: experts, other activations, a head_dim that is
/// not hidden_size / num_attention_heads.
PlannedModel read_model_file(const std::string& path);

}  // namespace fp8lab
