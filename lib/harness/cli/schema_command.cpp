#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/units.h"
#include "harness/cli/program.h"
#include "harness/cli/result_schemas.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

Json reference(const std::string& definition) { return {{"$ref", "#/$defs/" + definition}}; }

Json list_of(Json items) { return {{"type", "array"}, {"minItems", 1}, {"items", std::move(items)}}; }

Json set_of(Json items) {
  return {{"type", "array"}, {"minItems", 1}, {"uniqueItems", true}, {"items", std::move(items)}};
}

Json closed_object(Json properties, const std::vector<std::string>& required = {}) {
  Json out{{"type", "object"}, {"additionalProperties", false}};
  if (!required.empty()) out["required"] = required;
  out["properties"] = std::move(properties);
  return out;
}

Json definition_of(const Key& key, const Vocabulary& vocabulary) {
  Json out{{"description", key.meaning}};
  const auto bounds = [&](const char* type) {
    out["type"] = type;
    if (type == std::string_view("integer")) {
      out["minimum"] = static_cast<std::int64_t>(key.low);
      out["maximum"] = static_cast<std::int64_t>(key.high);
    } else {
      out["minimum"] = key.low;
      out["maximum"] = key.high;
    }
  };
  switch (key.type) {
    case KeyType::kSwitch: out["type"] = "boolean"; break;
    case KeyType::kInteger: bounds("integer"); break;
    case KeyType::kNumber: bounds("number"); break;
    case KeyType::kWord: out["enum"] = key.words(vocabulary); break;
    case KeyType::kMesh:
      out["type"] = {"integer", "string"};
      out["minimum"] = 1;
      out["maximum"] = kMostRanks;
      out["pattern"] = "^([1-9][0-9]{0,4}x)?[1-9][0-9]{0,4}$";
      break;
    case KeyType::kText:
      out["type"] = {"string", "number"};  // YAML readers take 2.14 for a number
      out["minLength"] = 1;
      break;
    case KeyType::kFile:
      out["type"] = "string";
      out["minLength"] = 1;
      break;
  }
  return out;
}

/// The schemas of the keys of `section`. "training" contains "training.recipe_options" as an object of its own.
Json properties_of(std::string_view section) {
  Json out = Json::object();
  for (const Key& key : keys()) {
    if (key.section() == section) {
      out[std::string(key.last())] = reference(std::string(key.path));
      continue;
    }
    const std::string prefix = section.empty() ? "" : std::string(section) + ".";
    const std::string_view inner = key.section();
    if (!inner.starts_with(prefix) || inner.find('.', prefix.size()) != std::string_view::npos) continue;
    const std::string name(inner.substr(prefix.size()));
    if (!out.contains(name)) out[name] = closed_object(properties_of(inner));
  }
  return out;
}

/// The schemas of the axes: `make` is called with the definition of every key. An axis has the key's last part for its
/// name, or the entire path.
template <class Make>
Json axes(const Make& make) {
  Json out = Json::object();
  for (const Key& key : keys()) {
    for (const std::string_view name : {key.last(), std::string_view(key.path)})
      out[std::string(name)] = make(reference(std::string(key.path)));
  }
  return out;
}

Json metric_pattern() {
  std::string groups;
  for (const MetricGroup& group : metric_groups()) groups += (groups.empty() ? "" : "|") + std::string(group.name);
  return {{"type", "string"}, {"pattern", "^(" + groups + ")\\.[a-z0-9_.]+$"}};
}

Json all_units() {
  std::vector<std::string> out;
  for (const Metric& metric : metrics())
    for (const std::string& unit : units_of(metric.unit))
      if (std::find(out.begin(), out.end(), unit) == out.end()) out.push_back(unit);
  return out;
}

Json definitions(const Vocabulary& vocabulary) {
  Json out = Json::object();
  for (const Key& key : keys()) out[std::string(key.path)] = definition_of(key, vocabulary);
  Json point = closed_object(axes([](Json value) { return value; }));
  point["minProperties"] = 1;
  out["point"] = std::move(point);
  out["points"] = list_of(reference("point"));
  const Json scalar{{"type", {"string", "number", "boolean"}}};
  out["when"] = {{"description", "holds where each named axis has one of the listed values"},
                 {"type", "object"},
                 {"additionalProperties", {{"anyOf", {scalar, list_of(scalar)}}}}};
  Json sides = Json::array();
  for (const Side side : kSides) sides.push_back(name(side));
  out["arm"] = {{"enum", sides}, {"description", "difference is before minus after"}};
  out["metric"] = metric_pattern();
  std::string units;
  for (const Json& unit : all_units()) units += (units.empty() ? "" : "|") + unit.get<std::string>();
  const Json with_unit{{"type", "string"},
                       {"pattern", "^[0-9.eE+-]+ *(" + units + ")$"},
                       {"description", "a number with a unit of the metric: 6 GiB"}};
  const Json number{{"anyOf", {{{"type", "number"}}, with_unit}}};
  const Json limit{{"anyOf",
                    {{{"type", "number"}},
                     with_unit,
                     {{"enum", {"predicted"}}},
                     {{"type", "string"},
                      {"pattern", "^([0-9.eE+-]+ of )?(before|after|bf16)$"},
                      {"description", "another arm's figure, or a multiple of it: 1.05 of before"}}}}};
  const Json positive{{"anyOf", {{{"type", "number"}, {"minimum", 0}}, with_unit}}};
  out["expectation"] = closed_object(
      {{"metric", reference("metric")},
       {"arm", reference("arm")},
       {"equals", limit},
       {"at_least", limit},
       {"at_most", limit},
       {"within", {{"type", "array"}, {"minItems", 2}, {"maxItems", 2}, {"items", number}}},
       {"abs", positive},
       {"rel",
        {{"anyOf", {{{"type", "number"}, {"minimum", 0}}, {{"type", "string"}, {"pattern", "^[0-9.eE+]+ *%$"}}}},
         {"description", "of the limit's size"}}},
       {"status", {{"enum", arm_statuses()}, {"description", "how the arm's process must end"}}},
       {"signal", {{"enum", expected_signals()}}},
       {"when", reference("when")}});
  const Json text{{"type", "string"}};
  out["claim"] =
      closed_object({{"source", text},
                     {"words", {{"type", "string"}, {"description", "what the source says, in its own words"}}},
                     {"metric", reference("metric")},
                     {"arm", reference("arm")},
                     {"value", {{"type", "number"}}},
                     {"unit", {{"enum", all_units()}}},
                     {"note", text},
                     {"when", reference("when")}},
                    {"source", "words", "metric", "value", "unit"});
  return out;
}

Json scenario_schema(const Vocabulary& vocabulary) {
  const Json text{{"type", "string"}, {"minLength", 1}};
  Json properties{{"version", {{"const", 1}}},
                  {"name", {{"type", "string"}, {"pattern", "^[a-z0-9_][a-z0-9_-]*$"}, {"maxLength", 80}}},
                  {"title", text}};
  Json upstream = list_of({{"type", "string"}});
  upstream["description"] = "reports and fixes that this is about";
  properties["upstream"] = std::move(upstream);
  properties.update(properties_of(""));
  Json matrix = closed_object(axes([](Json value) { return set_of(std::move(value)); }));
  matrix["minProperties"] = 1;
  matrix["description"] = "axes, as in GitHub Actions; an axis overrides the key of its name";
  for (const char* points : {"include", "exclude"})
    matrix["properties"][points] = properties[points] = reference("points");
  properties["matrix"] = std::move(matrix);
  Json groups = Json::array();
  for (const MetricGroup& group : metric_groups()) groups.push_back(group.name);
  properties["measure"] = set_of({{"enum", groups}});
  properties["expect"] = list_of(reference("expectation"));
  properties["claims"] = list_of(reference("claim"));
  properties["skip_if"] = list_of(closed_object({{"when", reference("when")}, {"reason", text}}, {"when", "reason"}));
  properties["timeout"] = {{"type", "number"},
                           {"exclusiveMinimum", 0},
                           {"maximum", kMostTimeoutSeconds},
                           {"description", "seconds that one arm may take"}};
  Json out{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
           {"$id", "fp8lab.scenario/1"},
           {"title", "fp8lab scenario"}};
  out.update(closed_object(std::move(properties), {"version", "name", "title", "model", "measure"}));
  out["patternProperties"] = {{"^x-", {{"description", "a place for anchors"}}}};
  out["$defs"] = definitions(vocabulary);
  return out;
}

}  // namespace

int schema_command(const std::string& document, const Program& program) {
  const std::string schema = document == "results"      ? results_schema()
                             : document == "comparison" ? comparison_schema()
                                                        : scenario_schema(program.vocabulary()).dump(2);
  std::puts(schema.c_str());
  return 0;
}

}  // namespace fp8lab
