#include "harness/measure/layer_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "harness/train/options.h"
#include "nn/layer_table.h"

namespace fp8lab {
namespace {

/// Every recipe quantizes matrices whose rows and columns are multiples of this.
constexpr std::int64_t kEveryRecipe = 128;

std::int64_t rounded_up(std::int64_t size, std::int64_t step) { return (size + step - 1) / step * step; }

/// A size of the model that may be at fault.
struct Size {
  std::string_view key;
  std::int64_t ModelConfig::* member;
  std::int64_t (*step)(const ModelConfig&);  ///< multiples of it fit every recipe and the rules of the model
};

constexpr std::array kSizes{
    Size{"model.hidden", &ModelConfig::hidden, [](const ModelConfig& m) { return std::lcm(kEveryRecipe, m.heads); }},
    Size{"model.ffn", &ModelConfig::ffn, [](const ModelConfig&) { return kEveryRecipe; }},
    Size{"model.expert_ffn", &ModelConfig::expert_ffn, [](const ModelConfig&) { return kEveryRecipe; }},
    Size{"model.seq x model.batch", &ModelConfig::seq,
         [](const ModelConfig& m) { return m.layer == "grouped_linear" ? kEveryRecipe * m.experts : kEveryRecipe; }},
};

class LayerRules {
 public:
  LayerRules(const CellConfig& cell, const Recipe& recipe) : cell_(cell), recipe_(recipe) {}

  std::vector<BrokenRule> broken() const {
    if (broken_by(cell_.model).empty()) return {};
    std::vector<const Size*> faulty;
    for (const Size& size : kSizes)
      if (!broken_by(with_others_mended(size, cell_.model.*size.member)).empty()) faulty.push_back(&size);
    // Every size fits with one head, so that the heads are too many or too small.
    if (faulty.empty()) {
      const ModelConfig& model = cell_.model;
      const char* const key = has_latents(model)   ? "model.kv_rank"
                              : model.head_dim > 0 ? "model.head_dim"
                                                   : "model.heads";
      return {{key, broken_by(model)}};
    }
    std::vector<BrokenRule> out;
    for (const Size* size : faulty) {
      ModelConfig alone = cell_.model;  // the other sizes stay as the file has them if they fit
      for (const Size* other : faulty)
        if (other != size) mend(*other, alone);
      std::string rule = broken_by(alone);
      if (rule.empty()) rule = broken_by(with_others_mended(*size, cell_.model.*size->member));
      out.push_back({std::string(size->key), fmt::format("{}: {}; {}", value_of(*size), rule, remedy(*size))});
    }
    return out;
  }

 private:
  std::string broken_by(const ModelConfig& model) const {
    CellConfig cell = cell_;
    cell.model = model;
    const ModelOptions options = model_options(cell);
    const LayerRow& layer = layer_row(model.layer);
    const std::string first = broken_layer_rule(layer, options.config_of(0), recipe_);
    return first.empty() ? broken_layer_rule(layer, options.config, recipe_) : first;
  }

  /// The least value of `size` with which a layer fits and every multiple of which does: of a sequence, the part that a
  /// rank has.
  std::int64_t step(const Size& size, const ModelConfig& model) const { return share(size) * size.step(model); }
  std::int64_t share(const Size& size) const { return size.member == &ModelConfig::seq ? cell_.context_parallel : 1; }
  void mend(const Size& size, ModelConfig& model) const {
    model.*size.member = rounded_up(model.*size.member, step(size, model));
  }

  /// The model with one head and `value` for `size`, and with sizes that fit for all others.
  ModelConfig with_others_mended(const Size& size, std::int64_t value) const {
    ModelConfig model = cell_.model;
    for (const Size& other : kSizes)
      if (&other != &size) mend(other, model);
    model.*size.member = value;
    model.heads = 1;
    model.kv_heads = model.head_dim = model.kv_rank = 0;
    return model;
  }

  std::string value_of(const Size& size) const {
    const ModelConfig& m = cell_.model;
    return size.member == &ModelConfig::seq ? fmt::format("{} x {}", m.seq, m.batch) : std::to_string(m.*size.member);
  }

  /// "write 6144 or 6152"
  std::string remedy(const Size& size) const {
    const std::int64_t value = cell_.model.*size.member;
    const std::string_view last = size.key.substr(0, size.key.find(' '));
    const std::string name(last.substr(last.rfind('.') + 1));
    for (const std::int64_t power : {2, 4, 8, 16, 32, 64}) {
      const std::int64_t step =
          size.member == &ModelConfig::hidden ? std::lcm(power, cell_.model.heads) : power * share(size);
      const std::int64_t below = value / step * step, above = below + step;
      const auto fits = [&](std::int64_t other) { return broken_by(with_others_mended(size, other)).empty(); };
      if (!fits(above) || (below > 0 && !fits(below))) continue;
      return below == 0 ? fmt::format("write `{}: {}`", name, above)
                        : fmt::format("write `{}: {}` or `{}: {}`", name, below, name, above);
    }
    return fmt::format("write `{}: {}`", name, rounded_up(value, step(size, cell_.model)));
  }

  const CellConfig& cell_;
  const Recipe& recipe_;
};

}  // namespace

std::vector<BrokenRule> broken_layer_rules(const CellConfig& cell, const Recipe& recipe) {
  return LayerRules(cell, recipe).broken();
}

}  // namespace fp8lab
