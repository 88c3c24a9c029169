// Witnesses of fixes to optimizers over eight-bit weights.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "fixes/witness.h"
#include "fsdp/sharded_run.h"
#include "optim/adam.h"
#include "optim/foreach_adam.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::RunConfig;

RunConfig one_weight(const Behaviors& behaviors) {
  RunConfig config;
  config.recipe = "current";
  config.layer = "linear";
  config.config = fsdp_test::small_block(64);
  config.config.form = layer_form("llama");
  config.behaviors = behaviors;
  return config;
}

bool lists_move_the_weight(const Behaviors& behaviors) {
  ModelRun run(one_weight(behaviors));
  const Parameter& weight = *run.model().parameters().front();
  const auto before = bytes_of(run.device(), weight.quantized);
  ForeachAdam adam(run.model().parameters(), {.learning_rate = 0.1});
  run.step();
  adam.step(run.runtime());
  return bytes_of(run.device(), weight.quantized) != before;
}

/// True if `work` ends normally in a child process.
template <class Work>
bool survives(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGSEGV, SIG_DFL);  // otherwise sanitizers would report the expected crash
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool adam_finds_the_shard(const Behaviors& behaviors) {
  return survives([&] {
    fsdp_test::on_ranks(2, [&](ProcessGroup& world) {
      ModelRun run(one_weight(behaviors), world, {.replicas = 1, .shards = 2});
      Adam adam(run.model().parameters(), {.master = MasterWeights::kF32});
      run.step();
      adam.step(run.runtime());
    });
  });
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::optimizer_witnesses() {
  static constexpr Witness kWitnesses[] = {
      {"write_back_list_updates", lists_move_the_weight},
      {"unwrap_shards_in_adam", adam_finds_the_shard},
  };
  return kWitnesses;
}

}  // namespace fp8lab
