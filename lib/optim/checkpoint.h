#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "nn/build.h"
#include "nn/cores/role_scales.h"
#include "optim/adam.h"

namespace fp8lab {

/// What a checkpoint holds. `parameters` are the entire ones, in the order of the model.
struct TrainingState {
  std::span<Parameter* const> parameters;
  Adam* optimizer = nullptr;  ///< over the same parameters; null: none is saved or loaded
  std::span<RoleScales* const> forward_scales;
  std::span<RoleScales* const> backward_scales;
  std::int64_t step = 0;
};

// A folder with a file per rank ("save-<n>.rank-<r>") and "manifest", a small text that names them and is written last.
// Every file is written under another name, forced to the disk and renamed, and a save writes files of its own: until
// the new manifest is in place the folder holds the previous checkpoint, unsharded. Then the previous one goes.
//
// Entries carry the global name, the rows of the unsharded parameter that they are, type, bytes and a checksum.
// Parameters in eight bits are saved byte by byte, data and scales of both orientations (FP32 scales as FP32), and so
// is everything else: on as many ranks with the same rows each, training goes on bit by bit as if it had never stopped.
//
// Loaded on other ranks or with other rows each, values, masters and moments are cut anew along dim 0, any way, empty
// shards included. Eight bits are then cast again from the master, with the scales that were loaded: the same data for
// unsharded-tensor scales and for blocks that no cut splits; where a new cut splits blocks, each part gets blocks of
// its own, which are as good but not the same. Without a master that is an Error. Moments in f16 or e4m3 get the scale
// of their new shard, hence one more rounding. Amax histories must agree between the saved ranks, but for the live
// amaxes, of which the largest counts, as it would at the next update.
//
// Sharding keeps a weight in its nominal type where the cut would split blocks. If the files have it in eight bits, it
// is the saved master, rounded; if it is the model that has it so, it is cast from that master. Both are bit by bit
// what training on the ranks that load would have, but for ties of MasterWeights::kRemainder, which rounds them away
// from zero where casts round to even. An f32 value is its own master; where otherwise none was saved that is an Error.
// So is another form under the same cut, which is another model.
//
// One clear Error names file, entry and remedy, on every rank: the one that failed says what, the others whose it was.
// What fails changes neither memory nor what is readable on the disk.

/// `group`: the ranks over which the parameters are sharded, all of which call this; null: this rank alone. Under HSDP
/// one replica saves.
void save_checkpoint(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                     ProcessGroup* group = nullptr);

/// Returns the step saved with it. The optimizer's own count of steps is restored too.
std::int64_t load_checkpoint(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                             ProcessGroup* group = nullptr);

}  // namespace fp8lab
