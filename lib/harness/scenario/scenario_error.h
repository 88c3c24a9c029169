#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace fp8lab {

/// A place in a file. Lines and columns count from 1; 0: unknown.
struct Place {
  int line = 0;
  int column = 0;
};

/// A mistake in a scenario file. what() is one paragraph: "file:line:column: key: what is wrong. What to write."
class ScenarioError : public Error {
 public:
  ScenarioError(const std::string& file, Place place, const std::string& problem)
      : Error(located(file, place) + ": " + problem), file_(file), place_(place), problem_(problem) {}

  const std::string& file() const { return file_; }
  Place place() const { return place_; }
  const std::string& problem() const { return problem_; }

  /// Further mistakes of the same file.
  const std::vector<ScenarioError>& others() const { return others_; }
  ScenarioError with(std::vector<ScenarioError> others) const {
    ScenarioError all = *this;
    all.others_ = std::move(others);
    return all;
  }

 private:
  static std::string located(const std::string& file, Place place) {
    if (place.line == 0) return file;
    return file + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
  }

  std::string file_;
  Place place_;
  std::string problem_;
  std::vector<ScenarioError> others_;  ///< their own others_ are empty
};

}  // namespace fp8lab
