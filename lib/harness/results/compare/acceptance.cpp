#include "harness/results/compare/acceptance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/scenario/id_matcher.h"
#include "harness/scenario/toml_file.h"

namespace fp8lab {
namespace {

constexpr std::array kKeys{TomlKey{"cells"},
                           TomlKey{"metric"},
                           TomlKey{"at_most", TomlKind::kNumber},
                           TomlKey{"at_least", TomlKind::kNumber},
                           TomlKey{"kind"},
                           TomlKey{"expires", TomlKind::kDate},
                           TomlKey{"why"}};
constexpr std::array kKinds{ChangeKind::kVanished, ChangeKind::kVerdict,   ChangeKind::kArm,
                            ChangeKind::kNoFigure, ChangeKind::kRedefined, ChangeKind::kGates};

ChangeKind kind_of(const std::string& word, const std::string& place) {
  const auto kind = std::ranges::find(kKinds, word, [](ChangeKind one) { return name(one); });
  if (kind != kKinds.end()) return *kind;
  std::vector<std::string_view> names;
  for (const ChangeKind one : kKinds) names.push_back(name(one));
  fail(fmt::format("{}: `kind` cannot be '{}'; there are {}", place, word, fmt::join(names, ", ")));
}

/// Throws Error unless `metric` is one, and its limit is on the side on which it gets worse.
void check_limit(const std::string& metric, bool is_at_least, const std::string& place) {
  const Metric* const found = find_metric(metric);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const Metric& one : metrics()) names.emplace_back(one.name);
    fail(fmt::format("{}: `metric` cannot be `{}`.{}", place, quotable(metric), suggestion(metric, names)));
  }
  if (found->better == (is_at_least ? Better::kLess : Better::kMore))
    fail(fmt::format("{}: {} is better if it is {}, so `{}` would accept every regression; write `{}`", place, metric,
                     is_at_least ? "less" : "more", is_at_least ? "at_least" : "at_most",
                     is_at_least ? "at_most" : "at_least"));
}

Acceptance entry_of(const toml::node& node, const std::string& place) {
  const toml::table* table = node.as_table();
  if (table == nullptr) fail(place + ": not a table; write [[accept]] and its keys below");
  check_toml_keys(*table, kKeys, place);
  const auto text = [&](const char* key) { return (*table)[key].value_or(std::string()); };
  const bool has_kind = table->contains("kind"), most = table->contains("at_most"), least = table->contains("at_least");
  for (const char* key : {"cells", "why"})
    if (text(key).empty()) fail(fmt::format("{}: `{}` is missing", place, key));
  const auto expires = (*table)["expires"].value<toml::date>();
  if (!expires) fail(place + ": `expires` is missing, or no date; write it without quotes, expires = 2027-01-31");
  if (text("metric").empty() != has_kind) fail(place + ": give one of `metric` and `kind`");
  Acceptance out;
  out.place = place;
  out.metric = text("metric");
  if (has_kind) out.kind = kind_of(text("kind"), place);
  if (has_kind && (most || least))
    fail(fmt::format("{}: `{}` belongs to a `metric`", place, most ? "at_most" : "at_least"));
  if (!has_kind && most == least) fail(place + ": give one of `at_most` and `at_least`");
  if (!has_kind) check_limit(out.metric, least, place);
  out.at_least = (*table)["at_least"].value_or(-std::numeric_limits<double>::infinity());
  out.at_most = (*table)["at_most"].value_or(std::numeric_limits<double>::infinity());
  try {
    out.cells = id_matcher("cells", text("cells"));
  } catch (const Error& error) {
    fail(fmt::format("{}: `cells` is no regular expression: {}", place, error.what()));
  }
  out.expires = fmt::format("{:04}-{:02}-{:02}", expires->year, expires->month, expires->day);
  out.why = text("why");
  return out;
}

}  // namespace

bool Acceptance::covers(const Change& change) const {
  if (change.kind != kind || !cells(change.id)) return false;
  return metric.empty() || (change.metric == metric && change.is && at_least <= *change.is && *change.is <= at_most);
}

std::vector<Acceptance> read_acceptances(const std::filesystem::path& file) {
  const toml::table document = read_toml(file);
  const toml::node* rows = document.get("accept");
  const bool foreign = document.size() != (rows == nullptr ? 0U : 1U) || (rows != nullptr && !rows->is_array());
  if (foreign) fail(file.string() + ": only tables [[accept]] belong here");
  std::vector<Acceptance> out;
  if (rows != nullptr)
    for (const toml::node& row : *rows->as_array())
      out.push_back(entry_of(row, fmt::format("{}: entry {}", file.string(), out.size() + 1)));
  return out;
}

Accepted accept(std::span<const Acceptance> entries, RunComparison& comparison, const std::string& today) {
  Accepted out;
  std::set<const Acceptance*> used;
  for (Change& change : comparison.changes) {
    const bool reviewed = change.kind == ChangeKind::kRedefined || change.kind == ChangeKind::kGates;
    if (!change.is_regression() && !reviewed) continue;
    const auto entry = std::ranges::find_if(
        entries, [&](const Acceptance& one) { return today <= one.expires && one.covers(change); });
    if (entry == entries.end()) continue;
    used.insert(&*entry);
    change.allowed = true;
    out.changes.push_back({change.id, text_of(change), entry->expires, entry->why});
  }
  for (const Acceptance& entry : entries)
    if (today > entry.expires)
      out.warnings.push_back(
          fmt::format("{}: expired on {} and accepts nothing; renew or remove it", entry.place, entry.expires));
    else if (!used.contains(&entry))
      out.warnings.push_back(entry.place + ": accepts no change of this comparison; remove it if none is left");
  return out;
}

}  // namespace fp8lab
