#include "harness/cli/schema/json_schema.h"
#include "harness/cli/schema/schemas.h"
#include "harness/results/compare/compare.h"
#include "harness/results/json_codec.h"
#include "harness/results/verdict.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {
namespace {

using json_schema::described;
using json_schema::document;
using json_schema::Json;
using json_schema::object;
using json_schema::reference;

const Json kText{{"type", "string"}};
const Json kTextOrNull{{"type", {"string", "null"}}};
const Json kNumber{{"type", "number"}};
const Json kNumberOrNull{{"type", {"number", "null"}}};
const Json kFlag{{"type", "boolean"}};
const Json kInteger{{"type", "integer"}};
const Json kCount{{"type", "integer"}, {"minimum", 0}};
const Json kPositive{{"type", "integer"}, {"minimum", 1}};
const Json kSeconds{{"type", "number"}, {"minimum", 0}};
const Json kFlagOrNull{{"type", {"boolean", "null"}}};
// An id is part of file names, and an absolute path would leave the folder.
const Json kId{{"type", "string"}, {"pattern", "^[^/]"}, {"title", "a path below the set's folder"}};
const Json kScalar{{"type", {"string", "number", "boolean", "null"}}, {"title", "text, a number, a switch or null"}};
const Json kObject{{"type", "object"}};
const Json kHash{{"type", "string"}, {"pattern", "^[0-9a-f]{16}$"}};

Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
/// An object that may have further members.
Json open_object(std::initializer_list<json_schema::Member> members) {
  Json out = object(members);
  out.erase("additionalProperties");
  return out;
}
Json map_of(Json values) { return {{"type", "object"}, {"additionalProperties", std::move(values)}}; }

/// A schema that allows the names of all values in `rows`.
template <class Rows>
Json one_of(const Rows& rows) {
  Json names = Json::array();
  for (const auto row : rows) names.push_back(name(row));
  return {{"enum", names}};
}

Json holders() {
  return list_of(object({{"holder", kText, "who keeps the bytes alive: kind, name and part"},
                         {"bytes", kInteger, "that it keeps, summed over its allocations"}}));
}

Json noise() {
  return list_of(object(
      {{"tensor", kText, "a parameter's name, or output"},
       {"of",
        {{"enum", {"output", "gradient", "weight", "output with the same weights", "gradient with the same weights"}}},
        "what was compared"},
       {"sqnr_db", kNumberOrNull, "10 log10 of BF16's squares over the squared differences"},
       {"reason?", kText, "why sqnr_db is null"}}));
}

Json casts() {
  const Json figures = list_of(kNumberOrNull);
  return list_of(object(
      {{"tensor", kText, "what was cast: layers[0].mlp.fc1 gradient"},
       {"steps", list_of(kCount), "from 0; the lists below have a figure for each"},
       {"sqnr_db", figures, "signal to noise in dB of what a product reads against what was cast; null: no noise"},
       {"clip_fraction", figures, "share of values above the largest that the type has"},
       {"underflow_fraction", figures, "share of values that were not 0 and became 0"}}));
}

Json arm_schema() {
  return object(
      {{"status", {{"enum", arm_statuses()}}, "how the arm's process ended"},
       {"reason", kTextOrNull, "why it did not end well; null if it did"},
       {"seconds", kSeconds, "wall time of the arm's process"},
       {"measured_in?", kText, "id of the cell that ran this arm for this cell too: both ask for the same"},
       {"signal?", kText, "name of the signal that ended the process, such as SIGSEGV"},
       {"output_tail?", kText, "the end of what the process printed, if it did not end well"},
       {"metrics", map_of(reference("metric")), "by name"},
       {"retained_by_holder", holders(), "bytes alive after the last backward, the largest holder first"},
       {"peak_by_holder", holders(),
        "bytes alive at the peak, the largest holder first; holders that differ by index are one"},
       {"notes?", list_of(kText), "how the run differs from the keys of the cell, and why"},
       {"losses?", list_of(kNumberOrNull),
        "By step, the mean over ranks; null: not finite. Of more than 1024 steps 1024, evenly spaced: the i-th of n, "
        "from 0, belongs to step i * (steps - 1) / (n - 1), rounded down."},
       {"validation_losses?",
        list_of(object({{"step", kCount, "steps trained before this validation"},
                        {"loss", kNumberOrNull, "mean over batches and ranks; null: not finite"}})),
        "Of more than 1024 validations 1024, evenly spaced as losses are."},
       {"samples?", map_of(list_of(kNumberOrNull)),
        "The samples of which a metric is the median, ascending; of many, 64 of evenly spaced rank, the least and the "
        "greatest among them."},
       {"by_process?", map_of(list_of(kNumberOrNull)),
        "By timed metric, the figure of each process that ran the arm, of which the metric is the median; processes of "
        "the same place in the lists of two arms ran in turns."},
       {"noise?", noise(), "signal to quantization noise against BF16 by tensor, of the last step"},
       {"casts?", casts(), "by tensor and at some steps: what casts to eight bits changed, clipped and lost"},
       {"values_hash?", kHash, "over the losses of all ranks and the weights as each of them sees them"},
       {"emulated?", kText, "what the device emulates for the modelled architecture"},
       {"sequence_hash", kTextOrNull,
        "over bytes, holder and phase of every allocation; equal on every device; null if memory was not measured"}});
}

Json cell_schema() {
  Json arms = Json::object();
  for (const Arm arm : kArms) arms[std::string(name(arm))] = reference("arm");
  return described(
      object(
          {{"id", kId, "scenario and axes: attention-leak/device=meta,recipe=delayed"},
           {"scenario", kText, "its name"},
           {"file", kText, "the scenario's file, as it was given"},
           {"line?", kCount, "line of the file in which the scenario begins; 0: unknown"},
           {"title", kText, "title of the scenario"},
           {"upstream", list_of(kText), "reports and fixes that the scenario is about"},
           {"axes", map_of(kText), "the keys that the matrix sets, by name"},
           {"ranks", kPositive, "processes or threads that train together"},
           {"fix", kTextOrNull, "what the before arm reverts; null: there is no before arm, or it is another one"},
           {"counterfactual?", kFlag, "true: no upstream release was ever without the fix"},
           {"verdict", one_of(kVerdicts), "what the gates come to"},
           {"good", kFlag, "false: the run ends with an exit code other than 0 because of this cell"},
           {"undecided?", kFlag, "true: a control that the machine was too noisy to decide, which is good"},
           {"reason", kTextOrNull, "reason of the verdict, if the gates do not contain it"},
           {"seconds", kSeconds, "wall time of all arms"},
           {"arms",
            {{"type", "object"}, {"additionalProperties", false}, {"properties", arms}},
            "those that the cell has"},
           {"gates", list_of(reference("gate")), "the expectations, judged"},
           {"claims", list_of(reference("claim")), "figures that sources state, next to measured figures"},
           {"measure", list_of(kText), "groups of metrics that the scenario measures"},
           {"arguments?",
            object({{"after", list_of(kText), "in the after arm"}, {"before?", list_of(kText), "in the before arm"}}),
            "arguments of the program, of subject script"},
           {"patch?", object({{"before?", kText, "the before arm's"}, {"after?", kText, "the after arm's"}}),
            "files of the diffs for copies of the arms' folders, of subject script"},
           {"config", map_of(kScalar), "every key of the scenario by path, axes applied"},
           {"timelines?", map_of(kText),
            "by arm, the file with its memory over time; a run with more than 32 MiB of them keeps those that a "
            "report draws"},
           {"finding?", kText, "what a confirmed cell shows: 589.5 MiB retained after backward -> 0"},
           {"effect?", reference("effect"), "the figures of `finding`"},
           {"text_checksum?", kHash, "checksum of the text that the cell trains on"},
           {"hash", kHash,
            "over the cell, the bytes of its text, its expectations, claims and time limit; --resume runs a cell "
            "again if it differs"}}),
      "also one line of results.jsonl");
}

}  // namespace

std::string results_schema() {
  const Json program = open_object({{"git_commit?", kTextOrNull, "commit of the sources; null: not built from a clone"},
                                    {"git_dirty?", kFlagOrNull, "true: the sources differed from the commit"}});
  const Json environment =
      open_object({{"program", program, "how it was built"},
                   {"libraries", kObject, "versions"},
                   {"host", kObject, "the machine"},
                   {"cpu", open_object({{"model?", kTextOrNull, "as the system names it"}}), "the processor"},
                   {"devices", map_of(kScalar), "by name, what it is or why it is unavailable"},
                   {"variables", kObject, "environment variables that change a run"}});
  Json out =
      document(kResultsSchema, "fp8lab results",
               object({{"schema", {{"const", kResultsSchema}}, "name and version of this schema"},
                       {"complete", kFlag, "false when the run was stopped before its last cell"},
                       {"findings?", list_of(reference("finding")),
                        "what the run established, largest effect first: failed cells; inconclusive cells; arms that "
                        "end differently; values by which a scenario describes a defect; bytes in memory or moved, by "
                        "size; counts; other values; times; cells without a before arm; fixes that no cell shows"},
                       {"unseen_fixes?", list_of(kText), "a line for each scenario whose fix no cell shows (exit 3)"},
                       {"environment", environment, "the program, machine, libraries and variables of the run"},
                       {"cells", list_of(reference("cell")), "in the order of scenarios and of their matrices"}}));
  Json& definitions = out["$defs"];
  definitions["cell"] = cell_schema();
  definitions["arm"] = arm_schema();
  definitions["metric"] = object({{"value", kNumberOrNull, "as measured, in `unit`"},
                                  {"predicted", kNumberOrNull, "by the closed form; null if there is none"},
                                  {"unit", kText, "unit of both"},
                                  {"reason?", kText, "why the value is null, or what it describes"}});
  const Json ratio = object({{"value", kNumber, "the median"},
                             {"low", kNumber, "the least of its 99 % interval"},
                             {"high", kNumber, "the greatest of it"},
                             {"visible", kNumber, "half the width of the interval"},
                             {"pairs", kCount, "pairs of processes"}});
  definitions["gate"] =
      object({{"text", kText, "the expectation in words"},
              {"arm", one_of(kSides), "whose figure is judged; difference: before minus after"},
              {"metric", kTextOrNull, "null for an expectation of how the arm ends"},
              {"pass", kFlagOrNull, "null: undecided"},
              {"observed", kNumberOrNull, "the figure, in the metric's unit"},
              {"limit", kNumberOrNull,
               "what it was held against; of a range, the bound that was missed, or else the lower one"},
              {"ratio?", ratio, "ratio of a timed figure to another arm's, over pairs of processes"},
              {"detail?", kText, "why undecided, or how the arm ended"},
              {"line?", kPositive, "line of the expectation, in the scenario's file"}});
  definitions["effect"] =
      object({{"kind", one_of(kEffectKinds), "what differs between before and after"},
              {"metric", kTextOrNull, "that differs most; null: the arms end differently"},
              {"unit", kTextOrNull, "unit of the metric"},
              {"before", kNumberOrNull, "null: absent or not finite"},
              {"after", kNumberOrNull, "null: absent or not finite"},
              {"predicted", kNumberOrNull, "closed form of `before`"},
              {"as_predicted", kFlag, "true: both figures equal their closed forms"},
              {"size", kNumber,
               "difference in `unit`; of values and times relative to the larger figure; of "
               "endings 4 for a signal, 3 for an error, 2 for a timeout, 1 for too little memory"}});
  Json kinds = one_of(kEffectKinds);
  for (const char* kind : {"failed", "undecided", "held", "unseen"}) kinds["enum"].push_back(kind);
  definitions["finding"] =
      object({{"text", kText, "the finding in one line, with the device or library that it was measured on"},
              {"kind", kinds, "failed, undecided (inconclusive), an effect, held (without a before arm), unseen"},
              {"fix", kTextOrNull, "null: of cells without a fix"},
              {"scenarios", list_of(kText), "scenarios of its cells"},
              {"metric", kTextOrNull, "that an expectation names and that differs most"},
              {"unit", kTextOrNull, "unit of the metric"},
              {"before", kNumberOrNull, "in `cell`; null: absent or not finite"},
              {"after", kNumberOrNull, "in `cell`; null: absent or not finite"},
              {"predicted", kNumberOrNull, "closed form of `before`"},
              {"effect", kNumber, "orders findings of one kind: size of the effect, or number of cells"},
              {"shown", kFlag, "a cell shows the difference, or every cell without a before arm holds"},
              {"reason", kTextOrNull, "why it is not shown"},
              {"cells", kCount, "that show it"},
              {"of", kCount, "cells that ran"},
              {"cell", kTextOrNull, "id of the cell whose figures these are"}});
  definitions["claim"] = object({{"source", kText, "who states it"},
                                 {"words", kText, "in the source's own words"},
                                 {"metric", kText, "that it is about"},
                                 {"arm", one_of(kSides), "whose figure it is; difference: before minus after"},
                                 {"value", kNumber, "in `unit`; predicted and measured are in the metric's own unit"},
                                 {"unit", kText, "unit of the value"},
                                 {"predicted", kNumberOrNull, "by the closed form"},
                                 {"measured", kNumberOrNull, "in this run"},
                                 {"note?", kText, "why they may differ"}});
  return out.dump(2);
}

std::string comparison_schema() {
  const Json value{{"type", {"string", "number", "null"}}};
  const Json change = object({{"kind", one_of(kChangeKinds), "what changed"},
                              {"direction", one_of(kDirections), "direction of the change"},
                              {"id", kText, "id of the cell"},
                              {"file", kText, "file of its scenario"},
                              {"line", kCount, "line of the file; 0: unknown"},
                              {"regression", kFlag, "worse, and not allowed"},
                              {"allowed", kFlag, "--allow matches, or an entry of --accept covers it"},
                              {"gated", kFlag, "false: a figure of a redefined cell, which is not gated"},
                              {"reason", kTextOrNull, "the newer run's reason for its verdict or missing figure"},
                              {"text", kText, "the change in words, without the cell"},
                              {"arm?", kText, "whose figure changed"},
                              {"metric?", kText, "that changed"},
                              {"unit?", kText, "unit of the metric"},
                              {"was", value, "in the baseline"},
                              {"is", value, "in the other run"}});
  const Json finding =
      object({{"id", kText, "id of the cell"},
              {"direction", one_of(kDirections), "neutral: a time, which is not gated"},
              {"regression", kFlag, "worse, and not allowed"},
              {"arm", kTextOrNull, "whose figure changed"},
              {"metric", kTextOrNull, "that changed; null: an arm or the cell ended otherwise, or it is a time"},
              {"unit", kTextOrNull, "unit of the metric"},
              {"was", kNumberOrNull, "in the baseline"},
              {"is", kNumberOrNull, "in the other run"},
              {"phase", kTextOrNull, "phase of the step in which memory changed"},
              {"holder", kTextOrNull, "holder of these bytes, if known"},
              {"holder_bytes", kNumberOrNull, "by which it grew"},
              {"also", list_of(kText), "other metrics that changed in the same direction"},
              {"since", kTextOrNull, "the first run that shows it, and its commit, if known"},
              {"text", kText, "the finding in one line"}});
  const Json timing = object({{"id", kText, "id of the cell"},
                              {"arm", kText, "whose time it is"},
                              {"metric", kText, "that is timed"},
                              {"unit", kText, "unit of the metric"},
                              {"was", kNumber, "in the baseline"},
                              {"is", kNumber, "in the other run"}});
  const Json variable = object({{"key", kText, "path in the environment"},
                                {"was", kTextOrNull, "in the baseline"},
                                {"is", kTextOrNull, "in the other run"}});
  const Json out =
      document(kComparisonSchema, "fp8lab compare --json",
               object({{"schema", {{"const", kComparisonSchema}}, "name and version of this schema"},
                       {"exit_code", kInteger, "exit code of fp8lab compare"},
                       {"cells_compared", kCount, "cells that ran in both runs with the same keys"},
                       {"cells_redefined", kCount, "cells that ran in both runs with different keys"},
                       {"regressions", kCount, "changes for the worse that are not allowed"},
                       {"worse", kCount, "changes for the worse"},
                       {"better", kCount, "changes for the better"},
                       {"baseline_complete", kFlag, "false when the baseline was stopped before its last cell"},
                       {"complete", kFlag, "the same of the other run"},
                       {"findings", list_of(finding), "at most one for each cell that changed, the worst first"},
                       {"changes", list_of(change), "every one"},
                       {"timings", list_of(timing), "reported, never judged"},
                       {"environment", list_of(variable), "what differs between the machines and programs"}}));
  return out.dump(2);
}

}  // namespace fp8lab
