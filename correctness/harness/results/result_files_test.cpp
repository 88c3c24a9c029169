#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/results/document_file.h"
#include "harness/results/json_reader.h"
#include "harness/results/record_sample.h"
#include "harness/results/results.h"
#include "harness/scenario/sample.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"

// What else may be at the paths that a run reads and writes: pipes, links, devices, bombs.
namespace fp8lab {
namespace {

namespace fs = std::filesystem;

using sample::record_named;
using sample::TemporaryDirectory;

using support::error_of;

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool has_text(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void make_pipe(const fs::path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }

TEST(RegularFile, PipeSocketDeviceFolderAndNothing_AreNamedAndNotWaitedFor) {
  const TemporaryDirectory dir;
  make_pipe(dir / "pipe");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = (dir / "socket").string();
  ASSERT_LT(name.size(), sizeof address.sun_path);
  name.copy(address.sun_path, name.size());
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  fs::create_symlink(dir / "pipe", dir / "link to a pipe");
  for (const auto& [path, why] : {std::pair<fs::path, std::string>{dir / "pipe", "not a file but a pipe"},
                                  {dir / "link to a pipe", "not a file but a pipe"},
                                  {name, "not a file but a socket"},
                                  {"/dev/zero", "not a file but a device"},
                                  {dir / ".", "not a file but a folder"},
                                  {dir / "nothing", "no such file"}}) {
    const std::string error = error_of([&file = path] { (void)read_regular_file(file); });
    EXPECT_TRUE(has_text(error, path.string() + ": " + why)) << error;
  }
  ::close(socket);
}

TEST(RegularFile, AsManyBytesAsTheLimit_AreRead_OneMoreIsRefused) {
  const TemporaryDirectory dir;
  const std::string text(200'000, 'x');
  sample::write((dir / "file").string(), text);
  EXPECT_EQ(read_regular_file(dir / "file", text.size()), text);
  EXPECT_TRUE(
      has_text(error_of([&] { (void)read_regular_file(dir / "file", text.size() - 1); }), "more than 199999 bytes"));
  EXPECT_FALSE(read_regular_file("/proc/self/status").empty()) << "its size is 0 until it is read";
}

TEST(DocumentFile, CompressedTextBeyondTheLimit_IsRefusedByName) {
  const TemporaryDirectory dir;
  const std::string file = (dir / "results.json").string(), text(3'000'000, ' ');
  sample::write(file, text);
  ASSERT_EQ(std::system(("gzip " + file).c_str()), 0);
  EXPECT_EQ(read_document(file + ".gz", text.size()), text);
  const std::string error = error_of([&] { (void)read_document(file + ".gz", text.size() - 1); });
  EXPECT_TRUE(has_text(error, "results.json.gz: cannot be uncompressed: it expands to more than 2999999 bytes"))
      << error;
}

TEST(DocumentFile, CompressedText_IsWhatGzipReads) {
  const TemporaryDirectory dir;
  const std::string file = (dir / "timeline.json").string();
  for (const std::size_t size : {0u, 1u, 3'000'000u}) {
    const std::string text = std::string(size / 2, 'x') + std::string(size - size / 2, '\n');
    sample::write(file + ".gz", compressed(text));
    EXPECT_EQ(read_document(file + ".gz"), text) << size;
    ASSERT_EQ(std::system(("gzip --decompress --force " + file + ".gz").c_str()), 0) << size;
    EXPECT_EQ(sample::read(file), text) << size;
  }
}

TEST(JsonReader, NumberOfAMillionDigits_MakesAShortError) {
  const std::string digits(1'000'000, '1');
  for (const std::string& text : {"{\"a\": " + digits + "}", "{\"a\": 1" + digits + ".5e", digits + "x"})
    EXPECT_LT(error_of([&] { (void)JsonDocument(text).root().at("a").integer(0, 5); }).size(), 500u);
  const std::string error =
      error_of([&] { (void)JsonDocument("{\"a\": \"" + digits + "\"}").root().at("a").integer(0, 5); });
  EXPECT_TRUE(has_text(error, "`a` must be an integer")) << error;
  EXPECT_LT(error.size(), 500u);
}

TEST(ResultSet, PipeInThePlaceOfItsFiles_IsRefusedBeforeACellRuns) {
  for (const char* name : {"results.jsonl", "results.json.part", "environment.json.part", "junit.xml.part",
                           "summary.md.part", "results.json", "environment.json"}) {
    const TemporaryDirectory dir;
    make_pipe(dir / name);
    const std::string error = error_of([&] { ResultSet(fs::path(dir / "."), false); });
    EXPECT_TRUE(has_text(error, name)) << name << ": " << error;
  }
}

TEST(ResultSet, PipeAsEnvironmentOfAResumedRun_IsRefused) {
  const TemporaryDirectory dir;
  ResultSet(dir / "out", false).append(record_named("sample/a=1"));
  make_pipe(dir / "out" / "environment.json");
  ResultSet resumed(dir / "out", true);
  EXPECT_TRUE(has_text(error_of([&] { resumed.write_environment("{}"); }), "environment.json: not the file of a run"));
}

TEST(ResultSet, LinksInItsFolder_AreRefused_AndTheirTargetsStay) {
  for (const char* name : {"results.jsonl", "results.json.part", "environment.json.part", "junit.xml.part"}) {
    const TemporaryDirectory dir;
    sample::write((dir / "victim").string(), "precious");
    fs::create_directory(dir / "out");
    fs::create_symlink(dir / "victim", dir / "out" / name);
    EXPECT_TRUE(has_text(error_of([&] { ResultSet(dir / "out", false); }), "a link")) << name;
    EXPECT_EQ(content(dir / "victim"), "precious") << name;
  }
  const TemporaryDirectory dir;
  fs::create_directory(dir / "out");
  fs::create_symlink(dir / "made", dir / "out" / "results.jsonl");
  EXPECT_NE(error_of([&] { ResultSet(dir / "out", false); }), "");
  EXPECT_FALSE(fs::exists(dir / "made")) << "the target of a dangling link is not created";
}

TEST(ResultSet, LinkedFolderOfTimelines_IsRefusedByAResumedRun) {
  const TemporaryDirectory dir;
  ResultSet(dir / "out", false).append(record_named("sample/a=1"));
  fs::create_directory(dir / "elsewhere");
  fs::create_directory_symlink(dir / "elsewhere", dir / "out" / "timelines");
  EXPECT_TRUE(has_text(error_of([&] { ResultSet(dir / "out", true); }), "timelines: a run would replace it"));
}

TEST(ResultSet, DocumentsThatAreLinks_AreReplaced_AndTheirTargetsStay) {
  const TemporaryDirectory dir;
  sample::write((dir / "victim").string(), "precious");
  ResultSet results(dir / "out", false);
  results.append(record_named("sample/a=1"));
  fs::create_symlink(dir / "victim", dir / "out" / "summary.md");
  results.finish({"sample/a=1"}, "{}", {});
  EXPECT_EQ(content(dir / "victim"), "precious");
  EXPECT_FALSE(fs::is_symlink(dir / "out" / "summary.md"));
}

TEST(ResultSet, PartOfAKilledRun_IsReplaced) {
  const TemporaryDirectory dir;
  ResultSet(dir / "out", false).append(record_named("sample/a=1"));
  sample::write((dir / "out" / "results.json.part").string(), "half");
  ResultSet results(dir / "out", true);
  results.finish({"sample/a=1"}, "{}", {});
  EXPECT_FALSE(fs::exists(dir / "out" / "results.json.part"));
  EXPECT_TRUE(content(dir / "out" / "results.json").starts_with("{\"schema\""));
}

TEST(ResultSet, LinesThatSomethingElseChanged_AreNamed_AndNoResultsAreWritten) {
  for (const bool shorter : {true, false}) {
    const TemporaryDirectory dir;
    ResultSet results(dir / "out", false);
    results.append(record_named("sample/a=1"));
    const fs::path lines = dir / "out" / "results.jsonl";
    if (shorter)
      fs::resize_file(lines, fs::file_size(lines) / 2);
    else
      sample::write(lines.string(), std::string(fs::file_size(lines), 'x'));
    const std::string error = error_of([&] { results.finish({"sample/a=1"}, "{}", {}); });
    EXPECT_TRUE(has_text(error, "results.jsonl: cannot be read back")) << error;
    EXPECT_FALSE(fs::exists(dir / "out" / "results.json"));
    EXPECT_FALSE(fs::exists(dir / "out" / "results.json.part"));
  }
}

}  // namespace
}  // namespace fp8lab
