#include "build_info.h"
#include "harness/cli/program.h"
#include "harness/measure/measure.h"
#include "harness/predict/predict.h"
#include "harness/run/shared_arms.h"

int main(int argc, char** argv) {
  return fp8lab::run_program(argc, argv,
                             {.build = fp8lab::build_info(),
                              .scenarios_directory = fp8lab::bundled_scenarios(),
                              .reports_directory = fp8lab::bundled_reports(),
                              .vocabulary = fp8lab::bundled_vocabulary,
                              .measure = fp8lab::measure_arm,
                              .measure_over = fp8lab::measure_arm_over,
                              .predict = fp8lab::predict,
                              .estimate = fp8lab::estimate,
                              .task = fp8lab::task_of});
}
