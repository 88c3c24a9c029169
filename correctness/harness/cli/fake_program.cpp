#include "harness/cli/program.h"
#include "harness/run/fake_arms.h"
#include "harness/scenario/sample.h"

namespace {

const fp8lab::Vocabulary& words() {
  static const fp8lab::Vocabulary kWords = fp8lab::sample::vocabulary();
  return kWords;
}

}  // namespace

/// The command line that users have, with arms that fail on demand instead of training.
int main(int argc, char** argv) {
  const fp8lab::Program program{.build = {.version = "0.0.0-fake",
                                          .git_commit = "0123456789abcdef",
                                          .git_dirty = true,
                                          .compiler = "none",
                                          .flags = "",
                                          .build_type = "test",
                                          .libraries = {}},
                                .scenarios_directory = "",
                                .reports_directory = "",
                                .vocabulary = words,
                                .measure = fp8lab::sample::fake_arm,
                                .measure_over = fp8lab::sample::fake_arm_over,
                                .predict = fp8lab::sample::fake_prediction};
  return fp8lab::run_program(argc, argv, program);
}
