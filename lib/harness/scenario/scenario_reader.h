#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "harness/cell/keys.h"
#include "harness/scenario/scenario.h"
#include "harness/scenario/yaml_tree.h"

namespace fp8lab {

/// What is wrong with one file, found piece by piece, so that all of it is reported at once: up to kMost mistakes.
class Mistakes {
 public:
  static constexpr std::size_t kMost = 100;

  /// Reads a piece; false where it was refused, or was not read because there are too many mistakes above.
  template <class Read>
  bool collect(const Read& read) {
    if (all_.size() >= kMost) {
      is_cut_ = true;
      return false;
    }
    try {
      read();
      return true;
    } catch (const ScenarioError& error) {
      add(error);
      return false;
    }
  }
  void add(const ScenarioError& error);
  /// The first in the file with the others, if there are any.
  void throw_all() const;

 private:
  std::vector<ScenarioError> all_;
  bool is_cut_ = false;
};

/// Reads typed values out of a YAML tree. Every refusal names the file, the place, the key and what to write instead.
class NodeReader {
 public:
  NodeReader(const std::string& file, const Vocabulary& vocabulary) : file_(file), vocabulary_(vocabulary) {}

  [[noreturn]] void refuse(Place place, const std::string& problem) const;

  const YamlNode& as_map(const YamlEntry& entry, const std::string& where) const;
  const std::vector<YamlNode>& as_list(const YamlEntry& entry, const std::string& where) const;
  const YamlNode& item_as_map(const YamlNode& item, const std::string& where) const;
  /// Refuses the keys of `map` that are not in `known`, all at once.
  void only_keys(const YamlNode& map, const std::string& where, const std::vector<std::string>& known) const;
  const YamlEntry& required(const YamlNode& map, const std::string& key, const std::string& where) const;

  std::string text(const YamlNode& node, const std::string& where) const;
  double number(const YamlNode& node, const std::string& where) const;
  std::string one_of(const YamlNode& node, const std::string& where, const std::vector<std::string>& allowed) const;
  Value value(const Key& key, const YamlNode& node, const std::string& where) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  const std::string& file_;
  const Vocabulary& vocabulary_;
};

/// `matrix`, `include` and `exclude`; also notes where each axis was written.
Matrix read_matrix(const NodeReader& reader, const YamlNode& root, std::map<std::string, Place>& places);

/// What entries of `expect`, `claims` and `skip_if` are checked against.
struct EntryContext {
  /// An axis with every value that it takes.
  struct KnownAxis {
    Axis axis;
    std::unordered_set<std::string> values;
  };

  EntryContext(const Matrix& matrix, const std::vector<std::string>& measured, bool fix);

  const std::vector<std::string>& measure;
  bool has_fix = false;
  std::vector<KnownAxis> axes;
  std::vector<std::string> axis_names;
  PointIndex points;
};

Expectation read_expectation(const NodeReader& reader, const YamlNode& item, const EntryContext& context);
Claim read_claim(const NodeReader& reader, const YamlNode& item, const EntryContext& context);
SkipRule read_skip_rule(const NodeReader& reader, const YamlNode& item, const EntryContext& context);

}  // namespace fp8lab
