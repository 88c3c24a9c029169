#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/fnv1a.h"
#include "harness/cell/keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/results/json_codec.h"
#include "harness/results/json_text.h"

// Writes the JSON of json_codec.h.
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

/// True for keys that only programs of the user's have, and in their cells for keys of models, which they build
/// themselves. How many steps a program trained is known if it was watched without a scenario.
bool is_foreign(const Key& key, const CellConfig& cell) {
  const bool is_own = std::ranges::find(kScriptKeys, key.path) != kScriptKeys.end();
  if (!is_script(cell)) return is_own && key.section() != "versions" && key.get(cell) == key.get(CellConfig{});
  if (key.path == "training.steps") return !cell.script.path.empty();
  return !is_own && !key.section().empty();
}

/// Adds what the table of keys lacks of a script.
void add_script(const CellConfig& cell, Json& out) {
  const ScriptConfig& script = cell.script;
  if (!is_script(cell) || script.path.empty()) return;
  out["arguments"] = {{"after", script.arguments}};
  if (script.before_arguments) out["arguments"]["before"] = *script.before_arguments;
  if (!script.patch_before.empty()) out["patch"]["before"] = script.patch_before;
  if (!script.patch_after.empty()) out["patch"]["after"] = script.patch_after;
}

/// All keys that are set, by path.
Json settings_json(const CellConfig& cell) {
  Json out = Json::object();
  for (const Key& key : keys()) {
    if (is_foreign(key, cell)) continue;
    if (const Value value = key.get(cell); !std::holds_alternative<std::monostate>(value))
      out[std::string(key.path)] = value_json(value);
  }
  return out;
}

Json axes_json(const Axes& axes) {
  Json out = Json::object();
  for (const auto& [axis, value] : axes) out[axis] = value;
  return out;
}

using Holders = std::vector<std::pair<std::string, std::int64_t>>;

Json holders_json(const Holders& holders) {
  Json out = Json::array();
  for (const auto& [holder, bytes] : holders) out.push_back({{"holder", holder}, {"bytes", bytes}});
  return out;
}

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

Json noise_json(const TensorNoise& noise, NumberJson number) {
  Json out{{"tensor", noise.tensor}, {"of", noise.of}, {"sqnr_db", number(noise.sqnr_db)}};
  if (!noise.reason.empty()) out["reason"] = noise.reason;
  return out;
}

Json casts_json(const CastSeries& casts, NumberJson number) {
  Json sqnr = Json::array();
  for (const std::optional<double>& db : casts.sqnr_db) sqnr.push_back(number(db));
  return {{"tensor", casts.tensor},
          {"steps", casts.steps},
          {"sqnr_db", sqnr},
          {"clip_fraction", numbers_json(casts.clip_fraction, number)},
          {"underflow_fraction", numbers_json(casts.underflow_fraction, number)}};
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
  for (const auto& [step, loss] : arm.validation_losses)
    out["validation_losses"].push_back({{"step", step}, {"loss", number(loss)}});
  for (const auto& [name, samples] : arm.samples) out["samples"][name] = numbers_json(samples, number);
  for (const auto& [name, figures] : arm.by_process) out["by_process"][name] = numbers_json(figures, number);
  for (const TensorNoise& one : arm.noise) out["noise"].push_back(noise_json(one, number));
  for (const CastSeries& one : arm.casts) out["casts"].push_back(casts_json(one, number));
  if (!arm.notes.empty()) out["notes"] = arm.notes;
  if (!arm.values_hash.empty()) out["values_hash"] = arm.values_hash;
  out["sequence_hash"] = text_or_null(arm.sequence_hash);
  return out;
}

Json gate_json(const Gate& gate) {
  Json out{{"text", gate.text},
           {"arm", name(gate.side)},
           {"metric", text_or_null(gate.metric)},
           {"pass", gate.pass ? Json(*gate.pass) : Json(nullptr)},
           {"observed", finite_or_null(gate.observed)},
           {"limit", finite_or_null(gate.limit)}};
  if (gate.ratio)
    out["ratio"] = {{"value", gate.ratio->value},
                    {"low", gate.ratio->low},
                    {"high", gate.ratio->high},
                    {"visible", gate.ratio->visible},
                    {"pairs", gate.ratio->pairs}};
  std::string detail = gate.detail;
  if (detail.empty() && gate.observed && !std::isfinite(*gate.observed))
    detail = fmt::format("the measured value is {}", *gate.observed);
  if (!detail.empty()) out["detail"] = detail;
  if (gate.line > 0) out["line"] = gate.line;
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

Json effect_json(const Effect& effect) {
  return {{"kind", name(effect.kind)},
          {"metric", text_or_null(effect.metric)},
          {"unit", text_or_null(effect.unit)},
          {"before", finite_or_null(effect.before)},
          {"after", finite_or_null(effect.after)},
          {"predicted", finite_or_null(effect.predicted)},
          {"as_predicted", effect.as_predicted},
          {"size", finite_or_null(effect.size)}};
}

std::string dumped(const Json& json) {
  // The output of a crashed process may contain any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string cell_to_json(const CellConfig& cell) {
  Json out{{"scenario", cell.scenario},    {"id", cell.id},
           {"axes", axes_json(cell.axes)}, {"measure", cell.measure},
           {"timeout_s", cell.timeout_s},  {"config", settings_json(cell)}};
  add_script(cell, out);
  return dumped(out);
}

std::string arm_to_json(const ArmResult& result) {
  // The timeline of a large model has megabytes, so it follows unescaped instead of as a string of the JSON.
  std::string text = dumped(arm_json(result, exact_json));
  text.reserve(text.size() + 1 + result.timeline_json.size());
  return text.append(1, '\n').append(result.timeline_json);
}

std::string record_to_json(const CellRecord& record) {
  const bool undecided = is_undecided_control(record.config.id, record.verdict, record.gates);
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
           {"good", is_good(record.verdict) || undecided},
           {"reason", text_or_null(record.reason)},
           {"seconds", record.seconds},
           {"arms", Json::object()},
           {"gates", Json::array()},
           {"claims", Json::array()},
           {"measure", record.config.measure},
           {"config", settings_json(record.config)},
           {"hash", record.hash}};
  add_script(record.config, out);
  if (!record.text_checksum.empty()) out["text_checksum"] = record.text_checksum;
  if (undecided) out["undecided"] = true;
  if (record.counterfactual) out["counterfactual"] = true;
  for (const auto& [arm, path] : record.timelines) out["timelines"][std::string(name(arm))] = path;
  if (record.effect) {
    out["finding"] = record.effect->text;
    out["effect"] = effect_json(*record.effect);
  }
  for (const auto& [arm, result] : record.arms) out["arms"][std::string(name(arm))] = arm_json(result, finite_or_null);
  for (const Gate& gate : record.gates) out["gates"].push_back(gate_json(gate));
  for (const ClaimRecord& claim : record.claims) out["claims"].push_back(claim_json(claim));
  return dumped(out);
}

std::string hash_of(const PlannedCell& cell) {
  CellConfig config = cell.config;
  // The same text is the same cell, wherever the file is; another text in the same file is another cell.
  if (!cell.text_checksum.empty()) config.training.corpus = cell.text_checksum;
  std::string text = cell_to_json(config) + cell.files_checksum;
  for (const Expectation& e : cell.expect) text += "\n" + text_of(e);
  for (const Claim& c : cell.claims) text += "\n" + dumped(claim_json({c, {}, {}}));
  text += fmt::format("\n{}", cell.timeout_s.value_or(0));
  return fmt::format("{:016x}", fnv1a(text));
}

std::string texts_to_json(const std::vector<std::string>& texts) {
  return Json(texts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fp8lab
