#include "harness/measure/twin/plain_twin.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/fnv1a.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/twin/equal_losses.h"
#include "harness/reference/support.h"

namespace fp8lab {
namespace {

/// Steps that a twin trains, if the cell has that number: the later ones repeat what these do.
constexpr std::int64_t kMostSteps = 4;
/// Multiplications of a twin's passes, in float: about a second.
constexpr double kMostMultiplications = 1e9;
/// Values that ranks gather on each of them, of one step.
constexpr double kMostGathered = 1 << 25;

std::int64_t batches_of_a_step(const CellConfig& cell) {
  return data_parallel_ranks(cell) * cell.training.micro_batches;
}

bool splits(const CellConfig& cell) { return batches_of_a_step(cell) > 1 || cell.context_parallel > 1; }

/// True if weights in 16 bits, cast in every forward, give the bits that eight-bit weights give.
bool may_be_16_bits(const CellConfig& cell, const Recipe& recipe) {
  return cell.training.masters_from != MastersFrom::kEightBits && why_unequal_to_16_bits(cell, recipe).empty();
}

/// Everything plain but ranks and micro-batches. Bits are the same.
CellConfig plainly_trained(CellConfig cell, const Recipe& recipe) {
  TrainingConfig& training = cell.training;
  training.checkpoint = Recompute::kNone;
  training.resume_at = 0;
  if (may_be_16_bits(cell, recipe)) training.quantized_weights = false;
  // A weight that is not cached is cast in every micro-batch, each time with the scale that the one before left.
  const bool scale_moves = training.micro_batches > 1 && recipe.weight.amax_source == AmaxSource::kHistory;
  if (!scale_moves) training.cache_weights = false;
  cell.gather_ahead = false;
  cell.reshard_after_forward = true;
  return cell;
}

bool trains_alike(const CellConfig& a, const CellConfig& b) {
  return a.training.checkpoint == b.training.checkpoint && a.training.resume_at == b.training.resume_at &&
         a.training.quantized_weights == b.training.quantized_weights &&
         a.training.cache_weights == b.training.cache_weights && a.gather_ahead == b.gather_ahead &&
         a.reshard_after_forward == b.reshard_after_forward;
}

/// The cell on one rank, over `joined` of its batches at a time.
CellConfig on_one_rank(CellConfig cell, std::int64_t joined) {
  const std::int64_t ranks = data_parallel_ranks(cell), batches = batches_of_a_step(cell);
  TrainingConfig& training = cell.training;
  const std::int64_t validated = ranks * training.validation_batches;
  training.validation_batches = validated % joined == 0 ? validated / joined : 0;
  training.micro_batches = batches / joined;
  training.deferred_init.reset();
  training.cache_weights = false;
  cell.model.batch *= joined;
  cell.ranks = cell.context_parallel = cell.expert_parallel = 1;
  cell.mesh.clear();
  cell.sharding.reset();
  cell.reduce_dtype.reset();
  return cell;
}

/// The steps before this one have no bounds: a scale from a history follows from passes, of which the twin has fewer,
/// and at first no pass went before. Gradients inside FP8 attention are then so small that most underflow, and the
/// gradients of the next step have a scale that follows from these.
std::int64_t first_step(const CellConfig& cell, const Recipe& recipe) {
  if (!recipe.quantized || !splits(cell)) return 0;
  const bool history = recipe.activation.amax_source == AmaxSource::kHistory, attention = cell.training.fp8_attention;
  return history && attention ? 2 : history || attention ? 1 : 0;
}

/// Moments with a scale per tensor have one per shard, and follow other weights than the twin's after a step in which
/// they were rounded.
bool moments_follow_shards(const CellConfig& cell) {
  const Moments type = cell.training.moments;
  return mesh_of(cell).shards > 1 && (type == Moments::kF16 || type == Moments::kE4M3);
}

std::int64_t steps_of(const CellConfig& cell) {
  const std::int64_t most = moments_follow_shards(cell) ? 2 : std::max(kMostSteps, cell.training.resume_at + 2);
  return std::min(cell.training.steps, most);
}

}  // namespace

std::string why_no_plain_twin(const CellConfig& cell, Arm arm) {
  if (arm == Arm::kBefore && cell.control != Control::kPlanted) return "arms with a fix in place have a plain twin";
  if (cell.device != "cpu") return "plain twins train on the host";
  const CellConfig here = as_run(cell, arm);
  const Recipe recipe = recipe_of(cell, arm);
  const bool is_plain = !splits(here) && !has_ranks(here) && trains_alike(here, plainly_trained(here, recipe));
  if (is_plain) return "the cell itself is plain: one rank, one micro-batch, nothing recomputed, cached or resumed";
  if (here.model.layer == "grouped_linear" && here.context_parallel > 1)
    return "which expert has a token depends on its place in a rank's part of the sequences";
  if (routes_tokens(here.model) && here.context_parallel > 1)
    return "which tokens an expert has in a block of scales depends on a rank's part of the sequences";
  if (here.expert_parallel > 1 && recipe.quantized)
    return "what experts cast are the tokens of all ranks that have the experts between them";
  const PlainTwin twin = plain_twin(cell, arm);
  if (twin.steps <= twin.first && !twin.compares_weights && !twin.same_split)
    return "in the first steps scales of delayed scaling depend on ranks and micro-batches";
  const double tokens = static_cast<double>(here.model.seq) * static_cast<double>(here.model.batch) *
                        static_cast<double>(batches_of_a_step(here));
  const double width = static_cast<double>(is_language_model(here) ? here.model.vocabulary : here.model.hidden);
  const double gathered = tokens * width * static_cast<double>(here.ranks);
  const double count = reference_step::multiplications(here.model) * static_cast<double>(batches_of_a_step(here)) *
                       static_cast<double>(steps_of(here));
  if (gathered > kMostGathered || count > kMostMultiplications)
    return fmt::format(
        "the plain twin would take {:.2g} multiplications and {:.2g} values, more than {:.2g} and {:.2g}", count,
        gathered, kMostMultiplications, kMostGathered);
  return {};
}

PlainTwin plain_twin(const CellConfig& cell, Arm arm) {
  const CellConfig here = as_run(cell, arm);
  const Recipe recipe = recipe_of(cell, arm);
  PlainTwin out;
  out.splits = splits(here);
  // Masks of dropout and groups of experts follow from a token's place in its batch, and the tokens that a router sends
  // to an expert share blocks of scales with others of their batch.
  const bool by_place = here.model.dropout > 0.0 || here.model.layer == "grouped_linear" || routes_tokens(here.model);
  out.joined = by_place ? 1 : batches_of_a_step(here);
  const CellConfig plain = plainly_trained(here, recipe);
  if (out.splits && !trains_alike(here, plain)) out.same_split = plain;
  CellConfig one = on_one_rank(plain, out.joined);
  if (out.splits && may_be_16_bits(one, recipe)) one.training.quantized_weights = false;
  if (out.splits && out.joined > 1 && here.training.data == Data::kStress) {
    out.parts = on_one_rank(plain, 1);
    if (may_be_16_bits(*out.parts, recipe)) out.parts->training.quantized_weights = false;
  }
  out.cell = std::move(one);
  out.first = first_step(here, recipe);
  out.steps = steps_of(here);
  out.compares_weights = out.steps == here.training.steps && !moments_follow_shards(here) &&
                         !(here.training.quantized_weights && recipe.quantized);
  return out;
}

void StepRecorder::plant() {
  if (steps_.empty()) return;
  RecordedStep& first = steps_.front();
  for (float& value : first.outputs.back()) value = -value;
  const auto own = std::ranges::find_if(first.gradients, [](const auto& gradient) { return !gradient.empty(); });
  if (own != first.gradients.end())
    for (float& value : *own) value = -value;
}

void StepRecorder::begin_step(TrainedModel&, Device&, std::int64_t step) {
  recording_ = step < most_;
  if (recording_) steps_.emplace_back();
}

void StepRecorder::saw_input(Device& device, const Tensor& x, std::int64_t sequences) {
  if (!recording_) return;
  // Row p * sequences + s is position p of sequence s.
  const std::vector<float> values = device.read(x);
  const auto tokens = static_cast<std::size_t>(x.shape()[0]), width = values.size() / tokens;
  for (std::size_t sequence = 0; sequence < static_cast<std::size_t>(sequences); ++sequence) {
    std::uint64_t hash = kFnv1aBasis;
    for (std::size_t row = sequence; row < tokens; row += static_cast<std::size_t>(sequences))
      for (std::size_t i = row * width; i < (row + 1) * width; ++i)
        hash = fnv1a_word(std::bit_cast<std::uint32_t>(values[i]), hash);
    present().inputs.push_back(hash);
  }
}

void StepRecorder::saw_output(Device& device, const Tensor& output) {
  if (!recording_) return;
  present().outputs.push_back(device.read(output));
}

void StepRecorder::end_passes(TrainedModel& model, Device&) {
  if (recording_) present().gradients = model.gradients();
}

}  // namespace fp8lab
