#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "harness/cell/regular_file.h"

namespace fp8lab {

/// The text of a document, expanded if gzip has compressed it. Throws Error, which names the file, if it is no regular
/// file, if its compression is damaged, and if the text has more than `most` bytes.
std::string read_document(const std::filesystem::path& path, std::size_t most = kMostDocumentBytes);

/// `text` as gzip, which read_document() expands. Equal texts give equal bytes.
std::string compressed(std::string_view text);

}  // namespace fp8lab
