#include "harness/results/reports.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/holder_bytes.h"
#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/results/environment.h"
#include "harness/results/record_list.h"

namespace fp8lab {
namespace {

CellRecord record(const std::string& id, Verdict verdict, const std::string& reason = "") {
  CellRecord out;
  out.config.scenario = id.substr(0, id.find('/'));
  out.config.id = id;
  out.file = "f.yaml";
  out.title = "Title";
  out.verdict = verdict;
  out.reason = reason;
  out.seconds = 0.5;
  return out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Gates, ShowFiguresWithTheirUnits) {
  Gate gate;
  gate.metric = "memory.peak_bytes";
  gate.observed = 107292;
  gate.limit = 5;
  EXPECT_EQ(figures_of(gate), "; observed 107292 B; limit 5 B");
  gate.metric = "parity.loss_gap";
  gate.limit.reset();
  EXPECT_EQ(figures_of(gate), "; observed 107292");
}

TEST(ShortFigures, OfDifferentValuesThatRoundAlike_HaveMoreDecimals) {
  using Pair = std::pair<std::string, std::string>;
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  EXPECT_EQ(short_figures(13.31 * kGiB, 13.34 * kGiB, "B"), (Pair{"13.31 GiB", "13.34 GiB"}));
  EXPECT_EQ(short_figures(14280766260.0, 14280766261.0, "B"), (Pair{"14280766260 B", "14280766261 B"}));
  EXPECT_EQ(short_figures(13.3 * kGiB, 15.0 * kGiB, "B"), (Pair{"13.3 GiB", "15.0 GiB"}));
  EXPECT_EQ(short_figures(13.3 * kGiB, 13.3 * kGiB, "B"), (Pair{"13.3 GiB", "13.3 GiB"}));
  EXPECT_EQ(short_figures(0.12345671, 0.12345672, "1"), (Pair{"0.12345671", "0.12345672"}));
}

TEST(JUnit, CountsAndPlacesEveryVerdict) {
  std::vector<CellRecord> records{record("a/x=1", Verdict::kConfirmed),
                                  record("a/x=2", Verdict::kNotFixed, "leaks <1>"),
                                  record("a/x=3", Verdict::kSkipped, "no GPU"),
                                  record("b", Verdict::kCrashed, "SIGSEGV"),
                                  record("c", Verdict::kTimeout, "slow"),
                                  record("d", Verdict::kInconclusive, "absent"),
                                  record("e/control=same", Verdict::kInconclusive, "too noisy")};
  records[1].gates = {{"after x equals 0", Side::kAfter, "memory.peak_bytes", false, 5, 0, ""}};
  records[6].gates = {{"after x equals 0", Side::kAfter, "time.step_ms", {}, 5, 5, ""}};
  records[3].arms[Arm::kBefore].output_tail = "last ]]> words";
  const std::string xml = junit_xml(
      records, {.date = "2026-01-02T03:04:05Z", .environment = "", .complete = true, .planned = 7, .seconds = 0});
  EXPECT_TRUE(contains(xml, R"(<testsuites name="fp8lab" tests="7" failures="2" errors="2" skipped="2" time="3.500">)"))
      << xml;
  EXPECT_TRUE(contains(
      xml,
      R"(<testsuite name="a" tests="3" failures="1" errors="0" skipped="1" time="1.500" timestamp="2026-01-02T03:04:05Z">)"));
  EXPECT_TRUE(contains(xml, R"(<testcase classname="a" name="a/x=1" time="0.500" file="f.yaml"/>)"));
  EXPECT_TRUE(contains(xml, R"(<failure message="leaks &lt;1&gt;" type="not_fixed">leaks &lt;1&gt;)"));
  EXPECT_TRUE(contains(xml, "FAIL: after x equals 0; observed 5 B; limit 0 B"));
  EXPECT_TRUE(contains(xml, R"(<skipped message="no GPU"/>)"));
  EXPECT_TRUE(contains(xml, R"(<error message="SIGSEGV" type="crashed">)"));
  EXPECT_TRUE(contains(xml, "last ]]&gt; words"));
  EXPECT_TRUE(contains(xml, R"(<failure message="absent" type="inconclusive">)"));
  EXPECT_TRUE(contains(xml, R"(<skipped message="too noisy"/>)"));
}

TEST(Summary, StartsWithCellsThatNeedAttentionAndShowsEveryFigure) {
  CellRecord good = record("leak/device=meta", Verdict::kConfirmed);
  good.config.measure = {"memory"};
  good.config.fix = "release_attention_tensors";
  good.upstream = {"TransformerEngine#1935"};
  good.arms[Arm::kBefore].metrics["memory.retained_bytes"] = {618135552, 618135552, "B", ""};
  good.arms[Arm::kBefore].metrics["memory.peak_bytes"] = {1e9, std::nullopt, "B", ""};
  good.arms[Arm::kAfter].metrics["memory.retained_bytes"] = {0, 0, "B", ""};
  good.arms[Arm::kBf16].metrics["memory.retained_bytes"] = {0, std::nullopt, "B", ""};
  for (int i = 0; i < 20; ++i)
    good.arms[Arm::kBefore].retained_by_holder.emplace_back("layer|" + std::to_string(i), 1000);
  good.gates = {{"g", Side::kBefore, "memory.retained_bytes", true, 1, 1, ""}};
  Claim claim;
  claim.source = "TransformerEngine#1935";
  claim.words = "1070 MiB -> 290,920 KiB";
  claim.metric = "memory.retained_bytes";
  claim.value = 785.9;
  claim.unit = "MiB";
  good.claims = {{claim, 618135552, 618135552}};
  const CellRecord bad = record("other", Verdict::kFail, "it | fails");
  const std::string text = summary_markdown(
      {good, bad}, {.date = "today", .environment = "env", .complete = false, .planned = 3, .seconds = 1.25});
  EXPECT_TRUE(text.starts_with("# fp8lab: 1 confirmed, 1 fail\n")) << text;
  EXPECT_TRUE(contains(text, "**Stopped before its end: 2 of 3 cells finished.**"));
  EXPECT_LT(text.find("### fail: `other`"), text.find("## leak"));
  EXPECT_TRUE(contains(text, "it \\| fails"));
  EXPECT_TRUE(contains(text,
                       "| device=meta | confirmed | memory.retained_bytes | 589.5 MiB (618,135,552 B) | 0 B | 0 B | "
                       "589.5 MiB (618,135,552 B) | 0 B |"))
      << text;
  EXPECT_TRUE(contains(text, "| 785.9 MiB | 589.5 MiB (618,135,552 B) | 589.5 MiB (618,135,552 B) |")) << text;
  EXPECT_TRUE(contains(text, "| layer\\|0 | 1,000 B |"));
  EXPECT_TRUE(contains(text, "| the rest | 7.81 KiB (8,000 B) |")) << text;
}

TEST(Summary, ShowsTheMainMetricsOfWhatTheCellMeasures) {
  CellRecord timed = record("timed", Verdict::kPass);
  for (const Metric& metric : metrics()) timed.arms[Arm::kAfter].metrics[std::string(metric.name)].value = 12.5;
  const auto shows = [&](const char* group, std::string_view metric) {
    timed.config.measure = {group};
    return contains(summary_markdown({timed}, {}), fmt::format("| {} | – | 12.5", for_markdown(metric)));
  };
  EXPECT_TRUE(shows("time", "time.step_ms"));
  EXPECT_TRUE(shows("parity", "parity.loss_gap"));
  EXPECT_TRUE(shows("parity", "parity.output_sqnr_db"));
  EXPECT_TRUE(shows("traffic", "traffic.all_gather_bytes"));
  EXPECT_TRUE(shows("host", "host.pre_forward_ns"));
  EXPECT_FALSE(shows("time", "memory.peak_bytes"));
  EXPECT_TRUE(shows("memory", "memory.peak_bytes"));
}

TEST(Summary, NamesEveryFixOfAScenario) {
  CellRecord one = record("leak/fix=b", Verdict::kConfirmed), other = record("leak/fix=a", Verdict::kConfirmed);
  one.config.fix = "b";
  other.config.fix = "a";
  EXPECT_TRUE(contains(summary_markdown({one, other}, {}), ". Fixes: `a`, `b`\n"));
  EXPECT_TRUE(contains(summary_markdown({one, one}, {}), ". Fix: `b`\n"));
}

TEST(Summary, ShowsTheFirstNotesOfAScenarioWithTheirCells) {
  CellRecord one = record("leak/a=1", Verdict::kPass), other = record("leak/a=2", Verdict::kPass);
  for (const char* note : {"fc1.weight stays in 16 bits", "b", "c", "d", "e", "f"})
    one.arms[Arm::kAfter].notes.emplace_back(note);
  other.arms[Arm::kAfter].notes = {"fc1.weight stays in 16 bits"};
  const std::string text = summary_markdown({one, other}, {});
  EXPECT_TRUE(contains(text, "Notes:\n\n- fc1.weight stays in 16 bits (2 of 2 cells)\n- b (1 of 2 cells)\n")) << text;
  EXPECT_TRUE(contains(text, "- and 2 other notes in `results.json`\n")) << text;
  EXPECT_FALSE(contains(summary_markdown({record("leak/a=1", Verdict::kPass)}, {}), "Notes:"));
}

TEST(Holders, AreGroupedOverIndicesWithTheirSum) {
  EXPECT_EQ(
      folded_by_index(
          {{"weight of layers[0].fc1", 3}, {"input", 5}, {"weight of layers[12].fc1", 4}, {"odd[", 1}, {"a[x]b[]", 1}}),
      (HolderBytes{{"weight of layers[*].fc1", 7}, {"input", 5}, {"odd[", 1}, {"a[x]b[]", 1}}));
  EXPECT_EQ(folded_by_index({}), HolderBytes{});
}

TEST(Summary, WithoutCellsReadsNoCells) {
  EXPECT_EQ(counts_of({}), "no cells");
  EXPECT_EQ(counts_of({Verdict::kSkipped, Verdict::kPass, Verdict::kPass}), "2 pass, 1 skipped");
}

TEST(Units, AreReadableAndExact) {
  EXPECT_EQ(figure(0, "B"), "0 B");
  EXPECT_EQ(figure(1023, "B"), "1,023 B");
  EXPECT_EQ(figure(-2048, "B"), "-2.00 KiB (-2,048 B)");
  EXPECT_EQ(figure(147468, "B"), "144.0 KiB (147,468 B)") << "0.1 MiB would be one digit";
  EXPECT_EQ(figure(68681728, "B"), "65.5 MiB (68,681,728 B)");
  EXPECT_EQ(figure(2147483648.0 * 100, "B"), "200.0 GiB (214,748,364,800 B)");
  EXPECT_EQ(figure(2.125, "ms"), "2.125 ms");
  EXPECT_EQ(figure(12, "1"), "12");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-999), "-999");
  EXPECT_EQ(figure(1574090.5, "B"), "1.50 MiB (1,574,090.5 B)");
  EXPECT_EQ(grouped(-1234.5), "-1,234.5");
  EXPECT_EQ(grouped(1234.567), "1,234.57");
  EXPECT_EQ(grouped(1e20), "1e+20") << "no digits that a double does not have";
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(1048576), "1048576");
  EXPECT_EQ(in_base_units("MiB", "B"), 1048576);
  EXPECT_EQ(in_base_units("us", "ms"), 0.001);
  EXPECT_EQ(in_base_units("us", "ns"), 1000);
  EXPECT_EQ(in_base_units("GB", "B"), 1e9) << "and not GiB";
  EXPECT_EQ(in_base_units("kB", "B"), 1000);
  EXPECT_EQ(in_base_units("%", "1"), 0.01);
  EXPECT_EQ(in_base_units("ms", "B"), std::nullopt);
  for (const Metric& metric : metrics()) EXPECT_FALSE(units_of(metric.unit).empty()) << metric.name;
}

TEST(Metrics, AreFoundByNameAndByFamily) {
  EXPECT_EQ(find_metric("memory.peak_bytes")->unit, "B");
  EXPECT_EQ(find_metric("memory.by_holder.saved_slot")->name, "memory.by_holder.*");
  EXPECT_EQ(find_metric("memory.by_holder.saved\tslot"), nullptr);
  EXPECT_EQ(find_metric("memory.by_holder."), nullptr);
  EXPECT_EQ(find_metric("memory.peak_byte"), nullptr);
  for (const Metric& metric : metrics()) {
    EXPECT_EQ(find_metric(metric.name), &metric);
    const auto groups = metric_groups();
    EXPECT_TRUE(std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return g.name == metric.group(); }))
        << metric.name;
  }
}

TEST(Spelling, SuggestsTheNearestWord) {
  const std::vector<std::string> words{"recipe", "ranks", "release_attention_tensors", "mxfp8", "SIGSEGV"};
  EXPECT_EQ(nearest("recpie", words), "recipe");
  EXPECT_EQ(nearest("Release-Attention-Tensors", words), "release_attention_tensors");
  EXPECT_EQ(nearest("mxpf8", words), "mxfp8");
  EXPECT_EQ(nearest("segv", words), "SIGSEGV");
  EXPECT_EQ(nearest("ms", words), "");
  for (const char* general : {"fp8", "FP8", "float8"}) EXPECT_EQ(nearest(general, words), "") << "not only mxfp8";
  EXPECT_EQ(nearest("something else", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(listed(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b", "c"}), "a, b or c");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b", "c"}, 2), "a, b or one of 1 more");
}

TEST(Environment, RecordsNoSecrets) {
  EXPECT_TRUE(may_record_variable("NCCL_DEBUG"));
  EXPECT_TRUE(may_record_variable("FP8LAB_CPU_ISA"));
  EXPECT_TRUE(may_record_variable("SLURM_PROCID"));
  EXPECT_FALSE(may_record_variable("SLURM_JWT"));
  EXPECT_FALSE(may_record_variable("NCCL_AUTH_TOKEN"));
  EXPECT_FALSE(may_record_variable("AWS_SECRET_ACCESS_KEY"));
  EXPECT_FALSE(may_record_variable("HOME"));
  ::setenv("SLURM_JWT", "eyJ0eXAi", 1);
  ::setenv("NCCL_DEBUG", "INFO", 1);
  const std::string json = environment_json({}, {});
  EXPECT_FALSE(contains(json, "eyJ0eXAi"));
  EXPECT_TRUE(contains(json, "\"NCCL_DEBUG\": \"INFO\""));
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace fp8lab
