#include "backend/cpu/convert/convert_loops_body.h"

// Compiled for AVX-512 (F, BW, DQ, VL); called only where the processor has them.
namespace fp8lab::cpu {

const ConvertLoops kConvertLoopsAvx512 = make_convert_loops();

}  // namespace fp8lab::cpu
