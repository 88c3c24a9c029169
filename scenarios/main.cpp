#include <filesystem>

#include "build_info.h"
#include "harness/cli/program.h"
#include "harness/measure/measure.h"
#include "harness/predict/predict.h"
#include "harness/run/shared_arms.h"
#include "harness/subjects/profile/memory_profile.h"
#include "harness/values/own_recording.h"

namespace {

/// The folder `name` of an installed program, ../share/fp8lab/NAME relative to it; `built_beside` for a program that is
/// not installed.
std::string data_folder(const char* name, const std::string& built_beside) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path installed = program.parent_path().parent_path() / "share/fp8lab" / name;
  return !error && std::filesystem::is_directory(installed, error) ? installed.string() : built_beside;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string worker = data_folder("subjects", fp8lab::bundled_worker());
  return fp8lab::run_program(argc, argv,
                             {.build = fp8lab::build_info(),
                              .scenarios_directory = data_folder("scenarios", fp8lab::bundled_scenarios()),
                              .reports_directory = data_folder("reports", fp8lab::bundled_reports()),
                              .worker_directory = worker,
                              .vocabulary = fp8lab::bundled_vocabulary,
                              .measure = fp8lab::with_recording(fp8lab::measure_arm),
                              .measure_over = fp8lab::measure_arm_over,
                              .predict = fp8lab::with_profiles(fp8lab::predict, worker + "/profiles"),
                              .estimate = fp8lab::estimate,
                              .task = fp8lab::task_of});
}
