#include "harness/cli/shell/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace fp8lab {
namespace {

const auto kAllOptions = [](const CLI::Option*) { return true; };

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (command->get_name() == name) return command;
  return nullptr;
}

const CLI::Option* find_option(const CLI::App& app, const std::string& dashed) {
  for (const CLI::Option* option : app.get_options(kAllOptions)) {
    const auto &shorts = option->get_snames(), &longs = option->get_lnames();
    if (std::any_of(longs.begin(), longs.end(), [&](const auto& name) { return "--" + name == dashed; })) return option;
    if (std::any_of(shorts.begin(), shorts.end(), [&](const auto& name) { return "-" + name == dashed; }))
      return option;
  }
  return nullptr;
}

/// The positional arguments, in order.
std::vector<const CLI::Option*> arguments_of(const CLI::App& app) {
  std::vector<const CLI::Option*> out;
  for (const CLI::Option* option : app.get_options(kAllOptions))
    if (option->get_positional()) out.push_back(option);
  return out;
}

class Completer {
 public:
  Completer(const CLI::App& app, const ValueTable& values) : app_(&app), values_(values) {}

  Completion operator()(const std::vector<std::string>& words) {
    for (std::size_t i = 0; i + 1 < words.size(); ++i) pass(words[i]);
    last_ = words.empty() ? "" : words.back();
    const std::size_t equals = last_.find('=');
    if (option_) {
      offer_values(*option_, "");
    } else if (!only_arguments_ && last_.starts_with("--") && equals != std::string::npos) {
      if (const CLI::Option* option = find_option(*app_, last_.substr(0, equals)); option && takes_value(*option))
        offer_values(*option, last_.substr(0, equals + 1));
    } else if (!only_arguments_ && last_.starts_with("-")) {
      offer_options();
    } else {
      offer_commands();
      offer_argument();
    }
    return std::move(out_);
  }

 private:
  /// Updates the state with a complete word.
  void pass(const std::string& word) {
    if (option_) {
      option_ = nullptr;
    } else if (only_arguments_ || !word.starts_with("-")) {
      const CLI::App* command = only_arguments_ ? nullptr : find_command(*app_, word);
      if (command)
        app_ = command;
      else
        ++arguments_;
    } else if (word == "--") {
      only_arguments_ = true;
    } else if (const CLI::Option* option = find_option(*app_, word)) {
      if (takes_value(*option)) option_ = option;
    }
  }

  void offer(const std::string& text, const std::string& description) {
    if (text.starts_with(last_)) out_.candidates.push_back({text, description});
  }

  void offer_commands() {
    for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; }))
      if (!command->get_group().empty()) offer(command->get_name(), command->get_description());
  }

  void offer_options() {
    for (const CLI::Option* option : app_->get_options(kAllOptions)) {
      if (option->get_group().empty()) continue;
      for (const std::string& name : option->get_lnames()) offer("--" + name, option->get_description());
      for (const std::string& name : option->get_snames()) offer("-" + name, option->get_description());
    }
  }

  void offer_argument() {
    const std::vector<const CLI::Option*> arguments = arguments_of(*app_);
    if (arguments.empty() && app_->get_subcommands([](const CLI::App*) { return true; }).empty())
      return offer_options();
    if (arguments.empty()) return;
    const CLI::Option& last = *arguments.back();
    if (arguments_ < arguments.size())
      offer_values(*arguments[arguments_], "");
    else if (last.get_items_expected_max() > 1)
      offer_values(last, "");
    else
      offer_options();
  }

  /// Adds the values of `option`. `before`: the part of the last word before the value, "--device=".
  void offer_values(const CLI::Option& option, std::string before) {
    auto row = option.get_positional() ? values_.find(option.get_name(true)) : values_.end();
    if (row == values_.end()) row = values_.find(option.get_type_name());
    if (row == values_.end()) return;
    const ValueWords values = row->second();
    out_.files = values.kind == ValueWords::Kind::kFiles;
    out_.directories = values.kind == ValueWords::Kind::kDirectories;
    if (option.get_delimiter() != '\0')
      if (const std::size_t comma = last_.rfind(option.get_delimiter()); comma != std::string::npos)
        before = last_.substr(0, comma + 1);
    const std::vector<Candidate>* words = &values.words;
    const std::string value = last_.substr(before.size());
    if (const std::size_t equals = value.find('='); equals != std::string::npos)
      if (const auto key = values.of_word.find(value.substr(0, equals + 1)); key != values.of_word.end()) {
        before += key->first;
        words = &key->second;
      }
    for (const Candidate& word : *words)
      if (!listed(before, word.text, option.get_delimiter())) offer(before + word.text, word.description);
  }

  /// True if the list in `before` already contains `word`: "--device=cpu,meta,".
  static bool listed(const std::string& before, const std::string& word, char delimiter) {
    const std::string list = delimiter + before.substr(before.find('=') + 1);
    return delimiter != '\0' && list.find(delimiter + word + delimiter) != std::string::npos;
  }

  const CLI::App* app_;
  const ValueTable& values_;
  std::string last_;
  const CLI::Option* option_ = nullptr;  ///< the option whose value comes next
  bool only_arguments_ = false;          ///< `--` was read
  std::size_t arguments_ = 0;            ///< number of positional arguments read
  Completion out_;
};

/// The scripts contain no words of the command line: they call the program that the user is typing.
struct Shell {
  std::string_view name, script;
};

constexpr Shell kShells[] = {
    {"bash", R"(# bash completion for fp8lab. Use: source <(fp8lab completion bash)
_fp8lab() {
  local -a words=()
  local word line file value rest=$COMP_LINE
  # Readline splits words at `=`, `@` and `:`; parts without a space between them are one word.
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if ((${#words[@]} > 0)) && [[ $rest != [[:space:]]* ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
    rest=${rest#"${rest%%[![:space:]]*}"}
    rest=${rest#"$word"}
  done
  COMPREPLY=()
  local last=${words[-1]}
  value=${COMP_WORDS[COMP_CWORD]} # readline replaces only this part
  [[ $value != [=@:]* ]] || value=
  local kept=${last%"$value"}
  while IFS= read -r line; do
    case $line in
      :files | :directories)
        local action=file
        [[ $line == :files ]] || action=directory
        compopt -o filenames 2>/dev/null
        while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -A "$action" -- "$value")
        ;;
      *)
        line=${line%%$'\t'*}
        [[ $line != *= ]] || compopt -o nospace 2>/dev/null
        COMPREPLY+=("${line#"$kept"}")
        ;;
    esac
  done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _fp8lab fp8lab
)"},
    {"zsh", R"(#compdef fp8lab
# zsh completion for fp8lab. Use: source <(fp8lab completion zsh), or save it as _fp8lab in a directory of $fpath.
_fp8lab() {
  local line
  local -a described begun
  for line in "${(@f)$("${words[1]/#\~/$HOME}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      :files) compset -P '*='; _files ;;
      :directories) compset -P '*='; _files -/ ;;
      *=$'\t'*) begun+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;; # a value follows
      ?*) described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  (( $#described == 0 )) || _describe -t values 'fp8lab' described
  (( $#begun == 0 )) || _describe -t keys 'fp8lab' begun -S ''
}
if [[ $funcstack[1] == _fp8lab ]]; then
  _fp8lab "$@"
else
  (( $+functions[compdef] )) || { autoload -U compinit && compinit -u; }
  compdef _fp8lab fp8lab
fi
)"},
    {"fish", R"(# fish completion for fp8lab. Use: fp8lab completion fish | source
function __fp8lab_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l program (string replace -r '^~' $HOME -- $words[1])
  set -l found
  set -l option (string match -r '^--.*?=' -- $current)
  set -l value (string replace -r '^--.*?=' '' -- $current)
  for line in ($program __complete $words[2..-1] "$current" 2>/dev/null)
    switch $line
      case :files
        set -a found "$option"(__fish_complete_path $value)
      case :directories
        set -a found "$option"(__fish_complete_directories $value)
      case '*'
        set -a found $line
    end
  end
  printf '%s\n' $found
end
complete -c fp8lab -f -a '(__fp8lab_complete)'
)"},
};

}  // namespace

Completion complete(const CLI::App& app, const std::vector<std::string>& words, const ValueTable& values) {
  return Completer(app, values)(words);
}

std::string completion_lines(const Completion& completion) {
  std::string out;
  for (const Candidate& candidate : completion.candidates) out += candidate.text + "\t" + candidate.description + "\n";
  if (completion.files) out += ":files\n";
  if (completion.directories) out += ":directories\n";
  return out;
}

std::string completion_script(std::string_view shell) {
  for (const Shell& row : kShells)
    if (row.name == shell) return std::string(row.script);
  return "";
}

std::vector<std::string> completion_shells() {
  std::vector<std::string> out;
  for (const Shell& row : kShells) out.emplace_back(row.name);
  return out;
}

}  // namespace fp8lab
