#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

// A checked reader of JSON from files: every access checks the type, and errors name the place. Only json_reader.cpp
// includes the JSON library.
namespace fp8lab {

/// A value of a JsonDocument, which must outlive the reader.
///
/// Functions throw Error if the value has another type than they return, for example: cell leak/device=meta:
/// `cells[3].arms.before.metrics."memory.peak_bytes".value` must be a number or null, but is the text "many". The cell
/// is the nearest object around the value that has a text `id`.
class JsonReader {
 public:
  /// A member of this object. Throws if this is not an object or has no such member.
  JsonReader at(std::string_view key) const;
  /// A member of this object; nothing if there is no such member or if it is null.
  std::optional<JsonReader> find(std::string_view key) const;

  bool is_null() const;
  bool is_text(std::string_view text) const;
  std::string text() const;
  /// The text of the member `key`; "" if it is absent or null.
  std::string text_or_empty(std::string_view key) const;
  /// A text, number, boolean or null, written as in JSON but without quotes. Throws for a list or an object.
  std::string text_of_scalar() const;
  bool flag() const;
  double number() const;
  std::optional<double> number_or_null() const;
  std::int64_t integer(std::int64_t low = INT64_MIN, std::int64_t high = INT64_MAX) const;
  /// This object as JSON text. Throws if this is not an object.
  std::string object_json() const;
  /// All values below this object that are not null, by path ("cpu.model"), as text_of_scalar() writes them.
  std::map<std::string, std::string> flattened() const;

  /// Calls `visit` with each item of this list.
  void each_item(const std::function<void(const JsonReader&)>& visit) const;
  /// Calls `visit` with each member of this object, in the order of the document.
  void each_member(const std::function<void(const std::string& key, const JsonReader&)>& visit) const;

  /// Throws "`path` must be <expected>, but is <what it is>".
  [[noreturn]] void refuse(std::string_view expected) const;
  /// Throws "`path` <problem>".
  [[noreturn]] void refuse_for(std::string_view problem) const;

 private:
  friend class JsonDocument;
  struct Tree;
  /// `value` points to a value of the JSON library, whose types headers do not name.
  JsonReader(const Tree* tree, const void* value) : tree_(tree), value_(value) {}

  const Tree* tree_;
  const void* value_;
};

class JsonDocument {
 public:
  /// Throws Error for text that is not one JSON document, that is nested deeper than 64 levels, or that has an object
  /// of more than 10,000 members: the library recurses into levels, and searches members one by one.
  explicit JsonDocument(std::string_view text);
  /// As above; the items of the root's list `list` are not kept: `visit` is called with each of them while the text is
  /// read. Only the largest item needs memory, not the list.
  JsonDocument(std::string_view text, std::string_view list, const std::function<void(const JsonReader&)>& visit);
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonReader root() const;

 private:
  std::unique_ptr<const JsonReader::Tree> tree_;
};

}  // namespace fp8lab
