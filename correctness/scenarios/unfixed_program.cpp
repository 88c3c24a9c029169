#include "harness/cli/program.h"
#include "harness/measure/measure.h"
#include "harness/predict/predict.h"
#include "harness/run/shared_arms.h"

namespace {

// A tree without the fix: the after arm runs as the before arm.
fp8lab::ArmResult measure_unfixed(const fp8lab::CellConfig& cell, fp8lab::Arm arm) {
  return fp8lab::measure_arm(cell, arm == fp8lab::Arm::kAfter ? fp8lab::Arm::kBefore : arm);
}

}  // namespace

int main(int argc, char** argv) {
  return fp8lab::run_program(argc, argv,
                             {.build = {},
                              .scenarios_directory = "",
                              .reports_directory = "",
                              .vocabulary = fp8lab::bundled_vocabulary,
                              .measure = measure_unfixed,
                              .predict = fp8lab::predict,
                              .task = fp8lab::task_of});
}
