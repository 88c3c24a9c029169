#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "harness/cell/keys.h"
#include "harness/scenario/scenario.h"
#include "harness/scenario/yaml_tree.h"

namespace fp8lab {

/// Collects the mistakes of one file while its pieces are read, so that all of them, up to kMost, are reported at once.
class Mistakes {
 public:
  static constexpr std::size_t kMost = 100;

  bool is_full() const { return all_.size() >= kMost; }

  /// Calls `read` for a piece and records its ScenarioError. Returns false if it threw, or if kMost mistakes were found
  /// before, so that the piece was not read.
  template <class Read>
  bool collect(const Read& read) {
    if (is_full()) {
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
  bool empty() const { return all_.empty(); }
  /// Throws the first mistake of the file, with the others inside; does nothing if there are none.
  void throw_all() const;

 private:
  std::vector<ScenarioError> all_;
  bool is_cut_ = false;
};

/// Reads typed values out of a YAML tree. Functions throw ScenarioError, which names the file, the place, the key and
/// what to write instead. `where` is the path of what is read, for messages.
class NodeReader {
 public:
  NodeReader(const std::string& file, const Vocabulary& vocabulary) : file_(file), vocabulary_(vocabulary) {}

  [[noreturn]] void refuse(Place place, const std::string& problem) const;

  const YamlNode& as_map(const YamlEntry& entry, const std::string& where) const;
  const std::vector<YamlNode>& as_list(const YamlEntry& entry, const std::string& where) const;
  const YamlNode& item_as_map(const YamlNode& item, const std::string& where) const;
  /// `map` without the keys that are not in `known`, each of which is recorded in `mistakes`. What a misspelt key holds
  /// is kept under the key that was meant, so that its mistakes are found too.
  YamlNode known_keys(const YamlNode& map, const std::string& where, const std::vector<std::string>& known,
                      Mistakes& mistakes) const;
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

/// Reads `matrix`, `include` and `exclude`, and records the place of each axis in `places`.
Matrix read_matrix(const NodeReader& reader, const YamlNode& root, std::map<std::string, Place>& places);

/// The axes, metrics and arms of a scenario, against which entries of `expect`, `claims` and `skip_if` are checked.
/// What mistakes of the file hide is absent, and not checked.
struct EntryContext {
  /// An axis with all its values.
  struct KnownAxis {
    Axis axis;
    std::unordered_set<std::string> values;
  };

  /// `matrix`, `measured`: null if they could not be read.
  EntryContext(const Matrix* matrix, const std::vector<std::string>* measured, std::optional<bool> before);

  const std::vector<std::string>* measure;
  std::optional<bool> has_before;  ///< whether some cells have an arm `before`
  bool knows_axes;                 ///< false: axes, names and points are empty
  std::vector<KnownAxis> axes;
  std::vector<std::string> axis_names;
  PointIndex points;
};

/// Adds an expectation for each arm of the entry, which `arm` may list, and one for its key `otherwise`.
void read_expectation(const NodeReader& reader, const YamlNode& item, const EntryContext& context, Scenario& out);
Claim read_claim(const NodeReader& reader, const YamlNode& item, const EntryContext& context);
SkipRule read_skip_rule(const NodeReader& reader, const YamlNode& item, const EntryContext& context);

}  // namespace fp8lab
