#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Layers by their definitions in double precision, forward only: gradients are differences of a loss.
namespace fp8lab::reference {

/// Row-major [rows, cols].
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;

  std::size_t index(std::int64_t i, std::int64_t j) const { return static_cast<std::size_t>(i * cols + j); }
  double& at(std::int64_t i, std::int64_t j) { return values[index(i, j)]; }
  double at(std::int64_t i, std::int64_t j) const { return values[index(i, j)]; }
};

struct LayerProblem {
  bool rms_norm = false;  ///< otherwise LayerNorm
  bool swiglu = false;    ///< otherwise GELU in its tanh form
  bool rope = false;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t seq = 1;
  std::int64_t batch = 1;
  double dropout = 0.0;
  std::vector<std::int64_t> group_rows;  ///< for grouped_linear: the rows of each expert
};

/// Parameters by full name, "layers[0].qkv.weight"; weights are [out, in]. A layer without a listed bias has none.
using NamedValues = std::map<std::string, std::vector<double>, std::less<>>;
/// Whether dropout keeps an entry, by the place where it is applied: "layers[0].residual1" [tokens, hidden],
/// "layers[0].attention" [batch, heads, seq, seq]. Without a listed mask everything is kept.
using NamedMasks = std::map<std::string, std::vector<std::uint8_t>, std::less<>>;

/// Every layer maps [seq * batch, features] to [seq * batch, hidden], token = position * batch + sequence.
class LayerReference {
 public:
  LayerReference(const LayerProblem& problem, NamedValues parameters, NamedMasks masks = {})
      : problem_(problem), parameters_(std::move(parameters)), masks_(std::move(masks)) {}

  NamedValues& parameters() { return parameters_; }
  const NamedValues& parameters() const { return parameters_; }

  /// `layer` is one of linear, grouped_linear, layernorm_linear, layernorm_mlp, multihead_attention, transformer_layer;
  /// its parameters are those whose names start with `name`.
  Matrix forward(std::string_view layer, const std::string& name, const Matrix& x) const;

  Matrix linear(const std::string& name, const Matrix& x) const;
  /// A linear of its own, "experts[i]", for each group of rows.
  Matrix grouped_linear(const std::string& name, const Matrix& x) const;
  /// Epsilon 1e-5 is added to the variance.
  Matrix norm(const std::string& name, const Matrix& x) const;
  /// RMSNorm of every head of Q and of K, if "q_norm.gamma" and "k_norm.gamma" are listed.
  Matrix qk_norm(const std::string& name, const Matrix& qkv) const;
  Matrix activation(const Matrix& x) const;
  /// norm, first product, activation, second product.
  Matrix mlp(const std::string& name, const Matrix& x) const;
  /// Q and K of a packed [tokens, (heads + 2 kv_heads) * dim] projection, rotated by their positions with base 10000.
  Matrix rotate(const Matrix& qkv) const;
  /// Causal attention of the same packed projection, logits scaled by 1 / sqrt(dim).
  Matrix attention(const std::string& name, const Matrix& qkv) const;
  Matrix multihead_attention(const std::string& name, const Matrix& x) const;
  Matrix transformer_layer(const std::string& name, const Matrix& x) const;

 private:
  Matrix residual(const std::string& name, Matrix branch, const Matrix& x) const;
  std::int64_t head_dim(const Matrix& qkv) const;

  LayerProblem problem_;
  NamedValues parameters_;
  NamedMasks masks_;
};

/// Mean squared difference.
double mse(const Matrix& y, const std::vector<double>& target);

}  // namespace fp8lab::reference
