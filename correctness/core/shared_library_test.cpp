#include "core/shared_library.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "core/check.h"
#include "support/error_of.h"
#include "support/paths.h"

// The function that the libraries built for this test export, and a function that none of them has.
extern "C" int fp8lab_sample_answer();
extern "C" int fp8lab_sample_question(int);

namespace fp8lab {
namespace {

const std::string kFolder = paths::kSampleLibraries;
constexpr const char* kAbsent = "libfp8lab_absent.so.9";
constexpr const char* kCannotOpen = "cannot open shared object file: No such file or directory";

SharedLibrary::Wanted sample(std::vector<std::string> names, std::string folder = {}) {
  return {.title = "Sample", .names = std::move(names), .folder = std::move(folder), .remedy = "install Sample 9"};
}

struct Answers : SharedLibrary {
  explicit Answers(Wanted wanted) : SharedLibrary(std::move(wanted)) {}
  decltype(&::fp8lab_sample_answer) answer = find("fp8lab_sample_answer");
};

struct Questions : SharedLibrary {
  explicit Questions(Wanted wanted) : SharedLibrary(std::move(wanted)) {}
  decltype(&::fp8lab_sample_answer) answer = find("fp8lab_sample_answer");
  decltype(&::fp8lab_sample_question) question = find("fp8lab_sample_question");
  decltype(&::fp8lab_sample_question) another = find("fp8lab_sample_another");
};

struct TooOld : Questions {
  explicit TooOld(Wanted wanted) : Questions(std::move(wanted)) { refuse("is 2.1"); }
};

TEST(SharedLibrary, LibraryOfTheLoaderPrecedesThatOfTheFolder) {
  const Answers found(sample({"libfp8lab_sample.so.3"}, kFolder));
  ASSERT_EQ(found.unavailable_reason(), "");
  EXPECT_EQ(found.answer(), 1);
  EXPECT_NE(found.file(), kFolder + "/libfp8lab_sample.so.3");
  EXPECT_EQ(std::filesystem::path(found.file()).filename(), "libfp8lab_sample.so.3");
}

TEST(SharedLibrary, LibraryOfTheFolderIsUsedIfTheLoaderHasNone) {
  const Answers found(sample({kAbsent, "libfp8lab_sample.so.4"}, kFolder));
  ASSERT_EQ(found.unavailable_reason(), "");
  EXPECT_EQ(found.answer(), 4);
  EXPECT_EQ(found.file(), kFolder + "/libfp8lab_sample.so.4");
}

TEST(SharedLibrary, FirstNameThatIsFoundIsUsed) {
  EXPECT_EQ(Answers(sample({"libfp8lab_sample.so.4", "libfp8lab_sample.so.3"}, kFolder)).answer(), 4);
  EXPECT_EQ(Answers(sample({kAbsent, "libfp8lab_sample.so.3", "libfp8lab_sample.so.4"}, kFolder)).answer(), 1);
}

TEST(SharedLibrary, MissingLibraryNamesTheFilesTriedAndTheRemedy) {
  const Answers absent(sample({kAbsent}, kFolder));
  EXPECT_EQ(absent.unavailable_reason(), std::string("Sample cannot be loaded (") + kAbsent + ": " + kCannotOpen +
                                             "; " + kFolder + "/" + kAbsent + ": " + kCannotOpen +
                                             "); install Sample 9");
  EXPECT_EQ(absent.answer, nullptr);
  EXPECT_EQ(absent.file(), "");
  EXPECT_EQ(Answers(sample({kAbsent})).unavailable_reason(),
            std::string("Sample cannot be loaded (") + kAbsent + ": " + kCannotOpen + "); install Sample 9");
}

TEST(SharedLibrary, LibraryThatLacksAFunctionNamesTheFirstOne) {
  const Questions found(sample({"libfp8lab_sample.so.4"}, kFolder));
  EXPECT_EQ(found.unavailable_reason(),
            "Sample: " + kFolder + "/libfp8lab_sample.so.4 has no function 'fp8lab_sample_question'; install Sample 9");
  EXPECT_EQ(found.question, nullptr);
  EXPECT_EQ(found.another, nullptr);
}

TEST(SharedLibrary, TooOldLibraryNamesItsVersionInsteadOfMissingFunctions) {
  EXPECT_EQ(TooOld(sample({"libfp8lab_sample.so.4"}, kFolder)).unavailable_reason(),
            "Sample: " + kFolder + "/libfp8lab_sample.so.4 is 2.1; install Sample 9");
}

TEST(SharedLibrary, FileThatIsNoLibraryNamesTheLoadersError) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "fp8lab_shared_library_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libfp8lab_text.so") << std::string(4096, 'x');
  const std::string reason = Answers(sample({"libfp8lab_text.so"}, folder)).unavailable_reason();
  std::filesystem::remove_all(folder);
  EXPECT_NE(reason.find((folder / "libfp8lab_text.so").string() + ": invalid ELF header); install Sample 9"),
            std::string::npos)
      << reason;
}

struct Absent : Questions {
  Absent() : Questions(sample({kAbsent})) {}
};

TEST(SharedLibrary, NeedingAMissingLibraryThrowsItsReason) {
  EXPECT_EQ(find_library<Absent>().question, nullptr);
  const std::string error = support::error_of([&] { need_library<Absent>(); });
  EXPECT_EQ(error, find_library<Absent>().unavailable_reason());
  EXPECT_NE(error, "");
}

struct Counted : Answers {
  Counted() : Answers(sample({"libfp8lab_sample.so.4"}, kFolder)) { ++opened; }
  static inline std::atomic<int> opened = 0;
};

TEST(SharedLibrary, ManyThreadsOpenItOnce) {
  EXPECT_EQ(Counted::opened, 0);
  std::array<const Counted*, 8> found{};
  std::barrier together(static_cast<std::ptrdiff_t>(found.size()));
  {
    std::array<std::jthread, 8> threads;
    for (std::size_t i = 0; i < threads.size(); ++i)
      threads[i] = std::jthread([&, i] {
        together.arrive_and_wait();
        found[i] = &need_library<Counted>();
        EXPECT_EQ(found[i]->answer(), 4);
      });
  }
  EXPECT_EQ(Counted::opened, 1);
  for (const Counted* library : found) EXPECT_EQ(library, found[0]);
}

}  // namespace
}  // namespace fp8lab
