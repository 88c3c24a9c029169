#include "harness/scenario/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

// Limits far above any real scenario. Aliases of aliases grow exponentially: they reach the limit before they fill the
// memory.
constexpr int kMostNodes = 50000;
constexpr std::size_t kMostText = 4 << 20;  // bytes
constexpr std::size_t kMostDepth = 32;

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

/// True if the quote at `text[at]` is closed before the text ends. The library treats an unclosed quote as closed.
bool is_quote_closed(const std::string& text, std::size_t at) {
  const char quote = text[at];
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != quote) return true;
      ++i;  // '' inside single quotes is one quote
    }
  }
  return false;
}

/// Builds the tree of one document from the parser's events.
class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  /// The document's tree; of kind kNull if there is none.
  YamlNode take() { return std::move(root_); }

  /// Throws ScenarioError if quoted text is not closed.
  void refuse_unclosed_quote() const {
    // Only the last quoted text can reach the end. A block text (`|`) is marked as quoted too, and so is text behind an
    // anchor.
    const auto at = static_cast<std::size_t>(last_quoted_.pos);
    if (!last_quoted_.is_null() && at < text_.size() && (text_[at] == '"' || text_[at] == '\'') &&
        !is_quote_closed(text_, at))
      refuse(place_of(last_quoted_), "this is not YAML: the quote that opens here is not closed");
  }

  /// The innermost list or mapping in brackets whose end has not come; null: there is none.
  const YamlNode* open_bracket() const {
    const auto found = std::ranges::find_if(open_.rbegin(), open_.rend(), &Open::is_flow);
    return found == open_.rend() ? nullptr : &found->node;
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    const auto at = static_cast<std::size_t>(mark.pos);
    refuse_unclosed_quote();
    refuse(place_of(mark), at < text_.size() && text_[at] == ','
                               ? "this is not YAML: `,` has no meaning here"
                               : "a second document begins here; write one scenario per file, without `---`");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(node_at(mark), anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchors_.find(anchor);
    if (known == anchors_.end()) refuse(place_of(mark), "an alias cannot be inside the value that it names");
    count(known->second, place_of(mark), open_.size());
    add(known->second, YAML::NullAnchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (tag == "!") last_quoted_ = mark;
    YamlNode node = node_at(mark);
    if (!tag.empty() && tag != "?" && tag != "!" && tag != "tag:yaml.org,2002:str")
      refuse(node.place, fmt::format("the tag `{}` has no meaning in a scenario; remove it", quotable(tag)));
    node.kind = YamlNode::Kind::kScalar;
    node.text = value;
    node.quoted = !tag.empty() && tag != "?";
    add(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    open(mark, YamlNode::Kind::kList, anchor, style);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    open(mark, YamlNode::Kind::kMap, anchor, style);
  }
  void OnMapEnd() override {
    Open& map = open_.back();
    // A mapping's own keys replace merged ones, and earlier merges replace later ones (YAML 1.1 merge keys).
    for (YamlNode& source : map.merged)
      for (YamlEntry& entry : source.entries)
        if (map.given.emplace(entry.key, entry.place).second) map.node.entries.push_back(std::move(entry));
    close();
  }

 private:
  /// A list or mapping whose end has not come.
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    bool is_flow;                                       ///< in brackets
    std::optional<YamlEntry> entry = {};                ///< whose value comes next
    bool merges = false;                                ///< the entry is `<<`
    std::unordered_map<std::string, Place> given = {};  ///< keys
    Place merge_place = {};                             ///< place of `<<`
    std::vector<YamlNode> merged = {};                  ///< what `<<` names
  };

  [[noreturn]] void refuse(Place place, const std::string& problem) const {
    throw ScenarioError(file_, place, problem);
  }

  static YamlNode node_at(const YAML::Mark& mark) {
    YamlNode out;
    out.place = place_of(mark);
    return out;
  }

  /// Counts a node and those below it, which stand `depth` levels deep.
  void count(const YamlNode& node, Place place, std::size_t depth) {
    if (depth > kMostDepth) refuse(place, fmt::format("nested deeper than {} levels", kMostDepth));
    if (++nodes_ > kMostNodes)
      refuse(place, fmt::format("the document has more than {} nodes once its aliases are followed", kMostNodes));
    if ((bytes_ += node.text.size()) > kMostText)
      refuse(place,
             fmt::format("the document has more than {} bytes of text once its aliases are followed", kMostText));
    for (const YamlNode& item : node.items) count(item, place, depth + 1);
    for (const YamlEntry& entry : node.entries) count(entry.value, place, depth + 1);
  }

  void open(const YAML::Mark& mark, YamlNode::Kind kind, YAML::anchor_t anchor, YAML::EmitterStyle::value style) {
    YamlNode node = node_at(mark);
    node.kind = kind;
    refuse_as_key(node.place);
    count(node, node.place, open_.size());
    open_.push_back({std::move(node), anchor, style == YAML::EmitterStyle::Flow});
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    put(std::move(done.node), done.anchor);
  }

  /// A node without others below it, or an alias.
  void add(YamlNode node, YAML::anchor_t anchor) {
    const bool is_key = !open_.empty() && open_.back().node.is_map() && !open_.back().entry;
    if (is_key && !node.is_scalar()) refuse_as_key(node.place);
    if (is_key) return begin_entry(node);
    if (node.items.empty() && node.entries.empty()) count(node, node.place, open_.size());
    put(std::move(node), anchor);
  }

  void refuse_as_key(Place place) const {
    if (!open_.empty() && open_.back().node.is_map() && !open_.back().entry)
      refuse(place, "a key must be a word, not a list or a mapping");
  }

  void begin_entry(const YamlNode& key) {
    Open& map = open_.back();
    map.merges = key.text == "<<" && !key.quoted;
    if (map.merges && map.merge_place.line != 0)
      refuse(key.place, fmt::format("`<<` is given twice, first on line {}", map.merge_place.line));
    if (map.merges)
      map.merge_place = key.place;
    else if (const auto [first, is_new] = map.given.emplace(key.text, key.place); !is_new)
      refuse(key.place,
             fmt::format("`{}` is given twice, first on line {}; keep one", quotable(key.text), first->second.line));
    map.entry = YamlEntry{key.text, key.place, {}};
  }

  /// Puts a complete node into its place.
  void put(YamlNode node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_.insert_or_assign(anchor, node);
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (Open& outer = open_.back(); outer.node.is_list()) {
      outer.node.items.push_back(std::move(node));
    } else {
      if (outer.merges) {
        merge(std::move(node), outer);
      } else {
        outer.entry->value = std::move(node);
        outer.node.entries.push_back(std::move(*outer.entry));
      }
      outer.entry.reset();
    }
  }

  void merge(YamlNode value, Open& map) const {
    if (value.is_list())
      map.merged = std::move(value.items);
    else
      map.merged.push_back(std::move(value));
    for (const YamlNode& source : map.merged)
      if (!source.is_map())
        refuse(map.merge_place, fmt::format("`<<` merges mappings (`<<: *anchor`), but this is {}", described(source)));
  }

  const std::string& text_;
  const std::string& file_;
  YamlNode root_;
  std::vector<Open> open_;                                ///< outermost first
  std::unordered_map<YAML::anchor_t, YamlNode> anchors_;  ///< complete ones
  YAML::Mark last_quoted_ = YAML::Mark::null_mark();
  int documents_ = 0;
  int nodes_ = 0;
  std::size_t bytes_ = 0;  ///< bytes of text
};

/// What to do about a message of the library.
std::string_view remedy_of(std::string_view message) {
  struct Row {
    std::string_view message, remedy;
  };
  static constexpr std::array kRows{
      Row{"illegal map value", "; quote text that contains `: `, and begin the keys of one mapping in the same column"},
      Row{"end of map not found",
          "; begin the keys of one mapping in the same column, write `:` behind each, and end a quoted text on its "
          "line"},
      Row{"end of sequence not found", "; begin the items of one list (`- `) in the same column"},
      Row{"illegal flow end", "; remove this bracket, or open it"},
      Row{"the referenced anchor is not defined", "; quote text that begins with `*`"},
      Row{"unknown token", "; quote text that begins with this character"},
  };
  for (const Row& row : kRows)
    if (message.starts_with(row.message)) return row.remedy;
  return "";
}

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
  Builder builder(text, file);
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    // The parser finds an empty document at text such as `, a`, again and again; the builder refuses the second one.
    while (parser.HandleNextDocument(builder)) {
    }
    builder.refuse_unclosed_quote();
  } catch (const YAML::DeepRecursion& error) {
    throw ScenarioError(file, place_of(error.mark), fmt::format("nested deeper than {} levels", kMostDepth));
  } catch (const YAML::Exception& error) {
    if (const int line = first_tabbed_line(text); line != 0)
      throw ScenarioError(file, {line, 1}, "this is not YAML: the line is indented with a tab; use spaces");
    builder.refuse_unclosed_quote();
    if (const YamlNode* bracket = builder.open_bracket()) {
      const bool at_end = error.mark.is_null() || static_cast<std::size_t>(error.mark.pos) >= text.size();
      throw ScenarioError(
          file, at_end ? bracket->place : place_of(error.mark),
          fmt::format("this is not YAML: the `{}` opened at {}:{} is not closed; close it, {}",
                      bracket->is_map() ? '{' : '[', bracket->place.line, bracket->place.column,
                      bracket->is_map() ? "write a `,` between entries, or quote text that contains `: `"
                                        : "or write a `,` between items"));
    }
    throw ScenarioError(file, place_of(error.mark),
                        fmt::format("this is not YAML: {}{}", error.msg, remedy_of(error.msg)));
  }
  YamlNode out = builder.take();
  if (out.kind == YamlNode::Kind::kNull)
    throw ScenarioError(file, {1, 1}, "the file is empty; a scenario begins with `version: 1`");
  return out;
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
