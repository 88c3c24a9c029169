#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/units.h"
#include "harness/cli/program.h"
#include "harness/cli/schema/json_schema.h"
#include "harness/cli/schema/schemas.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {
namespace {

using json_schema::described;
using json_schema::document;
using json_schema::Json;
using json_schema::Member;
using json_schema::object;
using json_schema::reference;

Json filled_list_of(Json items) { return {{"type", "array"}, {"minItems", 1}, {"items", std::move(items)}}; }

Json set_of(Json items) {
  return {{"type", "array"}, {"minItems", 1}, {"uniqueItems", true}, {"items", std::move(items)}};
}

/// An object whose members are all optional and describe themselves, as definitions of keys do.
Json object_of_keys(Json properties) {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", std::move(properties)}};
}

/// The schemas of 0, of a number of bytes, and of a number with its unit.
Json sizes_of_memory() {
  const Json number{{"type", "integer"}, {"minimum", kSmallestSize}, {"maximum", std::int64_t{1} << 53}};
  const Json with_unit{{"type", "string"},
                       {"pattern", fmt::format("^[0-9.eE+-]+ *({})$", fmt::join(units_of("B"), "|"))}};
  return Json::array({Json{{"const", 0}}, number, with_unit});
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
    case KeyType::kInteger:
      if (key.is_size)
        out["anyOf"] = sizes_of_memory();
      else
        bounds("integer");
      break;
    case KeyType::kNumber: bounds("number"); break;
    case KeyType::kWord:
      out["enum"] = Json::array();
      for (const std::string& word : key.words(vocabulary))
        out["enum"].push_back(word == "true" || word == "false" ? Json(word == "true") : Json(word));
      break;
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
    if (out.contains(name)) continue;
    out[name] = object_of_keys(properties_of(inner));
    if (inner == "training.recipe_options") out[name]["description"] = "in place of the recipe's own choices";
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
  std::vector<std::string_view> groups;
  for (const MetricGroup& group : metric_groups()) groups.push_back(group.name);
  return {{"type", "string"}, {"pattern", fmt::format("^({})\\.[a-z0-9_.]+$", fmt::join(groups, "|"))}};
}

std::vector<std::string> all_units() {
  std::vector<std::string> out;
  for (const Metric& metric : metrics())
    for (const std::string& unit : units_of(metric.unit))
      if (std::find(out.begin(), out.end(), unit) == out.end()) out.push_back(unit);
  return out;
}

Json definitions(const Vocabulary& vocabulary) {
  Json out = Json::object();
  for (const Key& key : keys()) out[std::string(key.path)] = definition_of(key, vocabulary);
  Json point = object_of_keys(axes([](Json value) { return value; }));
  point["minProperties"] = 1;
  out["point"] = std::move(point);
  out["points"] = filled_list_of(reference("point"));
  const Json scalar{{"type", {"string", "number", "boolean"}}};
  out["when"] = {{"description", "holds in cells in which each named axis has one of the listed values"},
                 {"type", "object"},
                 {"additionalProperties", {{"anyOf", {scalar, filled_list_of(scalar)}}}}};
  Json sides = Json::array();
  for (const Side side : kSides) sides.push_back(name(side));
  out["arm"] = {{"enum", sides}, {"description", "difference is before minus after"}};
  out["arms"] = {{"anyOf", {reference("arm"), set_of(reference("arm"))}}};
  out["metric"] = metric_pattern();
  const Json with_unit{{"type", "string"},
                       {"pattern", fmt::format("^[0-9.eE+-]+ *({})$", fmt::join(all_units(), "|"))},
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
  const Json share{
      {"anyOf", {{{"type", "number"}, {"minimum", 0}}, {{"type", "string"}, {"pattern", "^[0-9.eE+]+ *%$"}}}}};
  const Json range{{"type", "array"}, {"minItems", 2}, {"maxItems", 2}, {"items", number}};
  const Json text{{"type", "string"}};
  out["expectation"] = object({{"metric?", reference("metric"), "the figure to judge; `fp8lab metrics` lists all"},
                               {"arm?", reference("arms"), "whose figure, or a list; difference is before minus after"},
                               {"equals?", limit, "the figure itself, up to `abs` and `rel`"},
                               {"at_least?", limit, "lower bound"},
                               {"at_most?", limit, "upper bound"},
                               {"within?", range, "lower and upper bound"},
                               {"abs?", positive, "allowed distance from `equals`"},
                               {"rel?", share, "the same as a share of the limit's size: 0.01, or 1 %"},
                               {"status?", {{"enum", arm_statuses()}}, "how the arm's process must end"},
                               {"signal?", {{"enum", expected_signals()}}, "the signal that must end it"},
                               {"when?", reference("when"), "the cells that this is about; all, if left out"},
                               {"otherwise?", number, "the figure in cells without an entry of the metric and arm"}});
  out["claim"] = object({{"source", text, "who states it: an issue, a pull request, a paper"},
                         {"words", text, "the source's own words"},
                         {"metric", reference("metric"), "the metric of the figure"},
                         {"arm?", reference("arm"), "whose figure it is"},
                         {"value", {{"type", "number"}}, "the stated figure, in `unit`"},
                         {"unit", {{"enum", all_units()}}, "a unit of the metric"},
                         {"note?", text, "why figures may differ"},
                         {"when?", reference("when"), "the cells that this is about; all, if left out"}});
  return out;
}

}  // namespace

std::string scenario_schema(const Vocabulary& vocabulary) {
  const Json text{{"type", "string"}, {"minLength", 1}};
  const Json file_name{{"type", "string"}, {"pattern", "^[a-z0-9_][a-z0-9_-]*$"}, {"maxLength", 80}};
  const Json timeout{{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", kMostTimeoutSeconds}};
  Json groups = Json::array();
  for (const MetricGroup& group : metric_groups()) groups.push_back(group.name);
  Json matrix = object_of_keys(axes([](Json value) { return set_of(std::move(value)); }));
  matrix["minProperties"] = 1;
  for (const char* points : {"include", "exclude"}) matrix["properties"][points] = reference("points");
  Json skips = filled_list_of(object(
      {{"when", reference("when"), "the cells to skip"}, {"reason", text, "why they cannot run, as results give it"}}));
  const Json sections = properties_of("");
  const Json words{{"type", "array"}, {"items", {{"type", {"string", "number", "boolean"}}}}};
  const Json patches = object({{"before?", text, "for the before arm"}, {"after?", text, "for the after arm"}});
  const Json by_arm = object({{"before?", words, "in the before arm"}, {"after?", words, "in the after arm"}});
  const auto section = [&](const char* name) { return sections.at(name); };
  Json out = document(
      "fp8lab.scenario/1", "fp8lab scenario",
      object({{"version", {{"const", 1}}, "version of the file format"},
              {"name?", file_name, "the scenario's name, in ids of cells and names of files; the file's, if left out"},
              {"title", text, "what it shows, in one line"},
              {"upstream?", filled_list_of({{"type", "string"}}), "reports and fixes that this is about"},
              {"versions?", section("versions"), "releases or folders of the subject, by arm"},
              {"patch?", {{"anyOf", {text, patches}}}, "diffs for copies of the arms' folders, of subject script"},
              {"arguments?", {{"anyOf", {words, by_arm}}}, "arguments of the program of subject script"},
              {"model?", section("model"), "what is trained; subject script needs none"},
              {"training?", section("training"), "how it is trained"},
              {"matrix?", matrix, "axes, as in GitHub Actions; an axis overrides the key of its name"},
              {"include?", reference("points"), "further points of the matrix"},
              {"exclude?", reference("points"), "points that the matrix leaves out"},
              {"measure", set_of({{"enum", groups}}), "groups of metrics"},
              {"expect?", filled_list_of(reference("expectation")), "what must hold"},
              {"claims?", filled_list_of(reference("claim")), "figures that sources state, to be compared"},
              {"skip_if?", skips, "cells that cannot run, with reasons"},
              {"timeout?", timeout, "seconds that one arm may take"}}));
  for (const auto& [name, schema] : sections.items())
    if (!out["properties"].contains(name)) out["properties"][name] = schema;
  Json variant{{"type", "object"},
               {"minProperties", 1},
               {"properties", out["properties"]},
               {"additionalProperties", false},
               {"description", "keys in place of the file's; null removes the file's"}};
  for (const char* key : {"version", "name"}) variant["properties"].erase(key);
  for (auto& [key, schema] : variant["properties"].items())
    schema = {{"anyOf", Json::array({schema, {{"type", "null"}}})}};
  out["properties"]["variants"] = {{"type", "object"},
                                   {"minProperties", 1},
                                   {"patternProperties", {{"^[a-z0-9_-]+$", std::move(variant)}}},
                                   {"additionalProperties", false},
                                   {"description", "further scenarios of this file: NAME-VARIANT"}};
  out["patternProperties"] = {{"^x-", {{"description", "a place for anchors"}}}};
  out["$defs"] = definitions(vocabulary);
  return out.dump(2);
}

std::vector<std::string> schema_documents() { return {"scenario", "results", "comparison"}; }

int schema_command(const std::string& document, const Program& program) {
  const std::string schema = document == "results"      ? results_schema()
                             : document == "comparison" ? comparison_schema()
                                                        : scenario_schema(program.vocabulary());
  std::puts(schema.c_str());
  return 0;
}

}  // namespace fp8lab
