#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/check.h"
#include "harness/cell/spelling.h"
#include "harness/cli/program.h"
#include "harness/cli/starters.h"

namespace fp8lab {

int init_command(const InitRequest& request) {
  if (request.list) {
    for (const Starter& starter : starters()) fmt::print("{:<8} {}\n", starter.kind, starter.title);
    return 0;
  }
  std::vector<std::string> kinds;
  for (const Starter& starter : starters()) kinds.emplace_back(starter.kind);
  if (request.kind.empty()) fail(fmt::format("a kind is missing; give one of {}", fmt::join(kinds, ", ")));
  const Starter* chosen = nullptr;
  for (const Starter& starter : starters())
    if (starter.kind == request.kind) chosen = &starter;
  if (chosen == nullptr)
    fail(fmt::format("no kind is called `{}`.{}", quotable(request.kind), suggestion(request.kind, kinds)));
  if (request.out == "-") {
    std::fputs(std::string(chosen->text).c_str(), stdout);
    return 0;
  }
  const std::string file = request.out.empty() ? std::string(chosen->kind) + ".yaml" : request.out;
  if (!request.force && std::filesystem::exists(file))
    fail(fmt::format("{} exists; give another name by -o, or --force to replace it", file));
  std::ofstream out(file);
  out << chosen->text;
  out.close();
  if (!out) fail(fmt::format("{} cannot be written", file));
  fmt::print("{}: {}\nnext: fp8lab run {} -o out\n", file, chosen->title, file);
  return 0;
}

}  // namespace fp8lab
