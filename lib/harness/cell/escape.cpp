#include "harness/cell/escape.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace fp8lab {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

/// Characters that a reader would not see, or that change the places of other characters.
bool is_hidden(char32_t code) {
  constexpr std::array<std::array<char32_t, 2>, 6> kRanges{{
      {0x00, 0x1F},      // C0 control characters
      {0x7F, 0x9F},      // DEL and C1 control characters
      {0x200E, 0x200F},  // left-to-right and right-to-left marks
      {0x2028, 0x202E},  // line and paragraph separators, directional embeddings and overrides
      {0x2066, 0x2069},  // directional isolates
      {0xFFFE, 0xFFFF},  // noncharacters
  }};
  return code == 0x61C || code == 0xFEFF || std::any_of(kRanges.begin(), kRanges.end(), [&](const auto& range) {
           return code >= range[0] && code <= range[1];
         });
}

/// True if a space or nothing follows the first `length` characters of `text`, as after the marker of a list item.
bool stands_alone(std::string_view text, std::size_t length) { return text.size() == length || text[length] == ' '; }

/// The position of the character that would make the line a list, a heading, a quotation or a rule, or npos.
std::size_t block_mark(std::string_view text) {
  if (text.empty()) return std::string_view::npos;
  const char first = text.front();
  if (first == '>' || first == '=' || first == '#') return 0;
  if ((first == '-' || first == '+') && (stands_alone(text, 1) || text[1] == first)) return 0;
  const std::size_t digits = text.find_first_not_of("0123456789");
  const bool number = digits > 0 && digits != std::string_view::npos && (text[digits] == '.' || text[digits] == ')');
  return number && stands_alone(text, digits + 1) ? digits : std::string_view::npos;
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

std::string without_outer_spaces(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t i, char32_t* out) {
  const auto byte = static_cast<unsigned char>(text[i]);
  const std::size_t length = byte < 0x80 ? 1 : byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
  if ((byte >= 0x80 && byte < 0xC2) || byte > 0xF4 || i + length > text.size()) return 0;
  char32_t code = length == 1 ? byte : byte & (0xFF >> (length + 1));
  for (std::size_t k = 1; k < length; ++k) {
    const auto next = static_cast<unsigned char>(text[i + k]);
    if ((next & 0xC0) != 0x80) return 0;
    code = (code << 6) | (next & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (overlong || surrogate || code > 0x10FFFF) return 0;
  if (out) *out = code;
  return length;
}

std::string printable(std::string_view text, std::string_view kept) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    char32_t code = 0;
    const std::size_t length = utf8_length(text, i, &code);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i++]));
      continue;
    }
    if (is_hidden(code) && kept.find(text[i]) == std::string_view::npos) {
      out += code == '\n' ? "\\n"
             : code == '\t'
                 ? "\\t"
                 : fmt::format(fmt::runtime(code < 0x80 ? "\\x{:02x}" : "\\u{:04x}"), static_cast<unsigned>(code));
    } else {
      out.append(text, i, length);
    }
    i += length;
  }
  return out;
}

std::string for_terminal(std::string_view text) {
  std::string out = printable(text);
  // GitHub's runner accepts a command after leading spaces too.
  if (const std::size_t first = out.find_first_not_of(' ');
      first != std::string::npos && out.compare(first, 2, "::") == 0)
    out.replace(first, 1, "\\x3a");
  replace_all(out, "##[", "#\\x23[");
  replace_all(out, "##vso[", "#\\x23vso[");
  return out;
}

std::string for_markdown(std::string_view text) {
  std::string plain = printable(text, "\n\t");
  std::replace_if(plain.begin(), plain.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  plain = without_outer_spaces(plain);
  const std::size_t mark = block_mark(plain);
  std::string out;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const char c = plain[i];
    const bool inside = i > 0 && i + 1 < plain.size() && is_word(plain[i - 1]) && is_word(plain[i + 1]);
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (i == mark || std::string_view("\\`*[]|~").find(c) != std::string_view::npos || (c == '_' && !inside)) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string for_markdown_code(std::string_view text) {
  std::string plain = printable(text, "\n\t");
  std::replace_if(plain.begin(), plain.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  replace_all(plain, "|", "\\|");  // Markdown splits a table into cells before it parses code
  std::size_t longest = 0;
  for (std::size_t i = 0, run = 0; i < plain.size(); ++i)
    longest = std::max(longest, run = plain[i] == '`' ? run + 1 : 0);
  const std::string fence(longest + 1, '`');
  const std::string space = plain.starts_with('`') || plain.ends_with('`') || plain.empty() ? " " : "";
  return fence + space + plain + space + fence;
}

std::string for_markdown_block(std::string_view text) {
  const std::string plain = printable(text, "\n\t");
  std::string out = "    ";
  for (const char c : plain) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out + "\n";
}

std::string for_xml(std::string_view text) {
  const std::string plain = printable(text, "\n\t");
  std::string out;
  for (const char c : plain) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace fp8lab
