#include "harness/results/results.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "core/check.h"
#include "harness/measure/timeline.h"
#include "harness/results/document_file.h"
#include "harness/results/json_codec.h"
#include "harness/results/record_sample.h"
#include "harness/scenario/sample.h"
#include "harness/temporary_directory.h"
#include "memory/memory.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using Json = nlohmann::json;

using sample::record_named;
using sample::TemporaryDirectory;

/// Bytes that compression does not shorten.
std::string incompressible(std::size_t bytes) {
  std::string out(bytes, '\0');
  std::mt19937 generator(1);
  for (char& byte : out) byte = static_cast<char>(generator());
  return out;
}

TEST(ResultSet, AppendedCellsAreFinishedForTheNextRun) {
  const TemporaryDirectory dir;
  {
    ResultSet results(dir / "out", false);
    results.append(record_named("sample/a=1"));
    results.append(record_named("sample/a=2"));
  }
  ResultSet resumed(dir / "out", true);
  EXPECT_EQ(resumed.notice(), "");
  ASSERT_NE(resumed.find_finished("sample/a=1", "0011223344556677"), nullptr);
  EXPECT_EQ(resumed.find_finished("sample/a=1", "0011223344556677")->head.verdict, Verdict::kNotFixed);
  EXPECT_EQ(resumed.find_finished("sample/a=1", "another hash"), nullptr);
  EXPECT_EQ(resumed.find_finished("sample/a=3", "0011223344556677"), nullptr);
}

TEST(ResultSet, CellThatIsMeasuredAgainLeavesNoOlderTimeline) {
  const TemporaryDirectory dir;
  CellRecord record = record_named("sample/a=1");
  record.arms[Arm::kAfter].timeline_json = record.arms[Arm::kBefore].timeline_json = "{}";
  {
    ResultSet results(dir / "out", false);
    results.append(record);
  }
  record.arms[Arm::kBefore].timeline_json.clear();
  record.arms.erase(Arm::kAfter);
  ResultSet(dir / "out", true).append(record);
  for (const Arm arm : {Arm::kBefore, Arm::kAfter})
    EXPECT_FALSE(std::filesystem::exists(dir / "out" / timeline_path("sample/a=1", arm))) << name(arm);
}

std::string line_of(ResultSet& results, const std::string& id) { return record_to_json(results.read(id)); }

TEST(ResultSet, Records_AreReadBackFromTheirLines) {
  const TemporaryDirectory dir;
  const CellRecord one = record_named("sample/a=1"), two = record_named("sample/a=2");
  ResultSet results(dir / "out", false);
  results.append(one);
  results.append(two);
  CellRecord moved = one;
  moved.line = 77;
  results.update(moved);
  EXPECT_EQ(line_of(results, "sample/a=1"), record_to_json(moved));
  EXPECT_EQ(line_of(results, "sample/a=2"), record_to_json(two));
  const RecordList list = results.records({"sample/a=2", "sample/a=1"});
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list.heads[0].verdict, Verdict::kNotFixed);
  EXPECT_EQ(record_to_json(list.read(0)), record_to_json(two));
  EXPECT_EQ(record_to_json(list.read(1)), record_to_json(moved));
}

TEST(ResultSet, Timeline_WrittenBeforeItsCellFinishes_IsKept) {
  const TemporaryDirectory dir;
  CellRecord record = record_named("sample/a=1");
  ResultSet results(dir / "out", false);
  results.write_timeline("sample/a=1", Arm::kBefore, "{}");
  results.append(record);
  EXPECT_EQ(read_document(dir / "out" / timeline_path("sample/a=1", Arm::kBefore)), "{}");
  results.append(record);  // measured again, without a timeline
  EXPECT_FALSE(std::filesystem::exists(dir / "out" / timeline_path("sample/a=1", Arm::kBefore)));
}

TEST(ResultSet, Timeline_OfACellThatDoesNotFinish_IsRemoved) {
  const TemporaryDirectory dir;
  ResultSet results(dir / "out", false);
  results.write_timeline("sample/a=1", Arm::kBefore, "{}");
  results.finish({}, "{}", {});
  EXPECT_FALSE(std::filesystem::exists(dir / "out" / timeline_path("sample/a=1", Arm::kBefore)));
}

TEST(ResultSet, Timeline_OfAnArmMeasuredInAnotherCell_IsCopied) {
  const TemporaryDirectory dir;
  const auto file = [&](const std::string& id) { return dir / ("out/" + timeline_path(id, Arm::kAfter)); };
  ResultSet results(dir / "out", false);
  results.write_timeline("sample/a=1", Arm::kAfter, "from the first");
  CellRecord second = record_named("sample/a=2");
  second.arms[Arm::kAfter].measured_in = "sample/a=1";
  results.append(second);
  EXPECT_EQ(read_document(file("sample/a=2")), "from the first");
  results.write_timeline("sample/a=1", Arm::kAfter, "measured again");
  EXPECT_EQ(read_document(file("sample/a=2")), "from the first");
  EXPECT_EQ(read_document(file("sample/a=1")), "measured again");
}

TEST(ResultSet, TimelinesBeyondTheirMost_KeepTheLargestEffectOfEachScenarioAndFailedCells) {
  const TemporaryDirectory dir;
  ResultSet results(dir / "out", false);
  const auto add = [&](const std::string& id, Verdict verdict, double size) {
    CellRecord record = record_named(id);
    record.verdict = verdict;
    record.effect->size = size;
    for (const Arm arm : {Arm::kBefore, Arm::kAfter})
      results.write_timeline(id, arm, incompressible(kMostTimelineBytes / 5));
    results.append(record);
    EXPECT_EQ(results.read(id).timelines.at(Arm::kAfter), timeline_path(id, Arm::kAfter));
  };
  const auto has = [&](const std::string& id) {
    return std::filesystem::exists(dir / "out" / timeline_path(id, Arm::kBefore));
  };
  add("sample/a=1", Verdict::kConfirmed, 1);
  add("sample/a=2", Verdict::kConfirmed, 2);
  results.finish({"sample/a=1", "sample/a=2"}, "{}", {});
  EXPECT_TRUE(has("sample/a=1") && has("sample/a=2")) << "there is room for all";
  add("sample/a=3", Verdict::kNotFixed, 0);
  results.finish({"sample/a=1", "sample/a=2", "sample/a=3"}, "{}", {});
  EXPECT_FALSE(has("sample/a=1"));
  EXPECT_TRUE(has("sample/a=2") && has("sample/a=3"));
}

TEST(ResultSet, KilledResumedRunLeavesNoOlderDocuments) {
  const TemporaryDirectory dir;
  const std::vector<std::string> documents{"results.json", "junit.xml", "summary.md"};
  sample::write(dir / "out/results.jsonl", "");
  for (const std::string& name : documents) sample::write(dir / "out" / name, "from an earlier run");
  sample::write(dir / "out/timelines/x.before.json", "{}");
  ResultSet killed(dir / "out", true);
  killed.write_environment("{}");  // as every run does before its first cell
  for (const std::string& name : documents) EXPECT_FALSE(std::filesystem::exists(dir / "out" / name)) << name;
  EXPECT_TRUE(std::filesystem::exists(dir / "out/timelines/x.before.json"));
}

TEST(ResultSet, LastLineOfACellCounts) {
  const TemporaryDirectory dir;
  {
    ResultSet results(dir / "out", false);
    results.append(record_named("x"));
    CellRecord second = record_named("x");
    second.hash = "ffffffffffffffff";
    results.append(second);
  }
  ResultSet resumed(dir / "out", true);
  EXPECT_EQ(resumed.find_finished("x", "0011223344556677"), nullptr);
  EXPECT_NE(resumed.find_finished("x", "ffffffffffffffff"), nullptr);
}

TEST(ResultSet, ResumedCompleteRun_HasTheCellsOfResultsJson) {
  const TemporaryDirectory dir;
  const auto lines = dir / "out/results.jsonl";
  std::string text;
  {
    ResultSet results(dir / "out", false);
    results.append(record_named("first"));
    results.append(record_named("second"));
    text = sample::read(lines);
    results.finish({"first", "second"}, "{}", {});
    results.empty_lines();
  }
  EXPECT_EQ(sample::read(lines), "");
  for (const std::size_t killed_after : {std::size_t{0}, text.size() / 2 + 5, text.size()}) {
    // A resumed run that was killed while it copied the lines.
    sample::write(lines, text.substr(0, killed_after));
    ResultSet resumed(dir / "out", true);
    EXPECT_EQ(sample::read(lines), text) << killed_after;
    for (const char* id : {"first", "second"}) EXPECT_NE(resumed.find_finished(id, "0011223344556677"), nullptr);
    EXPECT_EQ(record_to_json(resumed.read("second")), record_to_json(record_named("second")));
  }
}

TEST(ResultSet, LineOfResultsJsonThatIsNoCell_IsNamed) {
  const TemporaryDirectory dir;
  sample::write(dir / "out/results.jsonl", "");
  sample::write(dir / "out/results.json", "{\"schema\": \"fp8lab.results/1\", \"cells\": [\n{\"id\":\"a\"}\n]}\n");
  const std::string error = support::error_of([&] { ResultSet(dir / "out", true); });
  EXPECT_NE(error.find("results.json:2: not a cell of an earlier run"), std::string::npos) << error;
}

TEST(ResultSet, TruncatedLastLineIsDroppedWithANotice) {
  const TemporaryDirectory dir;
  const auto lines = dir / "out/results.jsonl";
  {
    ResultSet results(dir / "out", false);
    results.append(record_named("first"));
    results.append(record_named("second"));
  }
  const std::string text = sample::read(lines);
  std::filesystem::resize_file(lines, text.size() - 10);
  {
    ResultSet resumed(dir / "out", true);
    EXPECT_NE(resumed.notice().find("cut short"), std::string::npos);
    EXPECT_NE(resumed.find_finished("first", "0011223344556677"), nullptr);
    EXPECT_EQ(resumed.find_finished("second", "0011223344556677"), nullptr);
    resumed.append(record_named("second"));
  }
  EXPECT_EQ(sample::read(lines), text);
}

TEST(ResultSet, DamagedLineInTheMiddleIsAnErrorWithItsNumber) {
  const TemporaryDirectory dir;
  sample::write(dir / "out/results.jsonl",
                record_to_json(record_named("a")) + "\nspoiled\n" + record_to_json(record_named("b")) + "\n");
  const std::string error = support::error_of([&] { ResultSet(dir / "out", true); });
  EXPECT_NE(error.find("results.jsonl:2:"), std::string::npos) << error;
}

TEST(ResultSet, SkippedTimedOutAndCrashedCellsRunAgain) {
  for (const Verdict verdict : {Verdict::kSkipped, Verdict::kTimeout, Verdict::kCrashed}) {
    const TemporaryDirectory dir;
    {
      ResultSet results(dir / "out", false);
      CellRecord record = record_named("x");
      record.verdict = verdict;
      results.append(record);
    }
    EXPECT_EQ(ResultSet(dir / "out", true).find_finished("x", "0011223344556677"), nullptr);
  }
}

TEST(ResultSet, WithoutResumeOlderResultsAreRemoved) {
  const TemporaryDirectory dir;
  {
    ResultSet results(dir / "out", false);
    CellRecord record = record_named("sample/a=1");
    record.arms[Arm::kBefore].timeline_json = "{}";
    results.append(record);
    results.finish({record.config.id}, "{}", {});
  }
  EXPECT_EQ(read_document(dir / "out/timelines/sample/a=1.before.json.gz"), "{}");
  const ResultSet results(dir / "out", false);
  EXPECT_EQ(sample::read(dir / "out/results.jsonl"), "");
  for (const char* file : {"results.json", "summary.md", "junit.xml", "timelines"})
    EXPECT_FALSE(std::filesystem::exists(dir / "out" / file)) << file;
}

TEST(ResultSet, FilesOfNoRunAreKept) {
  for (const char* name : {"results.json", "summary.md", "junit.xml", "environment.json", "timelines/mine.json"}) {
    const TemporaryDirectory dir;
    sample::write(dir / "out" / name, "mine");
    for (const bool resume : {false, true}) {
      const std::string error = support::error_of([&] { ResultSet(dir / "out", resume); });
      EXPECT_NE(error.find("it does not come from a run"), std::string::npos) << error;
    }
    EXPECT_EQ(sample::read(dir / "out" / name), "mine");
    EXPECT_FALSE(std::filesystem::exists(dir / "out/results.jsonl"));
  }
}

TEST(ResultSet, LinesOfNoRunAreKept) {
  for (const std::string mine : {"{\"mine\": 1}\n", "x", "{\"id\" : 1}"}) {
    const TemporaryDirectory dir;
    sample::write(dir / "out/results.jsonl", mine);
    sample::write(dir / "out/timelines/mine.json", mine);
    for (const bool resume : {false, true}) {
      const std::string error = support::error_of([&] { ResultSet(dir / "out", resume); });
      EXPECT_NE(error.find("results.jsonl: a run would replace it"), std::string::npos) << error;
    }
    EXPECT_EQ(sample::read(dir / "out/results.jsonl"), mine);
    EXPECT_EQ(sample::read(dir / "out/timelines/mine.json"), mine);
  }
}

TEST(ResultSet, TwoRunsCannotShareADirectory) {
  const TemporaryDirectory dir;
  const ResultSet first(dir / "out", false);
  EXPECT_THROW(ResultSet(dir / "out", true), Error);
}

TEST(ResultSet, UnusableDirectoryIsOneError) {
  const TemporaryDirectory dir;
  sample::write(dir / "file", "");
  const std::string error = support::error_of([&] { ResultSet(dir / "file", false); });
  EXPECT_NE(error.find((dir / "file").string()), std::string::npos) << error;
  EXPECT_THROW(ResultSet(dir / "file/below", false), Error);
}

/// Runs in a child process, because the limit cannot be lifted again.
void append_until_full(const std::filesystem::path& out) {
  ::signal(SIGXFSZ, SIG_IGN);
  ResultSet results(out, false);
  results.append(record_named("first"));
  const auto size = static_cast<rlim_t>(std::filesystem::file_size(out / "results.jsonl"));
  const rlimit limit{size + 100, size + 100};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  try {
    results.append(record_named("second"));
  } catch (const Error& error) {
    const bool clear =
        std::string(error.what()).find("results.jsonl: cannot be written: File too large") != std::string::npos;
    std::_Exit(clear ? 0 : 2);
  }
  std::_Exit(1);
}

TEST(ResultSet, FullDiskIsAnErrorAndLosesNoFinishedCell) {
  const TemporaryDirectory dir;
  EXPECT_EXIT(append_until_full(dir / "out"), ::testing::ExitedWithCode(0), "");
  ResultSet resumed(dir / "out", true);
  EXPECT_EQ(resumed.notice(), "") << "half a line was left behind";
  EXPECT_NE(resumed.find_finished("first", "0011223344556677"), nullptr);
}

TEST(ResultSet, TimelinePathsHaveNoSpecialCharacters) {
  EXPECT_EQ(timeline_path("a/device=meta,model.seq=8", Arm::kBefore),
            "timelines/a/device=meta,model.seq=8.before.json.gz");
  // Names of ids that differ only in such characters differ.
  EXPECT_EQ(timeline_path("a/x=b c\n", Arm::kAfter), "timelines/a/x=b_c_~949fa1982047e3a1.after.json.gz");
  EXPECT_NE(timeline_path("a/x=b c", Arm::kAfter), timeline_path("a/x=b_c", Arm::kAfter));
  EXPECT_EQ(timeline_path("a/corpus=../../b", Arm::kAfter),
            "timelines/a/corpus=__/__/b~966af6a2f3d4e200.after.json.gz");
  const std::string longest = "a/" + std::string(1000, 'x'), begin = "timelines/a/" + std::string(198, 'x');
  EXPECT_EQ(timeline_path(longest, Arm::kBf16), begin + "~5a438b8357b318d9.bf16.json.gz");
  EXPECT_EQ(timeline_path(longest + "\u00e9", Arm::kBf16), begin + "~147633330a428165.bf16.json.gz");
}

// Reports draw every event with its bytes, its holder, and the holder from which bytes moved.
TEST(Timeline, ContainsEveryEvent) {
  class Source final : public SegmentSource {
   public:
    std::byte* reserve(std::size_t bytes) override { return new std::byte[bytes]; }
    void release(std::byte* segment, std::size_t) noexcept override { delete[] segment; }
  };
  Memory memory(std::make_unique<Source>(), {.capacity_bytes = 0, .poison = false, .record_timeline = true});
  Ledger& ledger = memory.ledger();
  const HolderId flight = ledger.holder(HolderKind::kInFlight, "layers[0]"),
                 slot = ledger.holder(HolderKind::kSavedSlot, "a \"b\"", "x");
  ledger.set_phase(PhaseKind::kForward, 2);
  {
    BufferRef block = memory.allocate(100, flight);
    block.rename(slot);
    ledger.mark("here");
  }
  const Json json = Json::parse(timeline_json(ledger));
  EXPECT_EQ(json["events"], Json::array({{100, 100, 100, flight, "forward", 2},
                                         {0, 100, 100, slot, "forward", 2, flight},
                                         {-100, 100, 0, slot, "forward", 2}}));
  EXPECT_EQ(json["holders"][slot], (Json{{"kind", "saved slot"}, {"owner", "a \"b\""}, {"what", "x"}}));
  EXPECT_EQ(json["marks"],
            Json::array({{{"name", "here"}, {"live_bytes", 100}, {"retained_bytes", 100}, {"event", 2}}}));
}

}  // namespace
}  // namespace fp8lab
