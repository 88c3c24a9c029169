#include "harness/subjects/profile/profile_terms.h"

#include <algorithm>

namespace fp8lab {
namespace {

constexpr std::int64_t kGrain = 512;                   // grain of PyTorch's allocator
constexpr std::int64_t kSumScratch = 132 * (1 << 20);  // a sum over rows fills 132 multiprocessors

}  // namespace

Sizes::Sizes(const ModelConfig& model) {
  const std::int64_t kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  const std::int64_t head_dim = model.heads > 0 ? model.hidden / model.heads : 0;
  sizes_ = {{"hidden", model.hidden},
            {"heads", model.heads},
            {"kv", kv_heads * head_dim},
            {"qkv", model.hidden + 2 * kv_heads * head_dim},
            {"ffn", model.ffn > 0 ? model.ffn : 4 * model.hidden},
            {"seq", model.seq},
            {"head_dim", head_dim},
            {"tokens", model.seq * model.batch}};
}

std::optional<double> Sizes::of(std::string_view term) const {
  if (term == "bytes") return 1.0;
  if (term.starts_with("sums(") && term.ends_with(")")) {
    std::string_view columns = term.substr(5, term.size() - 6);
    const std::int64_t times = columns.starts_with("2*") ? 2 : 1;
    if (times == 2) columns.remove_prefix(2);
    const auto found = sizes_.find(columns);
    if (found == sizes_.end()) return {};
    return scratch_of_sum(times * found->second);
  }
  double product = 1.0;
  for (std::size_t begin = 0; begin <= term.size();) {
    const std::size_t end = std::min(term.find('*', begin), term.size());
    const auto found = sizes_.find(term.substr(begin, end - begin));
    if (found == sizes_.end()) return {};
    product *= static_cast<double>(found->second);
    begin = end + 1;
  }
  return product;
}

double Sizes::of(const Terms& terms) const {
  double sum = 0.0;
  for (const auto& [term, times] : terms) sum += times * of(std::string_view(term)).value();
  return sum;
}

double Sizes::scratch_of_sum(std::int64_t columns) const {
  const std::int64_t unit = kGrain * std::max<std::int64_t>(columns, 1);
  const std::int64_t rows = std::min(8 * sizes_.at("tokens"), kGrain * ((kSumScratch + unit - 1) / unit));
  return static_cast<double>(columns) * static_cast<double>(rows);
}

}  // namespace fp8lab
