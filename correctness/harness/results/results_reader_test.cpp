#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/results/compare/compare.h"
#include "harness/results/json_codec.h"
#include "harness/results/mutations.h"
#include "harness/results/record_list.h"
#include "harness/temporary_directory.h"

// The readers of results.json, results.jsonl and environment.json, on documents that no run has written. Each is read,
// or refused by an Error that names the place; nothing else is thrown.
namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

const std::string kEnvironment =
    R"({"program": {"version": "1", "git_dirty": false}, "libraries": {"fmt": "9"}, "cpu": {"model": "x", "cores": 2}, )"
    R"("devices": {"cpu": "host", "cuda": "unavailable: none"}, "variables": {}})";

CellRecord cell(const std::string& id) {
  CellRecord out;
  out.config.scenario = "sample";
  out.config.id = id;
  out.config.axes = {{"device", "cpu"}, {"recipe", "delayed"}};
  out.config.measure = {"memory", "parity"};
  out.file = "sample.yaml";
  out.line = 2;
  out.title = "A sample";
  out.upstream = {"TransformerEngine#1935"};
  out.verdict = Verdict::kConfirmed;
  out.hash = "0011223344556677";
  for (const Arm arm : kArms) {
    ArmResult& result = out.arms[arm];
    result.metrics["memory.peak_bytes"] = {1000, 1000, "B", ""};
    result.metrics["memory.by_holder.parameter"] = {400, {}, "B", ""};
    result.metrics["host.pre_forward_ns"] = {std::nan(""), {}, "ns", ""};
    result.retained_by_holder = {{"context of a: q", 5}};
    result.peak_by_holder = {{"parameter of a", 9}};
    result.losses = {1, 0.5};
    result.samples["host.pre_forward_ns"] = {1, 2, 3};
    result.noise = {{"w", "weight", 30.0, ""}, {"output", "output", {}, "equal"}};
    result.casts = {
        {.tensor = "w", .steps = {3}, .sqnr_db = {31.0}, .clip_fraction = {0.5}, .underflow_fraction = {0}}};
    result.notes = {"a note"};
    result.sequence_hash = "00ff";
  }
  Gate gate;
  gate.text = "after memory.peak_bytes equals 1000";
  gate.metric = "memory.peak_bytes";
  gate.pass = true;
  gate.observed = gate.limit = 1000;
  gate.line = 7;
  out.gates = {gate};
  ClaimRecord claim;
  claim.claim.source = "TransformerEngine#1935";
  claim.claim.words = "20 GB";
  claim.claim.metric = "memory.peak_bytes";
  claim.claim.unit = "GB";
  claim.measured = 1000;
  out.claims = {claim};
  return out;
}

std::string good_results() { return results_json({cell("sample/a=1"), cell("sample/a=2")}, kEnvironment, true); }

/// A value of another type, or a value that no run writes.
Json odd_value(sample::Random& random) {
  static const std::vector<Json> kValues{nullptr,
                                         true,
                                         false,
                                         0,
                                         -1,
                                         1e308,
                                         -1e308,
                                         9223372036854775807,
                                         18446744073709551615u,
                                         0.5,
                                         "",
                                         "nan",
                                         "x\n::error::y",
                                         "\x1b[31m",
                                         "..",
                                         "/etc/passwd",
                                         Json::array(),
                                         Json::object(),
                                         Json::array({1}),
                                         Json{{"id", "other"}},
                                         Json{{"a", {1, {2}}}}};
  return random.one_of(kValues);
}

/// Replaces or removes one value anywhere in `json`.
void change_one(Json& json, sample::Random& random) {
  Json* at = &json;
  while (at->is_structured() && !at->empty() && (at == &json || random.below(5) != 0))
    at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(random.below(at->size())));
  if (at->is_structured() && !at->empty() && random.below(2) == 0)
    at->erase(std::next(at->begin(), static_cast<std::ptrdiff_t>(random.below(at->size()))));
  else
    *at = odd_value(random);
}

const std::vector<std::string> kJsonTokens{
    "null",    "true", "1e999", "-", "1e308",   "99999999999999999999", "\"\\u001b\"", "\"\\ud800\"", "[[[[",
    "{\"a\":", "]",    "}",     ",", "\"id\":", "\"value\":",           "NaN",         "\x1b",        "\xFF",
    "\n"};

/// The message of the Error that `read` throws, or ""; any other exception fails the test.
template <class Read>
std::string refusal(const Read& read, const std::string& document) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()), "") << document;
    EXPECT_EQ(std::string(error.what()).find("json.exception"), std::string::npos) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "a bare " << typeid(error).name() << ": " << error.what() << " of\n" << document;
  }
  return "";
}

TEST(ResultsReader, MutatedResults_AreReadOrRefusedByPath) {
  const StoredRun good = run_from_json(good_results());
  const Json document = Json::parse(good_results());
  sample::Random random(1);
  int refused = 0, read = 0;
  for (int i = 0; i < sample::mutations(3000); ++i) {
    const bool structured = i % 2 == 0;
    std::string text;
    if (structured) {
      Json changed = document;
      change_one(changed, random);
      text = changed.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else {
      text = sample::mutated(good_results(), kJsonTokens, random);
    }
    const std::string error = refusal(
        [&] {
          const StoredRun run = run_from_json(text);
          for (const auto& [a, b] : {std::pair(&good, &run), std::pair(&run, &good)}) {
            const RunComparison comparison = compare_runs(*a, *b);
            EXPECT_FALSE(sample::has_control_characters(comparison_text(comparison)))
                << comparison_text(comparison) << text;
            EXPECT_TRUE(Json::accept(comparison_json(comparison))) << text;
          }
          const RunSummary summary{.date = "", .environment = "", .complete = true, .planned = 2, .seconds = 0};
          EXPECT_FALSE(sample::has_control_characters(summary_markdown(run.cells, summary))) << text;
          EXPECT_FALSE(sample::has_control_characters(junit_xml(run.cells, summary))) << text;
          EXPECT_TRUE(Json::accept(results_json(run.cells, run.environment_json, true))) << text;
        },
        text);
    (error.empty() ? read : refused) += 1;
    const bool has_path = error.find('`') != std::string::npos || error.starts_with("the document");
    EXPECT_TRUE(!structured || error.empty() || has_path) << error << " of\n" << text;
    if (HasFailure()) break;
  }
  std::printf("results.json: %d refused, %d read\n", refused, read);
  EXPECT_GT(refused, 0);
  EXPECT_GT(read, 0);
}

TEST(ResultsReader, MutatedLinesOfAnEarlierRun_AreReadOrRefusedByFileAndLine) {
  const sample::TemporaryDirectory directory;
  const std::string good = record_to_json(cell("sample/a=1")) + "\n" + record_to_json(cell("sample/a=2")) + "\n";
  const std::string file = (directory / "results.jsonl").string(),
                    environment = (directory / "environment.json").string();
  const std::string tail = good.substr(1);
  sample::Random random(2);
  int refused = 0, read = 0;
  for (int i = 0; i < sample::mutations(600); ++i) {
    const bool lines = i % 2 == 0;
    // A file that does not start as a cell belongs to no run; another test covers that.
    sample::write(file, lines ? good.substr(0, 7) + sample::mutated(good.substr(7), kJsonTokens, random) : good);
    sample::write(environment, lines ? kEnvironment : sample::mutated(kEnvironment, kJsonTokens, random));
    const std::string text = sample::read(file) + sample::read(environment);
    const std::string error = refusal(
        [&] {
          ResultSet earlier(directory.string(), true);
          earlier.write_environment(kEnvironment);
        },
        text);
    (error.empty() ? read : refused) += 1;
    if (!error.empty()) {
      const bool named = error.starts_with(file + ":") || error.starts_with(environment + ":") ||
                         error.starts_with(directory.string() + ": its cells were measured by another program");
      EXPECT_TRUE(named) << error;
      EXPECT_NE(error.find("--resume"), std::string::npos) << error;
    }
    if (HasFailure()) break;
  }
  std::printf("results.jsonl, environment.json: %d refused, %d read\n", refused, read);
  EXPECT_GT(refused, 0);
  EXPECT_GT(read, 0);
}

/// The error of reading good results in which `from` was replaced by `to`.
std::string error_after(const std::string& from, const std::string& to) {
  std::string text = good_results();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return refusal([&] { run_from_json(text); }, text);
}

TEST(ResultsReader, ValueOfAnotherType_IsNamedByCellAndPath) {
  EXPECT_EQ(error_after("\"value\":1000,", "\"value\":\"many\","),
            "cell sample/a=1: `cells[0].arms.before.metrics.\"memory.peak_bytes\".value` must be a number or null, but "
            "is the text "
            "\"many\"");
  EXPECT_EQ(error_after("\"unit\":\"B\"", "\"unit\":3"),
            "cell sample/a=1: `cells[0].arms.before.metrics.\"memory.by_holder.parameter\".unit` must be text, but is "
            "the number 3");
  EXPECT_EQ(error_after("\"verdict\":\"confirmed\"", "\"verdict\":\"splendid\""),
            "cell sample/a=1: `cells[0].verdict` must be a verdict of this program, but is the text \"splendid\"");
  EXPECT_EQ(error_after("\"bytes\":5", "\"bytes\":1e300"),
            "cell sample/a=1: `cells[0].arms.before.retained_by_holder[0].bytes` must be an integer, but is the "
            "number 1e+300");
  EXPECT_EQ(error_after("\"title\":\"A sample\",", ""), "cell sample/a=1: `cells[0].title` is missing");
  EXPECT_EQ(error_after("\"id\":\"sample/a=2\"", "\"id\":\"sample/a=1\""),
            "cell sample/a=1: `cells[1]` is there twice: results of two runs are mixed");
  EXPECT_EQ(error_after("\"complete\": true", "\"complete\": 1"),
            "`complete` must be true or false, but is the number 1");
  EXPECT_EQ(error_after(kEnvironment, "5"), "`environment` must be an object, but is the number 5");
}

TEST(ResultsReader, RenamedMetric_IsReadByItsPresentName) {
  const std::string former = "parity.gathered_equals_whole";
  CellRecord old = cell("sample/a=1");
  old.arms[Arm::kAfter].metrics[former] = {1, {}, "1", ""};
  const ArmResult arm = record_from_json(record_to_json(old)).arms.at(Arm::kAfter);
  EXPECT_EQ(arm.metrics.at("parity.gathered_equals_unsharded").value, 1.0);
  EXPECT_FALSE(arm.metrics.contains(former));
  for (const Metric& metric : metrics()) EXPECT_EQ(find_metric(metric.former_name), nullptr) << metric.name;
}

TEST(ResultsReader, DocumentThatIsTooDeepOrTooLarge_IsRefused) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_EQ(error_after(kEnvironment, "{\"a\":\n" + deep + "}"), "line 2: nested deeper than 64 levels");
  std::string wide = "{";
  for (int i = 0; i < 100000; ++i) wide += "\"" + std::to_string(i) + "\":1,";
  EXPECT_EQ(error_after(kEnvironment, wide + "\"last\":1}"), "line 1: an object of more than 10000 members");
}

TEST(ResultsReader, EnvironmentWithoutMembers_IsCompared) {
  for (const char* environment : {"{}", R"({"cpu": {}})", R"({"": 1})"}) {
    const StoredRun run = run_from_json(results_json({cell("a")}, environment, true));
    EXPECT_EQ(compare_runs(run, run_from_json(good_results())).exit_code(), 1) << environment;
  }
}

}  // namespace
}  // namespace fp8lab
