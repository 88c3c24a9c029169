#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "harness/reference/choices.h"
#include "harness/reference/model.h"

namespace fp8lab::reference_step {
namespace {

/// The rows of one rank's experts, sorted by expert. The choices of all ranks that have the experts between them come
/// to them, rank after rank.
struct Grouping {
  std::vector<std::int64_t> rows;    ///< the row of every choice; -1: another rank has its expert
  std::vector<std::int64_t> begins;  ///< the first row of each own expert, and the end of the last one
  std::int64_t all_rows = 0;         ///< with rows that no expert has
};

std::vector<double> gathered(const SequenceParts& ranks, const std::vector<double>& own) {
  return ranks.parts == 1 ? own : ranks.gather(own);
}

/// The rows of each expert begin at a multiple of `multiple`. There is room for every routing: all of a token's choices
/// that one rank can have, and multiple - 1 rows of zeros for each expert that a token chose.
Grouping group(const SequenceParts& ranks, const Choices& choices, std::int64_t experts, std::int64_t multiple) {
  const std::vector<double> all = gathered(ranks, std::vector<double>(choices.experts.begin(), choices.experts.end()));
  const std::int64_t own = experts / ranks.parts, first = own * ranks.part;
  Grouping out{.rows = std::vector<std::int64_t>(all.size(), -1), .begins = {0}};
  for (std::int64_t e = first; e < first + own; ++e) {
    std::int64_t next = out.begins.back();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i] == static_cast<double>(e)) out.rows[i] = next++;
    out.begins.push_back((next + multiple - 1) / multiple * multiple);
  }
  const std::int64_t most = choices.count() / choices.of_token * ranks.parts * std::min(choices.of_token, own);
  out.all_rows = (most + std::min(own, most) * (multiple - 1)) / multiple * multiple;
  return out;
}

/// The token of each choice, times its weight if `weighted`.
Matrix of_choices(const Choices& choices, const Matrix& x, bool weighted) {
  Matrix out(choices.count(), x.cols);
  for (std::int64_t i = 0; i < choices.count(); ++i) {
    const double* const from = x.row(choices.token(i));
    const double weight = weighted ? choices.weights[static_cast<std::size_t>(i)] : 1.0;
    for (std::int64_t j = 0; j < x.cols; ++j) out.row(i)[j] = weight * from[j];
  }
  return out;
}

/// The sum over each token's choices.
Matrix of_tokens(const Choices& choices, const Matrix& x, bool weighted) {
  Matrix out(choices.count() / choices.of_token, x.cols);
  for (std::int64_t i = 0; i < choices.count(); ++i) {
    const double* const from = x.row(i);
    const double weight = weighted ? choices.weights[static_cast<std::size_t>(i)] : 1.0;
    for (std::int64_t j = 0; j < x.cols; ++j) out.row(choices.token(i))[j] += weight * from[j];
  }
  return out;
}

/// The rows of own experts, from a row for each of this rank's choices. Collective over the ranks.
Matrix rows_of_experts(const SequenceParts& ranks, const Grouping& grouping, const Matrix& own) {
  const std::vector<double> all = gathered(ranks, own.values);
  Matrix out(grouping.all_rows, own.cols);
  for (std::size_t i = 0; i < grouping.rows.size(); ++i)
    if (grouping.rows[i] >= 0)
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(i) * own.cols, own.cols, out.row(grouping.rows[i]));
  return out;
}

/// The way back: each row of a choice is not 0 on one rank only.
Matrix rows_of_own_choices(const SequenceParts& ranks, const Grouping& grouping, const Matrix& rows,
                           std::int64_t count) {
  Matrix mine(static_cast<std::int64_t>(grouping.rows.size()), rows.cols);
  for (std::int64_t i = 0; i < mine.rows; ++i)
    if (const std::int64_t row = grouping.rows[static_cast<std::size_t>(i)]; row >= 0)
      std::copy_n(rows.row(row), rows.cols, mine.row(i));
  const std::vector<double> all = gathered(ranks, mine.values);
  Matrix out(count, rows.cols);
  for (int rank = 0; rank < ranks.parts; ++rank) {
    auto from = all.begin() + (rank * mine.rows + ranks.part * count) * rows.cols;
    for (double& value : out.values) value += *from++;
  }
  return out;
}

/// The gradient of the logits, from the gradient of the sum over choices of weight times row of `outputs`. The weights
/// of a token add up to `total`.
Matrix logit_gradient(const Choices& choices, double total, const Matrix& outputs, const Matrix& grad,
                      std::int64_t experts) {
  Matrix out(grad.rows, experts);
  for (std::int64_t first = 0; first < choices.count(); first += choices.of_token) {
    const std::int64_t token = choices.token(first);
    std::vector<double> of_weights;
    double mean = 0.0;
    for (std::int64_t i = first; i < first + choices.of_token; ++i) {
      of_weights.push_back(std::inner_product(grad.row(token), grad.row(token) + grad.cols, outputs.row(i), 0.0));
      mean += choices.weights[static_cast<std::size_t>(i)] / total * of_weights.back();
    }
    for (std::int64_t i = first; i < first + choices.of_token; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out.row(token)[choices.experts[at]] =
          choices.slopes[at] * choices.weights[at] * (of_weights[static_cast<std::size_t>(i - first)] - mean);
    }
  }
  return out;
}

/// The gradient of the auxiliary loss with `coefficient` by the logits: the loss counts the choices of each expert,
/// which are constants.
Matrix auxiliary_gradient(const Matrix& logits, bool sigmoids, const Choices& choices, double coefficient) {
  const auto experts = static_cast<std::size_t>(logits.cols);
  std::vector<double> slopes(experts, 0.0);
  const double of_choice = coefficient * static_cast<double>(experts) / static_cast<double>(choices.count()) /
                           static_cast<double>(logits.rows);
  for (const std::int64_t expert : choices.experts) slopes[static_cast<std::size_t>(expert)] += of_choice;
  Matrix out(logits.rows, logits.cols);
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const double* const row = logits.row(t);
    std::vector<double> scores(experts), by_logit(experts);
    const double largest = *std::max_element(row, row + logits.cols);
    for (std::size_t e = 0; e < experts; ++e) {
      scores[e] = sigmoids ? 1.0 / (1.0 + std::exp(-row[e])) : std::exp(row[e] - largest);
      by_logit[e] = sigmoids ? scores[e] * (1.0 - scores[e]) : scores[e];
    }
    // The loss of the token is (scores . slopes) / (sum of scores).
    const double all = std::accumulate(scores.begin(), scores.end(), 0.0);
    const double loss = std::inner_product(scores.begin(), scores.end(), slopes.begin(), 0.0) / all;
    for (std::size_t e = 0; e < experts; ++e) out.row(t)[e] = by_logit[e] * (slopes[e] - loss) / all;
  }
  return out;
}

/// Adds the bias to every row.
Matrix with_bias(Matrix x, const double* bias) {
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t j = 0; j < x.cols; ++j) x.row(i)[j] += bias[j];
  return x;
}

void put_rows(const Matrix& from, std::int64_t begin, Matrix& to) {
  std::copy(from.values.begin(), from.values.end(), to.row(begin));
}

}  // namespace

/// Each expert multiplies its rows, of matrices each of which is cast as one. A rank's experts have a part of the rows
/// of the weight, and of the biases. All rows of an expert get its bias, rows of padding too.
Model::OperandValue Model::experts_linear(const std::string& name, const Operand& input,
                                          const std::vector<std::int64_t>& begins) {
  const Matrix& all = parameters_->at(name + ".weight");
  const std::int64_t own_rows = all.rows / expert_parts_.parts, first_row = own_rows * expert_parts_.part;
  const Operand weight = casts_.cast(name + " weight", Role::kWeight, rows_of(all, first_row, own_rows));
  const auto experts = static_cast<std::int64_t>(begins.size()) - 1;
  const std::int64_t outputs = own_rows / experts;
  const auto rows_of_expert = [begins](const Matrix& matrix, std::int64_t e) {
    const auto at = static_cast<std::size_t>(e);
    return rows_of(matrix, begins[at], begins[at + 1] - begins[at]);
  };
  const auto bias = parameters_->find(name + ".bias");
  const bool has_bias = bias != parameters_->end();
  Matrix y(input.by_rows.rows, outputs);
  for (std::int64_t e = 0; e < experts; ++e) {
    Matrix of_expert = product_of(input, rows_of_expert(input.by_rows, e), weight,
                                  rows_of(weight.by_rows, e * outputs, outputs), true);
    if (has_bias) of_expert = with_bias(std::move(of_expert), bias->second.row(0) + first_row + e * outputs);
    put_rows(of_expert, begins[static_cast<std::size_t>(e)], y);
  }
  return {casts_.stored(std::move(y)), [this, name, has_bias, input, weight, begins, experts, outputs, first_row,
                                        all_rows = all.rows, rows_of_expert](const Operand& cast, const Matrix& grad) {
            Matrix grad_x(cast.by_rows.rows, input.by_rows.cols), grad_weight(all_rows, weight.by_rows.cols);
            if (has_bias) {
              Matrix terms(grad.rows, all_rows);
              for (std::int64_t e = 0; e < experts; ++e)
                for (std::int64_t i = begins[static_cast<std::size_t>(e)]; i < begins[static_cast<std::size_t>(e) + 1];
                     ++i)
                  std::copy_n(grad.row(i), outputs, terms.row(i) + first_row + e * outputs);
              sum_over_tokens(name + ".bias", terms);
            }
            for (std::int64_t e = 0; e < experts; ++e) {
              const auto at = static_cast<std::size_t>(e);
              if (begins[at] == begins[at + 1]) continue;
              put_rows(product_of(cast, transposed(rows_of_expert(cast.by_columns, e)), input,
                                  transposed(rows_of_expert(input.by_columns, e)), false),
                       first_row + e * outputs, grad_weight);
              put_rows(product_of(cast, rows_of_expert(cast.by_rows, e), weight,
                                  transposed(rows_of(weight.by_columns, e * outputs, outputs)), false),
                       begins[at], grad_x);
            }
            gradients_[name + ".weight"] = casts_.stored(std::move(grad_weight));
            return casts_.stored(std::move(grad_x));
          }};
}

Value Model::shared_experts(const std::string& name, const Matrix& n) {
  Value first = linear(name + ".shared_fc1", n);
  Value active = activation(first.value);
  Value second = linear(name + ".shared_fc2", active.value);
  return chained({std::move(first), std::move(active), std::move(second)});
}

/// The choice reads the norm's output as it is stored, in the rounded step and in the exact one, so that both choose
/// the same experts from the same input: other experts are no noise.
Value Model::expert_mlp(const std::string& name, const Matrix& x) {
  const Matrix& router = parameters_->at(name + ".router.weight");
  const std::int64_t experts = cell_.model.experts;
  Value normed = norm(name + ".norm", x);
  const Matrix n = normed.value;
  Choices choices;
  choices.of_token = cell_.model.top_k;
  const Matrix stored = casts_.in_stored_type(n);
  const auto seen =
      seen_choices_ == nullptr ? SeenChoices::const_iterator{} : seen_choices_->find(name + ".router.weight");
  const bool has_seen = seen_choices_ != nullptr && seen != seen_choices_->end();
  const auto router_bias = parameters_->find(name + ".router.bias");
  const bool has_bias = router_bias != parameters_->end();
  const auto logits_of = [&](const Matrix& tokens) {
    Matrix logits = product(tokens, transposed(router));
    return has_bias ? with_bias(std::move(logits), router_bias->second.row(0)) : logits;
  };
  const auto biases =
      router_biases_ == nullptr ? ExpertValues::const_iterator{} : router_biases_->find(name + ".router");
  const bool is_balanced = router_biases_ != nullptr && biases != router_biases_->end();
  choose({.n = stored,
          .weight = router,
          .scores = logits_of(stored),
          .step = casts_.stored_step(),
          .biases = is_balanced ? biases->second : std::vector<double>(),
          .groups = cell_.model.expert_groups,
          .top_groups = cell_.model.top_groups},
         has_seen ? &seen->second : nullptr, choices);
  std::vector<double>& tokens = tokens_of_experts_[name + ".router"];
  tokens.assign(static_cast<std::size_t>(experts), 0.0);
  for (const std::int64_t expert : choices.experts) ++tokens[static_cast<std::size_t>(expert)];
  const double total = cell_.model.router_scale;
  const Matrix logits = logits_of(n);
  const bool sigmoids = cell_.model.router == RouterScore::kSigmoid;
  weigh(logits, sigmoids, total, choices);
  const double aux = share_ * static_cast<double>(static_cast<float>(cell_.model.router_aux_loss));
  const Matrix of_auxiliary_loss = aux > 0.0 ? auxiliary_gradient(logits, sigmoids, choices, aux) : Matrix();
  const Grouping grouping = group(expert_parts_, choices, experts, casts_.rows_of_group());
  // What travels is cast before or after it.
  const auto arrived = [this, name, grouping](const std::string& place, Role role, const Matrix& sent,
                                              const auto& row_of_each_choice) {
    const std::string full = name + place;
    if (!casts_.sends_eight_bits())
      return casts_.cast(full, role, rows_of_experts(expert_parts_, grouping, row_of_each_choice(sent)));
    const Operand cast = casts_.cast(full, role, sent);
    return casts_.received(role, rows_of_experts(expert_parts_, grouping, row_of_each_choice(cast.by_rows)), cast);
  };
  const OperandValue first = experts_linear(
      name + ".fc1",
      arrived(".fc1 input", Role::kInput, n, [&](const Matrix& sent) { return of_choices(choices, sent, false); }),
      grouping.begins);
  Value active = activation(first.value);
  const OperandValue second =
      experts_linear(name + ".fc2", casts_.cast(name + ".fc2 input", Role::kInput, active.value), grouping.begins);
  const Matrix outputs = rows_of_own_choices(expert_parts_, grouping, second.value, choices.count());
  Matrix y = casts_.stored(of_tokens(choices, outputs, true));
  Value shared;
  const bool shares = cell_.model.shared_experts > 0;
  if (shares) shared = shared_experts(name, n);
  if (shares) y = casts_.stored(sum(y, shared.value));
  return {std::move(y), [=, this, &router, normed = std::move(normed), active = std::move(active),
                         shared = std::move(shared)](const Matrix& grad) {
            const Matrix sent = casts_.stored(of_choices(choices, grad, true));
            const Operand came =
                arrived(".fc2 gradient", Role::kGradient, sent, [](const Matrix& rows) { return rows; });
            // Biases add up what came: the values of eight bits, or the gradients before their cast.
            const Matrix summed = casts_.sends_eight_bits() ? casts_.stored(came.by_rows)
                                  : has_bias                ? rows_of_experts(expert_parts_, grouping, sent)
                                                            : Matrix();
            const Matrix of_first = active.backward(second.backward(came, summed));
            const Operand cast = casts_.cast(name + ".fc1 gradient", Role::kGradient, of_first);
            const Matrix back =
                rows_of_own_choices(expert_parts_, grouping, first.backward(cast, of_first), choices.count());
            Matrix of_experts = casts_.stored(of_tokens(choices, back, false));
            if (shares) of_experts = casts_.stored(sum(of_experts, shared.backward(grad)));
            Matrix of_logits = logit_gradient(choices, total, outputs, grad, experts);
            if (aux > 0.0) of_logits = sum(of_logits, of_auxiliary_loss);
            const Matrix grad_logits = casts_.stored(std::move(of_logits));
            if (has_bias) sum_over_tokens(name + ".router.bias", grad_logits);
            gradients_[name + ".router.weight"] = casts_.stored(product(transposed(grad_logits), n));
            const Matrix of_router = casts_.stored(product(grad_logits, router));
            return normed.backward(casts_.stored(sum(of_experts, of_router)));
          }};
}

}  // namespace fp8lab::reference_step
