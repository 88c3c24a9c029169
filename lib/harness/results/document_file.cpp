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

std::string compressed(std::string_view text) {
  constexpr int kGzip = 16, kMemoryLevel = 8;
  z_stream stream{};
  if (::deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzip + MAX_WBITS, kMemoryLevel, Z_DEFAULT_STRATEGY) != Z_OK)
    fail("cannot compress: zlib has no memory");
  std::string out(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  check(result == Z_STREAM_END && stream.total_in == text.size(), "zlib did not compress the entire text");
  return out;
}

}  // namespace fp8lab
