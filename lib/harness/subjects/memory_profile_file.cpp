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
#include "harness/subjects/memory_profile.h"

// Files of profiles: reading them, and finding that of a release.
namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "fp8lab.memory-profile/2";
constexpr std::array kKinds{"context", "gradient", "workspace"};

Terms terms_from(const JsonReader& json) {
  static const Sizes any{ModelConfig{}};
  Terms out;
  json.each_member([&](const std::string& term, const JsonReader& times) {
    if (!any.of(std::string_view(term))) times.refuse_for("belongs to no term: name products of sizes, or bytes");
    out[term] = times.number();
  });
  return out;
}

TermsByKind by_kind_from(const JsonReader& json) {
  TermsByKind out;
  for (const char* kind : kKinds)
    if (const auto terms = json.find(kind)) out[kind] = terms_from(*terms);
  return out;
}

std::vector<TermsByKind> moments_from(const JsonReader& json) {
  std::vector<TermsByKind> out;
  json.each_item([&](const JsonReader& moment) { out.push_back(by_kind_from(moment)); });
  return out;
}

ProfileRow row_from(const JsonReader& json) {
  ProfileRow row;
  row.layer = json.at("layer").text();
  row.form = json.at("form").text();
  row.recipe = json.at("recipe").text();
  row.quantized_weights = json.at("quantized_weights").flag();
  json.at("weights").each_item([&](const JsonReader& weight) { row.weights.push_back(terms_from(weight)); });
  row.vectors = terms_from(json.at("vectors"));
  row.bytes_of_weight = json.at("bytes_of_weight").integer(1, 16);
  const JsonReader adam = json.at("adam");
  row.adam_all = adam.at("all").number();
  row.adam_largest = adam.at("largest").number();
  row.adam_last = adam.at("last").number();
  row.state = json.at("state").integer(0);
  row.before = terms_from(json.at("before"));
  row.first = terms_from(json.at("first"));
  row.forward = by_kind_from(json.at("forward"));
  row.backward = by_kind_from(json.at("backward"));
  row.loss = terms_from(json.at("loss"));
  row.forward_moments = moments_from(json.at("forward_moments"));
  row.output_moments = moments_from(json.at("output_moments"));
  row.loss_moments = moments_from(json.at("loss_moments"));
  row.backward_moments = moments_from(json.at("backward_moments"));
  return row;
}

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

}  // namespace

MemoryProfile MemoryProfile::read(const std::string& path) {
  const std::string text = read_regular_file(path);
  try {
    const JsonDocument document(text);
    const JsonReader json = document.root();
    if (!json.at("schema").is_text(kSchema)) json.at("schema").refuse(kSchema);
    MemoryProfile out;
    out.subject_ = json.at("subject").text();
    out.first_ = json.at("first").text();
    out.last_ = json.at("last").text();
    if (!release_of(out.first_)) json.at("first").refuse("a release, such as 2.16");
    if (!release_of(out.last_)) json.at("last").refuse("a release, such as 2.16");
    out.release_ = out.last_;
    out.keeps_sharded_copies_ = json.at("keeps_sharded_copies_until").text();
    if (!out.keeps_sharded_copies_.empty() && !release_of(out.keeps_sharded_copies_))
      json.at("keeps_sharded_copies_until").refuse("a release, such as 2.15, or empty");
    out.arch_ = json.at("arch").text();
    out.measured_ = json.at("measured").text();
    out.scratch_ = static_cast<double>(json.at("scratch").integer(0));
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
    known.push_back(fmt::format("{}@{}", profile.subject_, profile.first_));
    if (profile.last_ != profile.first_) known.push_back(fmt::format("{}@{}", profile.subject_, profile.last_));
  }
  return {};
}

MemoryProfile MemoryProfile::find(const std::string& folder, const std::string& release) {
  std::vector<std::string> known;
  if (std::optional<MemoryProfile> found = look_up(folder, release, known)) return *std::move(found);
  const std::string there = known.empty() ? fmt::format("is none in {}", folder) : fmt::format("are {}", listed(known));
  fail(fmt::format("--as: there is no memory profile of `{}`; there {}", quotable(release), there));
}

std::optional<MemoryProfile> MemoryProfile::find(const std::string& folder, const CellConfig& cell, Arm arm) {
  const std::string& version = version_of(cell, arm);
  if (!is_library(cell) || !release_of(version)) return {};
  std::vector<std::string> known;
  return look_up(folder, fmt::format("{}@{}", cell.subject, version), known);
}

bool MemoryProfile::drops_sharded_copies() const { return release_of(keeps_sharded_copies_) < release_of(release_); }

std::string MemoryProfile::title() const {
  return fmt::format("{} {} to {}, from a run with {}", subject_, first_, last_, measured_);
}

}  // namespace fp8lab
