#include "harness/cli/result_schemas.h"

#include <nlohmann/json.hpp>

#include "harness/results/compare.h"
#include "harness/results/json_codec.h"
#include "harness/results/verdict.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

const Json kText{{"type", "string"}};
const Json kTextOrNull{{"type", {"string", "null"}}};
const Json kNumber{{"type", "number"}};
const Json kNumberOrNull{{"type", {"number", "null"}}};
const Json kFlag{{"type", "boolean"}};
const Json kInteger{{"type", "integer"}};
const Json kCount{{"type", "integer"}, {"minimum", 0}};
const Json kHash{{"type", "string"}, {"pattern", "^[0-9a-f]{16}$"}};

Json described(Json schema, std::string_view description) {
  schema["description"] = description;
  return schema;
}
Json reference(std::string_view definition) { return {{"$ref", "#/$defs/" + std::string(definition)}}; }
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json map_of(Json values) { return {{"type", "object"}, {"additionalProperties", std::move(values)}}; }

/// A schema that allows the names of all values in `rows`.
template <class Rows>
Json one_of(const Rows& rows) {
  Json names = Json::array();
  for (const auto row : rows) names.push_back(name(row));
  return {{"enum", names}};
}

/// A schema of an object with exactly these members; a member whose name ends in '?' is optional.
Json object(std::initializer_list<std::pair<std::string_view, Json>> members) {
  Json required = Json::array(), properties = Json::object();
  for (const auto& [member, schema] : members) {
    const bool optional = member.ends_with('?');
    const std::string name(member.substr(0, member.size() - (optional ? 1 : 0)));
    if (!optional) required.push_back(name);
    properties[name] = schema;
  }
  return {{"type", "object"}, {"additionalProperties", false}, {"required", required}, {"properties", properties}};
}

Json document(std::string_view id, std::string_view title, const Json& root) {
  Json out{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"$id", id}, {"title", title}};
  out.update(root);
  return out;
}

Json arm_schema() {
  const Json holders = list_of(object({{"holder", kText}, {"bytes", kInteger}}));
  return object(
      {{"status", {{"enum", arm_statuses()}}},
       {"reason", kTextOrNull},
       {"seconds", {{"type", "number"}, {"minimum", 0}}},
       {"measured_in?", described(kText, "Id of the cell that ran this arm for this cell too: both ask for the same.")},
       {"signal?", kText},
       {"output_tail?", kText},
       {"metrics", map_of(reference("metric"))},
       {"retained_by_holder", holders},
       {"peak_by_holder", holders},
       {"notes?", described(list_of(kText), "Where the run differs from what the cell asks for, and why.")},
       {"losses?", described(list_of(kNumberOrNull),
                             "By step, the mean over ranks; null: not finite. Of more than 1024 steps 1024, evenly "
                             "spaced: the i-th of n, from 0, is of step i * (steps - 1) / (n - 1), rounded down.")},
       {"validation_losses?",
        described(list_of(object({{"step", kCount}, {"loss", kNumberOrNull}})),
                  "The mean over batches and ranks by the number of steps trained before; null: not finite. Of more "
                  "than 1024 validations 1024, evenly spaced as losses are.")},
       {"samples?", described(map_of(list_of(kNumberOrNull)),
                              "The samples of which a metric is the median, ascending; of many, 64 of evenly spaced "
                              "rank, the least and the greatest among them.")},
       {"by_process?", described(map_of(list_of(kNumberOrNull)),
                                 "By timed metric, the figure of each process that ran the arm, of which the metric is "
                                 "the median; processes of the same place in the lists of two arms ran in turns.")},
       {"noise?", described(list_of(object({{"tensor", kText},
                                            {"of", {{"enum", {"output", "gradient", "weight"}}}},
                                            {"sqnr_db", kNumberOrNull},
                                            {"reason?", described(kText, "why it is null")}})),
                            "Signal to quantization noise against BF16 by tensor, of the last step.")},
       {"casts?",
        described(
            list_of(object({{"tensor", kText},
                            {"steps", described(list_of(kCount), "from 0; the lists below have a figure for each")},
                            {"sqnr_db", list_of(kNumberOrNull)},
                            {"clip_fraction", list_of(kNumberOrNull)},
                            {"underflow_fraction", list_of(kNumberOrNull)}})),
            "By tensor and at some steps: what casts to eight bits changed, clipped and lost.")},
       {"values_hash?", described(kHash, "Over the losses of all ranks and the weights as each of them sees them.")},
       {"emulated?", described(kText, "What the device emulates for the modelled architecture.")},
       {"sequence_hash", kTextOrNull}});
}

Json cell_schema() {
  Json arms = Json::object();
  for (const Arm arm : kArms) arms[std::string(name(arm))] = reference("arm");
  return described(
      object({{"id", kText},
              {"scenario", kText},
              {"file", kText},
              {"line?", described(kCount, "where the scenario begins in its file; 0: unknown")},
              {"title", kText},
              {"upstream", list_of(kText)},
              {"axes", map_of(kText)},
              {"ranks", {{"type", "integer"}, {"minimum", 1}}},
              {"fix", kTextOrNull},
              {"counterfactual?", described(kFlag, "true: no upstream release was ever without the fix")},
              {"verdict", one_of(kVerdicts)},
              {"reason", kTextOrNull},
              {"seconds", {{"type", "number"}, {"minimum", 0}}},
              {"arms", {{"type", "object"}, {"additionalProperties", false}, {"properties", arms}}},
              {"gates", list_of(reference("gate"))},
              {"claims", list_of(reference("claim"))},
              {"measure", list_of(kText)},
              {"config", described({{"type", "object"}}, "every key of the scenario by path, axes applied")},
              {"hash", kHash}}),
      "also one line of results.jsonl");
}

}  // namespace

std::string results_schema() {
  Json out = document(
      kResultsSchema, "fp8lab results",
      object({{"schema", {{"const", kResultsSchema}}},
              {"complete", described(kFlag, "false when the run was stopped before its last cell")},
              {"environment",
               {{"type", "object"}, {"required", {"program", "libraries", "host", "cpu", "devices", "variables"}}}},
              {"cells", list_of(reference("cell"))}}));
  Json& definitions = out["$defs"];
  definitions["cell"] = cell_schema();
  definitions["arm"] = arm_schema();
  definitions["metric"] = object({{"value", kNumberOrNull},
                                  {"predicted", kNumberOrNull},
                                  {"unit", kText},
                                  {"reason?", described(kText, "why the value is null")}});
  definitions["gate"] = object(
      {{"text", kText},
       {"arm", one_of(kSides)},
       {"metric", kTextOrNull},
       {"pass", described({{"type", {"boolean", "null"}}}, "null: undecided")},
       {"observed", kNumberOrNull},
       {"limit", kNumberOrNull},
       {"ratio?", described(object({{"value", kNumber},
                                    {"low", kNumber},
                                    {"high", kNumber},
                                    {"visible", described(kNumber, "half the width of the interval")},
                                    {"pairs", kCount}}),
                            "Of a timed figure to another arm's, with its 99 % interval, over pairs of processes.")},
       {"detail?", kText},
       {"line?", described({{"type", "integer"}, {"minimum", 1}}, "of the expectation, in the scenario's file")}});
  definitions["claim"] =
      object({{"source", kText},
              {"words", kText},
              {"metric", kText},
              {"arm", one_of(kSides)},
              {"value", described(kNumber, "in `unit`; predicted and measured are in the metric's own unit")},
              {"unit", kText},
              {"predicted", kNumberOrNull},
              {"measured", kNumberOrNull},
              {"note?", kText}});
  return out.dump(2);
}

std::string comparison_schema() {
  const Json value{{"type", {"string", "number", "null"}}};
  const Json change = object({{"kind", one_of(kChangeKinds)},
                              {"direction", one_of(kDirections)},
                              {"id", kText},
                              {"file", kText},
                              {"line", described(kCount, "of the file; 0: unknown")},
                              {"regression", kFlag},
                              {"allowed", described(kFlag, "worse, and --allow matches")},
                              {"reason", kTextOrNull},
                              {"text", described(kText, "the change in words, without the cell")},
                              {"arm?", kText},
                              {"metric?", kText},
                              {"unit?", kText},
                              {"was", value},
                              {"is", value}});
  const Json finding = object({{"id", kText},
                               {"direction", described(one_of(kDirections), "neutral: a time, which is not gated")},
                               {"regression", kFlag},
                               {"arm", kTextOrNull},
                               {"metric", kTextOrNull},
                               {"unit", kTextOrNull},
                               {"was", kNumberOrNull},
                               {"is", kNumberOrNull},
                               {"phase", kTextOrNull},
                               {"holder", kTextOrNull},
                               {"holder_bytes", kNumberOrNull},
                               {"also", described(list_of(kText), "metrics that changed with it")},
                               {"since", kTextOrNull},
                               {"text", kText}});
  const Json timing =
      object({{"id", kText}, {"arm", kText}, {"metric", kText}, {"unit", kText}, {"was", kNumber}, {"is", kNumber}});
  const Json out = document(
      kComparisonSchema, "fp8lab compare --json",
      object({{"schema", {{"const", kComparisonSchema}}},
              {"exit_code", kInteger},
              {"cells_compared", described(kCount, "that ran in both runs")},
              {"regressions", kCount},
              {"worse", kCount},
              {"better", kCount},
              {"baseline_complete", kFlag},
              {"complete", kFlag},
              {"findings", described(list_of(finding), "at most one for each cell that changed, the worst first")},
              {"changes", list_of(change)},
              {"timings", described(list_of(timing), "reported, never judged")},
              {"environment", described(list_of(object({{"key", kText}, {"was", kTextOrNull}, {"is", kTextOrNull}})),
                                        "what differs between the machines and programs")}}));
  return out.dump(2);
}

}  // namespace fp8lab
