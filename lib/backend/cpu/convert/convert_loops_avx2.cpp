#include "backend/cpu/convert/convert_loops_body.h"

// Compiled for AVX2; called only where the processor has it.
namespace fp8lab::cpu {

const ConvertLoops kConvertLoopsAvx2 = make_convert_loops();

}  // namespace fp8lab::cpu
