#include <cblas.h>

#include <limits>
#include <string>

#include "backend/cpu/matmul.h"
#include "core/check.h"

namespace fp8lab::cpu {
namespace {

blasint narrow(std::int64_t value) {
  check(value <= std::numeric_limits<blasint>::max(), "matmul: OpenBLAS takes sizes that fit in its 32-bit integers");
  return static_cast<blasint>(value);
}

// OpenBLAS knows only one setting for the whole process, so it is made once.
void use_one_thread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

void matmul(const MatmulArgs& args) {
  use_one_thread();
  cblas_sgemm(CblasRowMajor, args.a.transposed ? CblasTrans : CblasNoTrans,
              args.b.transposed ? CblasNoTrans : CblasTrans, narrow(args.m), narrow(args.n), narrow(args.k), 1.0f,
              args.a.data, narrow(args.a.row_stride), args.b.data, narrow(args.b.row_stride), args.beta, args.c,
              narrow(args.c_row_stride));
}

const char* matmul_library() {
  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the first two words, and the kernels it chose.
  static const std::string text = [] {
    const std::string config = openblas_get_config();
    return config.substr(0, config.find(' ', config.find(' ') + 1)) + " (" + openblas_get_corename() + ")";
  }();
  return text.c_str();
}

}  // namespace fp8lab::cpu
