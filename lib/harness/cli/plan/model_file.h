#pragma once

#include <string>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// True if `--model` names a file: it ends with .json or contains a slash.
bool is_model_file(const std::string& model);

struct FileModel {
  CellConfig cell;
  std::string left_out;  ///< parts of the model that this program lacks, in words; "": none
};
/// The model that a Hugging Face config.json describes: `model_type` gpt2, llama, mistral, qwen2, qwen3, gemma,
/// mixtral, qwen3_moe, gpt_oss or deepseek_v3. Its sequences are as long as the model allows, but at most 8192 tokens.
/// Throws Error, which names file and key, for other types, for a file that is none, and for layers that this program
/// does not have: caps of logits, other activations, weights of experts whose sum varies, a sliding window of layers
/// that are not every Nth from the first on. Also reads the model.json of a watched program, see read_watched_model().
FileModel read_model_file(const std::string& path);

/// Which model a program trains, and how, as `fp8lab watch` saw it.
struct WatchedModel {
  std::string name;                   ///< the class of the model
  std::string unknown;                ///< why the model's sizes are not known; "": read_model_file() reads them
  std::vector<std::string> settings;  ///< "model.batch=2": keys of the plan
  std::vector<std::string> differs;   ///< how the program differs from a plan with these keys, in words
};
/// The model.json of a watched program. Throws Error, which names the file, for another file.
WatchedModel read_watched_model(const std::string& path);

}  // namespace fp8lab
