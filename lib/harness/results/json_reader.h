#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

// Reading JSON that a file provided: every access checks the type and names the place where it is another. The JSON
// library stays behind json_reader.cpp.
namespace fp8lab {

/// A value of a JsonDocument, which must outlive it, and where it stands.
///
/// Refusals are Errors such as: cell leak/device=meta: `cells[3].arms.before.metrics."memory.peak_bytes".value` must be
/// a number or null, but is the text "many". The cell is the nearest object around the value that has a text `id`.
class JsonReader {
 public:
  /// A member of this object; refuses where this is no object or has no such member.
  JsonReader at(std::string_view key) const;
  /// The same; nothing where there is no such member, or where it is null.
  std::optional<JsonReader> find(std::string_view key) const;

  bool is_null() const;
  bool is_text(std::string_view text) const;
  std::string text() const;
  /// "" where the member `key` is absent or null.
  std::string text_or_empty(std::string_view key) const;
  /// Of text, a number, a switch or null, as JSON but for the quotes; refuses a list and an object.
  std::string text_of_scalar() const;
  bool flag() const;
  double number() const;
  std::optional<double> number_or_null() const;
  std::int64_t integer(std::int64_t low = INT64_MIN, std::int64_t high = INT64_MAX) const;
  /// This object as JSON; refuses what is none.
  std::string object_json() const;
  /// Every value below this object by its path, "cpu.model", as text_of_scalar() has it, but null.
  std::map<std::string, std::string> flattened() const;

  /// Each item of this list.
  void each_item(const std::function<void(const JsonReader&)>& visit) const;
  /// Each member of this object, in the order of the document.
  void each_member(const std::function<void(const std::string& key, const JsonReader&)>& visit) const;

  /// "`path` must be <expected>, but is <what it is>".
  [[noreturn]] void refuse(std::string_view expected) const;
  /// "`path` <problem>".
  [[noreturn]] void refuse_for(std::string_view problem) const;

 private:
  friend class JsonDocument;
  /// Both are values of the library, which headers do not name.
  JsonReader(const void* document, const void* value) : document_(document), value_(value) {}

  const void* document_;
  const void* value_;
};

class JsonDocument {
 public:
  /// Throws Error for anything that is not one JSON document, that is nested deeper than 64 levels or that has an
  /// object of more than 10,000 members: the library recurses over levels, and searches members one by one.
  explicit JsonDocument(std::string_view text);
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonReader root() const;

 private:
  struct Tree;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace fp8lab
