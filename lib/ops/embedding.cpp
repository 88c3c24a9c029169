#include "ops/embedding.h"

#include <fmt/core.h>

#include "core/check.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

void check_rows(std::string_view op, const NamedTensor& rows, const Tensor& tokens, std::int64_t batch) {
  if (batch < 1 || rows.tensor.rows() % batch != 0)
    fail(fmt::format("{}: {} with batch {}; its rows are positions times sequences", op, describe(rows), batch));
  if (!tokens) return;
  check_dtype(op, {"tokens", tokens}, DType::kI32);
  check_numel(op, {"tokens", tokens}, rows.tensor.rows(), "one for each row");
}

void check_columns(std::string_view op, const NamedTensor& a, const NamedTensor& b) {
  if (a.tensor.cols() != b.tensor.cols())
    fail(fmt::format("{}: {} and {}; both must have the same number of columns", op, describe(a), describe(b)));
}

}  // namespace

Tensor make_tokens(Device& device, std::span<const std::int32_t> tokens, std::int64_t vocabulary, HolderId holder) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocabulary)
      fail(fmt::format("make_tokens: token {} is {}; a vocabulary of {} has the tokens 0 to {}", i, tokens[i],
                       vocabulary, vocabulary - 1));
  const Tensor out = device.allocate({Shape{static_cast<std::int64_t>(tokens.size())}, DType::kI32}, holder);
  device.write_bytes(out, std::as_bytes(tokens));
  return out;
}

Tensor embedding(Device& device, const EmbeddingInputs& inputs) {
  check_real("embedding", {"table", inputs.table});
  Tensor out =
      device.allocate({Shape{inputs.tokens.numel(), inputs.table.cols()}, inputs.table.dtype()}, inputs.holder);
  embedding_into(device, inputs, out);
  return out;
}

void embedding_into(Device& device, const EmbeddingInputs& inputs, const Tensor& out) {
  constexpr std::string_view kOp = "embedding";
  check_real(kOp, {"table", inputs.table});
  check_dtype(kOp, {"tokens", inputs.tokens}, DType::kI32);
  const std::int64_t rows = inputs.tokens.numel();
  if (inputs.batch < 1 || rows % inputs.batch != 0)
    fail(fmt::format("{}: {} with batch {}; they are positions times sequences", kOp,
                     describe({"tokens", inputs.tokens}), inputs.batch));
  if (inputs.positions) {
    check_real(kOp, {"positions", inputs.positions});
    check_columns(kOp, {"positions", inputs.positions}, {"table", inputs.table});
    if (inputs.positions.rows() < rows / inputs.batch)
      fail(fmt::format("{}: {}; there are {} positions", kOp, describe({"positions", inputs.positions}),
                       rows / inputs.batch));
  }
  check_real(kOp, {"out", out});
  check_columns(kOp, {"out", out}, {"table", inputs.table});
  check_rows(kOp, {"out", out}, inputs.tokens, inputs.batch);
  device.launch(&KernelTable::embedding_forward,
                EmbeddingForwardArgs{.tokens = inputs.tokens.as_column(),
                                     .table = inputs.table.view(),
                                     .scale = inputs.scale,
                                     .positions = inputs.positions ? inputs.positions.view() : MatrixView{},
                                     .batch = inputs.batch,
                                     .out = out.view()});
}

void embedding_gradient_into(Device& device, const EmbeddingGradientInputs& inputs, const Tensor& grad_table,
                             bool accumulate) {
  constexpr std::string_view kOp = "embedding_gradient_into";
  check_real(kOp, {"grad_out", inputs.grad_out});
  check_real(kOp, {"grad_table", grad_table});
  check_columns(kOp, {"grad_out", inputs.grad_out}, {"grad_table", grad_table});
  check_rows(kOp, {"grad_out", inputs.grad_out}, inputs.tokens, inputs.batch);
  if (!inputs.tokens && grad_table.rows() < inputs.grad_out.rows() / inputs.batch)
    fail(fmt::format("{}: {}; there are {} positions", kOp, describe({"grad_table", grad_table}),
                     inputs.grad_out.rows() / inputs.batch));
  device.launch(&KernelTable::embedding_backward,
                EmbeddingBackwardArgs{.scale = inputs.scale,
                                      .grad_out = inputs.grad_out.view(),
                                      .tokens = inputs.tokens ? inputs.tokens.as_column() : MatrixView{},
                                      .batch = inputs.batch,
                                      .grad_table = grad_table.view(),
                                      .accumulate = accumulate});
}

}  // namespace fp8lab
