#include "harness/data/corpus.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <system_error>

#include "core/check.h"
#include "harness/cell/regular_file.h"

namespace fp8lab {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    fail(fmt::format("corpus '{}': {}", path.string(), error ? error.message() : "not a file"));
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) fail(fmt::format("corpus '{}': {}", path.string(), error.message()));
  if (bytes > kMostCorpusBytes)
    fail(fmt::format("corpus '{}': {} bytes, more than {}; name a part of it", path.string(), bytes, kMostCorpusBytes));
  try {
    return read_regular_file(path, kMostCorpusBytes);
  } catch (const Error& bad) {
    fail(fmt::format("corpus {}", bad.what()));
  }
}

std::string read_bible() {
  constexpr std::string_view kBegins = "Ge1:1 ", kRemedy =
                                                     "install the package bible-kjv, as ci/setup does, or name "
                                                     "a file in `training.corpus`";
  std::FILE* const pipe = popen("bible -f gen1:1-rev22:21 </dev/null 2>/dev/null", "re");
  if (pipe == nullptr) fail(fmt::format("the default corpus: no process can be started for it; {}", kRemedy));
  std::string text;
  std::array<char, 1 << 16> part;
  for (std::size_t bytes = 0; (bytes = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    text.append(part.data(), bytes);
  const int status = pclose(pipe);
  if (status != 0 || !text.starts_with(kBegins))
    fail(fmt::format("the default corpus: the program `bible` is missing or prints no text; {}", kRemedy));
  return text;
}

}  // namespace

std::string read_corpus(const std::filesystem::path& path) { return path.empty() ? read_bible() : read_file(path); }

}  // namespace fp8lab
