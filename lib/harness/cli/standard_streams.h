#pragma once

#include <string>

namespace fp8lab {

/// Opens /dev/null for each standard stream that was closed when the process started (`>&-`). Otherwise the first file
/// that is opened would get the stream's descriptor, and output would go into that file. Call it before any file is
/// opened.
void hold_standard_streams();

/// Flushes standard output; what is wrong if some of it could not be written, for example to a full disk, or nothing.
std::string lost_output();

}  // namespace fp8lab
