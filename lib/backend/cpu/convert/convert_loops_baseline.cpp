#include "backend/cpu/convert/convert_loops_body.h"

// Compiled for the architecture's baseline (SSE2 on x86-64).
namespace fp8lab::cpu {

const ConvertLoops kConvertLoopsBaseline = make_convert_loops();

}  // namespace fp8lab::cpu
