#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Escaping. Text from a scenario, a results file or a child process could act as a command or as markup once it is
// printed, so each kind of output has its own function. Control characters are shown as escapes, never sent.
namespace fp8lab {

/// The number of bytes of the UTF-8 character that begins at `i`, or 0 if the bytes are not strict UTF-8. Stores the
/// character in `*code` if `code` is not null.
std::size_t utf8_length(std::string_view text, std::size_t i, char32_t* code = nullptr);

/// `text` with escapes for everything that a reader would not see: control characters become `\x1b` or, beyond ASCII,
/// `\u009b`; marks of writing direction, line separators and bytes that are not UTF-8 become escapes too. A '\n' or
/// '\t' stays if `kept` contains it.
std::string printable(std::string_view text, std::string_view kept = {});

/// One line for a terminal or the log of a CI system. Escapes control characters, and also the commands of GitHub and
/// Azure: `::` at the start becomes `\x3a:`, and `##[` and `##vso[` become `#\x23[`.
std::string for_terminal(std::string_view text);

/// One line of Markdown, for a paragraph or a table, that is rendered as `text`.
std::string for_markdown(std::string_view text);

/// One line of Markdown that is rendered as `text` in code style, with its backquotes.
std::string for_markdown_code(std::string_view text);

/// A code block of Markdown: every line is indented by four spaces; ends with a newline.
std::string for_markdown_block(std::string_view text);

/// Text for an XML attribute or body.
std::string for_xml(std::string_view text);

}  // namespace fp8lab
