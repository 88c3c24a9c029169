#include "harness/results/results.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/measure/timeline.h"
#include "harness/results/json_codec.h"
#include "harness/sample.h"
#include "harness/temporary_directory.h"
#include "memory/memory.h"

namespace fp8lab {
namespace {

using sample::TemporaryDirectory;

CellRecord record_named(const std::string& id) {
  CellRecord out;
  out.config.scenario = "sample";
  out.config.id = id;
  out.config.axes = {{"device", "meta"}, {"checkpoint", "full"}};
  out.config.fix = "release_attention_tensors";
  out.config.device = "meta";
  out.config.model.hidden = 2048;
  out.config.training.recipe_options.margin = 2;
  out.config.measure = {"memory"};
  out.file = "scenarios/sample.yaml";
  out.title = "A sample";
  out.upstream = {"TransformerEngine#1935"};
  out.verdict = Verdict::kNotFixed;
  out.reason = "after \"leaks\"";
  out.seconds = 0.25;
  ArmResult& before = out.arms[Arm::kBefore];
  before.seconds = 0.125;
  before.metrics["memory.retained_bytes"] = {617611264, 617611264, "B", ""};
  before.metrics["parity.loss_gap"] = {std::nullopt, std::nullopt, "1", "device 'meta' computes no values"};
  before.retained_by_holder = {{"context of attention[2]: q, k, v", 205870421}, {"x", 1}};
  before.peak_by_holder = {{"parameter", 7}};
  before.sequence_hash = "0123456789abcdef";
  before.emulated = "products";
  before.losses = {2.5, 0.1};
  before.samples["host.pre_forward_ns"] = {700, 1250.5};
  before.noise = {{"layers[0].fc1.weight", "gradient", 28.25, ""}, {"output", "output", std::nullopt, "no noise"}};
  ArmResult& after = out.arms[Arm::kAfter];
  after.status = "crashed";
  after.reason = "ended by SIGSEGV";
  after.signal = "SIGSEGV";
  after.output_tail = "last\nwords";
  out.gates = {
      {"before memory.retained_bytes equals predicted", Side::kBefore, "memory.retained_bytes", true, 5, 5, ""},
      {"difference x", Side::kDifference, "memory.peak_bytes", std::nullopt, std::nullopt, 5, "absent"},
      {"after ends ok", Side::kAfter, "", false, std::nullopt, std::nullopt, "it ended crashed by SIGSEGV"}};
  Claim claim;
  claim.source = "TransformerEngine#1935";
  claim.words = "1070 MiB";
  claim.metric = "memory.peak_bytes";
  claim.value = 1070;
  claim.unit = "MiB";
  claim.note = "n";
  out.claims = {{claim, 5, std::nullopt}};
  out.hash = "0011223344556677";
  return out;
}

TEST(JsonCodec, ARecordReadsBackAsItWas) {
  const std::string once = record_to_json(record_named("sample/device=meta"));
  EXPECT_EQ(record_to_json(record_from_json(once)), once);
  EXPECT_EQ(once.find('\n'), std::string::npos);
  EXPECT_NE(once.find("\"value\":617611264,"), std::string::npos) << "full figures are written as integers: " << once;
}

TEST(JsonCodec, ACellReadsBackInEveryKey) {
  const Vocabulary vocabulary = sample::vocabulary();
  CellConfig cell;
  cell.scenario = "s";
  cell.id = "s/x=1";
  cell.axes = {{"x", "1"}};
  cell.measure = {"memory", "time"};
  cell.timeout_s = 2.5;
  for (const Key& key : keys()) {
    if (key.type == KeyType::kSwitch) key.set(cell, key.get(cell) != Value{true});
    if (key.type == KeyType::kInteger) key.set(cell, static_cast<std::int64_t>(key.high));
    if (key.type == KeyType::kNumber) key.set(cell, 0.1);
    if (key.type == KeyType::kWord) key.set(cell, key.words(vocabulary).back());
    if (key.type == KeyType::kMesh) key.set(cell, std::string("2x4"));
  }
  const CellConfig back = cell_from_json(cell_to_json(cell));
  for (const Key& key : keys()) EXPECT_EQ(key.get(back), key.get(cell)) << key.path;
  EXPECT_EQ(back.axes, cell.axes);
  EXPECT_EQ(back.measure, cell.measure);
  EXPECT_EQ(back.timeout_s, cell.timeout_s);
  EXPECT_EQ(cell_to_json(back), cell_to_json(cell));
}

TEST(JsonCodec, BetweenProcessesNothingIsLost) {
  ArmResult arm;
  arm.metrics["a"] = {std::nan(""), std::nullopt, "B", ""};
  arm.metrics["b"] = {INFINITY, -INFINITY, "B", ""};
  arm.metrics["c"] = {0.1, 1e300, "B", ""};
  arm.timeline_json = "{\"a\": \"\\n\"}";
  arm.notes = {"one", "two"};
  arm.values_hash = "00112233445566ff";
  const ArmResult back = arm_from_json(arm_to_json(arm));
  EXPECT_TRUE(std::isnan(*back.metrics.at("a").value));
  EXPECT_EQ(back.metrics.at("b").value, INFINITY);
  EXPECT_EQ(back.metrics.at("b").predicted, -INFINITY);
  EXPECT_EQ(back.metrics.at("c").value, 0.1);
  EXPECT_EQ(back.metrics.at("c").predicted, 1e300);
  EXPECT_EQ(back.timeline_json, arm.timeline_json);
  EXPECT_EQ(back.notes, arm.notes);
  EXPECT_EQ(back.values_hash, arm.values_hash);
}

TEST(JsonCodec, AFileNeverHoldsNotANumberButNullWithItsReason) {
  CellRecord record = record_named("x");
  record.arms[Arm::kBefore].metrics["memory.retained_bytes"].value = std::nan("");
  record.gates[0].observed = INFINITY;
  const std::string text = record_to_json(record);
  EXPECT_EQ(text.find(":nan"), std::string::npos);
  EXPECT_NE(text.find("\"memory.retained_bytes\":{\"value\":null,\"predicted\":617611264,\"unit\":\"B\",\"reason\":"
                      "\"the measured value is nan\"}"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\"detail\":\"the measured value is inf\""), std::string::npos);
}

TEST(JsonCodec, BytesThatAreNotTextAreReplaced) {
  CellRecord record = record_named("x");
  record.arms[Arm::kAfter].output_tail = "a\xFF\x01z";
  EXPECT_EQ(record_from_json(record_to_json(record)).arms.at(Arm::kAfter).output_tail, "a\xEF\xBF\xBD\x01z");
}

TEST(JsonCodec, OtherTextIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "nonsense", "{\"id\": 3}"}) {
    EXPECT_THROW(record_from_json(text), Error) << text;
    EXPECT_THROW(cell_from_json(text), Error) << text;
    EXPECT_THROW(arm_from_json(text), Error) << text;
  }
}

TEST(JsonCodec, TheHashFollowsWhateverTheVerdictDependsOn) {
  const Vocabulary vocabulary = sample::vocabulary();
  const std::string expect = "expect: [{metric: memory.peak_bytes, arm: after, at_most: 5}]\n";
  const auto hash = [&](const std::string& more) {
    return hash_of(plan_cells(parse_scenario(sample::kFixScenario + more, "f", vocabulary), vocabulary).at(0));
  };
  const std::string base = hash(expect);
  EXPECT_EQ(hash(expect), base);
  EXPECT_NE(hash("expect: [{metric: memory.peak_bytes, arm: after, at_most: 6}]\n"), base);
  EXPECT_NE(hash("expect: [{metric: memory.peak_bytes, arm: after, at_most: 5, abs: 1}]\n"), base);
  EXPECT_NE(hash(expect + "timeout: 9\n"), base);
  EXPECT_NE(hash(expect + "arch: blackwell\n"), base);
}

TEST(ResultSet, WhatIsAppendedIsThereForTheNextRun) {
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

TEST(ResultSet, ACellThatIsMeasuredAnewLeavesNoOlderTimeline) {
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

TEST(ResultSet, Timeline_WrittenBeforeItsCellFinishes_Stays) {
  const TemporaryDirectory dir;
  CellRecord record = record_named("sample/a=1");
  ResultSet results(dir / "out", false);
  results.write_timeline("sample/a=1", Arm::kBefore, "{}");
  results.append(record);
  EXPECT_EQ(sample::read(dir / "out" / timeline_path("sample/a=1", Arm::kBefore)), "{}");
  results.append(record);  // measured again, without a timeline
  EXPECT_FALSE(std::filesystem::exists(dir / "out" / timeline_path("sample/a=1", Arm::kBefore)));
}

TEST(ResultSet, Timeline_OfACellThatDoesNotFinish_Goes) {
  const TemporaryDirectory dir;
  ResultSet results(dir / "out", false);
  results.write_timeline("sample/a=1", Arm::kBefore, "{}");
  results.finish({}, "{}", {});
  EXPECT_FALSE(std::filesystem::exists(dir / "out" / timeline_path("sample/a=1", Arm::kBefore)));
}

TEST(ResultSet, Timeline_OfAnArmMeasuredInAnotherCell_IsThatCells) {
  const TemporaryDirectory dir;
  const auto file = [&](const std::string& id) { return dir / ("out/" + timeline_path(id, Arm::kAfter)); };
  ResultSet results(dir / "out", false);
  results.write_timeline("sample/a=1", Arm::kAfter, "of the first");
  CellRecord second = record_named("sample/a=2");
  second.arms[Arm::kAfter].measured_in = "sample/a=1";
  results.append(second);
  EXPECT_EQ(sample::read(file("sample/a=2")), "of the first");
  results.write_timeline("sample/a=1", Arm::kAfter, "measured again");
  EXPECT_EQ(sample::read(file("sample/a=2")), "of the first");
  EXPECT_EQ(sample::read(file("sample/a=1")), "measured again");
}

TEST(ResultSet, AResumedRunThatIsKilledLeavesNoOlderDocuments) {
  const TemporaryDirectory dir;
  const std::vector<std::string> documents{"results.json", "junit.xml", "summary.md"};
  sample::write(dir / "out/results.jsonl", "");
  for (const std::string& name : documents) sample::write(dir / "out" / name, "of an earlier run");
  sample::write(dir / "out/timelines/x.before.json", "{}");
  ResultSet killed(dir / "out", true);
  killed.write_environment("{}");  // as every run does before its first cell
  for (const std::string& name : documents) EXPECT_FALSE(std::filesystem::exists(dir / "out" / name)) << name;
  EXPECT_TRUE(std::filesystem::exists(dir / "out/timelines/x.before.json"));
}

TEST(ResultSet, TheLastLineOfACellWins) {
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

TEST(ResultSet, ALineCutShortIsDroppedWithANotice) {
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

TEST(ResultSet, ASpoiledLineInTheMiddleIsAnErrorWithItsNumber) {
  const TemporaryDirectory dir;
  sample::write(dir / "out/results.jsonl",
                record_to_json(record_named("a")) + "\nspoiled\n" + record_to_json(record_named("b")) + "\n");
  try {
    ResultSet(dir / "out", true);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("results.jsonl:2:"), std::string::npos) << error.what();
  }
}

TEST(ResultSet, CellsThatWereSkippedTookTooLongOrCrashedRunAgain) {
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

TEST(ResultSet, WithoutResumeItStartsAnew) {
  const TemporaryDirectory dir;
  {
    ResultSet results(dir / "out", false);
    CellRecord record = record_named("sample/a=1");
    record.arms[Arm::kBefore].timeline_json = "{}";
    results.append(record);
    results.finish({record.config.id}, "{}", {});
  }
  EXPECT_EQ(sample::read(dir / "out/timelines/sample/a=1.before.json"), "{}");
  const ResultSet results(dir / "out", false);
  EXPECT_EQ(sample::read(dir / "out/results.jsonl"), "");
  for (const char* file : {"results.json", "summary.md", "junit.xml", "timelines"})
    EXPECT_FALSE(std::filesystem::exists(dir / "out" / file)) << file;
}

TEST(ResultSet, WhatNoRunHasLeftIsKept) {
  for (const char* name : {"results.json", "summary.md", "junit.xml", "environment.json", "timelines/mine.json"}) {
    const TemporaryDirectory dir;
    sample::write(dir / "out" / name, "mine");
    for (const bool resume : {false, true}) try {
        ResultSet(dir / "out", resume);
        ADD_FAILURE() << name << " was taken";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("no run left it"), std::string::npos) << error.what();
      }
    EXPECT_EQ(sample::read(dir / "out" / name), "mine");
    EXPECT_FALSE(std::filesystem::exists(dir / "out/results.jsonl"));
  }
}

TEST(ResultSet, LinesThatNoRunHasLeftAreKept) {
  for (const std::string mine : {"{\"mine\": 1}\n", "x", "{\"id\" : 1}"}) {
    const TemporaryDirectory dir;
    sample::write(dir / "out/results.jsonl", mine);
    sample::write(dir / "out/timelines/mine.json", mine);
    for (const bool resume : {false, true}) try {
        ResultSet(dir / "out", resume);
        ADD_FAILURE() << mine << " was taken";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("results.jsonl: a run would replace it"), std::string::npos)
            << error.what();
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

TEST(ResultSet, AnUnusableDirectoryIsOneClearError) {
  const TemporaryDirectory dir;
  sample::write(dir / "file", "");
  try {
    ResultSet(dir / "file", false);
    FAIL() << "a file was taken for a directory";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find((dir / "file").string()), std::string::npos) << error.what();
  }
  EXPECT_THROW(ResultSet(dir / "file/below", false), Error);
}

/// In a process of its own, because the limit cannot be lifted again.
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

TEST(ResultSet, AFullDiskIsAnErrorAndLosesNothing) {
  const TemporaryDirectory dir;
  EXPECT_EXIT(append_until_full(dir / "out"), ::testing::ExitedWithCode(0), "");
  ResultSet resumed(dir / "out", true);
  EXPECT_EQ(resumed.notice(), "") << "half a line was left behind";
  EXPECT_NE(resumed.find_finished("first", "0011223344556677"), nullptr);
}

TEST(ResultSet, TimelinesHaveSafeNames) {
  EXPECT_EQ(timeline_path("a/device=meta,model.seq=8", Arm::kBefore),
            "timelines/a/device=meta,model.seq=8.before.json");
  EXPECT_EQ(timeline_path("a/x=b c\n", Arm::kAfter), "timelines/a/x=b_c_.after.json");
  const std::string longest = "a/" + std::string(1000, 'x'), begin = "timelines/a/" + std::string(198, 'x');
  // Reports compute them too: Timelines of correctness/reports/load_test.py has the same ones.
  EXPECT_EQ(timeline_path(longest, Arm::kBf16), begin + "~5a438b8357b318d9.bf16.json");
  EXPECT_EQ(timeline_path(longest + "\u00e9", Arm::kBf16), begin + "~147633330a428165.bf16.json");
}

// What a report draws: every event with its bytes, its holder, and from whom bytes moved.
TEST(Timeline, TellsEveryEvent) {
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
  using Json = nlohmann::json;
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
