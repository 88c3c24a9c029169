#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/reference/model.h"

// What a language model has before and after its layers.
namespace fp8lab::reference_step {
namespace {

std::int64_t token_at(const Matrix& tokens, std::int64_t i) { return static_cast<std::int64_t>(tokens.row(i)[0]); }

/// The sum of the rows of `grad` by entry; row i belongs to entry entry_of(i).
template <class EntryOf>
Matrix sums_by_entry(const Matrix& grad, std::int64_t entries, const EntryOf& entry_of) {
  Matrix out(entries, grad.cols);
  for (std::int64_t i = 0; i < grad.rows; ++i)
    for (std::int64_t j = 0; j < grad.cols; ++j) out.row(entry_of(i))[j] += grad.row(i)[j];
  return out;
}

}  // namespace

double Model::embedding_scale() const {
  if (!gemma()) return 1.0;
  Matrix root(1, 1);
  root.row(0)[0] = std::sqrt(static_cast<double>(cell_.model.hidden));
  return casts_.stored(std::move(root)).row(0)[0];
}

Value Model::embedding(const Matrix& tokens) {
  const Matrix& table = parameters_->at("embedding.weight");
  const auto positions = parameters_->find("positions.weight");
  const bool positioned = positions != parameters_->end();
  const std::int64_t batch = cell_.model.batch;
  const double scale = embedding_scale();
  const auto position_of = [batch, own = own_positions()](std::int64_t row) {
    return own[static_cast<std::size_t>(row / batch)];
  };
  Matrix y(tokens.rows, table.cols);
  for (std::int64_t i = 0; i < y.rows; ++i)
    for (std::int64_t j = 0; j < y.cols; ++j)
      y.row(i)[j] =
          scale * table.row(token_at(tokens, i))[j] + (positioned ? positions->second.row(position_of(i))[j] : 0.0);
  Value kept = dropout("embedding.dropout", casts_.stored(std::move(y)));
  return {kept.value, [=, this, rows = table.rows, dropped = kept.backward](const Matrix& grad_kept) {
            const Matrix grad = dropped(grad_kept);
            Matrix of_table = sums_by_entry(grad, rows, [&](std::int64_t i) { return token_at(tokens, i); });
            for (double& value : of_table.values) value *= scale;
            // A tied head's gradient is there already.
            if (const auto head = gradients_.find("embedding.weight"); head != gradients_.end())
              of_table = sum(of_table, head->second);
            gradients_["embedding.weight"] = casts_.stored(std::move(of_table));
            if (positioned)
              gradients_["positions.weight"] = casts_.stored(sums_by_entry(grad, cell_.model.seq, position_of));
            return Matrix();
          }};
}

Value Model::head(const Matrix& x) {
  const std::string name = cell_.model.head == HeadWeight::kTied ? "embedding.weight" : "head.weight";
  const Matrix& weight = parameters_->at(name);
  return {casts_.stored(product(x, transposed(weight))), [=, this, &weight](const Matrix& grad) {
            gradients_[name] = casts_.stored(product(transposed(grad), x));
            return casts_.stored(product(grad, weight));
          }};
}

Matrix Model::cross_entropy(const Matrix& targets, Step& step) const {
  Matrix grad(step.output.rows, step.output.cols);
  const double count = static_cast<double>(grad.rows);
  for (std::int64_t i = 0; i < grad.rows; ++i) {
    const double* const x = step.output.row(i);
    const double largest = *std::max_element(x, x + grad.cols);
    double sum = 0.0;
    for (std::int64_t j = 0; j < grad.cols; ++j) sum += std::exp(x[j] - largest);
    for (std::int64_t j = 0; j < grad.cols; ++j) grad.row(i)[j] = std::exp(x[j] - largest) / sum / count;
    const std::int64_t target = token_at(targets, i);
    grad.row(i)[target] -= 1.0 / count;
    step.loss += (largest + std::log(sum) - x[target]) / count;
  }
  return grad;
}

}  // namespace fp8lab::reference_step
