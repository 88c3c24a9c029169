#include "harness/subjects/profile/profile_rows.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace fp8lab {
namespace {

/// Products of two widths, which count weights; other terms count tokens.
constexpr std::array kOfWeights{"hidden*hidden", "hidden*ffn", "hidden*qkv"};

/// Takes the FP8 copies of weights out of what is saved for backward.
void drop_copies(TermsByKind& kinds) {
  if (const auto context = kinds.find("context"); context != kinds.end())
    for (const char* term : kOfWeights) context->second.erase(term);
}

/// Elements of the weight whose gradient was made last by this moment of a layer's backward, which begins with the last
/// weight; gradients have 16 bits. The last two weights are the MLP's, whose backward is one function: it keeps the
/// copy of the last one until it has ended.
double weights_in_use(const ProfileRow& row, const TermsByKind& moment, const Sizes& sizes) {
  const auto gradient = moment.find("gradient");
  double left = gradient == moment.end() ? 0.0 : sizes.of(gradient->second) / 2.0, in_use = 0.0;
  for (auto weight = row.weights.rbegin(); weight != row.weights.rend(); ++weight) {
    const double elements = sizes.of(*weight);
    if (weight != row.weights.rbegin() && elements > left) break;
    in_use = elements + (weight == row.weights.rbegin() + 1 ? in_use : 0.0);
    left -= elements;
  }
  return in_use;
}

}  // namespace

// The last weight of several has hidden rows, as every product's weight with hidden outputs.
double rows_of(const ProfileRow& row, std::size_t weight, const Sizes& sizes) {
  const auto& [term, times] = *row.weights[weight].begin();
  const bool is_last = weight > 0 && weight + 1 == row.weights.size();
  const std::string_view outputs = is_last ? "hidden" : std::string_view(term).substr(term.find('*') + 1);
  return (is_last ? 1.0 : times) * sizes.of(outputs).value();
}

ProfileRow adding_gradients(ProfileRow row) {
  row.backward.erase("gradient");
  for (std::vector<TermsByKind>* moments : {&row.backward_moments, &row.spread_moments})
    for (TermsByKind& moment : *moments)
      if (const auto gradient = moment.find("gradient"); gradient != moment.end()) {
        Terms& terms = gradient->second;
        if (terms.contains("hidden*hidden") || terms.contains("hidden*qkv")) terms.erase("hidden*ffn");
      }
  return row;
}

ProfileRow without_copies(ProfileRow row, const Sizes& sizes) {
  double largest = 0.0;
  for (const Terms& weight : row.weights) largest = std::max(largest, sizes.of(weight));
  drop_copies(row.forward);
  for (std::vector<TermsByKind>* moments : {&row.forward_moments, &row.backward_moments, &row.spread_moments})
    for (TermsByKind& moment : *moments) {
      moment["workspace"]["bytes"] += moments == &row.forward_moments ? largest : weights_in_use(row, moment, sizes);
      drop_copies(moment);
    }
  drop_copies(row.backward);
  return row;
}

}  // namespace fp8lab
