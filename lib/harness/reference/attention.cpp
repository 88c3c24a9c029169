#include <cmath>
#include <utility>

#include "harness/reference/model.h"

// Rotary embedding and causal attention of packed [tokens, (heads + 2 kv_heads) * head_dim] projections: all Q, all K,
// all V.
namespace fp8lab::reference_step {
namespace {

/// Rows of one head of one sequence, in order of position.
Matrix head_of(const Matrix& packed, std::int64_t batch, std::int64_t sequence, std::int64_t first_column,
               std::int64_t dim) {
  Matrix out(packed.rows / batch, dim);
  for (std::int64_t i = 0; i < out.rows; ++i)
    for (std::int64_t d = 0; d < dim; ++d) out.row(i)[d] = packed.row(i * batch + sequence)[first_column + d];
  return out;
}

void add_head(const Matrix& head, std::int64_t batch, std::int64_t sequence, std::int64_t first_column,
              Matrix& packed) {
  for (std::int64_t i = 0; i < head.rows; ++i)
    for (std::int64_t d = 0; d < head.cols; ++d) packed.row(i * batch + sequence)[first_column + d] += head.row(i)[d];
}

/// Softmax over keys up to the query's own position, with logits over sqrt(dim).
Matrix probabilities(const Matrix& q, const Matrix& k) {
  Matrix p = product(q, transposed(k));
  for (std::int64_t i = 0; i < p.rows; ++i) {
    double largest = p.row(i)[0], total = 0.0;
    for (std::int64_t j = 0; j <= i; ++j) largest = std::max(largest, p.row(i)[j]);
    const double factor = 1.0 / std::sqrt(static_cast<double>(q.cols));
    for (std::int64_t j = 0; j < p.cols; ++j) {
      p.row(i)[j] = j > i ? 0.0 : std::exp(factor * (p.row(i)[j] - largest));
      total += p.row(i)[j];
    }
    for (std::int64_t j = 0; j <= i; ++j) p.row(i)[j] /= total;
  }
  return p;
}

}  // namespace

Matrix Model::rotated(const Matrix& qkv, bool inverse) const {
  const std::int64_t dim = head_dim(), half = dim / 2;
  Matrix out = qkv;
  for (std::int64_t i = 0; i < qkv.rows; ++i) {
    const auto position = static_cast<double>(i / cell_.model.batch);
    for (std::int64_t d = 0; d < half; ++d) {
      const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(d) / static_cast<double>(dim));
      const double cosine = std::cos(angle), sine = inverse ? -std::sin(angle) : std::sin(angle);
      for (std::int64_t head = 0; head < cell_.model.heads + kv_heads(); ++head) {
        const std::int64_t low = head * dim + d, high = low + half;
        out.row(i)[low] = qkv.row(i)[low] * cosine - qkv.row(i)[high] * sine;
        out.row(i)[high] = qkv.row(i)[high] * cosine + qkv.row(i)[low] * sine;
      }
    }
  }
  return casts_.stored(std::move(out));
}

Value Model::rotary(const Matrix& qkv) {
  return {rotated(qkv, false), [this](const Matrix& grad) { return rotated(grad, true); }};
}

Value Model::attention(const std::string& name, const Matrix& packed) {
  const std::int64_t dim = head_dim(), heads = cell_.model.heads, batch = cell_.model.batch, keys = kv_heads();
  const std::int64_t first_key = heads * dim, first_value = first_key + keys * dim;
  const auto key_of = [=](std::int64_t head) { return first_key + head / (heads / keys) * dim; };
  const auto value_of = [=](std::int64_t head) { return first_value + head / (heads / keys) * dim; };
  const bool casts = casts_.attention(), casts_outputs = casts_.attention_outputs();
  const Matrix qkv = casts ? casts_.cast(name + " qkv", Role::kInput, packed).by_rows : packed;

  // P of all heads one below the other, so that all share a scale.
  const std::int64_t seq = cell_.model.seq;
  Matrix p(batch * heads * seq, seq);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      const Matrix of_head =
          probabilities(head_of(qkv, batch, b, h * dim, dim), head_of(qkv, batch, b, key_of(h), dim));
      std::copy(of_head.values.begin(), of_head.values.end(), p.row((b * heads + h) * seq));
    }
  const Matrix p_cast = casts ? casts_.cast_in_kernel(name + " p", Role::kInput, p) : p;
  Matrix o(packed.rows, heads * dim);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      add_head(product(rows_of(p_cast, (b * heads + h) * seq, seq), head_of(qkv, batch, b, value_of(h), dim)), batch, b,
               h * dim, o);
  o = casts_.stored(std::move(o));
  if (casts_outputs) o = casts_.cast(name + " o", Role::kInput, o).by_rows;
  Matrix y = casts_outputs ? casts_.stored(o) : o;

  return {std::move(y), [=, this](const Matrix& grad_y) {
            const Matrix grad = casts ? casts_.cast(name + " grad o", Role::kGradient, grad_y).by_rows : grad_y;
            Matrix grad_s(p.rows, p.cols), out(qkv.rows, qkv.cols);
            for (std::int64_t b = 0; b < batch; ++b)
              for (std::int64_t h = 0; h < heads; ++h) {
                const std::int64_t first = (b * heads + h) * seq;
                const Matrix grad_o = head_of(grad, batch, b, h * dim, dim),
                             o_head = head_of(o, batch, b, h * dim, dim);
                const Matrix grad_p = product(grad_o, transposed(head_of(qkv, batch, b, value_of(h), dim)));
                for (std::int64_t i = 0; i < seq; ++i) {
                  double dot = 0.0;
                  for (std::int64_t d = 0; d < dim; ++d) dot += o_head.row(i)[d] * grad_o.row(i)[d];
                  for (std::int64_t j = 0; j <= i; ++j)
                    grad_s.row(first + i)[j] = p.row(first + i)[j] * (grad_p.row(i)[j] - dot);
                }
                add_head(product(transposed(rows_of(p_cast, first, seq)), grad_o), batch, b, value_of(h), out);
              }
            if (casts) grad_s = casts_.cast_in_kernel(name + " grad s", Role::kGradient, std::move(grad_s));
            for (double& value : grad_s.values) value /= std::sqrt(static_cast<double>(dim));
            for (std::int64_t b = 0; b < batch; ++b)
              for (std::int64_t h = 0; h < heads; ++h) {
                const Matrix of_head = rows_of(grad_s, (b * heads + h) * seq, seq);
                add_head(product(of_head, head_of(qkv, batch, b, key_of(h), dim)), batch, b, h * dim, out);
                add_head(product(transposed(of_head), head_of(qkv, batch, b, h * dim, dim)), batch, b, key_of(h), out);
              }
            out = casts_.stored(std::move(out));
            if (casts_outputs) out = casts_.stored(casts_.cast(name + " grad qkv", Role::kGradient, out).by_rows);
            return out;
          }};
}

}  // namespace fp8lab::reference_step
