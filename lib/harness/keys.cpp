#include "harness/keys.h"

#include <fmt/format.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "harness/spelling.h"
#include "harness/units.h"

namespace fp8lab {
namespace {

using Words = std::vector<std::string>;

template <class Field>
void assign(Field& field, const Value& value) {
  if constexpr (std::is_same_v<Field, bool>) {
    field = std::get<bool>(value);
  } else if constexpr (std::is_integral_v<Field>) {
    field = static_cast<Field>(std::get<std::int64_t>(value));
  } else if constexpr (std::is_same_v<Field, double>) {
    field = std::get<double>(value);
  } else {
    field = std::get<std::string>(value);
  }
}

template <class Field>
void assign(std::optional<Field>& field, const Value& value) {
  assign(field.emplace(), value);
}

template <class Field>
Value read(const Field& field) {
  if constexpr (std::is_same_v<Field, bool>) {
    return field;
  } else if constexpr (std::is_integral_v<Field>) {
    return static_cast<std::int64_t>(field);
  } else {
    return field;
  }
}

template <class Field>
Value read(const std::optional<Field>& field) {
  return field ? read(*field) : Value{};
}

/// `access` is a lambda without captures from a cell to the field's reference.
template <class Access>
Key key(std::string_view path, KeyType type, double low, double high, Words (*words)(const Vocabulary&),
        std::string_view meaning, Access) {
  return {path, type, low, high, words, meaning,
          [](CellConfig& cell, const Value& value) { assign(Access{}(cell), value); },
          [](const CellConfig& cell) { return read(std::as_const(Access{}(const_cast<CellConfig&>(cell)))); }};
}

template <class Access>
Key whole(std::string_view path, double low, double high, std::string_view meaning, Access access) {
  return key(path, KeyType::kWhole, low, high, nullptr, meaning, access);
}

template <class Access>
Key number(std::string_view path, double low, double high, std::string_view meaning, Access access) {
  return key(path, KeyType::kNumber, low, high, nullptr, meaning, access);
}

template <class Access>
Key toggle(std::string_view path, std::string_view meaning, Access access) {
  return key(path, KeyType::kSwitch, 0, 0, nullptr, meaning, access);
}

template <class Access>
Key word(std::string_view path, Words (*words)(const Vocabulary&), std::string_view meaning, Access access) {
  return key(path, KeyType::kWord, 0, 0, words, meaning, access);
}

constexpr double kTokens = 1 << 24;
constexpr double kWidth = 1 << 22;
constexpr double kSeeds = 9007199254740992.0;  // 2^53: what JSON readers keep exactly

#define FP8LAB_FIELD(member) [](CellConfig& c) -> auto& { return c.member; }
#define FP8LAB_WORDS(...) [](const Vocabulary&) { return Words{__VA_ARGS__}; }
#define FP8LAB_NAMES(table) [](const Vocabulary& v) { return names_of(v.table); }

std::vector<Key> make_keys() {
  return {
      word("device", FP8LAB_NAMES(devices), "device that runs the cell", FP8LAB_FIELD(device)),
      word("arch", FP8LAB_NAMES(archs), "architecture profile", FP8LAB_FIELD(arch)),
      whole("ranks", 1, 65536, "processes or threads that train together", FP8LAB_FIELD(ranks)),
      word("fix", FP8LAB_NAMES(fixes), "fix that the before arm reverts", FP8LAB_FIELD(fix)),

      word("model.layer", FP8LAB_NAMES(layers), "layer that the model repeats", FP8LAB_FIELD(model.layer)),
      word("model.form", FP8LAB_WORDS("gpt", "llama"), "gpt: LayerNorm, GELU, bias; llama: RMSNorm, SwiGLU, RoPE",
           FP8LAB_FIELD(model.form)),
      whole("model.layers", 1, 4096, "number of layers", FP8LAB_FIELD(model.layers)),
      whole("model.hidden", 1, kWidth, "width of the residual stream", FP8LAB_FIELD(model.hidden)),
      whole("model.heads", 1, 65536, "attention heads; hidden is a multiple of it", FP8LAB_FIELD(model.heads)),
      whole("model.kv_heads", 1, 65536, "key and value heads, as many as heads when left out",
            FP8LAB_FIELD(model.kv_heads)),
      whole("model.ffn", 1, kWidth, "inner width of the MLP, four times hidden when left out", FP8LAB_FIELD(model.ffn)),
      whole("model.seq", 1, kTokens, "tokens per sequence", FP8LAB_FIELD(model.seq)),
      whole("model.batch", 1, kTokens, "sequences per step", FP8LAB_FIELD(model.batch)),
      word("model.op_fuser", FP8LAB_WORDS("none", "mlp"), "mlp: build the MLP as one fused chain of operations",
           FP8LAB_FIELD(model.op_fuser)),
      number("model.dropout", 0.0, 0.99, "attention and hidden dropout probability", FP8LAB_FIELD(model.dropout)),

      whole("training.steps", 1, 1000000, "training steps", FP8LAB_FIELD(training.steps)),
      word("training.optimizer", FP8LAB_WORDS("none", "adam"), "optimizer", FP8LAB_FIELD(training.optimizer)),
      number("training.learning_rate", 0.0, 1e3, "optimizer's learning rate", FP8LAB_FIELD(training.learning_rate)),
      word("training.loss", FP8LAB_WORDS("sum", "mse"), "sum of outputs, or distance to a seeded target",
           FP8LAB_FIELD(training.loss)),
      word("training.param_dtype", FP8LAB_WORDS("bf16", "f32"), "type of the parameters",
           FP8LAB_FIELD(training.param_dtype)),
      word("training.recipe", FP8LAB_NAMES(recipes), "quantization recipe", FP8LAB_FIELD(training.recipe)),
      toggle("training.fp8_attention", "attention's matrix products in FP8", FP8LAB_FIELD(training.fp8_attention)),
      word("training.checkpoint", FP8LAB_WORDS("none", "full"), "full: recompute every layer in backward",
           FP8LAB_FIELD(training.checkpoint)),
      toggle("training.keep_loss", "false: drop the loss before memory is read", FP8LAB_FIELD(training.keep_loss)),
      whole("training.seed", 0, kSeeds, "seed of parameters, data and dropout", FP8LAB_FIELD(training.seed)),

      whole("training.recipe_options.amax_history_length", 1, 65536, "steps that delayed scaling looks back",
            FP8LAB_FIELD(training.recipe_options.amax_history_length)),
      word("training.recipe_options.amax_algorithm", FP8LAB_WORDS("max", "most_recent"),
           "how delayed scaling reduces its history", FP8LAB_FIELD(training.recipe_options.amax_algorithm)),
      whole("training.recipe_options.margin", -64, 64, "delayed scaling: scales are smaller by 2^margin",
            FP8LAB_FIELD(training.recipe_options.margin)),
      number("training.recipe_options.epsilon", 0.0, 1e30, "smallest amax that a scale is computed from",
             FP8LAB_FIELD(training.recipe_options.epsilon)),
      toggle("training.recipe_options.power_of_two_scales", "round FP32 scales down to a power of two",
             FP8LAB_FIELD(training.recipe_options.power_of_two_scales)),
      word("training.recipe_options.scale_rounding", FP8LAB_WORDS("rceil", "floor"), "rounding of E8M0 scales",
           FP8LAB_FIELD(training.recipe_options.scale_rounding)),
  };
}

#undef FP8LAB_FIELD
#undef FP8LAB_WORDS
#undef FP8LAB_NAMES

}  // namespace

std::string to_text(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole_number = std::get_if<std::int64_t>(&value)) return std::to_string(*whole_number);
  if (const auto* real = std::get_if<double>(&value)) return shortest(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return "";
}

std::string_view Key::section() const {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot);
}

std::string_view Key::last() const { return path.substr(path.rfind('.') + 1); }

std::span<const Key> keys() {
  static const std::vector<Key> kKeys = make_keys();
  return kKeys;
}

const Key* find_key(std::string_view name) {
  for (const Key& row : keys())
    if (row.path == name || row.last() == name) return &row;
  return nullptr;
}

std::string expected_of(const Key& key, const Vocabulary& vocabulary) {
  switch (key.type) {
    case KeyType::kSwitch: return "true or false";
    case KeyType::kWhole: return fmt::format("a whole number from {} to {}", shortest(key.low), shortest(key.high));
    case KeyType::kNumber: return fmt::format("a number from {} to {}", shortest(key.low), shortest(key.high));
    case KeyType::kWord: return "one of " + listed(key.words(vocabulary));
  }
  return "";
}

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  for (const Key& row : keys()) names.emplace_back(row.last());
  return names;
}

}  // namespace fp8lab
