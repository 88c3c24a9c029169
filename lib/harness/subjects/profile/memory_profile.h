#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/predict/predict.h"
#include "harness/run/runner.h"
#include "harness/subjects/profile/profile_terms.h"

// Memory of a library, predicted from a profile: a file that lists what each layer saves and which temporaries live at
// the peaks, as terms of the model's sizes. `python -m fp8lab_subjects.profile` makes one out of a run.
namespace fp8lab {

/// By kind: context, gradient or workspace.
using TermsByKind = std::map<std::string, Terms>;

/// What a loss adds to the layers. Moments are counted from where the layers' forward, or the loss's, has ended.
struct ProfileLoss {
  Terms held;      ///< the target
  Terms forward;   ///< what its forward leaves; it may free the output
  Terms kept;      ///< what the loss itself keeps until it is dropped
  Terms backward;  ///< what its backward leaves
  /// What the last layer's backward leaves more than another one's: its own gradient, if it was given one number for
  /// all elements, as a sum gives. Its moments are then the row's `spread_moments`.
  Terms surplus;
  std::vector<TermsByKind> forward_moments, backward_moments;
};

/// Releases, from first to last, in which cells with these values are not like the profile.
struct ProfileGap {
  std::string first, last, reason;
  std::map<std::string, std::string> cells;  ///< values by key
};

/// A kind of layer under one recipe. "Leaves" is what is alive more when a part of a step ends than when it began.
struct ProfileRow {
  std::string first, last;  ///< the releases that it covers; empty: all that have no row of their own
  std::string layer, form, recipe;
  bool quantized_weights = false;
  std::vector<Terms> weights;        ///< elements of each weight of a layer
  Terms vectors;                     ///< elements of norms and biases of a layer, in 16 bits
  std::int64_t bytes_of_weight = 0;  ///< bytes of an element of a weight, with both orientations
  /// Temporaries of Adam's step, bytes an element of all weights, of a layer's largest and of its last.
  double adam_all = 0, adam_largest = 0, adam_last = 0;
  std::int64_t state = 0;         ///< a layer's amaxes, scales and the like, in bytes
  Terms before;                   ///< what a forward leaves before its first layer
  Terms first_surplus;            ///< what the first layer's forward leaves more than another one's
  TermsByKind forward, backward;  ///< what a layer leaves
  /// Candidates for the peak, from where the layer's forward or backward begins.
  std::vector<TermsByKind> forward_moments, backward_moments, spread_moments;
};

/// The most that PyTorch's allocator reserved in a recorded run of a library with a profile, as a multiple of the peak
/// of live bytes, rounded up: 1.331 in 190 runs of Transformer Engine 2.9.0, 2.12.0 and 2.20.2 on an H200, 1.05 to 1.19
/// in half of them. Profiles have no order of allocations, so they predict no reserved memory.
inline constexpr double kMostReserved = 1.35;

class MemoryProfile {
 public:
  /// Reads the profile in `folder` of a library's release, "transformer_engine@2.16". Throws Error if there is none,
  /// with the ranges of `others` and of the profiles in `folder`, and for a file that is no profile, with the place.
  static MemoryProfile find(const std::string& folder, const std::string& release,
                            const std::vector<std::string>& others = {});
  /// The same for the library and version of an arm; nothing if there is no profile for them. Throws Error for a
  /// file that is no profile.
  static std::optional<MemoryProfile> find(const std::string& folder, const CellConfig& cell, Arm arm);
  /// The first and the last release of each profile in `folder`: "transformer_engine@2.16".
  static std::vector<std::string> releases(const std::string& folder);
  /// Reads a file.
  static MemoryProfile read(const std::string& path);

  /// "transformer_engine 2.15 to 2.16, measured with torch ...".
  std::string title() const;
  /// "transformer_engine@2.16", the release that was looked up.
  std::string name() const { return subject_ + "@" + release_; }
  /// True for a release of a library that runs on GPUs only, so that PyTorch's caching allocator has its memory.
  static bool is_of_gpus(const std::string& release) { return release.starts_with("transformer_engine"); }

  /// Memory of the cell's arm if the library runs it; the phase and the owners of the peak. Throws Error with every key
  /// that the profile does not cover: "KEY: reason; KEY: reason".
  Estimate estimate(const CellConfig& cell, Arm arm) const;
  /// Its figures; none for an arm that the profile does not cover.
  std::map<std::string, double> figures_if_covered(const CellConfig& cell, Arm arm) const;

 private:
  const ProfileRow* row_of(const CellConfig& cell, Arm arm) const;
  /// Why the profile does not cover the cell's arm, key by key; empty if it does.
  std::vector<std::string> uncovered(const CellConfig& cell, Arm arm) const;
  Estimate estimate_of(const ProfileRow& row, const CellConfig& cell) const;
  /// The same of a language model, whose embedding, last norm and head are PyTorch's: lib/harness/eager.
  Estimate estimate_of_model(ProfileRow row, const CellConfig& cell) const;
  /// True if FP8 copies of sharded weights are dropped after a layer's forward and made again in its backward.
  bool drops_sharded_copies() const;
  /// True if the profile covers FP8 weights that FSDP2 shards.
  bool gathers_fp8_weights() const;

  /// As find(), but nothing if there is no profile; `known` gets the releases for which there are profiles.
  static std::optional<MemoryProfile> look_up(const std::string& folder, const std::string& release,
                                              std::vector<std::string>& known);

  std::string path_, subject_, first_, last_, arch_, measured_, compared_;
  std::string release_;               ///< for which the profile was looked up; `last_` if only it was read
  std::string keeps_sharded_copies_;  ///< the last release in which they live from forward to backward; empty: none
  std::string gathers_fp8_since_;     ///< the first release whose sharded FP8 weights are covered; empty: none
  double scratch_ = 0;                ///< bytes that the library keeps for all layers
  std::map<std::string, ProfileLoss> losses_;  ///< by value of `training.loss`
  std::vector<ProfileGap> gaps_;
  std::vector<ProfileRow> rows_;
};

/// True if the release lies between two others, or the range is empty; "2.16.1" is "2.16".
bool is_within(const std::string& release, const std::string& first, const std::string& last);

/// Predictions of the own runtime, and of a library's memory if `folder` has a profile of it.
PredictFunction with_profiles(PredictFunction own, std::string folder);

}  // namespace fp8lab
