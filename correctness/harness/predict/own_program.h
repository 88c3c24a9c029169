#pragma once

#include "harness/cell/vocabulary.h"
#include "harness/cli/program.h"
#include "harness/predict/predict.h"

namespace fp8lab {

/// What `fp8lab plan` needs of the program: its words and its predictions.
inline const Program& own_program() {
  static const Program kProgram{.build = {},
                                .scenarios_directory = "",
                                .reports_directory = "",
                                .vocabulary = bundled_vocabulary,
                                .measure = {},
                                .predict = predict,
                                .estimate = estimate};
  return kProgram;
}

}  // namespace fp8lab
