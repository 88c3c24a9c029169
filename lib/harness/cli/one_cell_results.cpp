#include "harness/cli/one_cell_results.h"

#include <cstdio>

#include "harness/results/environment.h"

namespace fp8lab {

OneCellResults::OneCellResults(const std::string& folder, const Program& program)
    : results_(folder, /*resume=*/false),
      environment_(environment_json(program.build, program.vocabulary().devices)),
      environment_line_(environment_line(program.build)) {
  results_.write_environment(environment_);
}

void OneCellResults::write(const CellRecord& record, bool prints, const std::string& model) {
  results_.append(record);
  const std::vector<std::string> ids{record.config.id};
  const RunSummary summary{.date = now_utc(),
                           .environment = environment_line_,
                           .complete = true,
                           .planned = 1,
                           .seconds = record.seconds,
                           .findings = run_findings(results_.records(ids))};
  results_.finish(ids, environment_, summary);
  if (!model.empty()) results_.write_document(kModelFile, model + "\n");
  if (prints)
    results_.write_json(ids, environment_, summary,
                        [](std::string_view part) { std::fwrite(part.data(), 1, part.size(), stdout); });
}

}  // namespace fp8lab
