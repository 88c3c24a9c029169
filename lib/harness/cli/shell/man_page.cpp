#include "harness/cli/shell/man_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <sstream>
#include <string_view>
#include <vector>

namespace fp8lab {
namespace {

/// Text as troff prints it unchanged.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// "Files" of "Files: ..."; "" if `line` does not begin with a title.
std::string title_of(const std::string& line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string::npos || std::isupper(static_cast<unsigned char>(line.front())) == 0) return {};
  if (colon + 1 < line.size() && line[colon + 1] != ' ') return {};
  const std::string title = line.substr(0, colon);
  for (const char c : title)
    if (std::isalpha(static_cast<unsigned char>(c)) == 0 && c != ' ') return {};
  return title;
}

/// A footer: lines that begin with a space keep their form, others are filled.
/// `titled`: titles become sections.
std::string footer(const std::string& text, bool titled) {
  std::istringstream lines(text);
  std::string out;
  enum class State { kBreak, kFilled, kAsIs } state = State::kBreak;
  bool after_title = false;  // a paragraph begins there by itself
  const auto change = [&](State next) {
    if (state == State::kAsIs && next != State::kAsIs) out += ".EE\n";
    if (state != State::kAsIs && next == State::kAsIs) out += after_title ? ".EX\n" : ".PP\n.EX\n";
    if (state == State::kBreak && next == State::kFilled) out += ".PP\n";
    state = next;
    after_title = false;
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      change(State::kBreak);
      continue;
    }
    if (line.front() == ' ') {
      change(State::kAsIs);
      out += escaped(line.substr(std::min(line.size(), std::size_t{2}))) + "\n";
      continue;
    }
    const std::string title = titled && state != State::kFilled ? title_of(line) : "";
    if (!title.empty()) {
      change(State::kBreak);
      out += fmt::format(".SH {}\n", upper(title));
      line = line.substr(title.size() + 1);
      line.erase(0, line.find_first_not_of(' '));
      after_title = line.empty();
      if (after_title) continue;
      state = State::kFilled;
    } else {
      change(State::kFilled);
    }
    out += escaped(line) + "\n";
  }
  change(State::kBreak);
  return out;
}

/// The command line in one line: "fp8lab run [OPTIONS] PATH...".
std::string usage(const CLI::App& app, const CLI::App& command) {
  std::string out = fmt::format(".B {} {}\n", app.get_name(), escaped(command.get_name()));
  std::string words = "[OPTIONS]";
  for (const CLI::Option* option : command.get_options([](const CLI::Option* one) { return one->get_positional(); })) {
    const std::string word = option->get_name(true) + (option->get_items_expected_max() > 1 ? "..." : "");
    words += option->get_required() ? " " + word : " [" + word + "]";
  }
  return out + fmt::format(".I {}\n", escaped(words));
}

/// The type of the values, without the range that CLI11 appends: "N:1 to 100".
std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return option.get_items_expected_max() == 0 ? "" : type.substr(0, type.find(':'));
}

std::string options(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_group().empty() || (command.get_parent() != nullptr && option == command.get_help_ptr())) continue;
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string value = option->get_positional() ? "" : value_name(*option);
    if (names.empty()) names.push_back(option->get_name(true));
    out += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", escaped(fmt::format("{}", fmt::join(names, ", "))),
                       value.empty() ? "" : fmt::format(" \\fI{}\\fR", escaped(value)),
                       escaped(option->get_description()));
  }
  return out;
}

}  // namespace

std::string man_page(const CLI::App& app, const std::string& version) {
  const std::string name = app.get_name(), description = app.get_description();
  std::string out = fmt::format(".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n", upper(name), name, version);
  out +=
      fmt::format(".SH NAME\n{} \\- {}\n", name, escaped(description.substr(0, description.find_last_not_of('.') + 1)));
  out += fmt::format(".SH SYNOPSIS\n.B {}\n.I COMMAND\n[OPTIONS]\n.SH OPTIONS\n{}.SH COMMANDS\n", name, options(app));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    out += fmt::format(".SS {}\n{}.PP\n{}\n{}{}", escaped(command->get_name()), usage(app, *command),
                       escaped(command->get_description()), options(*command), footer(command->get_footer(), false));
  }
  return out + footer(app.get_footer(), true);
}

}  // namespace fp8lab
