#include "backend/cuda/kernels.h"
#include "core/check.h"

// Attention on a GPU has values as wide as keys, so that scenarios refuse `model.kv_rank` there, and these kernels have
// no use.
namespace fp8lab::cuda {
namespace {

[[noreturn]] void refuse_latents() {
  fail("device cuda has no kernels of latent attention; write `device: cpu` or `meta`");
}

}  // namespace

void latent_heads(const LatentHeadsArgs&, ExecContext&) { refuse_latents(); }
void latent_heads_backward(const LatentHeadsBackwardArgs&, ExecContext&) { refuse_latents(); }

}  // namespace fp8lab::cuda
