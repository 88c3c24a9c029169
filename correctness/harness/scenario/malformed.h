#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "harness/scenario/sample.h"

namespace fp8lab::sample {

/// A scenario file with a mistake, and what its error must contain.
struct Malformed {
  std::string name;
  std::string text;
  int line;                        ///< the line that the error names; 0: any
  std::vector<std::string> parts;  ///< parts of the message
};

inline void PrintTo(const Malformed& m, std::ostream* out) { *out << m.name; }

/// kFixScenario has eight lines, so what a test appends begins on line 9.
inline std::string fix_with(const std::string& more) { return kFixScenario + more; }

inline std::string plain(const std::string& model, const std::string& more = "") {
  return "version: 1\nname: p\ntitle: P\nmodel: " + model + "\nmeasure: [memory]\n" + more;
}

/// Mistakes of YAML's syntax: what is not closed, not quoted or not indented.
std::vector<Malformed> malformed_syntax();

/// Mistakes in `matrix`, `include` and `exclude`, `expect`, `claims` and `skip_if`.
std::vector<Malformed> malformed_matrices_and_expectations();

}  // namespace fp8lab::sample
