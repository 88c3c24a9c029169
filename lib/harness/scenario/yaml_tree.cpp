#include "harness/scenario/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/scenario/yaml_syntax.h"

namespace fp8lab {
namespace {

// Limits far above any real scenario. Aliases of aliases grow exponentially: they reach the limit before they fill the
// memory.
constexpr int kMostNodes = 50000;
constexpr std::size_t kMostText = 4 << 20;  // bytes
constexpr int kMostDepth = 32;

Place place_of(const YAML::Mark& mark) { return mark.is_null() ? Place{} : Place{mark.line + 1, mark.column + 1}; }

/// The line of the first byte that is not UTF-8 or that is a control character, or 0.
int first_bad_line(const std::string& text) {
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    char32_t code = 0;
    const std::size_t length = utf8_length(text, i, &code);
    const bool control = code == 0x7F || (code < 0x20 && code != '\n' && code != '\r' && code != '\t');
    if (length == 0 || control) return line;
    if (code == '\n') ++line;
    i += length;
  }
  return 0;
}

/// The first line that is indented with a tab, which YAML forbids, or 0.
int first_tabbed_line(const std::string& text) {
  int line = 1;
  bool indent = true;
  for (const char c : text) {
    if (indent && c == '\t') return line;
    indent = c == '\n' || (indent && c == ' ');
    if (c == '\n') ++line;
  }
  return 0;
}

/// Records where documents begin and where quoted text does, and ignores all other events.
class DocumentStarts : public YAML::EventHandler {
 public:
  const YAML::Mark& last() const { return last_; }
  const std::vector<YAML::Mark>& quoted() const { return quoted_; }

  void OnDocumentStart(const YAML::Mark& mark) override { last_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string&) override {
    if (tag == "!") quoted_.push_back(mark);
  }
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark last_;
  std::vector<YAML::Mark> quoted_;
};

/// Throws ScenarioError if quoted text is not closed, which the library takes as closed by the file's end.
void refuse_unclosed_quotes(const std::string& text, const std::string& file, const std::vector<YAML::Mark>& quoted) {
  if (quoted.empty()) return;
  // Only the last can reach the end. A block text (`|`) is marked as quoted too, and so is text behind an anchor.
  const auto at = static_cast<std::size_t>(quoted.back().pos);
  if (at >= text.size() || (text[at] != '"' && text[at] != '\'') || is_quote_closed(text, at)) return;
  const Place place = place_of(quoted.back());
  throw ScenarioError(file, place, "this is not YAML: " + unclosed_quote(place));
}

/// Throws ScenarioError if `text` has more than one document. YAML::LoadAll() must not be used here: at text such as
/// `, a` on its own the parser finds an empty document and does not advance, so LoadAll() collects empty documents
/// until the memory is full.
void refuse_more_than_one(const std::string& text, const std::string& file) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  DocumentStarts starts;
  const bool one = parser.HandleNextDocument(starts);
  refuse_unclosed_quotes(text, file, starts.quoted());
  if (!one || !parser.HandleNextDocument(starts)) return;
  const auto at = static_cast<std::size_t>(starts.last().pos);
  const bool is_stray = at < text.size() && text[at] == ',';
  throw ScenarioError(file, place_of(starts.last()),
                      is_stray ? "this is not YAML: `,` has no meaning here"
                               : "a second document begins here; write one scenario per file, without `---`");
}

class Builder {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  YamlNode build(const YAML::Node& node, int depth = 0) {
    const Place place = place_of(node.Mark());
    if (++nodes_ > kMostNodes)
      refuse(place, fmt::format("the document has more than {} nodes once its aliases are followed", kMostNodes));
    if (depth > kMostDepth) refuse(place, fmt::format("nested deeper than {} levels", kMostDepth));
    YamlNode out;
    out.place = place;
    if (node.IsScalar()) {
      if ((text_ += node.Scalar().size()) > kMostText)
        refuse(place,
               fmt::format("the document has more than {} bytes of text once its aliases are followed", kMostText));
      const std::string& tag = node.Tag();
      if (!tag.empty() && tag != "?" && tag != "!" && tag != "tag:yaml.org,2002:str")
        refuse(place, fmt::format("the tag `{}` has no meaning in a scenario; remove it", quotable(tag)));
      out.kind = YamlNode::Kind::kScalar;
      out.text = node.Scalar();
      out.quoted = !tag.empty() && tag != "?";
    } else if (node.IsSequence()) {
      out.kind = YamlNode::Kind::kList;
      for (const YAML::Node& item : node) out.items.push_back(build(item, depth + 1));
    } else if (node.IsMap()) {
      out.kind = YamlNode::Kind::kMap;
      add_entries(node, out, depth);
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(Place place, const std::string& problem) const {
    throw ScenarioError(file_, place, problem);
  }

  void add_entries(const YAML::Node& node, YamlNode& out, int depth) {
    std::vector<YamlNode> merged;
    Place merge_place;
    std::unordered_map<std::string, Place> given;
    for (const auto& pair : node) {
      const Place place = place_of(pair.first.Mark());
      if (!pair.first.IsScalar()) refuse(place, "a key must be a word, not a list or a mapping");
      const std::string& key = pair.first.Scalar();
      if (key == "<<" && pair.first.Tag() != "!") {
        if (merge_place.line != 0)
          refuse(place, fmt::format("`<<` is given twice, first on line {}", merge_place.line));
        merge_place = place;
        merged = merge_sources(build(pair.second, depth + 1), place);
        continue;
      }
      if (const auto [first, is_new] = given.emplace(key, place); !is_new)
        refuse(place,
               fmt::format("`{}` is given twice, first on line {}; keep one", quotable(key), first->second.line));
      out.entries.push_back({key, place, build(pair.second, depth + 1)});
    }
    // A mapping's own keys replace merged ones, and earlier merges replace later ones (YAML 1.1 merge keys).
    for (const YamlNode& source : merged)
      for (const YamlEntry& entry : source.entries)
        if (given.emplace(entry.key, entry.place).second) out.entries.push_back(entry);
  }

  std::vector<YamlNode> merge_sources(YamlNode value, Place place) const {
    std::vector<YamlNode> sources;
    if (value.is_list()) {
      sources = std::move(value.items);
    } else {
      sources.push_back(std::move(value));
    }
    for (const YamlNode& source : sources)
      if (!source.is_map())
        refuse(place, fmt::format("`<<` merges mappings (`<<: *anchor`), but this is {}", described(source)));
    return sources;
  }

  const std::string& file_;
  int nodes_ = 0;
  std::size_t text_ = 0;
};

bool reads_as_number(const std::string& text) {
  const char* start = text.c_str();
  char* end = nullptr;
  std::strtod(start, &end);
  return end != start && *end == '\0';
}

}  // namespace

const YamlEntry* YamlNode::find(std::string_view key) const {
  const auto it =
      std::find_if(entries.begin(), entries.end(), [&](const YamlEntry& entry) { return entry.key == key; });
  return it == entries.end() ? nullptr : &*it;
}

YamlEntry* YamlNode::find(std::string_view key) { return const_cast<YamlEntry*>(std::as_const(*this).find(key)); }

YamlNode parse_yaml(const std::string& text, const std::string& file) {
  if (const int line = first_bad_line(text); line != 0)
    throw ScenarioError(file, {line, 1}, "this is not a text file in UTF-8");
  try {
    refuse_more_than_one(text, file);
    const YAML::Node document = YAML::Load(text);
    if (document.IsNull()) throw ScenarioError(file, {1, 1}, "the file is empty; a scenario begins with `version: 1`");
    return Builder(file).build(document);
  } catch (const YAML::DeepRecursion& error) {
    throw ScenarioError(file, place_of(error.mark), fmt::format("nested deeper than {} levels", kMostDepth));
  } catch (const YAML::Exception& error) {
    if (const int line = first_tabbed_line(text); line != 0)
      throw ScenarioError(file, {line, 1}, "this is not YAML: the line is indented with a tab; use spaces");
    const SyntaxMistake mistake = explain_syntax(text, place_of(error.mark), error.msg);
    throw ScenarioError(file, mistake.place, "this is not YAML: " + mistake.problem);
  }
}

std::string described(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "nothing";
    case YamlNode::Kind::kList: return fmt::format("a list of {}", node.items.size());
    case YamlNode::Kind::kMap: return "a mapping";
    case YamlNode::Kind::kScalar: break;
  }
  const std::string shown = quotable(node.text);
  if (node.quoted) return fmt::format("the quoted text \"{}\"", shown);
  if (node.text == "true" || node.text == "false") return fmt::format("the switch {}", shown);
  if (reads_as_number(node.text)) return fmt::format("the number {}", shown);
  return fmt::format("the text \"{}\"", shown);
}

}  // namespace fp8lab
