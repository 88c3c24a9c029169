#include "reference/layer_reference.h"

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <utility>

#include "reference/attention_reference.h"

namespace fp8lab::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double gelu(double x) {
  const double u = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1.0 + std::tanh(u));
}

Matrix zeros(std::int64_t rows, std::int64_t cols) {
  return {rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
}

std::vector<double> columns(const Matrix& x, std::int64_t begin, std::int64_t count) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(x.rows * count));
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t j = begin; j < begin + count; ++j) values.push_back(x.at(i, j));
  return values;
}

}  // namespace

Matrix LayerReference::forward(std::string_view layer, const std::string& name, const Matrix& x) const {
  if (layer == "linear") return linear(name, x);
  if (layer == "grouped_linear") return grouped_linear(name, x);
  if (layer == "layernorm_linear") return linear(name, norm(name + ".norm", x));
  if (layer == "layernorm_mlp") return mlp(name, x);
  if (layer == "multihead_attention") return multihead_attention(name, x);
  if (layer == "transformer_layer") return transformer_layer(name, x);
  throw std::invalid_argument("no reference for layer " + std::string(layer));
}

Matrix LayerReference::linear(const std::string& name, const Matrix& x) const {
  const std::vector<double>& weight = parameters_.at(name + ".weight");
  const auto bias = parameters_.find(name + ".bias");
  Matrix y = zeros(x.rows, static_cast<std::int64_t>(weight.size()) / x.cols);
  for (std::int64_t i = 0; i < y.rows; ++i) {
    for (std::int64_t j = 0; j < y.cols; ++j) {
      double sum = bias == parameters_.end() ? 0.0 : bias->second[static_cast<std::size_t>(j)];
      for (std::int64_t k = 0; k < x.cols; ++k) sum += x.at(i, k) * weight[x.index(j, k)];
      y.at(i, j) = sum;
    }
  }
  return y;
}

Matrix LayerReference::grouped_linear(const std::string& name, const Matrix& x) const {
  Matrix y{x.rows, 0, {}};
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < problem_.group_rows.size(); ++i) {
    const std::int64_t end = begin + problem_.group_rows[i];
    const auto first = x.values.begin() + begin * x.cols, last = x.values.begin() + end * x.cols;
    const Matrix part = linear(name + ".experts[" + std::to_string(i) + "]", {end - begin, x.cols, {first, last}});
    y.cols = part.cols;
    y.values.insert(y.values.end(), part.values.begin(), part.values.end());
    begin = end;
  }
  if (begin != x.rows) throw std::invalid_argument("grouped_linear: the groups do not cover all rows");
  return y;
}

Matrix LayerReference::norm(const std::string& name, const Matrix& x) const {
  const std::vector<double>& gamma = parameters_.at(name + ".gamma");
  const double count = static_cast<double>(x.cols);
  Matrix y = x;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    double mean = 0;
    double square = 0;
    if (!problem_.rms_norm)
      for (std::int64_t j = 0; j < x.cols; ++j) mean += x.at(i, j) / count;
    for (std::int64_t j = 0; j < x.cols; ++j) square += (x.at(i, j) - mean) * (x.at(i, j) - mean) / count;
    for (std::int64_t j = 0; j < x.cols; ++j)
      y.at(i, j) = (x.at(i, j) - mean) / std::sqrt(square + 1e-5) * gamma[static_cast<std::size_t>(j)];
    if (problem_.rms_norm) continue;
    const std::vector<double>& beta = parameters_.at(name + ".beta");
    for (std::int64_t j = 0; j < x.cols; ++j) y.at(i, j) += beta[static_cast<std::size_t>(j)];
  }
  return y;
}

Matrix LayerReference::activation(const Matrix& x) const {
  Matrix y = zeros(x.rows, problem_.swiglu ? x.cols / 2 : x.cols);
  for (std::int64_t i = 0; i < y.rows; ++i)
    for (std::int64_t j = 0; j < y.cols; ++j)
      y.at(i, j) = problem_.swiglu ? x.at(i, j) * sigmoid(x.at(i, j)) * x.at(i, y.cols + j) : gelu(x.at(i, j));
  return y;
}

Matrix LayerReference::mlp(const std::string& name, const Matrix& x) const {
  return linear(name + ".fc2", activation(linear(name + ".fc1", norm(name + ".norm", x))));
}

std::int64_t LayerReference::head_dim(const Matrix& qkv) const {
  return qkv.cols / (problem_.heads + 2 * problem_.kv_heads);
}

Matrix LayerReference::qk_norm(const std::string& name, const Matrix& qkv) const {
  if (!parameters_.contains(name + ".q_norm.gamma")) return qkv;
  const std::int64_t dim = head_dim(qkv);
  Matrix y = qkv;
  for (std::int64_t i = 0; i < qkv.rows; ++i)
    for (std::int64_t head = 0; head < problem_.heads + problem_.kv_heads; ++head) {
      const auto& gamma = parameters_.at(name + (head < problem_.heads ? ".q_norm.gamma" : ".k_norm.gamma"));
      double square = 0;
      for (std::int64_t d = 0; d < dim; ++d) square += qkv.at(i, head * dim + d) * qkv.at(i, head * dim + d);
      for (std::int64_t d = 0; d < dim; ++d)
        y.at(i, head * dim + d) *=
            gamma[static_cast<std::size_t>(d)] / std::sqrt(square / static_cast<double>(dim) + 1e-5);
    }
  return y;
}

Matrix LayerReference::rotate(const Matrix& qkv) const {
  const std::int64_t dim = head_dim(qkv);
  Matrix turned = qkv;
  for (std::int64_t i = 0; i < qkv.rows; ++i) {
    const double position = static_cast<double>(i / problem_.batch);
    for (std::int64_t head = 0; head < problem_.heads + problem_.kv_heads; ++head) {
      for (std::int64_t d = 0; d < dim / 2; ++d) {
        const std::int64_t low = head * dim + d, high = low + dim / 2;
        const double angle = position / std::pow(10000.0, 2.0 * static_cast<double>(d) / static_cast<double>(dim));
        turned.at(i, low) = qkv.at(i, low) * std::cos(angle) - qkv.at(i, high) * std::sin(angle);
        turned.at(i, high) = qkv.at(i, low) * std::sin(angle) + qkv.at(i, high) * std::cos(angle);
      }
    }
  }
  return turned;
}

Matrix LayerReference::attention(const std::string& name, const Matrix& qkv) const {
  const std::int64_t dim = head_dim(qkv), queries = problem_.heads * dim, keys = problem_.kv_heads * dim;
  AttentionProblem problem;
  problem.seq = problem_.seq;
  problem.batch = problem_.batch;
  problem.heads = problem_.heads;
  problem.kv_heads = problem_.kv_heads;
  problem.head_dim = dim;
  problem.causal = true;
  problem.softmax_scale = 1.0 / std::sqrt(static_cast<double>(dim));
  if (const auto mask = masks_.find(name); mask != masks_.end()) {
    problem.dropout = problem_.dropout;
    problem.kept = mask->second;
  }
  AttentionInputsReference inputs;
  inputs.q = columns(qkv, 0, queries);
  inputs.k = columns(qkv, queries, keys);
  inputs.v = columns(qkv, queries + keys, keys);
  return {qkv.rows, queries, attention_forward(problem, inputs).o.value};
}

Matrix LayerReference::multihead_attention(const std::string& name, const Matrix& x) const {
  Matrix qkv = qk_norm(name, linear(name + ".qkv", norm(name + ".qkv.norm", x)));
  if (problem_.rope) qkv = rotate(qkv);
  return linear(name + ".proj", attention(name + ".attention", qkv));
}

Matrix LayerReference::residual(const std::string& name, Matrix branch, const Matrix& x) const {
  const auto mask = masks_.find(name);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    if (mask != masks_.end()) branch.values[i] *= mask->second[i] != 0 ? 1.0 / (1.0 - problem_.dropout) : 0.0;
    branch.values[i] += x.values[i];
  }
  return branch;
}

Matrix LayerReference::transformer_layer(const std::string& name, const Matrix& x) const {
  const Matrix attended = residual(name + ".residual1", multihead_attention(name, x), x);
  return residual(name + ".residual2", mlp(name + ".mlp", attended), attended);
}

double mse(const Matrix& y, const std::vector<double>& target) {
  double sum = 0;
  for (std::size_t i = 0; i < target.size(); ++i) sum += (y.values[i] - target[i]) * (y.values[i] - target[i]);
  return sum / static_cast<double>(target.size());
}

}  // namespace fp8lab::reference
