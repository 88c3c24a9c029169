#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fp8lab {

/// Formats `--help` in lines of at most 100 columns. Paragraphs of a footer are filled; its indented lines stay as they
/// are.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
  std::string make_footer(const CLI::App* command) const override;
};

/// The option of `app` that `word` names, with or without a value in the same word; null if there is none.
const CLI::Option* option_given(const CLI::App& app, const std::string& word);

/// The message for an option that `app` does not have, with the option that was probably meant.
std::string no_option(const CLI::App& app, const std::string& word);

/// The message for an option with too few or too many values. `message`: CLI11's, which begins with the option's name.
std::string wrong_count(const CLI::App& command, const std::string& message);

}  // namespace fp8lab
