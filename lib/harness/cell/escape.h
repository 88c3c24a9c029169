#pragma once

#include <cstddef>
#include <string>
#include <string_view>

// Text that a scenario, a results file or a child process provided, on its way out: one function for each place where
// it may be taken for more than text. Control characters are shown, never sent.
namespace fp8lab {

/// Bytes of the character of strict UTF-8 that begins at `i`; 0: none does. `code`, where given, becomes the character.
std::size_t utf8_length(std::string_view text, std::size_t i, char32_t* code = nullptr);

/// Printable text: control characters become `\x1b` or, beyond ASCII, `\u009b`; so do marks that reverse the direction
/// of writing and separators of lines, and bytes that are not UTF-8. Of '\n' and '\t' those in `kept` stay.
std::string printable(std::string_view text, std::string_view kept = {});

/// One line for a terminal or a CI system's log. Beside control characters this shows what GitHub and Azure take for
/// commands:
/// `::` at the start becomes `\x3a:`, and `##[` and `##vso[` become `#\x23[`.
std::string for_terminal(std::string_view text);

/// One line of Markdown, in a paragraph or a table, that shows as `text`.
std::string for_markdown(std::string_view text);

/// The same as code.
std::string for_markdown_code(std::string_view text);

/// Lines that Markdown shows as they are, each indented by four; ends with a newline.
std::string for_markdown_block(std::string_view text);

/// For an XML attribute or body.
std::string for_xml(std::string_view text);

}  // namespace fp8lab
