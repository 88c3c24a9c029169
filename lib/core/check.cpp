#include "core/check.h"

namespace fp8lab {

void fail(const std::string& message) { throw Error(message); }

}  // namespace fp8lab
