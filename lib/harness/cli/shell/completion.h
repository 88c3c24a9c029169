#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace fp8lab {

struct Candidate {
  std::string text;
  std::string description;
};

/// The completions of the last word of a command line.
struct Completion {
  std::vector<Candidate> candidates;  ///< each begins with the last word
  bool files = false;                 ///< files are allowed too
  bool directories = false;           ///< directories are allowed too, other files are not
};

/// The values that an option or an argument accepts. A ValueTable finds them by the type name of the option ("DIR") or
/// by the name of the argument ("PATH").
struct ValueWords {
  enum class Kind { kWords, kFiles, kDirectories };

  Kind kind = Kind::kWords;
  std::vector<Candidate> words = {};
  /// For values KEY=VALUE, whose keys are `words`, each with its "=": the values of each key.
  std::map<std::string, std::vector<Candidate>, std::less<>> of_word = {};
};
using ValueTable = std::map<std::string, std::function<ValueWords()>, std::less<>>;

/// Completes the last of `words`, the command line after the program's name. Reads the options and commands of `app`
/// itself, so that none can be missing; options in an empty group are hidden.
Completion complete(const CLI::App& app, const std::vector<std::string>& words, const ValueTable& values);

/// The text that the shells' scripts read: a line "text<TAB>description" per candidate, then ":files" or
/// ":directories".
std::string completion_lines(const Completion& completion);

/// The script with which `shell` gets completions from the program; "" for an unknown shell.
std::string completion_script(std::string_view shell);
std::vector<std::string> completion_shells();

/// The hidden command that the scripts call.
inline constexpr const char* kCompleteCommand = "__complete";

}  // namespace fp8lab
