#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"

namespace fp8lab {

/// Tests that run a PyTorch program under $FP8LAB_SUBJECT_PYTHON, by default `python3`. Without PyTorch they are
/// skipped.
class PyTorchProgramTest : public ::testing::Test {
 protected:
  explicit PyTorchProgramTest(const char* worker_folder) {
    ::setenv("FP8LAB_WORKER", worker_folder, 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    const char* named = std::getenv("FP8LAB_SUBJECT_PYTHON");
    python_ = named ? named : "python3";
  }

  void SetUp() override {
    const std::string probe = python_ + " -c 'import torch' 2> /dev/null";
    if (std::system(probe.c_str()) != 0) GTEST_SKIP() << python_ << " has no PyTorch";
  }

  /// The words that start a program on `ranks` ranks; the program and its arguments follow.
  std::vector<std::string> launch(int ranks) const {
    if (ranks == 1) return {python_};
    return {python_, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", std::to_string(ranks)};
  }

  /// PyTorch 2.6 shards on GPUs only.
  bool shards_on_host() const {
    const std::string probe = python_ + " -c 'import torch; torch.cpu.current_stream().record_event'";
    return std::system((probe + " 2> /dev/null").c_str()) == 0;
  }

  sample::TemporaryDirectory directory_;
  std::string python_, output_;
};

}  // namespace fp8lab
