#include "harness/reference/model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <numeric>
#include <utility>

namespace fp8lab::reference_step {
namespace {

/// SiLU and its derivative.
std::pair<double, double> silu(double x) {
  const double s = 1.0 / (1.0 + std::exp(-x));
  return {x * s, s + x * s * (1.0 - s)};
}

/// x sigmoid(1.702 x) and its derivative.
std::pair<double, double> swish(double x) {
  const double s = 1.0 / (1.0 + std::exp(-1.702 * x));
  return {x * s, s + 1.702 * x * s * (1.0 - s)};
}

/// A factor of a gated activation and its derivative. A limit of 0 is none.
using Factor = std::pair<double, double>;

Factor gate_factor(double gate, double limit, Factor (*function)(double)) {
  if (limit == 0.0) return function(gate);
  const Factor clamped = swish(std::min(gate, limit));
  return {clamped.first, gate > limit ? 0.0 : clamped.second};
}

Factor up_factor(double up, double limit) {
  if (limit == 0.0) return {up, 1.0};
  return {std::clamp(up, -limit, limit) + 1.0, std::abs(up) > limit ? 0.0 : 1.0};
}

/// GELU in its tanh form, and its derivative.
std::pair<double, double> gelu(double x) {
  const double c = std::sqrt(2.0 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x)};
}

Matrix column_sums(const Matrix& x) {
  Matrix out(1, x.cols);
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t j = 0; j < x.cols; ++j) out.values[static_cast<std::size_t>(j)] += x.row(i)[j];
  return out;
}

}  // namespace

Value chained(std::vector<Value> values) {
  Matrix last = values.back().value;
  return {std::move(last), [values = std::move(values)](const Matrix& grad) {
            Matrix out = grad;
            for (auto value = values.rbegin(); value != values.rend(); ++value) out = value->backward(out);
            return out;
          }};
}

Matrix Model::product_of(const Operand& of_a, const Matrix& a, const Operand& of_b, const Matrix& b,
                         bool of_forward) const {
  if (cell_.training.fp8_sums != Fp8Sums::kTensorCore || !of_a.unit || !of_b.unit) return product(a, transposed(b));
  // The tensor core sums products of the data itself; scales of an entire matrix multiply the sum.
  const auto data = [](Matrix values, double unit) {
    for (double& value : values.values) value /= unit;
    return values;
  };
  const bool per_tensor = cell_.training.recipe != "block";
  Matrix out = tensor_core_product(data(a, *of_a.unit), data(b, *of_b.unit), of_forward && per_tensor);
  for (double& value : out.values) value *= *of_a.unit * *of_b.unit;
  return out;
}

void Model::sum_over_tokens(const std::string& name, const Matrix& terms) {
  gradients_[name] = casts_.stored(column_sums(terms));
  largest_terms_[name] = amax_of(terms);
}

Value Model::linear(const std::string& name, const Matrix& x, const Exchanged& exchanged) {
  const Operand input = exchanged.x ? Operand{x, x} : casts_.cast(name + " input", Role::kInput, x);
  const Operand weight = casts_.cast(name + " weight", Role::kWeight, parameters_->at(name + ".weight"));
  const auto bias = parameters_->find(name + ".bias");
  Matrix y = product_of(input, input.by_rows, weight, weight.by_rows, true);
  if (bias != parameters_->end())
    for (std::int64_t i = 0; i < y.rows; ++i)
      for (std::int64_t j = 0; j < y.cols; ++j) y.row(i)[j] += bias->second.row(0)[j];
  const bool has_bias = bias != parameters_->end();
  y = exchanged.y ? casts_.cast(name + " output", Role::kInput, y).by_rows : casts_.stored(std::move(y));
  return {std::move(y), [this, name, has_bias, input, weight, exchanged](const Matrix& grad) {
            // The bias sums the gradient as stored. If the gradient came in eight bits, it sums a stored copy.
            if (has_bias) sum_over_tokens(name + ".bias", casts_.stored(grad));
            const Operand cast =
                exchanged.grad_y ? Operand{grad, grad} : casts_.cast(name + " gradient", Role::kGradient, grad);
            gradients_[name + ".weight"] = casts_.stored(
                product_of(cast, transposed(cast.by_columns), input, transposed(input.by_columns), false));
            const Matrix grad_x = product_of(cast, cast.by_rows, weight, transposed(weight.by_columns), false);
            if (exchanged.grad_x) return casts_.cast(name + " input gradient", Role::kGradient, grad_x).by_rows;
            return casts_.stored(grad_x);
          }};
}

std::vector<std::int64_t> Model::group_rows() const {
  const ModelConfig& model = cell_.model;
  const bool uneven = model.split == GroupSplit::kUneven;
  const std::int64_t tokens = model.seq / parts_.parts * model.batch,
                     unit = uneven ? std::gcd(tokens, std::int64_t{128}) : 1;
  // An uneven split gives the experts experts, 0, experts - 2, ..., 1 shares.
  std::vector<std::int64_t> ends;
  std::int64_t shares = 0;
  for (std::int64_t i = 0; i < model.experts; ++i) {
    shares += !uneven ? 1 : i == 1 ? 0 : model.experts - i;
    ends.push_back(shares);
  }
  std::vector<std::int64_t> rows;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    const std::int64_t last = tokens / unit * end / shares;
    rows.push_back(unit * (last - begin));
    begin = last;
  }
  return rows;
}

Value Model::grouped_linear(const std::string& name, const Matrix& x) {
  const std::vector<std::int64_t> groups = group_rows();
  std::vector<Value> experts;
  Matrix y(x.rows, x.cols);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    experts.push_back(linear(name + ".experts[" + std::to_string(i) + "]", rows_of(x, begin, groups[i])));
    std::copy(experts.back().value.values.begin(), experts.back().value.values.end(), y.row(begin));
    begin += groups[i];
  }
  return {std::move(y), [groups, experts](const Matrix& grad) {
            Matrix out(grad.rows, grad.cols);
            std::int64_t first = 0;
            for (std::size_t i = 0; i < groups.size(); ++i) {
              const Matrix part = experts[i].backward(rows_of(grad, first, groups[i]));
              std::copy(part.values.begin(), part.values.end(), out.row(first));
              first += groups[i];
            }
            return out;
          }};
}

/// With xhat = (x - mean) / deviation and g = grad * gamma, the gradient of x is
/// (g - mean of g - xhat * mean of g * xhat) / deviation; RMSNorm has no means.
Value Model::norm(const std::string& name, const Matrix& x, bool centred) {
  const Matrix& gamma = parameters_->at(name + ".gamma");
  const auto beta = parameters_->find(name + ".beta");
  const double count = static_cast<double>(x.cols);
  Matrix y(x.rows, x.cols), xhat(x.rows, x.cols);
  std::vector<double> deviations;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const double* const row = x.row(i);
    const double mean = centred ? std::accumulate(row, row + x.cols, 0.0) / count : 0.0;
    double variance = 0.0;
    for (std::int64_t j = 0; j < x.cols; ++j) variance += (row[j] - mean) * (row[j] - mean) / count;
    deviations.push_back(std::sqrt(variance + 1e-5));
    for (std::int64_t j = 0; j < x.cols; ++j) {
      xhat.row(i)[j] = (row[j] - mean) / deviations.back();
      y.row(i)[j] = xhat.row(i)[j] * gamma.row(0)[j];
      if (beta != parameters_->end()) y.row(i)[j] += beta->second.row(0)[j];
    }
  }
  return {casts_.stored(std::move(y)), [=, this, &gamma](const Matrix& grad) {
            Matrix out(grad.rows, grad.cols), of_gamma(grad.rows, grad.cols);
            for (std::int64_t i = 0; i < grad.rows; ++i) {
              const double* const g = grad.row(i);
              double mean = 0.0, slope = 0.0;
              for (std::int64_t j = 0; j < grad.cols; ++j) {
                mean += centred ? g[j] * gamma.row(0)[j] / count : 0.0;
                slope += g[j] * gamma.row(0)[j] * xhat.row(i)[j] / count;
                of_gamma.row(i)[j] = g[j] * xhat.row(i)[j];
              }
              for (std::int64_t j = 0; j < grad.cols; ++j)
                out.row(i)[j] =
                    (g[j] * gamma.row(0)[j] - mean - xhat.row(i)[j] * slope) / deviations[static_cast<std::size_t>(i)];
            }
            sum_over_tokens(name + ".gamma", of_gamma);
            if (beta != parameters_->end()) sum_over_tokens(name + ".beta", grad);
            return casts_.stored(std::move(out));
          }};
}

Value Model::activation(const Matrix& x) {
  const bool gated = !gpt();
  const auto function = gpt() || gemma() ? gelu : silu;
  const double limit = cell_.model.swiglu_limit;
  Matrix y(x.rows, gated ? x.cols / 2 : x.cols);
  for (std::int64_t i = 0; i < y.rows; ++i)
    for (std::int64_t j = 0; j < y.cols; ++j)
      y.row(i)[j] = gate_factor(x.row(i)[j], limit, function).first *
                    (gated ? up_factor(x.row(i)[y.cols + j], limit).first : 1.0);
  return {casts_.stored(std::move(y)), [this, gated, function, limit, x](const Matrix& grad) {
            Matrix out(x.rows, x.cols);
            for (std::int64_t i = 0; i < grad.rows; ++i)
              for (std::int64_t j = 0; j < grad.cols; ++j) {
                const auto [value, slope] = gate_factor(x.row(i)[j], limit, function);
                const Factor up = gated ? up_factor(x.row(i)[grad.cols + j], limit) : Factor{1.0, 0.0};
                const double g = grad.row(i)[j];
                out.row(i)[j] = g * slope * up.first;
                if (gated) out.row(i)[grad.cols + j] = g * value * up.second;
              }
            return casts_.stored(std::move(out));
          }};
}

Value Model::layernorm_linear(const std::string& name, const Matrix& x, const Exchanged& exchanged) {
  Value normed = norm(name + ".norm", x);
  Value y = linear(name, normed.value, exchanged);
  return chained({std::move(normed), std::move(y)});
}

Value Model::layernorm_mlp(const std::string& name, const Matrix& x) {
  if (routes()) return expert_mlp(name, x);
  Value normed = norm(name + ".norm", x);
  Value first = linear(name + ".fc1", normed.value);
  Value active = activation(first.value);
  Value second = linear(name + ".fc2", active.value);
  return chained({std::move(normed), std::move(first), std::move(active), std::move(second)});
}

Value Model::multihead_attention(const std::string& name, const Matrix& x) {
  const bool exchanges = casts_.exchanges_eight_bits(), qkv_too = exchanges && keeps_qkv();
  const bool latents = has_latents(cell_.model);
  std::vector<Value> values{latents ? latent_projections(name, x)
                                    : layernorm_linear(name + ".qkv", x, {.y = qkv_too, .grad_y = qkv_too})};
  if (cell_.model.qk_norm) values.push_back(qk_norm(name, values.back().value));
  if (!gpt() && !latents) values.push_back(rotary(values.back().value));
  values.push_back(attention(name + ".attention", values.back().value));
  values.push_back(linear(name + ".proj", values.back().value, {.x = exchanges, .grad_x = exchanges}));
  return chained(std::move(values));
}

Value Model::transformer_layer(const std::string& name, const Matrix& x) {
  Value attended = multihead_attention(name, x);
  Value first = dropout(name + ".residual1", attended.value);
  attended = chained({std::move(attended), std::move(first)});
  const Matrix between = casts_.stored(sum(attended.value, x));
  Value mlp = layernorm_mlp(name + ".mlp", between);
  Value second = dropout(name + ".residual2", mlp.value);
  mlp = chained({std::move(mlp), std::move(second)});
  Matrix y = casts_.stored(sum(mlp.value, between));
  return {std::move(y), [this, attended, mlp](const Matrix& grad) {
            const Matrix middle = casts_.stored(sum(mlp.backward(grad), grad));
            return casts_.stored(sum(attended.backward(middle), middle));
          }};
}

Matrix Model::distance(const Matrix& target, Step& step) const {
  Matrix grad(step.output.rows, step.output.cols);
  const double count = static_cast<double>(grad.values.size());
  for (std::size_t i = 0; i < grad.values.size(); ++i) {
    const double y = step.output.values[i], distance = target.values.empty() ? 0.0 : y - target.values[i];
    step.loss += target.values.empty() ? y : distance * distance / count;
    grad.values[i] = target.values.empty() ? 1.0 : 2.0 * distance / count;
  }
  return grad;
}

double Model::loss_of(const Matrix& output, const Matrix& target) const {
  Step step;
  step.output = output;
  is_language_model(cell_) ? cross_entropy(target, step) : distance(target, step);
  return step.loss;
}

bool is_frozen(const CellConfig& cell, std::string_view parameter) {
  const std::int64_t frozen = cell.training.frozen_layers;
  if (parameter.starts_with("embedding.") || parameter.starts_with("positions.")) return frozen > 0;
  constexpr std::string_view kLayer = "layers[";
  if (!parameter.starts_with(kLayer)) return false;
  return std::stoll(std::string(parameter.substr(kLayer.size()))) < frozen;
}

Step Model::run(const Matrix& x, const Matrix& target, const NamedMatrices& parameters,
                const std::vector<SeenLayer>& seen, double share) {
  static const std::map<std::string, Layer> kLayers{{"layernorm", &Model::layernorm},
                                                    {"rmsnorm", &Model::rmsnorm},
                                                    {"linear", &Model::linear},
                                                    {"grouped_linear", &Model::grouped_linear},
                                                    {"layernorm_linear", &Model::layernorm_linear},
                                                    {"layernorm_mlp", &Model::layernorm_mlp},
                                                    {"multihead_attention", &Model::multihead_attention},
                                                    {"transformer_layer", &Model::transformer_layer}};
  parameters_ = &parameters;
  gradients_.clear();
  largest_terms_.clear();
  tokens_of_experts_.clear();
  largest_logit_ = 0.0;
  share_ = share;
  const Layer layer = kLayers.at(cell_.model.layer);
  const bool language = is_language_model(cell_);
  std::vector<Value> values;
  Step step;
  const std::int64_t frozen = cell_.training.frozen_layers;
  Matrix read = x;  // by the first layer that is trained
  if (language) {
    Value embedded = embedding(x);
    step.embedded = read = embedded.value;
    if (frozen == 0) values.push_back(std::move(embedded));
  }
  step.layer_gradients.resize(static_cast<std::size_t>(cell_.model.layers));
  for (std::int64_t i = 0; i < cell_.model.layers; ++i) {
    casts_.enter_layer(i);
    layer_ = i;
    const SeenLayer* const here = seen.empty() ? nullptr : &seen[static_cast<std::size_t>(i)];
    const Matrix& before = values.empty() ? read : values.back().value;
    Value value = (this->*layer)("layers[" + std::to_string(i) + "]", here != nullptr ? here->input : before);
    step.layer_outputs.push_back(value.value);
    if (i < frozen) {
      read = std::move(value.value);
      continue;
    }
    values.push_back(
        {std::move(value.value), [this, i, here, &step, backward = std::move(value.backward)](const Matrix& grad) {
           casts_.enter_layer(i);
           step.layer_gradients[static_cast<std::size_t>(i)] = grad;
           return backward(here != nullptr ? here->gradient : grad);
         }});
  }
  if (language)
    values.push_back(norm("norm", !seen.empty() ? seen.back().output : values.empty() ? read : values.back().value));
  if (language) values.push_back(head(values.back().value));
  casts_.end_forward();

  step.output = values.back().value;
  Matrix grad = language ? cross_entropy(target, step) : distance(target, step);
  for (double& value : grad.values) value *= share;
  chained(std::move(values)).backward(casts_.stored(std::move(grad)));
  casts_.end_backward();
  for (const auto& [name, parameter] : parameters) {
    if (!is_frozen(cell_, name)) continue;
    gradients_[name] = Matrix(parameter.rows, parameter.cols);
    largest_terms_.erase(name);
  }
  step.gradients = std::move(gradients_);
  step.largest_terms = std::move(largest_terms_);
  step.largest_logit = largest_logit_;
  step.tokens_of_experts = std::move(tokens_of_experts_);
  return step;
}

}  // namespace fp8lab::reference_step
