#include <algorithm>
#include <cmath>
#include <utility>

#include "harness/reference/model.h"

// Multi-head latent attention (DeepSeek-V3): queries, and keys with values, are made from latents of few columns. A
// part of each query head and one key part that all heads have are rotated.
namespace fp8lab::reference_step {
namespace {

/// `count` columns of a matrix from `first` on.
Matrix columns_of(const Matrix& x, std::int64_t first, std::int64_t count) {
  Matrix out(x.rows, count);
  for (std::int64_t i = 0; i < x.rows; ++i) std::copy_n(x.row(i) + first, count, out.row(i));
  return out;
}

void add_columns(const Matrix& from, std::int64_t first, Matrix& to) {
  for (std::int64_t i = 0; i < from.rows; ++i)
    for (std::int64_t j = 0; j < from.cols; ++j) to.row(i)[first + j] += from.row(i)[j];
}

/// Rows rotated by the positions of their tokens; row / batch is the position. `direction`: 1, or -1 for the inverse.
Matrix rotated_rows(const Matrix& x, std::int64_t batch, double direction) {
  Matrix out = x;
  const std::int64_t half = x.cols / 2;
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t d = 0; d < half; ++d) {
      const double angle = direction * static_cast<double>(i / batch) *
                           std::pow(10000.0, -2.0 * static_cast<double>(d) / static_cast<double>(x.cols));
      const double low = x.row(i)[d], high = x.row(i)[half + d];
      out.row(i)[d] = low * std::cos(angle) - high * std::sin(angle);
      out.row(i)[half + d] = high * std::cos(angle) + low * std::sin(angle);
    }
  return out;
}

}  // namespace

Value Model::latent(const std::string& name, const Matrix& n) {
  Value down = linear(name + "_down", n);
  Value normed = norm(name + "_norm", down.value, false);
  Value up = linear(name + "_up", normed.value);
  return chained({std::move(down), std::move(normed), std::move(up)});
}

/// The weight of the rotated part of keys is cast under no recipe.
Value Model::latent_projections(const std::string& name, const Matrix& x) {
  const std::int64_t heads = cell_.model.heads, batch = cell_.model.batch, rope = cell_.model.rope_dim;
  const std::int64_t plain = head_dim(), width = value_dim_of(cell_.model), key = plain + rope;
  const std::int64_t first_key = heads * key, first_value = 2 * first_key;
  const Matrix& weight = parameters_->at(name + ".k_rope.weight");
  Value normed = norm(name + ".latents.norm", x, false);
  const Matrix n = normed.value;
  Value q = latent(name + ".q", n), kv = latent(name + ".kv", n);
  const Matrix k_rope = casts_.stored(product(n, transposed(weight)));
  const Matrix k_rotated = rotated_rows(k_rope, batch, 1.0);
  Matrix packed(x.rows, first_value + heads * width);
  for (std::int64_t h = 0; h < heads; ++h) {
    add_columns(columns_of(q.value, h * key, plain), h * key, packed);
    add_columns(rotated_rows(columns_of(q.value, h * key + plain, rope), batch, 1.0), h * key + plain, packed);
    add_columns(columns_of(kv.value, h * (plain + width), plain), first_key + h * key, packed);
    add_columns(k_rotated, first_key + h * key + plain, packed);
    add_columns(columns_of(kv.value, h * (plain + width) + plain, width), first_value + h * width, packed);
  }
  return {casts_.stored(std::move(packed)),
          [=, this, &weight, normed = std::move(normed), q = std::move(q), kv = std::move(kv)](const Matrix& grad) {
            Matrix of_q(grad.rows, heads * key), of_kv(grad.rows, heads * (plain + width)), of_rope(grad.rows, rope);
            for (std::int64_t h = 0; h < heads; ++h) {
              add_columns(columns_of(grad, h * key, plain), h * key, of_q);
              add_columns(rotated_rows(columns_of(grad, h * key + plain, rope), batch, -1.0), h * key + plain, of_q);
              add_columns(columns_of(grad, first_key + h * key, plain), h * (plain + width), of_kv);
              add_columns(columns_of(grad, first_key + h * key + plain, rope), 0, of_rope);
              add_columns(columns_of(grad, first_value + h * width, width), h * (plain + width) + plain, of_kv);
            }
            of_rope = casts_.stored(rotated_rows(of_rope, batch, -1.0));
            Matrix out = casts_.stored(sum(q.backward(casts_.stored(of_q)), kv.backward(casts_.stored(of_kv))));
            out = casts_.stored(sum(out, casts_.stored(product(of_rope, weight))));
            gradients_[name + ".k_rope.weight"] = casts_.stored(product(transposed(of_rope), n));
            return normed.backward(out);
          }};
}

}  // namespace fp8lab::reference_step
