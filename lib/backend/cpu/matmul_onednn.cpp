#include <oneapi/dnnl/dnnl.h>

#include <string>

#include "backend/cpu/matmul.h"
#include "core/check.h"

#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP && DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "this oneDNN takes its threads from elsewhere than OpenMP: build with -DFP8LAB_MATMUL=openblas"
#endif

// From the OpenMP standard; clang comes without its header unless libomp is installed.
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
}

namespace fp8lab::cpu {
namespace {

// The setting belongs to the calling thread, and goes back to what the caller had.
class OnThisThreadOnly {
 public:
  OnThisThreadOnly() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OnThisThreadOnly() { omp_set_num_threads(before_); }
  OnThisThreadOnly(const OnThisThreadOnly&) = delete;
  OnThisThreadOnly& operator=(const OnThisThreadOnly&) = delete;

 private:
  int before_;
};

}  // namespace

void matmul(const MatmulArgs& args) {
  const OnThisThreadOnly guard;
  const dnnl_status_t status =
      dnnl_sgemm(args.a.transposed ? 'T' : 'N', args.b.transposed ? 'N' : 'T', args.m, args.n, args.k, 1.0f,
                 args.a.data, args.a.row_stride, args.b.data, args.b.row_stride, args.beta, args.c, args.c_row_stride);
  if (status != dnnl_success) fail("matmul: oneDNN returned status " + std::to_string(status));
}

const char* matmul_library() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl_version();
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }();
  return text.c_str();
}

}  // namespace fp8lab::cpu
