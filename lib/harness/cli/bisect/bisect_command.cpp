#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/cli/bisect/bisect_oracle.h"
#include "harness/cli/bisect/bisect_search.h"
#include "harness/cli/bisect/bisect_versions.h"
#include "harness/cli/program.h"
#include "harness/results/json_codec.h"
#include "harness/run/file_lock.h"
#include "harness/run/signal_watch.h"
#include "harness/subjects/install.h"
#include "harness/subjects/subjects.h"
#include "harness/subjects/watched/patched_copy.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFound = 0, kSeveralLeft = 1, kUnclear = 3, kEndCannotRun = 5;

Json text_json(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

/// The versions of the search, and how the cell gets one of them.
class Versions {
 public:
  Versions(const BisectRequest& request, const PlannedCell& cell, const Program& program)
      : request_(request), cell_(cell), subjects_(program.worker_directory) {
    if (!request.checkout.empty()) {
      if (!request.releases.empty()) fail("bisect: name --releases or --checkout");
      clone_ = std::make_unique<CommitClone>(request.checkout);
      list_ = clone_->commits_between(request.good, request.bad);
      return;
    }
    if (!request.build.empty()) fail("bisect: --build needs --checkout");
    library_ = is_script(cell.config) ? pinned_release(request.good).library : cell.config.subject;
    if (library_.empty()) library_ = pinned_release(cell.config.versions.after).library;
    if (library_.empty()) fail("bisect: whose releases? write the library, as in --good torch==2.9.0");
    std::vector<std::string> listed = request.releases, named = request.releases;
    named.insert(named.end(), {request.good, request.bad});
    for (const std::string& one : named)
      if (const std::string other = pinned_release(one).library; !other.empty() && other != library_)
        fail(fmt::format("bisect: {} is no release of {}, whose releases are searched", one, library_));
    for (std::string& one : listed) one = pinned_release(one).release;
    if (listed.empty()) listed = installed_releases(subjects_.folder(), library_);
    list_ = releases_between(listed, pinned_release(request.good).release, pinned_release(request.bad).release);
  }

  const std::vector<std::string>& list() const { return list_; }
  std::string title(const std::string& version) const {
    return clone_ ? clone_->title_of(version) : fmt::format("{} {}", library_, version);
  }

  /// Makes the version ready, and `cell` run it. Returns why that failed, or "".
  std::string prepare(const std::string& version, PlannedCell& cell) const {
    if (!clone_) {
      cell.config.versions.after = is_script(cell.config) ? fmt::format("{}=={}", library_, version) : version;
      const fs::path python = fs::path(subjects_.folder()) / fmt::format("{}-{}", library_, version) / "bin/python";
      std::error_code ignored;
      if (!request_.install || fs::exists(python, ignored)) return "";
      try {
        install_release(fmt::format("{}=={}", library_, version), subjects_.folder());
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    }
    const fs::path checkout = fs::absolute(request_.checkout).lexically_normal();
    const auto in_clone = [&](const std::string& path) {
      return moved(fs::absolute(path), checkout / "", clone_->path()).string();
    };
    const std::string& named = cell_.config.versions.after;
    cell.config.versions.after = is_folder(named) ? in_clone(named) : clone_->path().string();
    if (is_folder(named) && cell.config.versions.after == fs::absolute(named).string())
      cell.config.versions.after = clone_->path().string();
    if (is_script(cell.config)) cell.config.script.path = in_clone(cell_.config.script.path);
    return clone_->prepare(version, request_.build, request_.build_timeout_s);
  }

 private:
  const BisectRequest& request_;
  const PlannedCell& cell_;
  Subjects subjects_;
  std::unique_ptr<CommitClone> clone_;
  std::string library_;
  std::vector<std::string> list_;
};

/// What is searched: another search must not resume from this one's runs.
std::string key_of(const BisectRequest& request, const BisectOracle& oracle, const Versions& versions) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", hash_of(oracle.cell()), oracle.text(), request.checkout, request.build,
                     fmt::join(versions.list(), "\n"));
}

std::string figure_text(const Trial* trial, const BisectOracle& oracle) {
  if (trial == nullptr || !trial->figure) return trial ? trial->reason : "";
  return fmt::format("{} {}", oracle.metric(), figure(*trial->figure, oracle.unit()));
}

std::string line_of(const Trial& trial, const BisectOracle& oracle, const Versions& versions) {
  const bool shows_reason = trial.answer == Answer::kSkipped || trial.answer == Answer::kFailed;
  return fmt::format("{:<8} {}  {}  {:.1f} s\n", name(trial.answer), for_terminal(versions.title(trial.version)),
                     for_terminal(shows_reason ? trial.reason : figure_text(&trial, oracle)), trial.seconds);
}

struct Outcome {
  int code = kFound;
  std::string text;
  std::vector<std::string> suspects;  ///< the first bad one is among them
};

Json json_of(const Trial& trial, const BisectOracle& oracle, const Versions& versions) {
  Json out;
  out["version"] = trial.version;
  out["title"] = versions.title(trial.version);
  out["answer"] = name(trial.answer);
  out["figure"] = trial.figure ? Json(*trial.figure) : Json(nullptr);
  out["unit"] = oracle.unit();
  out["reason"] = text_json(trial.reason);
  out["seconds"] = trial.seconds;
  return out;
}

/// The result of a search that has ended, for --json.
Json json_of(const BisectSearch& search, const BisectOracle& oracle, const Versions& versions, const Outcome& outcome) {
  const auto known = [&](std::size_t version) {
    const Trial* last = search.last_of(search.versions()[version]);
    return outcome.code == kFound && last ? json_of(*last, oracle, versions) : Json(nullptr);
  };
  Json out;
  out["schema"] = "fp8lab.bisect/1";
  out["bad_is"] = oracle.text();
  out["metric"] = text_json(oracle.metric());
  out["first_bad"] = known(search.first_bad());
  out["last_good"] = known(search.last_good());
  out["suspects"] = outcome.suspects;
  out["unclear"] = text_json(search.unclear());
  out["versions"] = search.versions();
  out["runs"] = Json::array();
  for (const Trial& trial : search.trials()) out["runs"].push_back(json_of(trial, oracle, versions));
  return out;
}

Outcome outcome_of(const BisectSearch& search, const BisectOracle& oracle, const Versions& versions) {
  Outcome out;
  const std::vector<std::string>& all = search.versions();
  if (const std::string why = search.unclear(); !why.empty()) {
    const Trial& last = search.trials().back();
    const bool cannot_run =
        last.answer == Answer::kSkipped && (last.version == all.front() || last.version == all.back());
    out.code = cannot_run ? kEndCannotRun : kUnclear;
    out.text = for_terminal(fmt::format("no result: {}", why)) + "\n";
    return out;
  }
  const std::size_t good = search.last_good(), bad = search.first_bad();
  for (std::size_t i = good + 1; i <= bad; ++i) out.suspects.push_back(all[i]);
  out.code = out.suspects.size() == 1 ? kFound : kSeveralLeft;
  std::vector<std::string> skipped;
  for (std::size_t i = good + 1; i < bad; ++i) skipped.push_back(versions.title(all[i]));
  const auto line = [&](std::string_view what, std::size_t version) {
    return for_terminal(fmt::format("{}: {}: {}", what, versions.title(all[version]),
                                    figure_text(search.last_of(all[version]), oracle))) +
           "\n";
  };
  out.text = line(skipped.empty() ? "first bad" : "first known bad", bad);
  if (!skipped.empty())
    out.text +=
        for_terminal(fmt::format("it may also be one of these, which cannot be judged: {}", fmt::join(skipped, "; "))) +
        "\n";
  out.text += line("last good", good);
  return out;
}

}  // namespace

int bisect_command(const BisectRequest& request, const Program& program) {
  // A source that changes within a second, and keeps its size, would be taken for the bytecode of the commit before.
  ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  const BisectOracle oracle(request, program);
  const Versions versions(request, oracle.cell(), program);
  std::error_code error;
  fs::create_directories(request.out, error);
  if (error) fail(fmt::format("bisect: {} cannot be made: {}", request.out, error.message()));
  const FileLock lock(fs::path(request.out) / "lock", FileLock::Create::kYes);
  if (!lock.held()) fail(fmt::format("bisect: another search uses {}; name another folder with -o", request.out));
  const fs::path file = fs::path(request.out) / "bisect.json";
  const std::string key = key_of(request, oracle, versions);
  BisectSearch search(versions.list());
  const SignalWatch& signals = SignalWatch::until_exit();
  std::FILE* text = request.json ? stderr : stdout;
  const auto print = [&](const std::string& line) {
    std::fputs(line.c_str(), text);
    std::fflush(text);
  };
  print(fmt::format("{} between {} and {}; bad is: {}\n",
                    versions.list().size() == 2 ? "no version" : counted(versions.list().size() - 2, "version"),
                    for_terminal(versions.title(versions.list().front())),
                    for_terminal(versions.title(versions.list().back())), oracle.text()));
  for (Trial& trial : read_trials(file, key, versions.list())) {
    if (trial.answer == Answer::kSkipped) continue;  // what it lacked may be there now
    print("earlier: " + line_of(trial, oracle, versions));
    search.add(std::move(trial));
  }
  while (const std::optional<std::string> version = search.next()) {
    PlannedCell cell = oracle.cell();
    Trial trial{.version = *version, .answer = Answer::kSkipped, .figure = {}, .reason = "", .seconds = 0};
    trial.reason = versions.prepare(*version, cell);
    if (trial.reason.empty()) trial = oracle.run(cell, *version);
    const int stopped_by = signals.first_stop_signal();
    if (stopped_by != 0) {
      print(fmt::format("stopped; the same command resumes after {}\n", counted(search.trials().size(), "run")));
      return 128 + stopped_by;
    }
    print(line_of(trial, oracle, versions));
    search.add(std::move(trial));
    write_trials(file, key, search.trials());
  }
  const Outcome outcome = outcome_of(search, oracle, versions);
  const auto skipped = std::ranges::count(search.trials(), Answer::kSkipped, &Trial::answer);
  print(fmt::format("\n{}{}, {} skipped; {}\n", outcome.text, counted(search.trials().size(), "run"), skipped,
                    file.string()));
  if (request.json)
    std::puts(json_of(search, oracle, versions, outcome).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  return outcome.code;
}

}  // namespace fp8lab
