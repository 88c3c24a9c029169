#include "harness/cli/bisect/bisect_versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "harness/run/arm_process.h"
#include "harness/subjects/captured_process.h"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr double kGitSeconds = 600;

/// What orders releases of a library, as PEP 440 does: 2.10 < 2.11.0.dev1 < 2.11.0a0 < 2.11.0rc1 < 2.11.0 <
/// 2.11.0.post1.
struct Release {
  std::vector<int> numbers;  ///< "2.10.0+cu128" has {2, 10}
  int phase = 0;             ///< position in kPhases
  int number = 0;            ///< 1 of "rc1"
  std::string text;
};

constexpr std::array<std::string_view, 6> kPhases{"dev", "a", "b", "rc", "", "post"};
constexpr int kFinal = 4;

Release parsed(const std::string& release) {
  Release out{.numbers = {}, .phase = kFinal, .number = 0, .text = release};
  const char *at = release.data(), *const end = at + std::min(release.find('+'), release.size());
  const auto number = [&](int& into) {
    const auto [next, error] = std::from_chars(at, end, into);
    at = next;
    return error == std::errc{};
  };
  for (int one = 0; number(one); ++at) {
    out.numbers.push_back(one);
    if (at == end || *at != '.') break;
  }
  while (!out.numbers.empty() && out.numbers.back() == 0) out.numbers.pop_back();  // 2.11 is 2.11.0
  if (at > release.data() && at != end && at[-1] != '.' && *at == '.') ++at;
  const std::string_view suffix(at, static_cast<std::size_t>(end - at));
  for (std::size_t phase = 0; phase < kPhases.size(); ++phase)
    if (!kPhases[phase].empty() && suffix.starts_with(kPhases[phase])) {
      out.phase = static_cast<int>(phase);
      at += kPhases[phase].size();
      number(out.number);
      break;
    }
  return out;
}

bool is_older(const std::string& a, const std::string& b) {
  const Release first = parsed(a), second = parsed(b);
  return std::tie(first.numbers, first.phase, first.number, first.text) <
         std::tie(second.numbers, second.phase, second.number, second.text);
}

/// Runs git, or a build, which may run git.
Captured captured_outside(std::vector<std::string> words, double limit_s) {
  return captured(outside_of_repositories(std::move(words)), "", limit_s);
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string last_lines(const std::string& text) {
  constexpr std::size_t kMost = 300;
  const std::string out = trimmed(text);
  return one_line(out.size() > kMost ? "... " + out.substr(out.size() - kMost) : out);
}

}  // namespace

std::vector<std::string> releases_between(std::vector<std::string> listed, const std::string& good,
                                          const std::string& bad) {
  if (!is_older(good, bad))
    fail(
        fmt::format("bisect: --good {} is not older than --bad {}; to find what fixed something, swap the two and "
                    "reverse the gate",
                    good, bad));
  listed.insert(listed.end(), {good, bad});
  std::ranges::sort(listed, is_older);
  listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
  std::erase_if(listed, [&](const std::string& one) { return is_older(one, good) || is_older(bad, one); });
  return listed;
}

std::vector<std::string> installed_releases(const std::string& folder, const std::string& library) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (const std::string found = entry.path().filename(); found.starts_with(library + "-"))
      out.push_back(found.substr(library.size() + 1));
  return out;
}

CommitClone::CommitClone(const fs::path& checkout)
    : run_folder_(RunFolder::shared()),
      path_(run_folder_->unused_path() / fs::absolute(checkout / "").lexically_normal().parent_path().filename()) {
  // --shared borrows the objects, so nothing in the checkout changes, not even its list of worktrees.
  const Captured run = captured_outside({"git", "clone", "--quiet", "--shared", "--no-checkout", "--",
                                         fs::absolute(checkout).lexically_normal().string(), path_.string()},
                                        kGitSeconds);
  if (run.status == 127) fail("bisect: git is not installed, which --checkout needs");
  if (run.status != 0) fail(fmt::format("bisect: --checkout {}: {}", checkout.string(), last_lines(run.errors)));
}

CommitClone::~CommitClone() {
  std::error_code ignored;
  fs::remove_all(path_.parent_path(), ignored);
}

std::string CommitClone::git(std::vector<std::string> words) const {
  words.insert(words.begin(), {"git", "-C", path_.string(), "-c", "advice.detachedHead=false"});
  const Captured run = captured_outside(words, kGitSeconds);
  if (run.status != 0) fail(last_lines(run.errors));
  return trimmed(run.output);
}

std::vector<std::string> CommitClone::commits_between(const std::string& good, const std::string& bad) const {
  std::vector<std::string> ends;
  for (const std::string& name : {good, bad}) {
    std::string hash;
    // Branches of the checkout are remote ones of its clone.
    for (const std::string& where : {name, "origin/" + name})
      if (hash.empty()) {
        const Captured run = captured_outside(
            {"git", "-C", path_.string(), "rev-parse", "--verify", "--quiet", "--end-of-options", where + "^{commit}"},
            kGitSeconds);
        if (run.status == 0) hash = trimmed(run.output);
      }
    if (hash.empty()) fail(fmt::format("bisect: {} names no commit of --checkout", name));
    ends.push_back(hash);
  }
  std::vector<std::string> out{ends[0]};
  const std::string list = git({"rev-list", "--reverse", "--first-parent", ends[1], "^" + ends[0]});
  for (std::size_t at = 0; at < list.size(); at += out.back().size() + 1)
    out.push_back(list.substr(at, list.find('\n', at) - at));
  const Captured before =
      captured_outside({"git", "-C", path_.string(), "merge-base", "--is-ancestor", ends[0], ends[1]}, kGitSeconds);
  if (before.status != 0 || out.size() < 2)
    fail(fmt::format("bisect: {} does not precede {} in --checkout", good, bad));
  return out;
}

std::string CommitClone::title_of(const std::string& commit) const {
  return one_line(git({"log", "-1", "--format=%h %s", "--end-of-options", commit, "--"}));
}

std::string CommitClone::prepare(const std::string& commit, const std::string& build, double limit_s) const {
  try {
    git({"checkout", "--quiet", "--force", "--detach", commit, "--"});
  } catch (const Error& error) {
    return fmt::format("it cannot be checked out: {}", error.what());
  }
  if (build.empty()) return "";
  const Captured run = captured_outside({"--chdir=" + path_.string(), "/bin/sh", "-c", build}, limit_s);
  if (run.late) return fmt::format("its build took longer than {:g} s", limit_s);
  if (run.status == 0) return "";
  return fmt::format("it does not build (status {}): {}", run.status,
                     last_lines(run.errors.empty() ? run.output : run.errors));
}

}  // namespace fp8lab
