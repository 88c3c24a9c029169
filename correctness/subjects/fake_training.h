#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "harness/run/fake_process.h"
#include "support/paths.h"

// A training program for `subject: script` that needs no PyTorch: it writes what the instruments would write.
namespace fp8lab::sample {

/// fake/torch is a package called torch, and train.py writes the figures of one process: growth is its argument. Other
/// arguments: crash, hang, killed, nothing.
class FakeTraining {
 public:
  FakeTraining() {
    ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    write(path("fake/torch/__init__.py"), "");
    write(path("fake/amount.py"), "GROWTH = 64\n");
    write(path("train.py"), R"(import json, os, signal, sys, time
def figure(value, unit="B"):
    return {"value": value, "predicted": None, "unit": unit}
def leave(growth):
    result = {"status": "ok", "reason": None, "seconds": 1, "retained_by_holder": [], "peak_by_holder": [],
              "sequence_hash": None, "notes": [], "metrics": {
                  "memory.peak_bytes": figure(1000), "memory.growth_bytes": figure(growth),
                  "parity.weights_moved": figure(1, "1")}}
    document = {"schema": "fp8lab.watch/1", "pid": 7, "rank": 0, "world": 1, "state": "ended", "device": "cpu",
                "torch": "2.11", "python": "3.12", "steps": 5, "guesses": [], "lines": [],
                "findings": [], "overhead": "", "result": result}
    with open(os.path.join(os.environ["FP8LAB_WATCH_FOLDER"], "process-7.json"), "w") as out:
        json.dump(document, out)
mode = sys.argv[1] if len(sys.argv) > 1 else "0"
print("arguments", sys.argv[1:])
if mode == "crash":
    print("the last line of it")
    sys.exit(3)
if mode == "nothing":
    sys.exit(0)
if mode == "checkout":
    import amount
    mode = str(amount.GROWTH)
leave(int(mode) if mode.isdigit() else 0)
if mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "hang":
    time.sleep(600)
)");
  }

  std::filesystem::path path(const std::string& name) const { return directory_ / name; }
  std::string folder() const { return directory_.string(); }
  void add(const std::string& name, const std::string& text) const { write(path(name), text); }

  /// Writes scenario s.yaml, whose after arm has fake/ on its path.
  std::string scenario(const std::string& keys, const std::string& version = "versions: {after: ./fake}\n") const {
    write(path("s.yaml"), "version: 1\nname: s\ntitle: A script\nsubject: script\nscript: train.py\n" + version + keys);
    return path("s.yaml").string();
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace fp8lab::sample
