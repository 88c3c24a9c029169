#include "harness/subjects/scored/rank_values.h"

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>

#include "core/check.h"
#include "harness/results/json_reader.h"

namespace fp8lab {

namespace fs = std::filesystem;

namespace {

std::ifstream opened(const fs::path& path) {
  std::error_code ignored;  // a pipe would never end
  std::ifstream file;
  if (fs::is_regular_file(path, ignored)) file.open(path, std::ios::binary);
  check(file.is_open(),
        fmt::format("'{}' cannot be read; a worker must write it before it requests scores", path.string()));
  return file;
}

}  // namespace

std::string file_text(const fs::path& path) {
  std::ifstream file = opened(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

namespace {

/// Reads in one piece: a layer of full size leaves gigabytes.
std::vector<float> floats_of(const fs::path& path) {
  std::ifstream file = opened(path);
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  check(!error && bytes % sizeof(float) == 0, fmt::format("'{}' is no file of 32-bit floats", path.string()));
  std::vector<float> values(bytes / sizeof(float));
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(bytes));
  check(file.good(), fmt::format("'{}' cannot be read to its end", path.string()));
  return values;
}

/// The tensors that a file holds one after the other.
Lists lists_of(const fs::path& path, const std::vector<std::int64_t>& sizes) {
  const std::vector<float> all = floats_of(path);
  Lists out;
  std::size_t begin = 0;
  for (const std::int64_t size : sizes) {
    const std::size_t end = begin + static_cast<std::size_t>(size);
    check(end <= all.size(), fmt::format("'{}' holds fewer values than its description states", path.string()));
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
  }
  check(begin == all.size(), fmt::format("'{}' holds more values than its description states", path.string()));
  return out;
}

RankValues values_of(const fs::path& folder, int rank, std::size_t count) {
  const JsonDocument document(file_text(folder / fmt::format("rank-{}.json", rank)));
  RankValues out;
  std::vector<std::int64_t> elements, gradients;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  document.root().at("tensors").each_item([&](const JsonReader& tensor) {
    out.names.push_back(tensor.at("name").text());
    elements.push_back(tensor.at("elements").integer(0, kMost));
    out.rows.push_back(tensor.at("rows").integer(0, kMost));
    gradients.push_back(tensor.at("gradient").integer(0, elements.back()));
    const std::int64_t begin = tensor.at("begin").integer(0, elements.back());
    out.shards.push_back({.begin = begin, .end = tensor.at("end").integer(begin, elements.back())});
  });
  if (const auto equal = document.root().find("gathered_equals_unsharded"))
    out.gathered_equals_unsharded = equal->flag();
  const auto file = [&](const std::string& kind) { return folder / fmt::format("{}-{}.f32", kind, rank); };
  out.losses = floats_of(file("losses"));
  check(!out.losses.empty(), fmt::format("'{}' holds no loss", file("losses").string()));
  out.output = floats_of(file("output"));
  out.initial = lists_of(file("initial"), elements);
  out.weights = lists_of(file("weights"), elements);
  out.gradients = lists_of(file("gradients"), gradients);
  if (!fs::exists(file("own_pass_output"))) return out;
  if (fs::exists(file("joined_gradients")))
    for (auto* one : {&out.joined, &out.exact}) {
      const std::string of = one == &out.joined ? "joined" : "exact";
      one->emplace(JoinedValues{.outputs = lists_of(file(of + "_outputs"), std::vector(count, std::ssize(out.output))),
                                .gradients = lists_of(file(of + "_gradients"), elements)});
    }
  gradients.push_back(document.root().at("input_gradient").integer(0, kMost));
  const auto pass = [&](const std::string& of) -> std::optional<PassValues> {
    if (!fs::exists(file(of + "_pass_output"))) return std::nullopt;
    return PassValues{floats_of(file(of + "_pass_output")), lists_of(file(of + "_pass_gradients"), gradients)};
  };
  out.own_pass = pass("own");
  out.bf16_pass = pass("bf16");
  out.again_pass = pass("again");
  return out;
}

}  // namespace

std::vector<RankValues> rank_values(const fs::path& folder, int count) {
  std::vector<RankValues> out;
  for (int rank = 0; rank < count; ++rank) out.push_back(values_of(folder, rank, static_cast<std::size_t>(count)));
  return out;
}

}  // namespace fp8lab
