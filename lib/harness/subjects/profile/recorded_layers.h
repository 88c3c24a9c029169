#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/cell/cell.h"

// What layers of a library held on a GPU (lib/subjects/measured/te-memory-*.json), to which memory profiles are
// compared.
namespace fp8lab {

struct RecordedLayers {
  std::string name;
  CellConfig cell;
  std::map<std::string, double> bytes;  ///< by metric, memory.peak_bytes
  std::string error;                    ///< with which the library ended; "": it did not
};

struct LayerRecord {
  std::string measured;  ///< "torch 2.11.0+cu130, on NVIDIA H200, transformer_engine 2.20.2"
  std::string release;   ///< "2.20.2"
  std::vector<RecordedLayers> runs;
};

/// Throws Error for a file that is no record of layers, with the place.
LayerRecord read_layer_record(const std::string& path);

/// Lines that state how far the profiles of `worker_directory` (lib/subjects) are from the records that it has of
/// `subject`; "" if it has none.
std::string accuracy_of_profiles(const std::string& worker_directory, const std::string& subject);

}  // namespace fp8lab
