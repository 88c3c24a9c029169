#include "harness/json_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/keys.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

/// Whole figures are written as integers: 618135552, not 618135552.0.
Json number_json(double value) {
  if (std::abs(value) < 9007199254740992.0 && value == std::trunc(value)) return static_cast<std::int64_t>(value);
  return value;
}

Json finite_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? number_json(*value) : Json(nullptr);
}

/// Between processes, where JSON's lack of NaN must not turn a wrong figure into an absent one.
Json exact_json(const std::optional<double>& value) {
  if (!value) return nullptr;
  if (std::isnan(*value)) return "nan";
  if (std::isinf(*value)) return *value > 0 ? "inf" : "-inf";
  return number_json(*value);
}

std::optional<double> number_from(const Json& json) {
  if (json.is_null()) return std::nullopt;
  if (!json.is_string()) return json.get<double>();
  if (json == "nan") return std::nan("");
  if (json == "inf") return INFINITY;
  if (json == "-inf") return -INFINITY;
  fail(fmt::format("results JSON: '{}' is no number", json.get<std::string>()));
}

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

Value value_from(const Key& key, const Json& json) {
  switch (key.type) {
    case KeyType::kSwitch: return json.get<bool>();
    case KeyType::kWhole: return json.get<std::int64_t>();
    case KeyType::kNumber: return json.get<double>();
    case KeyType::kWord:
    case KeyType::kMesh: return json.get<std::string>();
  }
  return {};
}

/// Every key that is set, by path.
Json settings_json(const CellConfig& cell) {
  Json out = Json::object();
  for (const Key& key : keys())
    if (const Value value = key.get(cell); !std::holds_alternative<std::monostate>(value))
      out[std::string(key.path)] = value_json(value);
  return out;
}

void read_settings(const Json& json, CellConfig& cell) {
  for (const auto& [path, value] : json.items()) {
    const Key* key = find_key(path);
    if (!key) fail(fmt::format("cell JSON: no key is called '{}'", path));
    key->set(cell, value_from(*key, value));
  }
}

Json axes_json(const Axes& axes) {
  Json out = Json::object();
  for (const auto& [axis, value] : axes) out[axis] = value;
  return out;
}

Axes axes_from(const Json& json) {
  Axes axes;
  for (const auto& [axis, value] : json.items()) axes.emplace_back(axis, value.get<std::string>());
  return axes;
}

using Holders = std::vector<std::pair<std::string, std::int64_t>>;

Json holders_json(const Holders& holders) {
  Json out = Json::array();
  for (const auto& [holder, bytes] : holders) out.push_back({{"holder", holder}, {"bytes", bytes}});
  return out;
}

Holders holders_from(const Json& json) {
  Holders out;
  for (const Json& entry : json)
    out.emplace_back(entry.at("holder").get<std::string>(), entry.at("bytes").get<std::int64_t>());
  return out;
}

std::string text_or_empty(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? "" : it->get<std::string>();
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

/// A null of a results file was a figure that is not finite; that it is no 0 is what counts.
std::vector<double> numbers_from(const Json& json) {
  std::vector<double> out;
  for (const Json& value : json) out.push_back(number_from(value).value_or(std::nan("")));
  return out;
}

Json noise_json(const TensorNoise& noise, NumberJson number) {
  Json out{{"tensor", noise.tensor}, {"of", noise.of}, {"sqnr_db", number(noise.sqnr_db)}};
  if (!noise.reason.empty()) out["reason"] = noise.reason;
  return out;
}

TensorNoise noise_from(const Json& json) {
  return {.tensor = json.at("tensor").get<std::string>(),
          .of = json.at("of").get<std::string>(),
          .sqnr_db = number_from(json.at("sqnr_db")),
          .reason = text_or_empty(json, "reason")};
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

ArmResult arm_from(const Json& json) {
  ArmResult out;
  out.status = json.at("status").get<std::string>();
  out.reason = text_or_empty(json, "reason");
  out.seconds = json.at("seconds").get<double>();
  out.measured_in = text_or_empty(json, "measured_in");
  out.signal = text_or_empty(json, "signal");
  out.output_tail = text_or_empty(json, "output_tail");
  for (const auto& [name, metric] : json.at("metrics").items())
    out.metrics[name] = {number_from(metric.at("value")), number_from(metric.at("predicted")),
                         metric.at("unit").get<std::string>(), text_or_empty(metric, "reason")};
  out.retained_by_holder = holders_from(json.at("retained_by_holder"));
  out.peak_by_holder = holders_from(json.at("peak_by_holder"));
  out.emulated = text_or_empty(json, "emulated");
  if (json.contains("losses")) out.losses = numbers_from(json["losses"]);
  if (json.contains("samples"))
    for (const auto& [name, samples] : json["samples"].items()) out.samples[name] = numbers_from(samples);
  if (json.contains("noise"))
    for (const Json& one : json["noise"]) out.noise.push_back(noise_from(one));
  out.notes = json.value("notes", std::vector<std::string>{});
  out.values_hash = text_or_empty(json, "values_hash");
  out.sequence_hash = text_or_empty(json, "sequence_hash");
  return out;
}

constexpr std::array kSides{Side::kBefore, Side::kAfter, Side::kBf16, Side::kDifference};

template <class Enum, std::size_t N>
Enum from_name(const std::array<Enum, N>& all, const std::string& text) {
  for (const Enum e : all)
    if (name(e) == text) return e;
  fail(fmt::format("results JSON: '{}' names no arm", text));
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

Gate gate_from(const Json& json) {
  Gate out;
  out.text = json.at("text").get<std::string>();
  out.side = from_name(kSides, json.at("arm").get<std::string>());
  out.metric = text_or_empty(json, "metric");
  if (!json.at("pass").is_null()) out.pass = json.at("pass").get<bool>();
  out.observed = number_from(json.at("observed"));
  out.limit = number_from(json.at("limit"));
  out.detail = text_or_empty(json, "detail");
  out.line = json.value("line", 0);
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

ClaimRecord claim_from(const Json& json) {
  ClaimRecord out;
  out.claim.source = json.at("source").get<std::string>();
  out.claim.words = json.at("words").get<std::string>();
  out.claim.metric = json.at("metric").get<std::string>();
  out.claim.side = from_name(kSides, json.at("arm").get<std::string>());
  out.claim.value = json.at("value").get<double>();
  out.claim.unit = json.at("unit").get<std::string>();
  out.claim.note = text_or_empty(json, "note");
  out.predicted = number_from(json.at("predicted"));
  out.measured = number_from(json.at("measured"));
  return out;
}

std::string dumped(const Json& json) {
  // What a crashing process printed may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Runs `read` on the parsed text; every failure becomes an Error that says `what` could not be read.
template <class Read>
auto parsed(std::string_view text, const char* what, Read read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    // Behind "[json.exception.parse_error.101] ", which tells users nothing.
    const std::string_view problem = error.what();
    fail(fmt::format("{}: {}", what, problem.substr(problem.find("] ") + 2)));
  }
}

CellRecord record_from(const Json& json) {
  CellRecord out;
  out.config.id = json.at("id").get<std::string>();
  out.config.scenario = json.at("scenario").get<std::string>();
  out.config.axes = axes_from(json.at("axes"));
  out.config.measure = json.at("measure").get<std::vector<std::string>>();
  read_settings(json.at("config"), out.config);
  out.file = json.at("file").get<std::string>();
  out.line = json.value("line", 0);
  out.title = json.at("title").get<std::string>();
  out.upstream = json.at("upstream").get<std::vector<std::string>>();
  const auto verdict = parse_verdict(json.at("verdict").get<std::string>());
  if (!verdict) fail("results JSON: '" + json.at("verdict").get<std::string>() + "' is no verdict");
  out.verdict = *verdict;
  out.reason = text_or_empty(json, "reason");
  out.seconds = json.at("seconds").get<double>();
  for (const auto& [arm, result] : json.at("arms").items()) out.arms[from_name(kArms, arm)] = arm_from(result);
  for (const Json& gate : json.at("gates")) out.gates.push_back(gate_from(gate));
  for (const Json& claim : json.at("claims")) out.claims.push_back(claim_from(claim));
  out.hash = json.at("hash").get<std::string>();
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
  return parsed(text, "cell JSON", [](const Json& json) {
    CellConfig cell;
    cell.scenario = json.at("scenario").get<std::string>();
    cell.id = json.at("id").get<std::string>();
    cell.axes = axes_from(json.at("axes"));
    cell.measure = json.at("measure").get<std::vector<std::string>>();
    cell.timeout_s = json.at("timeout_s").get<double>();
    read_settings(json.at("config"), cell);
    return cell;
  });
}

std::string arm_to_json(const ArmResult& result) {
  // The timeline of a large model is megabytes; it follows as it is rather than as one escaped string.
  std::string text = dumped(arm_json(result, exact_json));
  text.reserve(text.size() + 1 + result.timeline_json.size());
  return text.append(1, '\n').append(result.timeline_json);
}

ArmResult arm_from_json(const std::string& text) {
  const std::size_t line = std::min(text.find('\n'), text.size());
  ArmResult out = parsed(std::string_view(text).substr(0, line), "arm JSON", arm_from);
  if (line < text.size()) out.timeline_json = text.substr(line + 1);
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
  for (const auto& [arm, result] : record.arms) out["arms"][std::string(name(arm))] = arm_json(result, finite_or_null);
  for (const Gate& gate : record.gates) out["gates"].push_back(gate_json(gate));
  for (const ClaimRecord& claim : record.claims) out["claims"].push_back(claim_json(claim));
  return dumped(out);
}

CellRecord record_from_json(const std::string& text) { return parsed(text, "results JSON", record_from); }

StoredRun run_from_json(const std::string& text) {
  return parsed(text, "results JSON", [](const Json& json) {
    const std::string schema = json.is_object() ? text_or_empty(json, "schema") : "";
    if (schema != kResultsSchema)
      fail(fmt::format("results JSON: the schema is \"{}\", and not \"{}\"", schema, kResultsSchema));
    StoredRun out;
    out.complete = json.at("complete").get<bool>();
    out.environment_json = dumped(json.at("environment"));
    std::set<std::string> ids;
    for (const Json& cell : json.at("cells").get_ref<const Json::array_t&>()) {
      out.cells.push_back(record_from(cell));
      if (const std::string& id = out.cells.back().config.id; !ids.insert(id).second)
        fail(fmt::format("results JSON: cell {} is there twice: results of two runs are mixed", id));
    }
    return out;
  });
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string hash_of(const PlannedCell& cell) {
  std::string text = cell_to_json(cell.config);
  for (const Expectation& e : cell.expect) text += "\n" + text_of(e);
  for (const Claim& c : cell.claims) text += "\n" + dumped(claim_json({c, {}, {}}));
  text += fmt::format("\n{}", cell.timeout_s.value_or(0));
  return fmt::format("{:016x}", fnv1a(text));
}

}  // namespace fp8lab
