#include "backend/cuda/kernels.h"
#include "core/check.h"

// Products over groups of rows have no kernel on a GPU yet, so that scenarios refuse `model.top_k` there, and these
// kernels have no use.
namespace fp8lab::cuda {
namespace {

[[noreturn]] void refuse_routing() { fail("device cuda has no kernels of routers; write `device: cpu` or `meta`"); }

}  // namespace

void route(const RouteArgs&, ExecContext&) { refuse_routing(); }
void route_backward(const RouteBackwardArgs&, ExecContext&) { refuse_routing(); }
void group_rows(const GroupRowsArgs&, ExecContext&) { refuse_routing(); }
void permute(const PermuteArgs&, ExecContext&) { refuse_routing(); }
void unpermute(const UnpermuteArgs&, ExecContext&) { refuse_routing(); }
void unpermute_weights(const UnpermuteWeightsArgs&, ExecContext&) { refuse_routing(); }

}  // namespace fp8lab::cuda
