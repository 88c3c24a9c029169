#pragma once

namespace fp8lab {

/// Opens /dev/null in the place of a standard stream that the process was started without (`>&-`). Otherwise the first
/// file that it opens takes that place, and what is printed lands in it. Called before any file is opened.
void hold_standard_streams();

/// Sends what was printed on its way. False where some of it was lost, as on a full disk.
bool standard_output_arrived();

}  // namespace fp8lab
