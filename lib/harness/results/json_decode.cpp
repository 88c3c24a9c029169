#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <set>

#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_reader.h"

// Reads the JSON of json_codec.h: each function reverses one of json_encode.cpp and checks every type.
namespace fp8lab {
namespace {

using NumberFrom = std::optional<double> (*)(const JsonReader&);

/// Reads what exact_json() wrote.
std::optional<double> exact_from(const JsonReader& json) {
  if (json.is_text("nan")) return std::nan("");
  if (json.is_text("inf")) return INFINITY;
  if (json.is_text("-inf")) return -INFINITY;
  return json.number_or_null();
}

/// Reads what finite_or_null() wrote.
std::optional<double> finite_from(const JsonReader& json) { return json.number_or_null(); }

Value value_from(const Key& key, const JsonReader& json) {
  switch (key.type) {
    case KeyType::kSwitch: return json.flag();
    case KeyType::kInteger: {  // 0 is the default of many keys, even if `low` is larger
      const auto low = static_cast<std::int64_t>(key.low), high = static_cast<std::int64_t>(key.high);
      return json.integer(std::min<std::int64_t>(low, 0), high);
    }
    case KeyType::kNumber: return json.number();
    case KeyType::kWord: return json.is_null() ? Value{json.text()} : word_value(json.text_of_scalar());
    case KeyType::kMesh:
    case KeyType::kText:
    case KeyType::kFile: return json.text();
  }
  return {};
}

void read_settings(const JsonReader& json, CellConfig& cell) {
  json.each_member([&](const std::string& path, const JsonReader& value) {
    const Key* key = find_key(path);
    if (!key) value.refuse_for("is a key that this program does not know");
    const Value read = value_from(*key, value);
    try {
      key->set(cell, read);
    } catch (const Error&) {  // which has the word, but not its place
      value.refuse_for("is not a value of this program");
    }
  });
}

Axes axes_from(const JsonReader& json) {
  Axes axes;
  json.each_member([&](const std::string& axis, const JsonReader& value) { axes.emplace_back(axis, value.text()); });
  return axes;
}

using Holders = std::vector<std::pair<std::string, std::int64_t>>;

Holders holders_from(const JsonReader& json) {
  Holders out;
  json.each_item(
      [&](const JsonReader& entry) { out.emplace_back(entry.at("holder").text(), entry.at("bytes").integer()); });
  return out;
}

std::vector<std::string> texts_from(const JsonReader& json) {
  std::vector<std::string> out;
  json.each_item([&](const JsonReader& item) { out.push_back(item.text()); });
  return out;
}

/// A null in a list of a results file was a figure that is not finite; it is read as NaN, so that it is not taken for
/// 0.
std::vector<double> numbers_from(const JsonReader& json, NumberFrom number) {
  std::vector<double> out;
  json.each_item([&](const JsonReader& value) { out.push_back(number(value).value_or(std::nan(""))); });
  return out;
}

TensorNoise noise_from(const JsonReader& json, NumberFrom number) {
  return {.tensor = json.at("tensor").text(),
          .of = json.at("of").text(),
          .sqnr_db = number(json.at("sqnr_db")),
          .reason = json.text_or_empty("reason")};
}

CastSeries casts_from(const JsonReader& json, NumberFrom number) {
  CastSeries out;
  out.tensor = json.at("tensor").text();
  json.at("steps").each_item(
      [&](const JsonReader& step) { out.steps.push_back(step.integer(0, std::numeric_limits<std::int64_t>::max())); });
  json.at("sqnr_db").each_item([&](const JsonReader& db) { out.sqnr_db.push_back(number(db)); });
  out.clip_fraction = numbers_from(json.at("clip_fraction"), number);
  out.underflow_fraction = numbers_from(json.at("underflow_fraction"), number);
  for (const std::size_t length : {out.sqnr_db.size(), out.clip_fraction.size(), out.underflow_fraction.size()})
    if (length != out.steps.size()) json.refuse("lists with a figure for each of its steps");
  return out;
}

MetricValue metric_from(const JsonReader& json, NumberFrom number) {
  return {number(json.at("value")), number(json.at("predicted")), json.at("unit").text(), json.text_or_empty("reason")};
}

ArmResult arm_from(const JsonReader& json, NumberFrom number) {
  ArmResult out;
  out.status = json.at("status").text();
  out.reason = json.text_or_empty("reason");
  out.seconds = json.at("seconds").number();
  out.measured_in = json.text_or_empty("measured_in");
  out.signal = json.text_or_empty("signal");
  out.output_tail = json.text_or_empty("output_tail");
  json.at("metrics").each_member([&](const std::string& name, const JsonReader& metric) {
    out.metrics[present_metric_name(name)] = metric_from(metric, number);
  });
  out.retained_by_holder = holders_from(json.at("retained_by_holder"));
  out.peak_by_holder = holders_from(json.at("peak_by_holder"));
  out.emulated = json.text_or_empty("emulated");
  if (const auto losses = json.find("losses")) out.losses = numbers_from(*losses, number);
  if (const auto validations = json.find("validation_losses"))
    validations->each_item([&](const JsonReader& one) {
      out.validation_losses.push_back({one.at("step").integer(), number(one.at("loss")).value_or(std::nan(""))});
    });
  for (const auto& [key, lists] : {std::pair{"samples", &out.samples}, std::pair{"by_process", &out.by_process}})
    if (const auto found = json.find(key))
      found->each_member([&, of = lists](const std::string& name, const JsonReader& values) {
        (*of)[name] = numbers_from(values, number);
      });
  if (const auto noise = json.find("noise"))
    noise->each_item([&](const JsonReader& one) { out.noise.push_back(noise_from(one, number)); });
  if (const auto casts = json.find("casts"))
    casts->each_item([&](const JsonReader& one) { out.casts.push_back(casts_from(one, number)); });
  if (const auto notes = json.find("notes")) out.notes = texts_from(*notes);
  out.values_hash = json.text_or_empty("values_hash");
  out.sequence_hash = json.text_or_empty("sequence_hash");
  return out;
}

Side side_from(const JsonReader& json) {
  const std::string text = json.text();
  for (const Side side : kSides)
    if (name(side) == text) return side;
  json.refuse("before, after, bf16 or difference");
}

/// The line number in a file; 0: unknown.
int line_from(const JsonReader& json) {
  const auto line = json.find("line");
  return line ? static_cast<int>(line->integer(0, std::numeric_limits<int>::max())) : 0;
}

Gate gate_from(const JsonReader& json) {
  Gate out;
  out.text = json.at("text").text();
  out.side = side_from(json.at("arm"));
  out.metric = json.text_or_empty("metric");
  if (const JsonReader pass = json.at("pass"); !pass.is_null()) out.pass = pass.flag();
  out.observed = json.at("observed").number_or_null();
  out.limit = json.at("limit").number_or_null();
  if (const auto ratio = json.find("ratio"))
    out.ratio = {.value = ratio->at("value").number(),
                 .low = ratio->at("low").number(),
                 .high = ratio->at("high").number(),
                 .visible = ratio->at("visible").number(),
                 .pairs = static_cast<std::size_t>(ratio->at("pairs").integer(0, 1 << 20))};
  out.detail = json.text_or_empty("detail");
  out.line = line_from(json);
  return out;
}

ClaimRecord claim_from(const JsonReader& json) {
  ClaimRecord out;
  out.claim.source = json.at("source").text();
  out.claim.words = json.at("words").text();
  out.claim.metric = json.at("metric").text();
  out.claim.side = side_from(json.at("arm"));
  out.claim.value = json.at("value").number();
  out.claim.unit = json.at("unit").text();
  out.claim.note = json.text_or_empty("note");
  out.predicted = json.at("predicted").number_or_null();
  out.measured = json.at("measured").number_or_null();
  return out;
}

Verdict verdict_from(const JsonReader& json) {
  if (const auto verdict = parse_verdict(json.text())) return *verdict;
  json.refuse("a verdict of this program");
}

/// Reads the members that a cell has in every document.
CellConfig config_from(const JsonReader& json) {
  CellConfig cell;
  cell.id = json.at("id").text();
  cell.scenario = json.at("scenario").text();
  cell.axes = axes_from(json.at("axes"));
  cell.measure = texts_from(json.at("measure"));
  read_settings(json.at("config"), cell);
  if (const auto arguments = json.find("arguments")) {
    cell.script.arguments = texts_from(arguments->at("after"));
    if (const auto before = arguments->find("before")) cell.script.before_arguments = texts_from(*before);
  }
  if (const auto patch = json.find("patch")) {
    cell.script.patch_before = patch->text_or_empty("before");
    cell.script.patch_after = patch->text_or_empty("after");
  }
  return cell;
}

Arm arm_named(const std::string& key, const JsonReader& value) {
  const auto arm = std::find_if(kArms.begin(), kArms.end(), [&](Arm a) { return name(a) == key; });
  if (arm == kArms.end()) value.refuse_for("names no arm; there are before, after and bf16");
  return *arm;
}

Effect effect_from(const JsonReader& json, const std::string& text) {
  Effect out;
  const JsonReader kind = json.at("kind");
  const auto known = std::ranges::find_if(kEffectKinds, [&](EffectKind one) { return kind.is_text(name(one)); });
  if (known == kEffectKinds.end()) kind.refuse("a kind of effect of this program");
  out.kind = *known;
  out.text = text;
  out.metric = json.text_or_empty("metric");
  out.unit = json.text_or_empty("unit");
  out.before = json.at("before").number_or_null();
  out.after = json.at("after").number_or_null();
  out.predicted = json.at("predicted").number_or_null();
  out.as_predicted = json.at("as_predicted").flag();
  out.size = json.at("size").number();
  return out;
}

CellRecord record_from(const JsonReader& json) {
  CellRecord out;
  out.config = config_from(json);
  out.file = json.at("file").text();
  out.line = line_from(json);
  out.title = json.at("title").text();
  out.upstream = texts_from(json.at("upstream"));
  if (const auto flag = json.find("counterfactual")) out.counterfactual = flag->flag();
  out.verdict = verdict_from(json.at("verdict"));
  out.reason = json.text_or_empty("reason");
  out.seconds = json.at("seconds").number();
  json.at("arms").each_member([&](const std::string& key, const JsonReader& result) {
    out.arms[arm_named(key, result)] = arm_from(result, finite_from);
  });
  if (const auto timelines = json.find("timelines"))
    timelines->each_member(
        [&](const std::string& key, const JsonReader& path) { out.timelines[arm_named(key, path)] = path.text(); });
  json.at("gates").each_item([&](const JsonReader& gate) { out.gates.push_back(gate_from(gate)); });
  json.at("claims").each_item([&](const JsonReader& claim) { out.claims.push_back(claim_from(claim)); });
  if (const auto effect = json.find("effect")) out.effect = effect_from(*effect, json.at("finding").text());
  out.text_checksum = json.text_or_empty("text_checksum");
  out.hash = json.at("hash").text();
  return out;
}

}  // namespace

CellConfig cell_from_json(const std::string& text) {
  const JsonDocument document(text);
  const JsonReader json = document.root();
  CellConfig cell = config_from(json);
  cell.timeout_s = json.at("timeout_s").number();
  return cell;
}

ArmResult arm_from_json(std::string text) {
  const std::size_t line = std::min(text.find('\n'), text.size());
  ArmResult out = arm_from(JsonDocument(std::string_view(text).substr(0, line)).root(), exact_from);
  if (line == text.size()) return out;
  text.erase(0, line + 1);  // move the timeline, which is most of the text, instead of copying it
  out.timeline_json = std::move(text);
  return out;
}

CellRecord record_from_json(const std::string& text) {
  const JsonDocument document(text);
  return record_from(document.root());
}

StoredRun run_from_json(const std::string& text) {
  StoredRun out;
  std::set<std::string> ids;
  std::exception_ptr of_cell;  // another schema is the cause of it
  const JsonDocument document(text, "cells", [&](const JsonReader& cell) {
    if (of_cell) return;
    try {
      out.cells.push_back(record_from(cell));
      if (const std::string& id = out.cells.back().config.id; !ids.insert(id).second)
        cell.refuse_for("is there twice: results of two runs are mixed");
    } catch (const Error&) {
      of_cell = std::current_exception();
    }
  });
  const JsonReader json = document.root();
  if (const JsonReader schema = json.at("schema"); schema.text() != kResultsSchema)
    schema.refuse(fmt::format("\"{}\"", kResultsSchema));
  out.complete = json.at("complete").flag();
  out.environment_json = json.at("environment").object_json();
  json.at("cells").each_item([](const JsonReader&) {});  // a list
  if (of_cell) std::rethrow_exception(of_cell);
  return out;
}

}  // namespace fp8lab
