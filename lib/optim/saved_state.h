#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "nn/build.h"
#include "nn/cores/role_scales.h"
#include "optim/adam.h"

namespace fp8lab {

/// What is saved and loaded. `parameters` are the unsharded ones, in the order of the model.
struct TrainingState {
  std::span<Parameter* const> parameters;
  Adam* optimizer = nullptr;  ///< over the same parameters; null: none is saved or loaded
  std::span<RoleScales* const> forward_scales;
  std::span<RoleScales* const> backward_scales;
  std::int64_t step = 0;
};

// Files. A folder holds one file per rank ("save-<n>.rank-<r>") and "manifest", a small text that names them. Hazard: a
// process may die at any moment of a save. Rule: every file is written under another name, forced to the disk and
// renamed, a save writes files of its own, and the manifest is replaced last. Until then the folder holds the previous
// state, complete; afterwards the previous files are removed.
//
// Contents. Each entry has the parameter's global name, the rows of the unsharded parameter that it holds, type, bytes
// and a checksum. Everything is saved byte by byte: values, masters, moments, amax histories, and for parameters in
// eight bits the data and scales of both orientations (FP32 scales as FP32). Loaded on as many ranks with the same rows
// each, training continues with the bits of training that never stopped.
//
// Other ranks. Loaded on another number of ranks, or with other rows each (empty shards included):
//   - values, masters and moments are cut anew along dim 0;
//   - eight bits are cast again from the master with the scales that were loaded. The data are the same for scales of
//   the
//     full tensor and for blocks that no cut splits; a block that a cut splits becomes two blocks with scales of their
//     own. Without a master that is an Error;
//   - moments in f16 or e4m3 get the scale of their new shard, hence one more rounding;
//   - amax histories must agree between the saved ranks; of the live amaxes the largest counts, as at the next update.
//
// Nominal type. Sharding keeps a weight in its nominal type where a cut would split blocks. A weight that the files
// hold in eight bits is then the saved master, rounded; one that only the model holds in eight bits is cast from that
// master. Both are the bits that training on the loading ranks would have, except for ties of
// MasterWeights::kRemainder, which rounds them away from zero where casts round to even. An f32 value is its own
// master; any other weight without a saved master is an Error, and so is another form of a weight under the same cut,
// which is another model.
//
// Errors name file, entry and remedy, on every rank: the rank that failed says what happened, the others name that
// rank. A failed call changes neither memory nor what is readable on the disk.

/// `group`: the ranks over which the parameters are sharded, all of which call this; null: this rank alone. Under HSDP
/// one replica saves.
void save_training_state(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                         ProcessGroup* group = nullptr);

/// Returns the step saved with it. The optimizer's own count of steps is restored too.
std::int64_t load_training_state(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                                 ProcessGroup* group = nullptr);

}  // namespace fp8lab
