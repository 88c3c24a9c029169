#include "comm/nccl/nccl_ranks.h"
#include "core/check.h"

namespace fp8lab {

std::string nccl_unavailable_reason() { return "this build found no CUDA Toolkit or no NCCL (Debian: libnccl-dev)"; }

void run_nccl(const RunOptions&, const RankFunction&) { fail(nccl_unavailable_reason()); }

}  // namespace fp8lab
