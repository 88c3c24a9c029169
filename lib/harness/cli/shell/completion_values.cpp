#include "harness/cli/shell/completion_values.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "harness/cell/file_keys.h"
#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/subjects/profile/memory_profile.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

using Candidates = std::vector<Candidate>;

Candidates of_terms(const std::vector<Term>& terms) {
  Candidates out;
  for (const Term& term : terms) out.push_back({term.name, term.title});
  return out;
}

Candidates fixes(const Vocabulary& vocabulary) {
  Candidates out;
  for (const FixTerm& fix : vocabulary.fixes) out.push_back({fix.name, fix.symptom});
  return out;
}

Candidates gpus() {
  Candidates out;
  for (const KnownGpu& gpu : known_gpus())
    out.push_back({std::string(gpu.name), fmt::format("{} MiB of memory", gpu.mebibytes)});
  return out;
}

Candidates models() {
  Candidates out;
  for (const KnownModel& model : known_models())
    out.push_back({std::string(model.name), fmt::format("{}, {} layers, hidden {}, vocabulary {}", model.form,
                                                        model.layers, model.hidden, model.vocabulary)});
  return out;
}

/// The values of a key that are words; none for numbers and texts.
Candidates values_of(const Key& key, const Vocabulary& vocabulary) {
  Candidates out;
  const std::vector<std::string> words =
      key.type == KeyType::kSwitch ? std::vector<std::string>{"true", "false"} : key.words(vocabulary);
  for (const std::string& word : words) out.push_back({word, std::string(key.meaning)});
  return out;
}

ValueWords settings(const Vocabulary& vocabulary) {
  ValueWords out;
  for (const Key& key : keys()) {
    const std::string name = std::string(key.path) + "=";
    out.words.push_back({name, std::string(key.meaning)});
    out.of_word[name] = values_of(key, vocabulary);
  }
  return out;
}

/// What `fp8lab keys` explains: keys of a file, its sections, and keys of a cell.
Candidates explained_keys() {
  Candidates out;
  for (const FileKey& key : file_keys()) out.push_back({std::string(key.name), std::string(key.meaning)});
  for (const Key& key : keys()) {
    const std::string section(key.section());
    const bool listed = std::ranges::any_of(out, [&](const Candidate& row) { return row.text == section; });
    if (!section.empty() && !listed) out.push_back({section, "a section of keys"});
    out.push_back({std::string(key.path), std::string(key.meaning)});
  }
  return out;
}

Candidates explained_metrics() {
  Candidates out;
  for (const MetricGroup& group : metric_groups()) out.push_back({std::string(group.name), "a group of metrics"});
  for (const Metric& metric : metrics()) out.push_back({std::string(metric.name), std::string(metric.meaning)});
  return out;
}

/// Releases of libraries whose memory a profile predicts.
Candidates profiled_releases(const std::string& folder) {
  Candidates out;
  out.push_back({TorchMemory::newest(), "eager PyTorch with FSDP2"});
  out.push_back({TorchMemory::newest("torchao"), "torchao's float8 in eager PyTorch with FSDP2"});
  for (const std::string& release : MemoryProfile::releases(folder)) out.push_back({release, "has a memory profile"});
  return out;
}

Candidates installable_libraries() {
  Candidates out;
  for (const SubjectRow& row : kSubjects)
    if (row.installable) out.push_back({fmt::format("{}==", row.name), std::string(row.title)});
  return out;
}

Candidates shells() {
  Candidates out;
  for (const std::string& shell : completion_shells()) out.push_back({shell, "script for this shell"});
  return out;
}

Candidates kinds() {
  Candidates out;
  for (const auto& [kind, title] : scenario_kinds()) out.push_back({kind, title});
  return out;
}

Candidates documents() {
  Candidates out;
  for (const std::string& name : schema_documents()) out.push_back({name, "its JSON Schema"});
  return out;
}

template <class Rows>
std::function<ValueWords()> words(Rows rows) {
  return [rows = std::move(rows)] { return ValueWords{.words = rows()}; };
}

}  // namespace

ValueTable completion_values(const Program& program) {
  const auto vocabulary = [&program]() -> const Vocabulary& { return program.vocabulary(); };
  const auto files = [] { return ValueWords{.kind = ValueWords::Kind::kFiles}; };
  return {
      {"DEVICE,...", words([=] { return of_terms(vocabulary().devices); })},
      {"RECIPE,...", words([=] { return of_terms(vocabulary().recipes); })},
      {"FIX", words([=] { return fixes(vocabulary()); })},
      {"KEY", words(explained_keys)},
      {"KEY=VALUE", [=] { return settings(vocabulary()); }},
      {"METRIC", words(explained_metrics)},
      {"GPU", words(gpus)},
      {"MODEL", words(models)},
      {"LIBRARY@RELEASE", words([&program] { return profiled_releases(program.worker_directory + "/profiles"); })},
      {"LIBRARY==RELEASE", words(installable_libraries)},
      {"KIND", words(kinds)},
      {"DOCUMENT", words(documents)},
      {"SHELL", words(shells)},
      {"DIR", [] { return ValueWords{.kind = ValueWords::Kind::kDirectories}; }},
      {"FILE", files},
      {"PATH", files},
      {"SCENARIO", files},
      {"FIRST", files},
      {"SECOND", files},
      {"COMMAND", files},
      {"BASELINE", files},
      {"RUN", files},
      {"OUT", files},
  };
}

}  // namespace fp8lab
