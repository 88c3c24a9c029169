#include "harness/scenario/yaml_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "harness/cell/escape.h"

namespace fp8lab {
namespace {

bool is_one_of(std::string_view characters, char c) { return characters.find(c) != std::string_view::npos; }

std::string text_of(Place place) { return fmt::format("{}:{}", place.line, place.column); }

/// The offset behind the closing quote of the quoted text that begins at `offset`; the text's size if it has none.
std::size_t end_of_quoted(const std::string& text, std::size_t offset, bool& closed) {
  const char quote = text[offset];
  closed = true;
  for (std::size_t i = offset + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != quote) return i + 1;
      ++i;  // '' inside single quotes is one quote
    }
  }
  closed = false;
  return text.size();
}

/// Follows quotes, brackets, comments and block text, and records the first mistake of each kind. Knows less of YAML
/// than the library does, so it is asked only about text that the library refuses.
class Scanner {
 public:
  Scanner(const std::string& text, int stopped_line) : text_(text), stopped_line_(stopped_line) {}

  /// The mistake that explains why the library stopped, if one of those known here does.
  std::optional<SyntaxMistake> scan() {
    while (i_ < text_.size() && !structure_) step();
    if (structure_) return structure_;
    if (!open_.empty()) {
      const Bracket& first = open_.front();
      return SyntaxMistake{first.place,
                           fmt::format("the `{}` opened at {} is not closed", first.kind, text_of(first.place))};
    }
    return on_line_;
  }

 private:
  struct Bracket {
    char kind;
    Place place;
    bool outer_has_colon;  ///< of the entry that contains the bracket
  };

  Place here() const { return {line_, static_cast<int>(i_ - line_start_) + 1}; }
  char at(std::size_t offset) const { return offset < text_.size() ? text_[offset] : '\n'; }
  bool in_flow() const { return !open_.empty(); }
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

  void step() {
    const char c = text_[i_];
    if (c == '\n') {
      next_line();
    } else if (is_blank(c)) {
      ++i_;
    } else if (c == '#' && (i_ == line_start_ || is_blank(text_[i_ - 1]))) {
      i_ = end_of_line();
    } else if (c == ':' && (is_blank(at(i_ + 1)) || (in_flow() && is_one_of(",]}", at(i_ + 1))))) {
      colon();
    } else if (in_flow() && c == ',') {
      begin_entry();
    } else if (c == '}' || c == ']') {
      close(c);
    } else if (may_begin_) {
      begin(c);
    } else {
      if (behind_quote_) refuse_text_behind_quote();
      ++i_;
    }
  }

  std::size_t end_of_line() const { return std::min(text_.find('\n', i_), text_.size()); }

  void next_line() {
    line_start_ = ++i_;
    ++line_;
    may_begin_ = true;
    behind_quote_ = behind_bracket_ = false;
    if (in_flow()) return;
    has_colon_ = false;
    if (block_indent_ && !is_in_block_text()) block_indent_.reset();
    if (block_indent_) i_ = end_of_line();
  }

  /// True for a line of `|` or `>` text: an empty one, or one that is indented deeper than its key.
  bool is_in_block_text() const {
    const std::size_t first = std::min(text_.find_first_not_of(" \r", line_start_), text_.size());
    return at(first) == '\n' || first - line_start_ > *block_indent_;
  }

  void begin_entry() {
    ++i_;
    may_begin_ = true;
    has_colon_ = behind_quote_ = behind_bracket_ = false;
  }

  void colon() {
    if (has_colon_ && line_ == stopped_line_ && !on_line_)
      on_line_ = {here(), in_flow() ? "a second `: ` in one entry; write a `,` between entries, or quote text that "
                                      "contains `: `"
                                    : "quote text that contains `: `"};
    has_colon_ = may_begin_ = true;
    behind_quote_ = false;
    ++i_;
  }

  void close(char c) {
    const char wanted = c == '}' ? '{' : '[';
    if (open_.empty()) {
      if (may_begin_ || behind_bracket_) structure_ = {here(), fmt::format("this `{}` closes nothing; remove it", c)};
    } else if (open_.back().kind != wanted) {
      structure_ = {here(), fmt::format("`{}` stands here, but the `{}` opened at {} is not closed", c,
                                        open_.back().kind, text_of(open_.back().place))};
    } else {
      has_colon_ = open_.back().outer_has_colon;
      open_.pop_back();
    }
    may_begin_ = behind_quote_ = false;
    behind_bracket_ = true;
    ++i_;
  }

  /// The first byte of a value, a key or an item.
  void begin(char c) {
    if (c == '"' || c == '\'') {
      quoted();
    } else if (c == '{' || c == '[') {
      open_.push_back({c, here(), has_colon_});
      begin_entry();
    } else if ((c == '-' || c == '?') && is_blank(at(i_ + 1))) {
      ++i_;
    } else if (c == '&' || c == '!') {
      while (!is_blank(at(i_)) && !(in_flow() && is_one_of(",[]{}", at(i_)))) ++i_;
    } else if ((c == '|' || c == '>') && !in_flow()) {
      const std::size_t key = text_.find_first_not_of("- ", line_start_);
      block_indent_ = std::min(key, i_) - line_start_;
      i_ = end_of_line();
    } else {
      if (is_one_of("@`%", c) && line_ == stopped_line_ && !on_line_)
        on_line_ = {here(), c == '`' ? "text may not begin with a backtick; quote it"
                                     : fmt::format("text may not begin with `{}`; quote it", c)};
      may_begin_ = false;
      ++i_;
    }
  }

  void quoted() {
    quote_ = here();
    bool closed = false;
    const std::size_t end = end_of_quoted(text_, i_, closed);
    if (!closed) structure_ = {quote_, unclosed_quote(quote_)};
    for (; i_ < end; ++i_)
      if (text_[i_] == '\n') {
        ++line_;
        line_start_ = i_ + 1;
      }
    may_begin_ = false;
    behind_quote_ = true;
  }

  void refuse_text_behind_quote() {
    const bool spans_lines = quote_.line != line_;
    structure_ = {spans_lines ? quote_ : here(),
                  spans_lines ? fmt::format("the quote opened at {} is not closed on its line", text_of(quote_))
                              : fmt::format("text follows the closing quote of {}; quote all of it", text_of(quote_))};
  }

  const std::string& text_;
  const int stopped_line_;
  std::size_t i_ = 0, line_start_ = 0;
  int line_ = 1;
  std::vector<Bracket> open_;
  std::optional<std::size_t> block_indent_;  ///< of the key of the `|` or `>` text that is being skipped
  Place quote_;                              ///< where the last quoted text began
  bool may_begin_ = true;                    ///< a value, a key or an item may begin here
  bool has_colon_ = false;                   ///< the entry, or outside of brackets the line, has a `: `
  bool behind_quote_ = false, behind_bracket_ = false;
  std::optional<SyntaxMistake> structure_, on_line_;
};

/// Line `number` of `text`, counted from 1.
std::string_view line_of(const std::string& text, int number) {
  std::size_t begin = 0;
  for (int line = 1; line < number && begin != std::string::npos; ++line) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos) return {};
  return std::string_view(text).substr(begin, text.find('\n', begin) - begin);
}

/// The words for a message that is about lines and their indentation.
std::string about_indentation(const std::string& text, Place stopped) {
  const std::string_view line = line_of(text, stopped.line);
  int above = stopped.line - 1;
  const auto is_empty = [](std::string_view candidate) {
    const std::size_t first = candidate.find_first_not_of(" \t\r");
    return first == std::string_view::npos || candidate[first] == '#';
  };
  std::string_view last = line_of(text, above);
  // A file has as many lines as it likes, so do not search far.
  for (int tries = 0; tries < 20 && above > 1 && is_empty(last); ++tries) last = line_of(text, --above);
  const std::size_t indent = line.find_first_not_of(' '), indent_above = last.find_first_not_of(' ');
  if (indent == indent_above && !is_one_of(last, ':') && above >= 1)
    return fmt::format("line {} has no `:` after its key", above);
  const auto is_item = [](std::string_view candidate, std::size_t begin) {
    return begin != std::string_view::npos && candidate.substr(begin).starts_with("- ");
  };
  if (indent == indent_above && is_item(line, indent) != is_item(last, indent_above))
    return "bad indentation: an item (`- `) and a key cannot begin in the same column; indent what belongs to the item "
           "by two columns more";
  return fmt::format(
      "bad indentation: this line begins in column {}, and the line above it in column {}; keys of one "
      "mapping, and items of one list, begin in the same column",
      indent + 1, indent_above + 1);
}

}  // namespace

bool is_quote_closed(const std::string& text, std::size_t offset) {
  if (offset >= text.size()) return true;
  bool closed = false;
  end_of_quoted(text, offset, closed);
  return closed;
}

std::string unclosed_quote(Place opened) {
  return fmt::format("the quote opened at {} is not closed", text_of(opened));
}

SyntaxMistake explain_syntax(const std::string& text, Place stopped, const std::string& message) {
  if (std::optional<SyntaxMistake> found = Scanner(text, stopped.line).scan()) return *found;
  if (message.starts_with("illegal map value") || message.starts_with("end of map not found") ||
      message.starts_with("end of sequence not found"))
    return {stopped, about_indentation(text, stopped)};
  if (message.starts_with("illegal block entry"))
    return {stopped, "an item (`- `) cannot begin here; begin it on a line of its own, or quote the text"};
  if (message.starts_with("the referenced anchor"))
    return {stopped, "`*` names an anchor (`&`) that the file does not have; quote text that begins with `*`"};
  if (message.starts_with("unknown escape character"))
    return {stopped, printable(message) + R"(; write `\\` for a backslash, or put the text in single quotes)"};
  // The library's message quotes the byte where reading stopped, which may be a control character.
  return {stopped, printable(message)};
}

}  // namespace fp8lab
