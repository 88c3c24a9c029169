#include "harness/results/json_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/results/record_sample.h"
#include "harness/results/results.h"
#include "harness/scenario/parsed.h"
#include "harness/scenario/sample.h"

namespace fp8lab {
namespace {

using Json = nlohmann::json;

using sample::record_named;

TEST(JsonCodec, RecordReadsBackAsWritten) {
  const std::string once = record_to_json(record_named("sample/device=meta"));
  EXPECT_EQ(record_to_json(record_from_json(once)), once);
  EXPECT_EQ(once.find('\n'), std::string::npos);
  EXPECT_NE(once.find("\"value\":617611264,"), std::string::npos)
      << "integers are written without a fraction: " << once;
}

TEST(JsonCodec, RecordSaysWhetherItsCellIsGood) {
  const auto conclusions = [](const CellRecord& record) {
    const Json json = Json::parse(record_to_json(record));
    return std::pair(json.at("good").get<bool>(), json.value("undecided", false));
  };
  CellRecord record = record_named("sample/control=same");
  record.verdict = Verdict::kPass;
  EXPECT_EQ(conclusions(record), std::pair(true, false));
  record.verdict = Verdict::kFail;
  EXPECT_EQ(conclusions(record), std::pair(false, false));
  record.verdict = Verdict::kInconclusive;
  for (Gate& gate : record.gates) gate.pass.reset(), gate.observed = gate.limit = 1;
  EXPECT_EQ(conclusions(record), std::pair(true, true));
  record.gates.at(0).observed.reset();
  EXPECT_EQ(conclusions(record), std::pair(false, false)) << "a figure is absent";
}

TEST(JsonCodec, EveryKeyOfACellReadsBackAsWritten) {
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
    if (key.type == KeyType::kText) key.set(cell, std::string("2.14"));
    if (key.type == KeyType::kFile) key.set(cell, std::string("prose.txt"));
  }
  const CellConfig back = cell_from_json(cell_to_json(cell));
  for (const Key& key : keys()) EXPECT_EQ(key.get(back), key.get(cell)) << key.path;
  EXPECT_EQ(back.axes, cell.axes);
  EXPECT_EQ(back.measure, cell.measure);
  EXPECT_EQ(back.timeout_s, cell.timeout_s);
  EXPECT_EQ(cell_to_json(back), cell_to_json(cell));
}

TEST(JsonCodec, NumbersOfAnArmPassBetweenProcessesUnchanged) {
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

TEST(JsonCodec, NanIsWrittenAsNullWithItsReason) {
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

TEST(JsonCodec, BytesThatAreNotUtf8AreReplaced) {
  CellRecord record = record_named("x");
  record.arms[Arm::kAfter].output_tail = "a\xFF\x01z";
  EXPECT_EQ(record_from_json(record_to_json(record)).arms.at(Arm::kAfter).output_tail, "a\xEF\xBF\xBD\x01z");
}

TEST(JsonCodec, TextThatIsNoDocumentIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "nonsense", "{\"id\": 3}"}) {
    EXPECT_THROW(record_from_json(text), Error) << text;
    EXPECT_THROW(cell_from_json(text), Error) << text;
    EXPECT_THROW(arm_from_json(text), Error) << text;
  }
}

TEST(JsonCodec, HashChangesWithEverythingThatTheVerdictDependsOn) {
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

TEST(JsonCodec, TheHashKnowsATextByItsBytes) {
  const auto hash = [](const char* path, const char* checksum) {
    PlannedCell cell;
    cell.config.training.corpus = path;
    cell.text_checksum = checksum;
    return hash_of(cell);
  };
  EXPECT_EQ(hash("texts/a", "aa"), hash("/home/me/texts/a", "aa"));
  EXPECT_NE(hash("texts/a", "aa"), hash("texts/a", "bb"));
  EXPECT_NE(hash("", "aa"), hash("", "bb"));  // the default text of two versions of its package
  EXPECT_NE(hash("texts/a", ""), hash("texts/b", ""));
}

}  // namespace
}  // namespace fp8lab
