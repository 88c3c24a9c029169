#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/regular_file.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/results/json_reader.h"
#include "harness/subjects/profile/memory_profile.h"

// Files of profiles: reading them, and finding a release's profile.
namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "fp8lab.memory-profile/3";
constexpr std::array kKinds{"context", "gradient", "workspace"};

/// "2.16" and "2.16.1" as (2, 16); nothing for other texts.
std::optional<std::pair<std::int64_t, std::int64_t>> release_of(std::string_view text) {
  const std::size_t dot = text.find('.');
  if (dot == std::string_view::npos) return {};
  const std::size_t end = std::min(text.find('.', dot + 1), text.size());
  const auto major = integer(std::string(text.substr(0, dot)));
  const auto minor = integer(std::string(text.substr(dot + 1, end - dot - 1)));
  if (!major || !minor) return {};
  return std::pair(*major, *minor);
}

std::string release_from(const JsonReader& json) {
  if (!release_of(json.text())) json.refuse("a release, such as 2.16");
  return json.text();
}

double factor_from(const JsonReader& json, double least = 0.0) {
  const double out = json.number();
  if (!(out >= least)) json.refuse(fmt::format("a number of at least {:g}", least));
  return out;
}

/// Bytes that are there have factors of at least `least`; what a part of a step takes away has some below 0.
constexpr double kAny = -1e9;
Terms terms_from(const JsonReader& json, double least = 0.0) {
  static const Sizes any{ModelConfig{}};
  Terms out;
  json.each_member([&](const std::string& term, const JsonReader& times) {
    if (!any.of(std::string_view(term))) times.refuse_for("belongs to no term: name products of sizes, or bytes");
    out[term] = factor_from(times, least);
  });
  return out;
}

TermsByKind by_kind_from(const JsonReader& json, double least = kAny) {
  TermsByKind out;
  for (const char* kind : kKinds)
    if (const auto terms = json.find(kind)) out[kind] = terms_from(*terms, least);
  return out;
}

std::vector<TermsByKind> moments_from(const JsonReader& json) {
  std::vector<TermsByKind> out;
  json.each_item([&](const JsonReader& moment) { out.push_back(by_kind_from(moment)); });
  return out;
}

ProfileLoss loss_from(const JsonReader& json) {
  ProfileLoss out;
  out.held = terms_from(json.at("held"));
  out.forward = terms_from(json.at("forward"), -2.0);  // the output, in 16 bits
  out.kept = terms_from(json.at("kept"));
  out.backward = terms_from(json.at("backward"));
  out.surplus = terms_from(json.at("surplus"), kAny);
  out.forward_moments = moments_from(json.at("forward_moments"));
  out.backward_moments = moments_from(json.at("backward_moments"));
  return out;
}

ProfileGap gap_from(const JsonReader& json) {
  ProfileGap out;
  out.first = release_from(json.at("first"));
  out.last = release_from(json.at("last"));
  out.reason = json.at("reason").text();
  json.at("cells").each_member([&](const std::string& key, const JsonReader& value) {
    if (std::ranges::find(keys(), key, &Key::path) == keys().end()) value.refuse_for("belongs to no key of a cell");
    out.cells[key] = value.text();
  });
  return out;
}

ProfileRow row_from(const JsonReader& json) {
  ProfileRow row;
  if (json.find("first")) row.first = release_from(json.at("first"));
  if (json.find("last")) row.last = release_from(json.at("last"));
  row.layer = json.at("layer").text();
  row.form = json.at("form").text();
  row.recipe = json.at("recipe").text();
  row.quantized_weights = json.at("quantized_weights").flag();
  json.at("weights").each_item([&](const JsonReader& weight) {
    row.weights.push_back(terms_from(weight));
    const auto is_matrix = [](const auto& term) { return term.first.starts_with("hidden*") && term.second > 0.0; };
    if (row.weights.back().size() != 1 || !is_matrix(*row.weights.back().begin()))
      weight.refuse_for("is no matrix: name one product of hidden and rows, with a factor above 0");
  });
  row.vectors = terms_from(json.at("vectors"));
  row.bytes_of_weight = json.at("bytes_of_weight").integer(1, 16);
  const JsonReader adam = json.at("adam");
  row.adam_all = factor_from(adam.at("all"));
  row.adam_largest = factor_from(adam.at("largest"));
  row.adam_last = factor_from(adam.at("last"));
  row.state = json.at("state").integer(0);
  row.before = terms_from(json.at("before"));
  row.first_surplus = terms_from(json.at("first_layer"), kAny);
  row.forward = by_kind_from(json.at("forward"), 0.0);
  row.backward = by_kind_from(json.at("backward"));
  row.forward_moments = moments_from(json.at("forward_moments"));
  row.backward_moments = moments_from(json.at("backward_moments"));
  row.spread_moments = moments_from(json.at("spread_moments"));
  return row;
}

}  // namespace

MemoryProfile MemoryProfile::read(const std::string& path) {
  const std::string text = read_regular_file(path);
  try {
    const JsonDocument document(text);
    const JsonReader json = document.root();
    if (!json.at("schema").is_text(kSchema)) json.at("schema").refuse(kSchema);
    MemoryProfile out;
    out.path_ = path;
    out.subject_ = json.at("subject").text();
    out.first_ = release_from(json.at("first"));
    out.last_ = release_from(json.at("last"));
    out.release_ = out.last_;
    out.keeps_sharded_copies_ = json.at("keeps_sharded_copies_until").text();
    if (!out.keeps_sharded_copies_.empty() && !release_of(out.keeps_sharded_copies_))
      json.at("keeps_sharded_copies_until").refuse("a release, such as 2.15, or empty");
    if (json.find("sharded_fp8_weights_since"))
      out.gathers_fp8_since_ = release_from(json.at("sharded_fp8_weights_since"));
    out.arch_ = json.at("arch").text();
    out.measured_ = json.at("measured").text();
    out.scratch_ = static_cast<double>(json.at("scratch").integer(0));
    out.compared_ = json.at("compared").text();
    json.at("losses").each_member(
        [&](const std::string& name, const JsonReader& loss) { out.losses_[name] = loss_from(loss); });
    json.at("differs").each_item([&](const JsonReader& gap) { out.gaps_.push_back(gap_from(gap)); });
    json.at("rows").each_item([&](const JsonReader& row) { out.rows_.push_back(row_from(row)); });
    return out;
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", path, error.what()));
  }
}

std::optional<MemoryProfile> MemoryProfile::look_up(const std::string& folder, const std::string& release,
                                                    std::vector<std::string>& known) {
  const std::size_t sign = release.find('@');
  const std::string subject = release.substr(0, sign);
  const auto wanted = release_of(sign == std::string::npos ? "" : release.substr(sign + 1));
  std::error_code ignored;
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  std::ranges::sort(paths);
  for (const std::string& path : paths) {
    MemoryProfile profile = read(path);
    if (profile.subject_ == subject && wanted && release_of(profile.first_) <= wanted &&
        wanted <= release_of(profile.last_)) {
      profile.release_ = release.substr(sign + 1);
      return profile;
    }
    for (const std::string& end : {profile.first_, profile.last_})
      known.push_back(fmt::format("{}@{}", profile.subject_, end));
  }
  return {};
}

std::vector<std::string> MemoryProfile::releases(const std::string& folder) {
  std::vector<std::string> known;
  look_up(folder, "", known);  // no profile covers this release, so every one is listed
  return known;
}

MemoryProfile MemoryProfile::find(const std::string& folder, const std::string& release,
                                  const std::vector<std::string>& others) {
  std::vector<std::string> known;
  if (std::optional<MemoryProfile> found = look_up(folder, release, known)) return *std::move(found);
  std::vector<std::string> ranges = others;
  for (std::size_t i = 0; i + 1 < known.size(); i += 2)
    ranges.push_back(fmt::format("{} to {}", known[i], known[i + 1]));
  fail(fmt::format("--as: there are no figures of `{}`; there are figures of {}", quotable(release),
                   fmt::join(ranges, ", ")));
}

std::optional<MemoryProfile> MemoryProfile::find(const std::string& folder, const CellConfig& cell, Arm arm) {
  const std::string& version = version_of(cell, arm);
  if (!is_library(cell) || !release_of(version)) return {};
  std::vector<std::string> known;
  return look_up(folder, fmt::format("{}@{}", cell.subject, version), known);
}

bool is_within(const std::string& release, const std::string& first, const std::string& last) {
  return (first.empty() || release_of(first) <= release_of(release)) &&
         (last.empty() || release_of(release) <= release_of(last));
}

bool MemoryProfile::drops_sharded_copies() const { return release_of(keeps_sharded_copies_) < release_of(release_); }

bool MemoryProfile::gathers_fp8_weights() const {
  return !gathers_fp8_since_.empty() && is_within(release_, gathers_fp8_since_, last_);
}

std::string MemoryProfile::title() const {
  return fmt::format("{} {} to {}, from a run with {}; {}", subject_, first_, last_, measured_, compared_);
}

}  // namespace fp8lab
