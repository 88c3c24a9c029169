#pragma once

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

/// What may stand where a command line ends.
struct Completion {
  std::vector<Candidate> candidates;  ///< all begin with the last word
  bool files = false;                 ///< a file may stand there too
  bool directories = false;           ///< only directories may
};

/// The values that an option or argument takes, by its type's name ("DIR") or for arguments by their own ("PATH").
struct ValueWords {
  enum class Kind { kWords, kFiles, kDirectories };

  Kind kind = Kind::kWords;
  std::vector<Candidate> words;
};
using ValueTable = std::map<std::string, ValueWords, std::less<>>;

/// Completes the last of `words`, which follow the program's name. Everything comes from `app`'s own options and
/// commands, so that nothing can be missing; options of an empty group are hidden.
Completion complete(const CLI::App& app, const std::vector<std::string>& words, const ValueTable& values);

/// A line per candidate, "text<TAB>description", and ":files" or ":directories": what the shells' scripts read.
std::string completion_lines(const Completion& completion);

/// The script that makes `shell` ask the program; "" for a shell that is not known.
std::string completion_script(std::string_view shell);
std::vector<std::string> completion_shells();

/// The hidden command that the scripts call.
inline constexpr const char* kCompleteCommand = "__complete";

}  // namespace fp8lab
