#include "harness/subjects/profile/memory_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/predict/predict_schedule.h"
#include "harness/subjects/eager_estimate.h"
#include "harness/subjects/profile/fsdp2_buffers.h"
#include "harness/subjects/profile/profile_rows.h"
#include "harness/subjects/profile/profiled_layer.h"

namespace fp8lab {
namespace {

using namespace closed_form;

/// Bytes of Adam's state for an element.
double state_bytes(const TrainingConfig& training) {
  if (training.optimizer == Optimizer::kNone) return 0.0;
  const double master = training.master_weights == Master::kF32         ? 4.0
                        : training.master_weights == Master::kRemainder ? 2.0
                                                                        : 0.0;
  return master + 2.0 * (training.moments == Moments::kF32 ? 4.0 : 2.0);
}

/// What rank 0 holds of `elements` in so many rows: FSDP2 divides rows, and rank 0 has the most of them.
double shard_of(double elements, double rows, int shards) {
  return shards > 1 ? elements / rows * std::ceil(rows / shards) : elements;
}

/// What PyTorch's allocator gives beyond a block of `bytes`: a block of 10 MiB or more comes from a segment of its own,
/// a multiple of 2 MiB, and a rest of at most 1 MiB stays with the block (CUDACachingAllocator: kMinLargeAlloc,
/// kRoundLarge, kSmallSize). Only weights are counted, which are made when no block is free yet: what smaller blocks of
/// a shared segment leave, and later blocks of freed ones, depends on their order.
double unsplit_rest(double bytes) {
  constexpr double kMiB = 1048576.0;
  if (bytes < 10 * kMiB) return 0.0;
  const double rest = std::ceil(bytes / (2 * kMiB)) * 2 * kMiB - bytes;
  return rest <= kMiB ? rest : 0.0;
}

Owner owner_of(const std::string& kind) {
  return kind == "context" ? Owner::kActivations : kind == "gradient" ? Owner::kGradients : Owner::kTemporaries;
}

/// A cell's step: the schedule that a profile's terms make up.
class ProfiledStep {
 public:
  ProfiledStep(ProfileRow row, const ProfileLoss& loss, double scratch, const CellConfig& cell, bool drops_copies)
      : row_(std::move(row)), loss_(loss), training_(cell.training), layers_(cell.model.layers), sizes_(cell.model) {
    const int shards = is_sharded(cell) ? mesh_of(cell).shards : 1;
    double weights_of_rank = 0.0, vectors_of_rank = 0.0;
    for (std::size_t i = 0; i < row_.weights.size(); ++i) {
      const double elements = sizes_.of(row_.weights[i]);
      elements_ += elements;
      const double of_rank = shard_of(elements, rows_of(row_, i, sizes_), shards);
      weights_of_rank += of_rank;
      // FP8 weights have a block for each orientation.
      const double blocks = row_.quantized_weights ? 2.0 : 1.0;
      rests_ += layers_ * rounded(blocks * unsplit_rest(static_cast<double>(row_.bytes_of_weight) / blocks * of_rank));
      largest_ = std::max(largest_, elements);
    }
    for (const auto& [term, times] : row_.vectors) {
      const double rows = sizes_.of(term).value();
      vectors_ += times * rows;
      vectors_of_rank += times * shard_of(rows, rows, shards);
    }
    if (shards > 1) share_ = (weights_of_rank + vectors_of_rank) / (elements_ + vectors_);
    // Shards are padded before they are gathered, and gradients before they are reduced.
    const double width = row_.quantized_weights ? 1.0 : 2.0;
    fsdp_ = Fsdp2Buffers(cell, rounded(shards * (width * weights_of_rank + 2.0 * vectors_of_rank)),
                         rounded(shards * 2.0 * (weights_of_rank + vectors_of_rank)));
    // A layer in 16 bits has no copies.
    if (fsdp_.is_sharded() && row_.recipe != "bf16" && !row_.quantized_weights && drops_copies)
      row_ = without_copies(std::move(row_), sizes_);
    if (const auto gradient = row_.backward.find("gradient"); gradient != row_.backward.end())
      gradients_ = rounded(all_layers(sizes_.of(gradient->second)));
    // FSDP2 reduces the gradients of every micro-batch, and adds shards.
    if (training_.micro_batches > 1 && !fsdp_.is_sharded()) row_ = adding_gradients(std::move(row_));

    // DistributedDataParallel has buckets for all gradients, next to them. Its second step makes other buckets, with
    // the same sum. NCCL may hold the old ones for longer (harness/eager/ddp.h), which is not counted here.
    standing_[Owner::kBuckets] = is_replicated(cell) ? gradients_ : 0;
    standing_[Owner::kParameters] =
        rounded(all_layers(static_cast<double>(row_.bytes_of_weight) * elements_ + 2.0 * vectors_));
    standing_[Owner::kScales] = layers_ * row_.state;
    standing_[Owner::kInput] = input() + rounded(sizes_.of(loss.held));
    standing_[Owner::kTemporaries] = rounded(scratch) + rests_;
  }

  Estimate estimate() const {
    Level level;
    Peak in_forward, in_backward, in_update;
    level.pass(at_once(standing_) + allocate(has_stepped() ? state() : 0, Owner::kOptimizer) +
               allocate(training_.micro_batches > 1 ? gradients_ : 0, Owner::kGradients) + saved(row_.before));
    level.pass(forward_of_layer() + (is_recomputed() ? Schedule{} : saved(row_.first_surplus)) +
                   repeat(layers_ - 1, forward_of_layer()) + moments(loss_.forward_moments),
               in_forward);
    level.pass(saved(loss_.forward), in_forward);
    const ByOwner after_forward = level.by_owner();
    const Bytes end_of_forward = level.bytes();
    level.pass(moments(loss_.backward_moments) + allocate(rounded(sizes_.of(loss_.backward)), Owner::kTemporaries) +
                   backward_of_layer(0) + repeat(layers_ - 2, backward_of_layer(1)),
               in_backward);
    if (layers_ > 1) level.pass(backward_of_layer(layers_ - 1), in_backward);

    const Schedule kept = training_.keep_loss ? saved(loss_.kept) : Schedule{};
    const Schedule after_backward = at_once(standing_) + kept + allocate(gradients_, Owner::kGradients);
    const Schedule after_step = at_once(standing_) + kept + allocate(state(), Owner::kOptimizer);
    std::map<std::string, double> figures;
    const auto figure = [&](const std::string& name, Bytes bytes) { figures[name] = static_cast<double>(bytes); };
    if (training_.optimizer == Optimizer::kAdam) {
      Level updating;
      updating.pass(after_step + allocate(gradients_, Owner::kGradients));
      updating.pass(allocate(temporaries_of_adam(), Owner::kTemporaries), in_update);
      figure("memory.optimizer_peak_bytes", in_update.bytes);
    }
    // FP8 weights that Adam has written may be turned in the next forward, and a sharded layer's own peak may be below
    // the loss's in the run that made the profile; profiles hold neither.
    const bool turned = training_.optimizer != Optimizer::kNone && row_.quantized_weights && has_stepped();
    if (!turned && !fsdp_.is_sharded() && !is_recomputed()) figure("memory.forward_peak_bytes", in_forward.bytes);

    const PhasePeak peak = highest_of({{"forward", in_forward}, {"backward", in_backward}, {"optimizer", in_update}});
    figure("memory.peak_bytes", peak.second.bytes);
    figure("memory.weight_bytes", standing_[Owner::kParameters]);
    figure("memory.retained_bytes", 0);
    figure("memory.end_of_forward_bytes", end_of_forward);
    figure("memory.end_of_backward_bytes", after_backward.net + (has_stepped() ? state() : 0));
    figure("memory.end_of_step_bytes", after_step.net);
    const Bytes output = rounded(sizes_.of(loss_.kept));
    const std::string held = "memory.forward_by_holder.";
    figure(held + "parameter", after_forward[Owner::kParameters]);
    figure(held + "optimizer_state", after_forward[Owner::kOptimizer]);
    figure(held + "recipe_state", after_forward[Owner::kScales]);
    figure(held + "input", after_forward[Owner::kInput]);
    figure(held + "output", output);
    figure(held + "context", after_forward[Owner::kActivations] - output);
    figure(held + "workspace", after_forward[Owner::kTemporaries] - rests_);
    if (after_forward[Owner::kBuffers] > 0) figure(held + "unsharded", after_forward[Owner::kBuffers]);
    return {.figures = std::move(figures),
            .peak_phase = std::string(peak.first),
            .peak_by_owner = largest_first(peak.second.by_owner)};
  }

 private:
  static Bytes rounded(double bytes) { return std::llround(bytes); }
  bool is_recomputed() const { return training_.checkpoint == Recompute::kFull; }
  /// Adam makes its state in its first step. Figures are the last step's.
  bool has_stepped() const { return training_.steps > 1; }
  Bytes input() const { return rounded(2.0 * sizes_.of("tokens*hidden").value()); }
  Bytes state() const { return rounded(all_layers(elements_ + vectors_) * state_bytes(training_)); }
  /// A rank's share of all layers, each of which has `of_layer` before it is sharded.
  double all_layers(double of_layer) const { return share_ * static_cast<double>(layers_) * of_layer; }
  /// FP8 weights are gathered as rows. Transformer Engine makes the other orientation of a layer's weights, which FSDP2
  /// does not free, and frees a weight's when backward has multiplied by it.
  bool transposes_gathered_weights() const { return fsdp_.is_sharded() && row_.quantized_weights; }
  /// Bytes of this orientation that a layer's forward leaves.
  Bytes transposes_after_forward() const {
    return transposes_gathered_weights() && !fsdp_.reshards_after_forward() ? rounded(elements_) : 0;
  }
  /// Bytes of this orientation at a moment of a layer's backward, which makes gradients in 16 bits.
  Bytes transposes_at(const TermsByKind& moment) const {
    if (!transposes_gathered_weights()) return 0;
    const auto gradient = moment.find("gradient");
    const double done = gradient == moment.end() ? 0.0 : sizes_.of(gradient->second) / 2.0;
    return rounded(std::max(0.0, elements_ - done)) - transposes_after_forward();
  }
  Bytes temporaries_of_adam() const {
    const double last = row_.weights.empty() ? 0.0 : sizes_.of(row_.weights.back());
    return rounded(all_layers(row_.adam_all * elements_) +
                   share_ * (row_.adam_largest * largest_ + row_.adam_last * last));
  }

  Schedule saved(const Terms& terms) const { return allocate(rounded(sizes_.of(terms)), Owner::kActivations); }
  /// `share`: the part of gradients that counts.
  ByOwner bytes(const TermsByKind& kinds, double share) const {
    ByOwner out;
    for (const auto& [kind, terms] : kinds)
      out[owner_of(kind)] += rounded((kind == "gradient" ? share : 1.0) * sizes_.of(terms));
    return out;
  }
  /// Moments with `buffers` of FSDP2.
  Schedule moments(const std::vector<TermsByKind>& all, Bytes buffers = 0) const {
    Schedule out;
    for (const TermsByKind& moment : all) out += for_a_moment(with_buffers(moment, buffers));
    return out;
  }
  ByOwner with_buffers(const TermsByKind& moment, Bytes buffers) const {
    ByOwner alive = bytes(moment, 1.0);
    alive[Owner::kBuffers] += buffers;
    return alive;
  }

  /// A recomputed layer keeps only its input.
  Schedule forward_of_layer() const {
    const Schedule gathered = allocate(fsdp_.after_forward() + transposes_after_forward(), Owner::kBuffers);
    if (is_recomputed()) return allocate(input(), Owner::kActivations) + gathered;
    return moments(row_.forward_moments, fsdp_.in_forward() + transposes_after_forward()) +
           at_once(bytes(row_.forward, 1.0)) + gathered;
  }

  /// The backward of the layer behind which backward has `done` others.
  Schedule backward_of_layer(std::int64_t done) const {
    const bool is_spread = done == 0 && !loss_.surplus.empty();
    Schedule itself;
    for (const TermsByKind& moment : is_spread ? row_.spread_moments : row_.backward_moments)
      itself += for_a_moment(with_buffers(moment, fsdp_.in_backward(done) + transposes_at(moment)));
    itself += allocate(done == 0 ? rounded(sizes_.of(loss_.surplus)) : 0, Owner::kTemporaries);
    const bool adds_shards = fsdp_.is_sharded() && training_.micro_batches > 1;
    ByOwner left = bytes(row_.backward, adds_shards ? 0.0 : share_), reducing = bytes(row_.backward, 0.0);
    Schedule recomputed;
    if (is_recomputed()) {
      // It begins with its forward, whose output is dropped.
      ByOwner forward = bytes(row_.forward, 1.0);
      forward[Owner::kActivations] -= input();
      recomputed = moments(row_.forward_moments, fsdp_.in_backward(done) + transposes_at({})) + at_once(forward);
      reducing = ByOwner{}.plus(bytes(row_.forward, 1.0), -1);
      const Bytes gradients = left[Owner::kGradients];
      left = reducing;
      left[Owner::kGradients] += gradients;
    }
    left[Owner::kBuffers] -= fsdp_.after_forward() + transposes_after_forward();
    if (!fsdp_.is_sharded()) return recomputed + itself + at_once(left);
    // Behind the layer its gradients are among FSDP2's buffers.
    reducing[Owner::kBuffers] += fsdp_.in_reduce(done) - transposes_after_forward();
    return recomputed + itself + for_a_moment(reducing) + at_once(left);
  }

  ProfileRow row_;
  const ProfileLoss& loss_;
  const TrainingConfig& training_;
  std::int64_t layers_;
  Sizes sizes_;
  Fsdp2Buffers fsdp_;
  double elements_ = 0.0, largest_ = 0.0, vectors_ = 0.0;
  double share_ = 1.0;   ///< the part of a layer's parameters that rank 0 holds
  Bytes gradients_ = 0;  ///< when backward has ended
  Bytes rests_ = 0;      ///< what the allocator leaves with the blocks of all weights
  ByOwner standing_;     ///< alive in all steps
};

}  // namespace

PredictFunction with_profiles(PredictFunction own, std::string folder) {
  return [own = std::move(own), folder = std::move(folder)](const CellConfig& cell, Arm arm) {
    std::map<std::string, double> figures = own(cell, arm);
    if (const auto profile = MemoryProfile::find(folder, cell, arm))
      figures.merge(profile->figures_if_covered(cell, arm));
    return figures;
  };
}

std::map<std::string, double> MemoryProfile::figures_if_covered(const CellConfig& cell, Arm arm) const {
  try {
    return estimate(cell, arm).figures;
  } catch (const Error&) {
    return {};
  }
}

Estimate MemoryProfile::estimate(const CellConfig& cell, Arm arm) const {
  if (const std::vector<std::string> reasons = uncovered(cell, arm); !reasons.empty())
    fail(fmt::format("{}", fmt::join(reasons, "; ")));
  const ProfileRow& row = *row_of(cell, arm);
  Estimate out = estimate_of(row, cell);
  for (const auto& [name, bytes] : out.figures)
    if (bytes < 0)
      fail(fmt::format("{}: `rows[{}]`: its terms make {} of this cell {:g} bytes", path_, &row - rows_.data(), name,
                       bytes));
  return out;
}

Estimate MemoryProfile::estimate_of_model(ProfileRow row, const CellConfig& cell) const {
  const Sizes sizes(cell.model);
  if (is_sharded(cell) && row.recipe != "bf16" && drops_sharded_copies()) row = without_copies(std::move(row), sizes);
  double elements = 0.0;
  for (const Terms& weight : row.weights) elements += sizes.of(weight);
  const auto layers = static_cast<double>(cell.model.layers);
  return fp8lab::estimate_of(
      eager::memory_of(cell, {.make_layer =
                                  [&](const eager::Numbers& numbers, eager::Heap& heap, eager::Bytes index) {
                                    return std::make_unique<ProfiledLayer>(row, sizes, numbers, heap, index);
                                  },
                              .scratch = std::llround(scratch_),
                              .temporaries_of_optimizer = std::llround(row.adam_all * layers * elements)}),
      cell);
}

Estimate MemoryProfile::estimate_of(const ProfileRow& row, const CellConfig& cell) const {
  if (cell.model.vocabulary > 0) return estimate_of_model(row, cell);
  return ProfiledStep(row, losses_.at(to_text(find_key("training.loss")->get(cell))), scratch_, cell,
                      drops_sharded_copies())
      .estimate();
}

}  // namespace fp8lab
