#include "reference/dense_reference.h"

#include <cmath>
#include <complex>
#include <cstddef>

#include "reference/finite_difference.h"

namespace fp8lab::reference {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

Values slice(const Values& values, std::int64_t begin, std::int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The statistics of one row, and their errors in FP32.
struct RowStatistics {
  double mean = 0.0;
  double mean_error = 0.0;
  double rstd = 0.0;
  double rstd_relative_error = 0.0;

  double normalised(double x) const { return (x - mean) * rstd; }
  /// The error of (x - mean) * rstd: of the mean, the subtraction, the product, and rstd.
  double normalised_error(double x) const {
    return rstd * (mean_error + kUnit * std::fabs(x - mean)) + std::fabs(normalised(x)) * (rstd_relative_error + kUnit);
  }
};

/// A sum of `count` terms in 16 interleaved parts: the number of roundings that a term passes through.
double sum_roundings(std::int64_t count) { return static_cast<double>(count) / 16.0 + 6.0; }

RowStatistics statistics(const NormProblem& problem, const double* x) {
  const double count = static_cast<double>(problem.cols);
  const double roundings = sum_roundings(problem.cols);
  RowStatistics result;
  if (problem.centred) {
    double magnitude = 0.0;
    for (std::int64_t j = 0; j < problem.cols; ++j) {
      result.mean += x[j] / count;
      magnitude += std::fabs(x[j]) / count;
    }
    result.mean_error = roundings * kUnit * magnitude;
  }
  double variance = 0.0;
  for (std::int64_t j = 0; j < problem.cols; ++j) variance += (x[j] - result.mean) * (x[j] - result.mean) / count;
  result.rstd = 1.0 / std::sqrt(variance + problem.epsilon);
  // Deviations sum to zero, so the mean's error enters the variance only by its square. Difference and square add three
  // roundings, epsilon one. The root divides the error so far by two and rounds once, and so does the division.
  const double variance_error = (roundings + 3.0) * kUnit * variance + result.mean_error * result.mean_error;
  result.rstd_relative_error = 0.5 * (variance_error / (variance + problem.epsilon) + kUnit) + 2.0 * kUnit;
  return result;
}

Values norm_values(const NormProblem& problem, const Values& x, const NormParameters& parameters) {
  Values y(x.size());
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const RowStatistics row = statistics(problem, x.data() + i * problem.cols);
    for (std::int64_t j = 0; j < problem.cols; ++j) {
      const std::size_t at = index(i * problem.cols + j);
      y[at] = row.normalised(x[at]) * parameters.gamma[index(j)];
      if (problem.centred) y[at] += parameters.beta[index(j)];
    }
  }
  return y;
}

double logistic(double z) { return 1.0 / (1.0 + std::exp(-z)); }
/// The error of an FP32 logistic whose argument has the error `argument_error`: two ulps of the exponential, the sum,
/// the division.
double logistic_error(double z, double argument_error) {
  const double s = logistic(z);
  return s * ((1.0 - s) * (argument_error + 4.0 * kUnit) + 2.0 * kUnit);
}

constexpr double kRootTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;
double gelu_value(double x) { return 0.5 * x * (1.0 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x))); }
/// gelu(x) = x logistic(z): five roundings make z, whose terms share a sign.
double gelu_argument(double x) { return 2.0 * kRootTwoOverPi * (x + kCubic * x * x * x); }
double gelu_gate_error(double x) { return logistic_error(gelu_argument(x), 5.0 * kUnit * std::fabs(gelu_argument(x))); }
/// Below exp(-88) an FP32 exponential's reciprocal is flushed to zero; the reference itself loses 1 + tanh to
/// cancellation.
double gelu_floor(double x) { return std::fabs(x) * (1e-38 + 1e-15); }

double swiglu_value(double gate, double up) { return gate * logistic(gate) * up; }

/// The gates of a [rows, 2 cols] matrix (gate | up), or its other half.
Values half_of(std::int64_t rows, std::int64_t cols, const Values& x, std::int64_t half) {
  Values out;
  for (std::int64_t i = 0; i < rows; ++i)
    out.insert(out.end(), x.begin() + (2 * i + half) * cols, x.begin() + (2 * i + half + 1) * cols);
  return out;
}

}  // namespace

Expected product(std::int64_t rows, std::int64_t cols, std::int64_t inner, const Values& a, const Values& b,
                 const Values& bias) {
  Expected expected(index(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      double sum = bias.empty() ? 0.0 : bias[index(j)];
      double magnitude = std::fabs(sum);
      for (std::int64_t l = 0; l < inner; ++l) {
        const double term = a[index(i * inner + l)] * b[index(j * inner + l)];
        sum += term;
        magnitude += std::fabs(term);
      }
      expected.value[index(i * cols + j)] = sum;
      expected.error[index(i * cols + j)] = static_cast<double>(inner + 4) * kUnit * magnitude;
    }
  return expected;
}

NormExpected norm_forward(const NormProblem& problem, const Values& x, const NormParameters& parameters) {
  NormExpected expected{Expected(x.size()), Expected(index(problem.rows)), Expected(index(problem.rows))};
  expected.y.value = norm_values(problem, x, parameters);
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const RowStatistics row = statistics(problem, x.data() + i * problem.cols);
    expected.mean.value[index(i)] = row.mean;
    expected.mean.error[index(i)] = row.mean_error;
    expected.rstd.value[index(i)] = row.rstd;
    expected.rstd.error[index(i)] = row.rstd * row.rstd_relative_error;
    for (std::int64_t j = 0; j < problem.cols; ++j) {
      const std::size_t at = index(i * problem.cols + j);
      const double gamma = std::fabs(parameters.gamma[index(j)]);
      expected.y.error[at] = gamma * (row.normalised_error(x[at]) + kUnit * std::fabs(row.normalised(x[at]))) +
                             kUnit * std::fabs(expected.y.value[at]);
    }
  }
  return expected;
}

NormGradientExpected norm_backward(const NormProblem& problem, const Values& x, const NormParameters& parameters,
                                   const Values& grad_y) {
  NormGradientExpected expected{Expected(x.size()), Expected(index(problem.cols)),
                                Expected(problem.centred ? index(problem.cols) : 0)};
  const auto loss = [&](const Values& at_x, const NormParameters& at_parameters) {
    return dot(norm_values(problem, at_x, at_parameters), grad_y);
  };
  expected.gamma.value =
      gradient([&](const Values& gamma) { return loss(x, {gamma, parameters.beta}); }, parameters.gamma);
  if (problem.centred)
    expected.beta.value =
        gradient([&](const Values& beta) { return loss(x, {parameters.gamma, beta}); }, parameters.beta);

  const double count = static_cast<double>(problem.cols);
  const double roundings = sum_roundings(problem.cols);
  NormProblem one_row = problem;
  one_row.rows = 1;
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const Values row_x = slice(x, i * problem.cols, problem.cols);
    const Values row_grad = slice(grad_y, i * problem.cols, problem.cols);
    const Values grad_x =
        gradient([&](const Values& at) { return dot(norm_values(one_row, at, parameters), row_grad); }, row_x);

    // grad_x = rstd (g - mean(g) - xhat mean(g xhat)) with g = grad_y gamma: the magnitudes of its terms, and the
    // errors of the two means.
    const RowStatistics row = statistics(problem, row_x.data());
    double mean_g = 0.0, mean_slope = 0.0, slope_error = 0.0, magnitude = 0.0;
    for (std::size_t j = 0; j < row_x.size(); ++j) {
      const double g = std::fabs(row_grad[j] * parameters.gamma[j]);
      mean_g += g / count;
      mean_slope += g * std::fabs(row.normalised(row_x[j])) / count;
      slope_error += g * row.normalised_error(row_x[j]) / count;
      magnitude += g * (std::fabs(row.normalised(row_x[j])) + 1.0);
    }
    const double offset = problem.centred ? mean_g : 0.0;
    const double offset_error = problem.centred ? (roundings + 1.0) * kUnit * mean_g : 0.0;
    slope_error += (roundings + 3.0) * kUnit * mean_slope;
    for (std::size_t j = 0; j < row_x.size(); ++j) {
      const std::size_t at = index(i * problem.cols) + j;
      const double g = std::fabs(row_grad[j] * parameters.gamma[j]);
      const double xhat = std::fabs(row.normalised(row_x[j]));
      const double xhat_error = row.normalised_error(row_x[j]);
      expected.x.value[at] = grad_x[j];
      expected.x.error[at] = row.rstd * (offset_error + xhat * slope_error + mean_slope * xhat_error +
                                         4.0 * kUnit * (g + offset + xhat * mean_slope)) +
                             std::fabs(grad_x[j]) * (row.rstd_relative_error + kUnit) +
                             row.rstd * difference_error(magnitude);
      const double rows = static_cast<double>(problem.rows);
      expected.gamma.error[j] +=
          std::fabs(row_grad[j]) * (xhat_error + (rows + 1.0) * kUnit * xhat) + difference_error(magnitude);
      if (problem.centred)
        expected.beta.error[j] += rows * kUnit * std::fabs(row_grad[j]) + difference_error(magnitude);
    }
  }
  return expected;
}

Expected gelu(const Values& x) {
  Expected expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    expected.value[i] = gelu_value(x[i]);
    expected.error[i] =
        std::fabs(x[i]) * gelu_gate_error(x[i]) + kUnit * std::fabs(expected.value[i]) + gelu_floor(x[i]);
  }
  return expected;
}

// gelu' = s + x s (1 - s) z'. An error of s enters the first term as it is and the second by x z' (1 - 2 s); 1 - s
// rounds once more, and five further roundings make the product.
Expected gelu_gradient(const Values& x, const Values& grad_y) {
  Expected expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double slope = derivative([&](double t) { return gelu_value(x[i] + t); });
    const double s = logistic(gelu_argument(x[i]));
    const double s_error = gelu_gate_error(x[i]);
    const double factor = std::fabs(x[i]) * 2.0 * kRootTwoOverPi * (1.0 + 3.0 * kCubic * x[i] * x[i]);
    // If the gate is exactly 0 or 1 in FP32 the second term is zero, whatever its factor.
    const double steep = factor * ((1.0 - s) * s_error + s * (s_error + kUnit) + 6.0 * kUnit * s * (1.0 - s));
    const double saturated = factor * s * (1.0 - s);
    expected.value[i] = grad_y[i] * slope;
    expected.error[i] =
        std::fabs(grad_y[i]) * (s_error + (std::fabs(x[i]) < 12.0 ? steep : saturated) + kUnit * std::fabs(slope) +
                                difference_error(std::fabs(x[i])) + gelu_floor(x[i])) +
        kUnit * std::fabs(expected.value[i]);
  }
  return expected;
}

Expected swiglu(std::int64_t rows, std::int64_t cols, const Values& x) {
  Expected expected(index(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const double gate = x[index(2 * i * cols + j)];
      const double up = x[index((2 * i + 1) * cols + j)];
      const std::size_t at = index(i * cols + j);
      expected.value[at] = swiglu_value(gate, up);
      expected.error[at] =
          std::fabs(gate * up) * (logistic_error(gate, 0.0) + 1e-38) + 2.0 * kUnit * std::fabs(expected.value[at]);
    }
  return expected;
}

// With s = logistic(gate): d/dgate = up (s + gate s (1 - s)), d/dup = gate s.
Expected swiglu_gradient(std::int64_t rows, std::int64_t cols, const Values& x, const Values& grad_y) {
  Expected expected(x.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const std::size_t at_gate = index(2 * i * cols + j);
      const std::size_t at_up = index((2 * i + 1) * cols + j);
      const double grad = grad_y[index(i * cols + j)];
      const double gate = x[at_gate], up = x[at_up];
      const double s = logistic(gate);
      const double s_error = logistic_error(gate, 0.0) + 1e-38;
      expected.value[at_gate] = grad * derivative([&](double t) { return swiglu_value(gate + t, up); });
      expected.value[at_up] = grad * derivative([&](double t) { return swiglu_value(gate, up + t); });
      const double difference = std::fabs(grad) * difference_error(std::fabs(gate * up));
      expected.error[at_gate] = std::fabs(grad * up) * (s_error + std::fabs(gate) * (s_error + kUnit * s) +
                                                        5.0 * kUnit * (s + std::fabs(gate) * s * (1.0 - s))) +
                                difference;
      expected.error[at_up] = std::fabs(grad * gate) * (s_error + 2.0 * kUnit * s) + difference;
    }
  return expected;
}

// gelu(gate) up: the errors of gelu and of one further product.
Expected geglu(std::int64_t rows, std::int64_t cols, const Values& x) {
  Expected expected = gelu(half_of(rows, cols, x, 0));
  const Values up = half_of(rows, cols, x, 1);
  for (std::size_t i = 0; i < up.size(); ++i) {
    expected.value[i] *= up[i];
    expected.error[i] = expected.error[i] * std::fabs(up[i]) + kUnit * std::fabs(expected.value[i]);
  }
  return expected;
}

// By gate: the gradient of gelu under grad_y up, whose product rounds once. By up: gelu(gate) times grad_y.
Expected geglu_gradient(std::int64_t rows, std::int64_t cols, const Values& x, const Values& grad_y) {
  const Values gate = half_of(rows, cols, x, 0), up = half_of(rows, cols, x, 1);
  Values grad_active(up.size());
  for (std::size_t i = 0; i < up.size(); ++i) grad_active[i] = grad_y[i] * up[i];
  const Expected of_gate = gelu_gradient(gate, grad_active), active = gelu(gate);
  Expected expected(x.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) {
      const std::size_t from = index(i * cols + j), at_gate = index(2 * i * cols + j), at_up = at_gate + index(cols);
      expected.value[at_gate] = of_gate.value[from];
      expected.error[at_gate] = of_gate.error[from] + kUnit * std::fabs(of_gate.value[from]);
      expected.value[at_up] = grad_y[from] * active.value[from];
      expected.error[at_up] = std::fabs(grad_y[from]) * active.error[from] + kUnit * std::fabs(expected.value[at_up]);
    }
  return expected;
}

Expected rope(const RopeProblem& problem, const Values& x) {
  Expected expected(x.size());
  const std::int64_t half = problem.head_dim / 2;
  for (std::int64_t position = 0; position < problem.seq; ++position)
    for (std::int64_t sequence = 0; sequence < problem.batch; ++sequence)
      for (std::int64_t head = 0; head < problem.heads; ++head)
        for (std::int64_t d = 0; d < half; ++d) {
          const std::int64_t token = position * problem.batch + sequence;
          const std::size_t low = index((token * problem.heads + head) * problem.head_dim + d);
          const std::size_t high = low + index(half);
          const double frequency =
              std::exp(-2.0 * static_cast<double>(d) / static_cast<double>(problem.head_dim) * std::log(problem.base));
          const std::complex<double> turned =
              std::complex<double>(x[low], x[high]) * std::polar(1.0, static_cast<double>(position) * frequency);
          expected.value[low] = turned.real();
          expected.value[high] = turned.imag();
          // Cosine and sine are rounded, and each product and the sum; the angles of the two programs agree to about
          // 1e-13.
          const double error = (3.0 * kUnit + 1e-12) * (std::fabs(x[low]) + std::fabs(x[high]));
          expected.error[low] = error;
          expected.error[high] = error;
        }
  return expected;
}

AdamExpected adam(const AdamProblem& problem, const AdamState& state, const Values& grad) {
  const std::size_t size = grad.size();
  AdamExpected expected{Expected(size), Expected(size), Expected(size)};
  const double correction1 = 1.0 - std::pow(problem.beta1, problem.step);
  const double correction2 = 1.0 - std::pow(problem.beta2, problem.step);
  // FP32 has 1 - beta with one rounding, which changes a correction by as much; the corrections are rounded once more.
  for (std::size_t i = 0; i < size; ++i) {
    const double param = state.param[i];
    const double decay = problem.weight_decay * param;
    const double g = grad[i] + (problem.decoupled_decay ? 0.0 : decay);
    const double g_error = problem.decoupled_decay ? 0.0 : kUnit * (std::fabs(g) + std::fabs(decay));
    const double m = problem.beta1 * state.exp_avg[i] + (1.0 - problem.beta1) * g;
    // Roundings of the weight, the difference, their product, and the sum.
    const double m_error = kUnit * (3.0 * (1.0 - problem.beta1) * std::fabs(g - state.exp_avg[i]) + std::fabs(m)) +
                           (1.0 - problem.beta1) * g_error;
    const double v = problem.beta2 * state.exp_avg_sq[i] + (1.0 - problem.beta2) * g * g;
    const double v_error =
        kUnit * ((1.0 - problem.beta2) * (g * g + 3.0 * std::fabs(g * g - state.exp_avg_sq[i])) + v) +
        2.0 * (1.0 - problem.beta2) * std::fabs(g) * g_error;
    const double root = std::sqrt(v / correction2);
    const double denominator = root + problem.epsilon;
    const double ratio = m / correction1 / denominator;
    // The root divides v's relative error by two; there are three roundings before it and two after it, epsilon's own
    // rounding and the sum's.
    const double root_error = v > 0.0 ? root * (0.5 * (v_error / v + 3.0 * kUnit) + kUnit) : 0.0;
    const double ratio_error =
        m_error / correction1 / denominator +
        std::fabs(ratio) * ((root_error + 2.0 * kUnit * denominator) / denominator + 5.0 * kUnit);
    const double update = ratio + (problem.decoupled_decay ? decay : 0.0);
    const double update_error = ratio_error + 2.0 * kUnit * (std::fabs(ratio) + std::fabs(decay));
    expected.param.value[i] = param - problem.learning_rate * update;
    expected.param.error[i] = problem.learning_rate * (update_error + 2.0 * kUnit * std::fabs(update));
    expected.exp_avg.value[i] = m;
    expected.exp_avg.error[i] = m_error;
    expected.exp_avg_sq.value[i] = v;
    expected.exp_avg_sq.error[i] = v_error;
  }
  return expected;
}

}  // namespace fp8lab::reference
