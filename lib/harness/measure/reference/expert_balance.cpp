#include "harness/measure/reference/expert_balance.h"

#include <fmt/format.h>

#include <numeric>

#include "harness/measure/over_ranks.h"

namespace fp8lab {

void ExpertBalance::saw_micro_batch(const reference_step::Step& step) {
  if (!has_router_biases(cell_.model)) return;
  for (const auto& [router, tokens] : step.tokens_of_experts) {
    std::vector<double>& all = tokens_[router];
    all.resize(tokens.size());
    if (reference_step::is_frozen(cell_, router)) continue;  // its biases stay
    for (std::size_t e = 0; e < tokens.size(); ++e) all[e] += tokens[e];
  }
}

std::vector<std::string> ExpertBalance::wrong_biases(const StepValues& seen, ProcessGroup* world) {
  std::vector<std::string> out;
  const auto rate = static_cast<double>(static_cast<float>(cell_.model.router_bias_rate));
  for (const auto& [router, own] : tokens_) {
    const std::size_t experts = own.size();
    std::vector<double> tokens(experts);
    const std::vector<double> of_ranks = of_all_ranks(world, own, "reference tokens of experts");
    for (std::size_t i = 0; i < of_ranks.size(); ++i) tokens[i % experts] += of_ranks[i];
    const double mean = std::accumulate(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(experts);
    std::vector<double>& biases = biases_[router];
    biases.resize(experts);
    const auto found = seen.router_biases.find(router);
    std::size_t wrong = found == seen.router_biases.end() || found->second.size() != experts ? experts : 0;
    for (std::size_t e = 0; e < experts; ++e) {
      if (tokens[e] != mean)
        biases[e] = static_cast<double>(static_cast<float>(biases[e] + (tokens[e] < mean ? rate : -rate)));
      if (wrong < experts && static_cast<double>(found->second[e]) != biases[e]) ++wrong;
    }
    out.push_back(wrong == 0 ? ""
                             : fmt::format("biases of {}: {} of {} have not moved by {:.4g} towards equal numbers of "
                                           "tokens",
                                           router, wrong, experts, rate));
  }
  tokens_.clear();
  return out;
}

}  // namespace fp8lab
