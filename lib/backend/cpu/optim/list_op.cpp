#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "core/check.h"
#include "core/lerp.h"

namespace fp8lab::cpu {
namespace {

enum Slot { kOut, kA, kB };

/// out[j] = rule(out[j], a[j], b[j]) for every tensor of the list. If the operation has no list `a` or `b`, the rule
/// gets values that it ignores.
template <class Rule>
void for_list(const ListOpArgs& args, const Rule& rule) {
  float* x = scratch(kOut, kRun);
  float* y = scratch(kA, kRun);
  float* z = scratch(kB, kRun);
  for (const ListOpTensor& tensor : args.tensors) {
    MatrixView out = tensor.out;
    MatrixView a = tensor.a.data != nullptr ? tensor.a : tensor.out;
    MatrixView b = tensor.b.data != nullptr ? tensor.b : a;
    flatten_if_contiguous(out, a, b);
    for_each_run(out, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
      load(out, row, col, count, x);
      load(a, row, col, count, y);
      load(b, row, col, count, z);
      for (std::int64_t j = 0; j < count; ++j) x[j] = rule(x[j], y[j], z[j]);
      store(x, count, out, row, col);
    });
  }
}

}  // namespace

void list_op(const ListOpArgs& args, ExecContext&) {
  const float s = args.scalar;
  switch (args.op) {
    case ListOp::kScale: return for_list(args, [s](float x, float, float) { return s * x; });
    case ListOp::kAdd: return for_list(args, [s](float x, float, float) { return x + s; });
    case ListOp::kAddList: return for_list(args, [s](float x, float a, float) { return x + s * a; });
    case ListOp::kSqrt: return for_list(args, [](float x, float, float) { return std::sqrt(x); });
    case ListOp::kLerp: return for_list(args, [s](float x, float a, float) { return lerp(x, a, s); });
    case ListOp::kLerpProduct: return for_list(args, [s](float x, float a, float b) { return lerp(x, a * b, s); });
    case ListOp::kAddcdiv: return for_list(args, [s](float x, float a, float b) { return x + s * (a / b); });
  }
  fail("cpu: no such list operation");
}

}  // namespace fp8lab::cpu
