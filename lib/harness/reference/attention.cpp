#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "harness/reference/model.h"

// Rotary embedding and causal attention of packed projections: the heads of Q, then of K, then of V.
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

/// Logits over sqrt(dim).
Matrix logits(const Matrix& q, const Matrix& k) {
  Matrix s = product(q, transposed(k));
  for (double& value : s.values) value /= std::sqrt(static_cast<double>(q.cols));
  return s;
}

/// The largest sum of the magnitudes that a logit adds up: its roundings are steps of this.
double largest_terms(Matrix q, Matrix k) {
  for (Matrix* of : {&q, &k})
    for (double& value : of->values) value = std::abs(value);
  return amax_of(logits(q, k));
}

/// The first key that query `i` sees; its own is the last. A window of 0 has no limit.
std::int64_t first_seen(std::int64_t i, std::int64_t window) {
  return window == 0 ? 0 : std::max<std::int64_t>(0, i - window + 1);
}

/// The logarithm of each query's sum of exponentials over the keys that it sees, and the sink if it is not null.
std::vector<double> log_sums(const Matrix& s, std::int64_t window, const double* sink) {
  std::vector<double> sums;
  for (std::int64_t i = 0; i < s.rows; ++i) {
    const std::int64_t first = first_seen(i, window);
    double largest = *std::max_element(s.row(i) + first, s.row(i) + i + 1);
    if (sink != nullptr) largest = std::max(largest, *sink);
    double total = sink == nullptr ? 0.0 : std::exp(*sink - largest);
    for (std::int64_t j = first; j <= i; ++j) total += std::exp(s.row(i)[j] - largest);
    sums.push_back(largest + std::log(total));
  }
  return sums;
}

/// exp(s - log_sums) for keys that the query sees, 0 for others.
Matrix probabilities(Matrix s, const double* log_sums, std::int64_t window) {
  for (std::int64_t i = 0; i < s.rows; ++i)
    for (std::int64_t j = 0; j < s.cols; ++j)
      s.row(i)[j] = j > i || j < first_seen(i, window) ? 0.0 : std::exp(s.row(i)[j] - log_sums[i]);
  return s;
}

}  // namespace

Matrix Model::rotated(const Matrix& qkv, bool inverse) const {
  const std::int64_t dim = head_dim(), half = dim / 2;
  const std::vector<std::int64_t> own = own_positions();
  Matrix out = qkv;
  for (std::int64_t i = 0; i < qkv.rows; ++i) {
    const auto position = static_cast<double>(own[static_cast<std::size_t>(i / cell_.model.batch)]);
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

Value Model::qk_norm(const std::string& name, const Matrix& qkv) {
  const std::int64_t dim = head_dim();
  // The heads of a token one below the other, and back.
  const auto heads_of = [dim](const Matrix& packed, std::int64_t first, std::int64_t count) {
    Matrix out(packed.rows * count, dim);
    for (std::int64_t i = 0; i < packed.rows; ++i)
      std::copy_n(packed.row(i) + first * dim, count * dim, out.row(i * count));
    return out;
  };
  const auto put = [dim](const Matrix& heads, std::int64_t first, std::int64_t count, Matrix& packed) {
    for (std::int64_t i = 0; i < packed.rows; ++i)
      std::copy_n(heads.row(i * count), count * dim, packed.row(i) + first * dim);
  };
  const std::int64_t queries = cell_.model.heads, keys = kv_heads();
  Value q = norm(name + ".q_norm", heads_of(qkv, 0, queries), false);
  Value k = norm(name + ".k_norm", heads_of(qkv, queries, keys), false);
  Matrix y = qkv;
  put(q.value, 0, queries, y);
  put(k.value, queries, keys, y);
  return {std::move(y), [=](const Matrix& grad) {
            Matrix out = grad;
            put(q.backward(heads_of(grad, 0, queries)), 0, queries, out);
            put(k.backward(heads_of(grad, queries, keys)), queries, keys, out);
            return out;
          }};
}

Value Model::rotary(const Matrix& qkv) {
  return {rotated(qkv, false), [this](const Matrix& grad) { return rotated(grad, true); }};
}

Value Model::attention(const std::string& name, const Matrix& packed) {
  const std::int64_t batch = cell_.model.batch;
  Value entire = entire_attention(name, entire_sequences(parts_, packed, batch));
  return {own_part(parts_, entire.value, batch),
          [this, batch, backward = std::move(entire.backward)](const Matrix& grad) {
            return own_part(parts_, backward(entire_sequences(parts_, grad, batch)), batch);
          }};
}

Value Model::entire_attention(const std::string& name, const Matrix& packed) {
  // Columns of a head of Q and K, and of V and what attention makes.
  const std::int64_t dim = key_dim_of(cell_.model), width = value_dim_of(cell_.model);
  const std::int64_t heads = cell_.model.heads, batch = cell_.model.batch, keys = kv_heads();
  const std::int64_t first_key = heads * dim, first_value = first_key + keys * dim;
  const auto key_of = [=](std::int64_t head) { return first_key + head / (heads / keys) * dim; };
  const auto value_of = [=](std::int64_t head) { return first_value + head / (heads / keys) * width; };
  const bool casts = casts_.attention(), casts_outputs = casts_.attention_outputs();
  const bool casts_back = casts_.attention_backward();
  // What the linear layers before and after attention have cast, or will read, in eight bits.
  const bool exchanges = casts_.exchanges_eight_bits(), qkv_comes_cast = exchanges && keeps_qkv();
  const Matrix qkv = casts && !qkv_comes_cast ? casts_.cast(name + " qkv", Role::kInput, packed).by_rows : packed;

  // P of all heads one below the other, so that all share a scale.
  const std::int64_t seq = cell_.model.seq, window = model_of_layer(cell_.model, layer_).window;
  const auto sinks = parameters_->find(name + ".sinks");
  const bool has_sinks = sinks != parameters_->end();
  const Matrix sink_of = has_sinks ? sinks->second : Matrix();
  const auto logits_of = [=](const Matrix& of, std::int64_t b, std::int64_t h) {
    return logits(head_of(of, batch, b, h * dim, dim), head_of(of, batch, b, key_of(h), dim));
  };
  std::vector<double> sums;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      largest_logit_ = std::max(
          largest_logit_, largest_terms(head_of(qkv, batch, b, h * dim, dim), head_of(qkv, batch, b, key_of(h), dim)));
      const std::vector<double> of_head =
          log_sums(logits_of(qkv, b, h), window, has_sinks ? sink_of.row(0) + h : nullptr);
      sums.insert(sums.end(), of_head.begin(), of_head.end());
    }
  const auto all_probabilities = [=](const Matrix& of) {
    Matrix p(batch * heads * seq, seq);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t first = (b * heads + h) * seq;
        const Matrix of_head = probabilities(logits_of(of, b, h), sums.data() + first, window);
        std::copy(of_head.values.begin(), of_head.values.end(), p.row(first));
      }
    return p;
  };
  const Matrix p = all_probabilities(qkv);
  // P as products read it; dS follows from P before its mask, and dP is masked like P.
  const Matrix mask = attention_mask(name);
  const auto masked = [mask](Matrix of) {
    for (std::size_t i = 0; i < of.values.size(); ++i) of.values[i] *= mask.values[i];
    return of;
  };
  const Matrix p_cast = casts ? casts_.cast_in_kernel(name + " p", Role::kInput, masked(p)) : masked(p);
  Matrix o(packed.rows, heads * width);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      add_head(product(rows_of(p_cast, (b * heads + h) * seq, seq), head_of(qkv, batch, b, value_of(h), width)), batch,
               b, h * width, o);
  o = casts_.stored(std::move(o));
  if (casts_outputs) o = casts_.cast(name + " o", Role::kInput, o).by_rows;
  const bool rounds_again = casts_outputs && !exchanges;
  Matrix y = rounds_again ? casts_.stored(o) : o;

  // A backward in 16 bits reads Q, K, V and O as they were stored; its P is under forward's sums.
  const Matrix read = casts && !casts_back ? packed : qkv, o_read = casts_back ? o : y;
  return {std::move(y), [=, this](const Matrix& grad_y) {
            const Matrix p_read = casts && !casts_back ? all_probabilities(read) : p;
            const Matrix p_multiplied = casts_back ? p_cast : masked(p_read);
            const Matrix grad =
                casts_back && !exchanges ? casts_.cast(name + " grad o", Role::kGradient, grad_y).by_rows : grad_y;
            Matrix grad_s(p_read.rows, p_read.cols), out(qkv.rows, qkv.cols), of_sinks(batch * seq, heads);
            for (std::int64_t b = 0; b < batch; ++b)
              for (std::int64_t h = 0; h < heads; ++h) {
                const std::int64_t first = (b * heads + h) * seq;
                const Matrix grad_o = head_of(grad, batch, b, h * width, width),
                             o_head = head_of(o_read, batch, b, h * width, width);
                const Matrix grad_p = product(grad_o, transposed(head_of(read, batch, b, value_of(h), width)));
                for (std::int64_t i = 0; i < seq; ++i) {
                  double dot = 0.0;
                  for (std::int64_t d = 0; d < width; ++d) dot += o_head.row(i)[d] * grad_o.row(i)[d];
                  // A sink has no value, so that its dP is 0.
                  if (has_sinks)
                    of_sinks.row(b * seq + i)[h] =
                        -std::exp(sink_of.row(0)[h] - sums[static_cast<std::size_t>(first + i)]) * dot;
                  for (std::int64_t j = 0; j <= i; ++j)
                    grad_s.row(first + i)[j] =
                        p_read.row(first + i)[j] * (mask.row(first + i)[j] * grad_p.row(i)[j] - dot);
                }
                add_head(product(transposed(rows_of(p_multiplied, first, seq)), grad_o), batch, b, value_of(h), out);
              }
            if (has_sinks) sum_over_tokens(name + ".sinks", of_sinks);
            if (casts_back) grad_s = casts_.cast_in_kernel(name + " grad s", Role::kGradient, std::move(grad_s));
            for (double& value : grad_s.values) value /= std::sqrt(static_cast<double>(dim));
            for (std::int64_t b = 0; b < batch; ++b)
              for (std::int64_t h = 0; h < heads; ++h) {
                const Matrix of_head = rows_of(grad_s, (b * heads + h) * seq, seq);
                add_head(product(of_head, head_of(read, batch, b, key_of(h), dim)), batch, b, h * dim, out);
                add_head(product(transposed(of_head), head_of(read, batch, b, h * dim, dim)), batch, b, key_of(h), out);
              }
            out = casts_.stored(std::move(out));
            if (!casts_back || !casts_outputs) return out;
            out = casts_.cast(name + " grad qkv", Role::kGradient, out).by_rows;
            return qkv_comes_cast ? out : casts_.stored(std::move(out));
          }};
}

}  // namespace fp8lab::reference_step
