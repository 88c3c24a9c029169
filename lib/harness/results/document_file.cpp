#include "harness/results/document_file.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <memory>

#include "core/check.h"

namespace fp8lab {

std::string read_document(const std::filesystem::path& path, std::size_t most) {
  const auto refuse = [&](const std::string& why) {
    fail(fmt::format("{}: cannot be uncompressed: {}", path.string(), why));
  };
  const OpenFile file = OpenFile::for_reading(path);
  const int descriptor = ::dup(file.descriptor());
  // zlib passes text that is not compressed through.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> gzip(::gzdopen(descriptor, "rb"), ::gzclose_r);
  if (!gzip) {
    ::close(descriptor);
    refuse("there is no memory, or no descriptor");
  }
  std::string text;
  std::array<char, 65536> buffer;
  for (int n = 1; n > 0;) {
    n = ::gzread(gzip.get(), buffer.data(), buffer.size());
    if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
    if (text.size() <= most) continue;
    if (::gzdirect(gzip.get())) refuse_size(path, most);
    refuse(fmt::format("it expands to more than {} bytes, the most that is read of such a file", most));
  }
  int error = Z_OK;
  const std::string why = ::gzerror(gzip.get(), &error);  // "<fd:4>: unexpected end of file"
  if (error != Z_OK) refuse(why.substr(why.find(' ') + 1));
  return text;
}

}  // namespace fp8lab
