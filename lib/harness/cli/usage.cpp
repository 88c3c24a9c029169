#include "harness/cli/usage.h"

#include <fmt/format.h>

#include <sstream>
#include <vector>

#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

constexpr std::size_t kColumns = 100;

/// The words of `text` in lines of at most `width` columns. CLI11 indents all lines of a description but the first.
std::string filled(const std::string& text, std::size_t width) {
  std::istringstream words(text);
  std::string out, word;
  std::size_t used = 0;
  while (words >> word) {
    const bool begins_line = used > 0 && used + 1 + word.size() > width;
    if (used > 0) out += begins_line ? '\n' : ' ';
    used = begins_line || used == 0 ? word.size() : used + 1 + word.size();
    out += word;
  }
  return out;
}

}  // namespace

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return filled(CLI::Formatter::make_option_desc(option), kColumns - get_column_width());
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  std::ostringstream out;
  CLI::detail::format_help(out, command->get_name(), filled(command->get_description(), kColumns - get_column_width()),
                           get_column_width());
  return out.str();
}

std::string HelpFormatter::make_option_usage(const CLI::Option* option) const {
  if (option->get_expected_min() != 1 || option->get_expected_max() != 2)
    return CLI::Formatter::make_option_usage(option);
  const std::string name = make_option_name(option, true);
  return fmt::format("{} [{}]", name, name);
}

std::string HelpFormatter::make_footer(const CLI::App* command) const {
  std::istringstream lines(CLI::Formatter::make_footer(command));
  std::string out, line, paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) out += filled(paragraph, kColumns) + '\n';
    paragraph.clear();
  };
  while (std::getline(lines, line)) {
    const bool continues = !line.empty() && line.front() != ' ';
    if (continues) {
      paragraph += line + ' ';
      continue;
    }
    end_paragraph();
    out += line + '\n';
  }
  end_paragraph();
  return out;
}

const CLI::Option* option_given(const CLI::App& app, const std::string& word) {
  return app.get_option_no_throw(word.substr(0, word.starts_with("--") ? word.find('=') : 2));
}

std::string no_option(const CLI::App& app, const std::string& word) {
  std::vector<std::string> options;
  for (const CLI::Option* known : app.get_options())
    for (const std::string& long_name : known->get_lnames()) options.push_back("--" + long_name);
  return fmt::format("{} has no option `{}`.{}", app.get_name(), word,
                     suggestion(word.substr(0, word.find('=')), options));
}

std::string wrong_count(const CLI::App& command, const std::string& message) {
  const std::string name = message.substr(0, message.find(':'));
  const CLI::Option* option = command.get_option_no_throw(name);
  const bool repeated = option && option->count() > static_cast<std::size_t>(option->get_items_expected_max());
  if (!repeated) return name + " needs a value";
  const int most = option->get_items_expected_max();
  return most == 1 ? name + " is given more than once; it takes one value"
                   : fmt::format("{} is given more than {} times", name, most);
}

}  // namespace fp8lab
