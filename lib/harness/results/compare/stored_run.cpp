#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <string>

#include "core/check.h"
#include "harness/results/compare/compare.h"
#include "harness/results/document_file.h"

namespace fp8lab {

StoredRun load_run(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr const char* kRemedy = "give the results.json of a finished run, or the directory that holds it";
  std::error_code error;
  fs::path file = path;
  if (fs::is_directory(file, error)) file /= "results.json";
  if (fs::path packed = file.string() + ".gz"; !fs::exists(file, error) && fs::exists(packed, error)) file = packed;
  if (const fs::path lines = file.parent_path() / "results.jsonl"; !fs::exists(file, error) && fs::exists(lines, error))
    fail(fmt::format(
        "{}: that run did not end, so it has no results.json; finish it with `fp8lab run ... -o {} --resume`", path,
        path));
  if (!fs::is_regular_file(file, error)) {
    const bool exists = fs::exists(file, error);
    fail(fmt::format("{}: {}; {}", file.string(),
                     exists  ? "not a file"
                     : error ? error.message()
                             : "no such file",
                     kRemedy));
  }
  const std::string text = read_document(file);
  try {
    return run_from_json(text);
  } catch (const std::bad_alloc&) {
    fail(fmt::format("{}: it needs more memory than there is; compare parts of the run", file.string()));
  } catch (const Error& bad) {
    fail(fmt::format("{}: {}; {}", file.string(), bad.what(), kRemedy));
  }
}

}  // namespace fp8lab
