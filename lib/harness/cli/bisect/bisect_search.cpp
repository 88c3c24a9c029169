#include "harness/cli/bisect/bisect_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/check.h"
#include "harness/cell/regular_file.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "fp8lab.bisect-state/1";
constexpr std::size_t kRunsOfAnEnd = 2;
constexpr std::array kAnswers{Answer::kGood, Answer::kBad, Answer::kFailed, Answer::kSkipped};

Trial trial_from(const JsonReader& json, const std::vector<std::string>& versions) {
  Trial out;
  out.version = json.at("version").text();
  if (std::ranges::find(versions, out.version) == versions.end()) json.at("version").refuse("a version of this search");
  const JsonReader answer = json.at("answer");
  const auto known = std::ranges::find_if(kAnswers, [&](Answer one) { return answer.is_text(name(one)); });
  if (known == kAnswers.end()) answer.refuse("an answer of this program");
  out.answer = *known;
  out.figure = json.at("figure").number_or_null();
  out.reason = json.text_or_empty("reason");
  out.seconds = json.at("seconds").number();
  return out;
}

}  // namespace

std::string_view name(Answer answer) {
  switch (answer) {
    case Answer::kGood: return "good";
    case Answer::kBad: return "bad";
    case Answer::kFailed: return "failed";
    case Answer::kSkipped: return "skipped";
  }
  return "?";
}

void BisectSearch::add(Trial trial) { trials_.push_back(std::move(trial)); }

std::size_t BisectSearch::runs_of(const std::string& version) const {
  return static_cast<std::size_t>(std::ranges::count(trials_, version, &Trial::version));
}

const Trial* BisectSearch::last_of(const std::string& version) const {
  const auto found =
      std::find_if(trials_.rbegin(), trials_.rend(), [&](const Trial& trial) { return trial.version == version; });
  return found == trials_.rend() ? nullptr : &*found;
}

Answer BisectSearch::meaning(const Trial& trial) const {
  if (trial.answer != Answer::kFailed) return trial.answer;
  const auto end = std::ranges::find(trials_, versions_.back(), &Trial::version);
  return end != trials_.end() && end->answer == Answer::kFailed ? Answer::kBad : Answer::kSkipped;
}

std::optional<Answer> BisectSearch::answer_of(const std::string& version) const {
  const Trial* last = last_of(version);
  return last ? std::optional(meaning(*last)) : std::nullopt;
}

std::string BisectSearch::unclear() const {
  for (const std::string& end : {versions_.front(), versions_.back()}) {
    const bool is_good = end == versions_.front();
    for (const Trial& trial : trials_)
      if (trial.version == end && meaning(trial) != (is_good ? Answer::kGood : Answer::kBad))
        return fmt::format("{} should be {}, but one of its runs is {}{}", end, is_good ? "good" : "bad",
                           name(trial.answer), trial.reason.empty() ? "" : ": " + trial.reason);
  }
  for (const Trial& trial : trials_)
    if (const Trial& last = *last_of(trial.version); meaning(last) != meaning(trial))
      return fmt::format("{} is {} in one run and {} in another, so the oracle is flaky", trial.version,
                         name(trial.answer), name(last.answer));
  return "";
}

std::size_t BisectSearch::first_bad() const {
  for (std::size_t i = 1; i < versions_.size(); ++i)
    if (answer_of(versions_[i]) == Answer::kBad) return i;
  return versions_.size() - 1;
}

std::size_t BisectSearch::last_good() const {
  for (std::size_t i = first_bad(); i-- > 0;)
    if (answer_of(versions_[i]) == Answer::kGood) return i;
  return 0;
}

std::optional<std::string> BisectSearch::next() const {
  if (!unclear().empty()) return std::nullopt;
  for (const std::string& end : {versions_.front(), versions_.back()})
    if (runs_of(end) < kRunsOfAnEnd) return end;
  const std::size_t low = last_good(), high = first_bad(), middle = low + (high - low) / 2;
  std::optional<std::size_t> nearest;
  const auto distance = [&](std::size_t i) { return i > middle ? i - middle : middle - i; };
  for (std::size_t i = low + 1; i < high; ++i)
    if (runs_of(versions_[i]) == 0 && (!nearest || distance(i) < distance(*nearest))) nearest = i;
  if (nearest) return versions_[*nearest];
  for (const std::size_t last : {low, high})  // one run each found them
    if (runs_of(versions_[last]) < kRunsOfAnEnd) return versions_[last];
  return std::nullopt;
}

std::vector<Trial> read_trials(const fs::path& file, const std::string& search,
                               const std::vector<std::string>& versions) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return {};
  std::vector<Trial> out;
  try {
    const JsonDocument document(read_regular_file(file));
    const JsonReader json = document.root();
    if (const JsonReader schema = json.at("schema"); !schema.is_text(kSchema))
      schema.refuse(fmt::format("\"{}\"", kSchema));
    if (json.at("search").text() != search)
      fail("it belongs to another search; remove it, or name another folder with -o");
    json.at("runs").each_item([&](const JsonReader& run) { out.push_back(trial_from(run, versions)); });
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", file.string(), error.what()));
  }
  return out;
}

void write_trials(const fs::path& file, const std::string& search, const std::vector<Trial>& trials) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const Trial& trial : trials)
    runs.push_back({{"version", trial.version},
                    {"answer", name(trial.answer)},
                    {"figure", trial.figure ? nlohmann::ordered_json(*trial.figure) : nlohmann::ordered_json(nullptr)},
                    {"reason", trial.reason},
                    {"seconds", trial.seconds}});
  const nlohmann::ordered_json document{{"schema", kSchema}, {"search", search}, {"runs", runs}};
  const fs::path fresh = file.string() + ".new";
  std::error_code error;
  errno = 0;
  std::ofstream out(fresh, std::ios::binary);
  out << document.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  out.close();
  if (out)
    fs::rename(fresh, file, error);
  else
    error.assign(errno, std::generic_category());
  if (!out || error) {
    std::error_code ignored;
    fs::remove(fresh, ignored);
    fail(fmt::format("{} cannot be written: {}", file.string(), error.message()));
  }
}

}  // namespace fp8lab
