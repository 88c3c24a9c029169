#include "harness/results/json_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/fnv1a.h"
#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

/// Writes integral figures as integers: 618135552, not 618135552.0.
Json number_json(double value) {
  if (std::abs(value) < 9007199254740992.0 && value == std::trunc(value)) return static_cast<std::int64_t>(value);
  return value;
}

Json finite_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? number_json(*value) : Json(nullptr);
}

/// A figure for another process. JSON has no NaN and no infinities, so they are written as text: null would make a
/// wrong figure look absent.
Json exact_json(const std::optional<double>& value) {
  if (!value) return nullptr;
  if (std::isnan(*value)) return "nan";
  if (std::isinf(*value)) return *value > 0 ? "inf" : "-inf";
  return number_json(*value);
}

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

Json value_json(const Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return nullptr;
        } else {
          return v;
        }
      },
      value);
}

Value value_from(const Key& key, const JsonReader& json) {
  switch (key.type) {
    case KeyType::kSwitch: return json.flag();
    case KeyType::kInteger: {  // 0 is the default of many keys, even where `low` is larger
      const auto low = static_cast<std::int64_t>(key.low), high = static_cast<std::int64_t>(key.high);
      return json.integer(std::min<std::int64_t>(low, 0), high);
    }
    case KeyType::kNumber: return json.number();
    case KeyType::kWord:
    case KeyType::kMesh: return json.text();
  }
  return {};
}

/// All keys that are set, by path.
Json settings_json(const CellConfig& cell) {
  Json out = Json::object();
  for (const Key& key : keys())
    if (const Value value = key.get(cell); !std::holds_alternative<std::monostate>(value))
      out[std::string(key.path)] = value_json(value);
  return out;
}

void read_settings(const JsonReader& json, CellConfig& cell) {
  json.each_member([&](const std::string& path, const JsonReader& value) {
    const Key* key = find_key(path);
    if (!key) value.refuse_for("is a key that this program does not know");
    key->set(cell, value_from(*key, value));
  });
}

Json axes_json(const Axes& axes) {
  Json out = Json::object();
  for (const auto& [axis, value] : axes) out[axis] = value;
  return out;
}

Axes axes_from(const JsonReader& json) {
  Axes axes;
  json.each_member([&](const std::string& axis, const JsonReader& value) { axes.emplace_back(axis, value.text()); });
  return axes;
}

using Holders = std::vector<std::pair<std::string, std::int64_t>>;

Json holders_json(const Holders& holders) {
  Json out = Json::array();
  for (const auto& [holder, bytes] : holders) out.push_back({{"holder", holder}, {"bytes", bytes}});
  return out;
}

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

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

using NumberJson = Json (*)(const std::optional<double>&);

Json metric_json(const MetricValue& metric, NumberJson number) {
  Json out{{"value", number(metric.value)}, {"predicted", number(metric.predicted)}, {"unit", metric.unit}};
  std::string reason = metric.reason;
  if (reason.empty() && metric.value && !std::isfinite(*metric.value))
    reason = fmt::format("the measured value is {}", *metric.value);
  if (!reason.empty()) out["reason"] = reason;
  return out;
}

Json numbers_json(const std::vector<double>& values, NumberJson number) {
  Json out = Json::array();
  for (const double value : values) out.push_back(number(value));
  return out;
}

/// A null in a list of a results file was a figure that is not finite; it is read as NaN, so that it is not taken for
/// 0.
std::vector<double> numbers_from(const JsonReader& json, NumberFrom number) {
  std::vector<double> out;
  json.each_item([&](const JsonReader& value) { out.push_back(number(value).value_or(std::nan(""))); });
  return out;
}

Json noise_json(const TensorNoise& noise, NumberJson number) {
  Json out{{"tensor", noise.tensor}, {"of", noise.of}, {"sqnr_db", number(noise.sqnr_db)}};
  if (!noise.reason.empty()) out["reason"] = noise.reason;
  return out;
}

TensorNoise noise_from(const JsonReader& json, NumberFrom number) {
  return {.tensor = json.at("tensor").text(),
          .of = json.at("of").text(),
          .sqnr_db = number(json.at("sqnr_db")),
          .reason = json.text_or_empty("reason")};
}

Json arm_json(const ArmResult& arm, NumberJson number) {
  Json out{{"status", arm.status}, {"reason", text_or_null(arm.reason)}, {"seconds", arm.seconds}};
  if (!arm.measured_in.empty()) out["measured_in"] = arm.measured_in;
  if (!arm.signal.empty()) out["signal"] = arm.signal;
  if (!arm.output_tail.empty()) out["output_tail"] = arm.output_tail;
  out["metrics"] = Json::object();
  for (const auto& [name, metric] : arm.metrics) out["metrics"][name] = metric_json(metric, number);
  out["retained_by_holder"] = holders_json(arm.retained_by_holder);
  out["peak_by_holder"] = holders_json(arm.peak_by_holder);
  if (!arm.emulated.empty()) out["emulated"] = arm.emulated;
  if (!arm.losses.empty()) out["losses"] = numbers_json(arm.losses, number);
  for (const auto& [name, samples] : arm.samples) out["samples"][name] = numbers_json(samples, number);
  for (const TensorNoise& one : arm.noise) out["noise"].push_back(noise_json(one, number));
  if (!arm.notes.empty()) out["notes"] = arm.notes;
  if (!arm.values_hash.empty()) out["values_hash"] = arm.values_hash;
  out["sequence_hash"] = text_or_null(arm.sequence_hash);
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
  if (const auto samples = json.find("samples"))
    samples->each_member(
        [&](const std::string& name, const JsonReader& values) { out.samples[name] = numbers_from(values, number); });
  if (const auto noise = json.find("noise"))
    noise->each_item([&](const JsonReader& one) { out.noise.push_back(noise_from(one, number)); });
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

Json gate_json(const Gate& gate) {
  Json out{{"text", gate.text},
           {"arm", name(gate.side)},
           {"metric", text_or_null(gate.metric)},
           {"pass", gate.pass ? Json(*gate.pass) : Json(nullptr)},
           {"observed", finite_or_null(gate.observed)},
           {"limit", finite_or_null(gate.limit)}};
  std::string detail = gate.detail;
  if (detail.empty() && gate.observed && !std::isfinite(*gate.observed))
    detail = fmt::format("the measured value is {}", *gate.observed);
  if (!detail.empty()) out["detail"] = detail;
  if (gate.line > 0) out["line"] = gate.line;
  return out;
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
  out.detail = json.text_or_empty("detail");
  out.line = line_from(json);
  return out;
}

Json claim_json(const ClaimRecord& record) {
  const Claim& claim = record.claim;
  Json out{{"source", claim.source},
           {"words", claim.words},
           {"metric", claim.metric},
           {"arm", name(claim.side)},
           {"value", number_json(claim.value)},
           {"unit", claim.unit},
           {"predicted", finite_or_null(record.predicted)},
           {"measured", finite_or_null(record.measured)}};
  if (!claim.note.empty()) out["note"] = claim.note;
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

std::string dumped(const Json& json) {
  // The output of a crashed process may contain any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Verdict verdict_from(const JsonReader& json) {
  if (const auto verdict = parse_verdict(json.text())) return *verdict;
  json.refuse("a verdict that this program knows");
}

/// Reads the members that a cell has in every document.
CellConfig config_from(const JsonReader& json) {
  CellConfig cell;
  cell.id = json.at("id").text();
  cell.scenario = json.at("scenario").text();
  cell.axes = axes_from(json.at("axes"));
  cell.measure = texts_from(json.at("measure"));
  read_settings(json.at("config"), cell);
  return cell;
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
    const auto arm = std::find_if(kArms.begin(), kArms.end(), [&](Arm a) { return name(a) == key; });
    if (arm == kArms.end()) result.refuse_for("names no arm; there are before, after and bf16");
    out.arms[*arm] = arm_from(result, finite_from);
  });
  json.at("gates").each_item([&](const JsonReader& gate) { out.gates.push_back(gate_from(gate)); });
  json.at("claims").each_item([&](const JsonReader& claim) { out.claims.push_back(claim_from(claim)); });
  out.hash = json.at("hash").text();
  return out;
}

}  // namespace

std::string cell_to_json(const CellConfig& cell) {
  return dumped({{"scenario", cell.scenario},
                 {"id", cell.id},
                 {"axes", axes_json(cell.axes)},
                 {"measure", cell.measure},
                 {"timeout_s", cell.timeout_s},
                 {"config", settings_json(cell)}});
}

CellConfig cell_from_json(const std::string& text) {
  const JsonDocument document(text);
  const JsonReader json = document.root();
  CellConfig cell = config_from(json);
  cell.timeout_s = json.at("timeout_s").number();
  return cell;
}

std::string arm_to_json(const ArmResult& result) {
  // The timeline of a large model has megabytes, so it follows unescaped instead of as a string of the JSON.
  std::string text = dumped(arm_json(result, exact_json));
  text.reserve(text.size() + 1 + result.timeline_json.size());
  return text.append(1, '\n').append(result.timeline_json);
}

ArmResult arm_from_json(std::string text) {
  const std::size_t line = std::min(text.find('\n'), text.size());
  ArmResult out = arm_from(JsonDocument(std::string_view(text).substr(0, line)).root(), exact_from);
  if (line == text.size()) return out;
  text.erase(0, line + 1);  // move the timeline, which is most of the text, instead of copying it
  out.timeline_json = std::move(text);
  return out;
}

std::string record_to_json(const CellRecord& record) {
  Json out{{"id", record.config.id},
           {"scenario", record.config.scenario},
           {"file", record.file},
           {"line", record.line},
           {"title", record.title},
           {"upstream", record.upstream},
           {"axes", axes_json(record.config.axes)},
           {"ranks", record.config.ranks},
           {"fix", text_or_null(record.config.fix)},
           {"verdict", name(record.verdict)},
           {"reason", text_or_null(record.reason)},
           {"seconds", record.seconds},
           {"arms", Json::object()},
           {"gates", Json::array()},
           {"claims", Json::array()},
           {"measure", record.config.measure},
           {"config", settings_json(record.config)},
           {"hash", record.hash}};
  if (record.counterfactual) out["counterfactual"] = true;
  for (const auto& [arm, result] : record.arms) out["arms"][std::string(name(arm))] = arm_json(result, finite_or_null);
  for (const Gate& gate : record.gates) out["gates"].push_back(gate_json(gate));
  for (const ClaimRecord& claim : record.claims) out["claims"].push_back(claim_json(claim));
  return dumped(out);
}

CellRecord record_from_json(const std::string& text) {
  const JsonDocument document(text);
  return record_from(document.root());
}

StoredRun run_from_json(const std::string& text) {
  const JsonDocument document(text);
  const JsonReader json = document.root();
  if (const JsonReader schema = json.at("schema"); schema.text() != kResultsSchema)
    schema.refuse(fmt::format("\"{}\"", kResultsSchema));
  StoredRun out;
  out.complete = json.at("complete").flag();
  out.environment_json = json.at("environment").object_json();
  std::set<std::string> ids;
  json.at("cells").each_item([&](const JsonReader& cell) {
    out.cells.push_back(record_from(cell));
    if (const std::string& id = out.cells.back().config.id; !ids.insert(id).second)
      cell.refuse_for("is there twice: results of two runs are mixed");
  });
  return out;
}

std::string hash_of(const PlannedCell& cell) {
  std::string text = cell_to_json(cell.config);
  for (const Expectation& e : cell.expect) text += "\n" + text_of(e);
  for (const Claim& c : cell.claims) text += "\n" + dumped(claim_json({c, {}, {}}));
  text += fmt::format("\n{}", cell.timeout_s.value_or(0));
  return fmt::format("{:016x}", fnv1a(text));
}

}  // namespace fp8lab
