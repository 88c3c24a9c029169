#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// The largest file that is taken for a corpus.
inline constexpr std::uintmax_t kMostCorpusBytes = std::uintmax_t{1} << 31;

/// The bytes of the file at `path`; of an empty path the King James Bible, 4.4 MB with a line for each verse, as the
/// program `bible` of Debian's package bible-kjv prints it. Throws Error that names the file or program and the remedy.
std::string read_corpus(const std::filesystem::path& path);

}  // namespace fp8lab
