#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "nn/build.h"
#include "nn/cores/role_scales.h"
#include "nn/cores/router_biases.h"
#include "optim/adam.h"

namespace fp8lab {

/// The state that is saved and loaded. `parameters` are the unsharded ones, in the order of the model.
struct TrainingState {
  std::span<Parameter* const> parameters;
  Adam* optimizer = nullptr;  ///< over the same parameters; null: no optimizer state is saved or loaded
  std::span<RoleScales* const> forward_scales;
  std::span<RoleScales* const> backward_scales;
  std::span<RouterBiases* const> router_biases{};
  std::int64_t step = 0;
};

// Files. A folder holds one file per rank ("save-<n>.rank-<r>") and "manifest", a small text that names them. Hazard: a
// process may die at any moment of a save. Rule: every file is written under another name, forced to the disk and
// renamed; a save writes new files; and the manifest is replaced last. Until then the folder has the complete previous
// state. Afterwards the previous files are removed.
//
// Contents. Each entry has the parameter's global name, the rows of the unsharded parameter that it covers, type, bytes
// and a checksum. Amax histories and their scales have the name of their module and pass, and the types that the scales
// are for; biases of routers have the name of their router. Everything is saved byte by byte: values, masters, moments,
// amax histories, biases of routers, and for parameters in eight bits the data and scales of both orientations (FP32
// scales as FP32). If the same number of ranks loads it, with the same rows each, training continues with the bits of
// training that never stopped.
//
// Other ranks. If another number of ranks loads it, or ranks have other rows (empty shards included):
//   - values, masters and moments are cut again along dim 0;
//   - eight bits are cast again from the master with the loaded scales. The data is the same for per-tensor scales and
//     for blocks that no cut splits; a block that a cut splits becomes two blocks with scales of their own. Without a
//     master this is an Error;
//   - moments in f16 or e4m3 get the scale of their new shard, hence one more rounding;
//   - amax histories must agree between the saved ranks; of the live amaxes the largest is used, as in the next update;
//   - biases of routers must agree between the saved ranks.
//
// Nominal type. Sharding keeps a weight in its nominal type if a cut would split blocks. So a weight may be in eight
// bits in the files and not in the model; it is then the saved master, rounded. A weight that is in eight bits only in
// the model is cast from that master. Both have the bits that training on the loading ranks would have, except for ties
// of MasterWeights::kRemainder, which are rounded away from zero although casts round to even. An f32 value is its own
// master. Any other weight without a saved master is an Error. So is a weight in another form under the same cut,
// because it belongs to another model.
//
// Another model. Recipe state, masters and parameters that are in the files and not in the model are an Error, and so
// are scales for other types. Only what an optimizer keeps may be left out, by loading without one.
//
// Errors name file, entry and remedy, on every rank: the failed rank throws its own, the others one of the same type
// (OutOfMemory or Error) with the number of that rank and its message. A failed call changes neither memory nor the
// readable state on the disk, with two exceptions: if only the last sync of the folder fails, the new state is already
// the readable one; and if the device's memory ends while weights of shards that were cut again are cast, the model is
// loaded in part, and the ranks end.

/// `group` is the ranks over which the parameters are sharded, all of which must call this; null: only this rank.
/// Under HSDP one replica saves.
void save_training_state(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                         ProcessGroup* group = nullptr);

/// Returns the step that was saved. The optimizer's numbers of steps, by parameter group, are restored too.
std::int64_t load_training_state(Runtime& runtime, const std::filesystem::path& folder, const TrainingState& state,
                                 ProcessGroup* group = nullptr);

}  // namespace fp8lab
