#include "harness/cell/metrics.h"

#include <algorithm>
#include <array>

#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"

namespace fp8lab {
namespace {

constexpr auto kLess = Better::kLess;
constexpr auto kMore = Better::kMore;
constexpr auto kNeither = Better::kNeither;

constexpr std::array kMetrics{
    Metric{"memory.peak_bytes", "B", kLess, true, "most bytes alive at one moment of setup or of any step"},
    Metric{"memory.setup_peak_bytes", "B", kLess, true, "most bytes alive before the first step"},
    Metric{"memory.forward_peak_bytes", "B", kLess, true, "most bytes alive at one moment of forward"},
    Metric{"memory.optimizer_peak_bytes", "B", kLess, true, "most bytes alive at one moment of the optimizer's step"},
    Metric{"memory.reserved_peak_bytes", "B", kLess, true, "most bytes the allocator held from the device"},
    Metric{"memory.reserved_growth_bytes", "B", kLess, true,
           "bytes by which what the allocator holds from the device grew from the second step to the last; above 0 if "
           "freed bytes are not used again"},
    Metric{"memory.driver_overhead_bytes", "B", kLess, false,
           "bytes in use on the GPU beyond what the allocator holds: context, libraries, scratch; only in cells that "
           "run alone"},
    Metric{"memory.end_of_forward_bytes", "B", kLess, true, "bytes alive when forward ends"},
    Metric{"memory.end_of_backward_bytes", "B", kLess, true, "bytes alive when backward ends"},
    Metric{"memory.end_of_step_bytes", "B", kLess, true, "bytes alive when the step ends"},
    Metric{"memory.weight_bytes", "B", kLess, true, "bytes of parameters that the rank keeps from step to step"},
    Metric{"memory.host_copies_peak_bytes", "B", kLess, true,
           "most bytes at one moment that host memory holds of the values from which FP8 weights were cast"},
    Metric{"memory.retained_bytes", "B", kLess, true,
           "bytes after backward that contexts, saved tensors, unsharded parameters or their gradients, results on "
           "their way between operations, or workspaces still hold"},
    Metric{"memory.unbalanced_bytes", "B", kLess, true,
           "largest difference between the ledger's figures and the sum of the events that it recorded"},
    Metric{"memory.growth_bytes", "B", kLess, true,
           "bytes by which what is alive after a step grows with each step, of a watched program"},
    Metric{"memory.by_holder.*", "B", kLess, true, "bytes alive after backward, by who holds them"},
    Metric{"memory.forward_by_holder.*", "B", kLess, true, "bytes alive when forward ends, by who holds them"},
    Metric{"memory.predicted_*", "B", kNeither, true, "the closed-form value of the memory metric of that name"},
    Metric{"memory.unexplained_bytes", "B", kLess, true, "largest gap between a memory metric and its closed form"},

    Metric{"traffic.all_gather_bytes", "B", kLess, true,
           "bytes of the full gathered arrays in a step, scales included"},
    Metric{"traffic.all_gather_payload_bytes", "B", kLess, true, "bytes of FP8 or BF16 values all-gathered in a step"},
    Metric{"traffic.all_gather_scale_bytes", "B", kLess, true, "bytes of scales all-gathered in a step"},
    Metric{"traffic.reduce_scatter_bytes", "B", kLess, true,
           "bytes of the full arrays that are reduce-scattered in a step"},
    Metric{"traffic.all_reduce_bytes", "B", kLess, true, "bytes of the arrays that are all-reduced in a step"},
    Metric{"traffic.ring_exchange_bytes", "B", kLess, true,
           "bytes that all ranks send around their ring in a step: keys, values and their gradients, scales included"},
    Metric{"traffic.all_to_all_bytes", "B", kLess, true,
           "bytes that ranks send to the ranks that have the experts, and back, in a step: tokens, outputs and their "
           "gradients, scales included"},
    Metric{"traffic.all_to_all_scale_bytes", "B", kLess, true,
           "bytes of scales that ranks send to the ranks that have the experts in a step"},
    Metric{"traffic.collectives", "1", kLess, true, "collectives in a step"},

    Metric{"host.pre_forward_ns", "ns", kLess, false,
           "host time from entering a sharded layer to its first kernel, without collectives (p50)"},
    Metric{"host.pre_forward_allocations", "1", kLess, true,
           "heap allocations before a sharded layer's first kernel (p50)"},
    Metric{"host.pre_forward_quantizer_copies", "1", kLess, true,
           "quantizers cloned before a sharded layer's first kernel (p50)"},
    Metric{"host.pre_forward_python_calls", "1", kLess, true,
           "Python functions that a library calls before a sharded layer's own work (p50)"},
    Metric{"host.pre_forward_python_objects", "1", kLess, true,
           "blocks of Python's allocator that a library's work before a sharded layer leaves in use (p50)"},
    Metric{"host.fusion_plans", "1", kLess, true, "plans that fused chains of operations made in the last step"},

    Metric{"parity.loss_gap", "1", kLess, true, "relative distance of the last loss from BF16's", 1e-4, 1.0},
    Metric{"parity.loss_progress", "1", kMore, true,
           "part of the first loss that training has removed by the last: of validations, if there are two, else of "
           "steps; targets can be learnt under `data: teacher` and `text`",
           1e-4, 0.1},
    Metric{"parity.mean_loss_gap", "1", kLess, true,
           "mean loss over the second half of the steps, relative to BF16's over the same steps; below 0: lower", 1e-4,
           1.0},
    Metric{"parity.mean_loss_gap_margin", "1", kNeither, true,
           "half the 95 % interval of parity.mean_loss_gap, from its values in eight windows of steps"},
    Metric{"parity.validation_loss", "1", kLess, true, "loss of the last validation, the mean over batches and ranks",
           1e-4},
    Metric{"parity.output_sqnr_db", "dB", kMore, true, "outputs against BF16's, signal to quantization noise", 0.5},
    Metric{"parity.grad_sqnr_db", "dB", kMore, true, "gradients against BF16's, signal to quantization noise", 0.5},
    Metric{"parity.weight_sqnr_db", "dB", kMore, true, "weights against BF16's, signal to quantization noise", 0.5},
    Metric{
        "parity.weights_moved", "1", kMore, true,
        "fraction of weight tensors that training changed; BF16 rounds back a weight that moves by less than half its "
        "step, such as a norm's by 0.0039 above 1"},
    Metric{"parity.gradients_not_finite", "1", kLess, true,
           "weights whose gradient was not finite in any step, of a watched program"},
    Metric{"parity.shards_moved", "1", kMore, true,
           "fraction of a rank's shards that training changed, on the rank with the smallest fraction; without empty "
           "shards"},
    Metric{"parity.ranks_equal", "1", kMore, true, "1 when all ranks see the same weights, else 0"},
    Metric{"parity.gathered_equals_unsharded", "1", kMore, true,
           "1 when initial shards gather to the bytes of the unsharded parameter made at once, else 0", 0, 0,
           /*former_name=*/"parity.gathered_equals_whole"},
    Metric{"parity.scales_equal", "1", kMore, true,
           "1 when all ranks have the same amax histories and scales of delayed scaling, else 0; the reason names the "
           "module"},
    Metric{"parity.validation_keeps_scales", "1", kMore, true,
           "1 when no validation changed an amax history or a scale of delayed scaling, else 0"},
    Metric{"parity.bitwise_equal", "1", kMore, true, "1 when both sides hold the same bytes, else 0"},
    Metric{"parity.clip_fraction", "1", kLess, true,
           "fraction of the values cast in the last step's forward and backward that exceed the largest code", 1e-4,
           0.1},
    Metric{"parity.underflow_fraction", "1", kLess, true,
           "fraction of non-zero values that were cast to 0 in the last step", 1e-4, 0.1},
    Metric{"parity.values_cast", "1", kNeither, true,
           "values cast to eight bits in the last step's forward and backward, over all ranks; counted twice if both "
           "orientations are made and have scales of their own"},

    Metric{"parity.same_weights_output_sqnr_db", "dB", kMore, true,
           "output of one more step against BF16 layers that hold the same weights", 0.5},
    Metric{"parity.same_weights_grad_sqnr_db", "dB", kMore, true,
           "gradients of one more step against BF16 layers that hold the same weights, for the tensor with "
           "the most noise; near 0 if a product reads other weights than the stored ones",
           0.5},
    Metric{"parity.grad_norm_ratio", "1", kNeither, true,
           "norm of the last step's gradients, before the optimizer, relative to BF16's"},
    Metric{"parity.update_norm_ratio", "1", kNeither, true,
           "distance of the weights from where they began, relative to that of BF16's"},
    Metric{"parity.twin_faults", "1", kLess, true,
           "outputs, losses and gradients of ranks, micro-batches and the first steps, and weights, that differ from "
           "the plain twin's: one rank, one pass over all sequences, nothing recomputed, cached or resumed; notes name "
           "them"},
    Metric{"parity.twin_tensors", "1", kNeither, true, "tensors that were compared with the plain twin"},
    Metric{"parity.twin_noise", "1", kLess, true,
           "largest distance of a tensor from the plain twin's, in units of its bound: above 1 is a fault", 0.1},

    Metric{
        "reference.faults", "1", kLess, true,
        "tensors of all steps (output, gradients, updates of weights) outside their bounds around a step computed in "
        "double; notes name them"},
    Metric{"reference.tensors", "1", kMore, true, "tensors that were compared with that step"},
    Metric{"reference.noise", "1", kLess, true,
           "largest distance of a tensor from that step's, in units of its bound: above 1 is a fault", 0.1},
    Metric{"reference.scale", "1", kLess, true,
           "largest distance from 1 of the slope of a tensor on that step's, in units of its bound", 0.1},

    Metric{"twin.losses_equal", "1", kMore, true,
           "1 if the twin (the same cell with 16-bit weights that are cast in every step, gathered when needed, never "
           "resumed) gives the same losses, bit for bit"},
    Metric{"twin.loss_difference", "1", kLess, true, "largest difference of a loss from the twin's, relative to it"},

    Metric{"time.step_ms", "ms", kLess, false,
           "wall time of a training step (p50, without the first); on meta only the host's work"},
    Metric{"time.forward_ms", "ms", kLess, false, "wall time of forward (p50, without the first step's)"},
    Metric{"time.backward_ms", "ms", kLess, false, "wall time of backward (p50, without the first step's)"},
    Metric{"time.optimizer_ms", "ms", kLess, false, "wall time of the optimizer (p50, without the first step's)"},
};

using Names = std::string_view[];
constexpr Names kMemory = {"memory.retained_bytes", "memory.peak_bytes"};
constexpr Names kTraffic = {"traffic.all_gather_bytes"};
constexpr Names kHost = {
    "host.pre_forward_ns",           "host.pre_forward_allocations",    "host.pre_forward_quantizer_copies",
    "host.pre_forward_python_calls", "host.pre_forward_python_objects", "host.fusion_plans"};
constexpr Names kParity = {"parity.loss_gap", "parity.output_sqnr_db"};
constexpr Names kReference = {"reference.faults"};
constexpr Names kTwin = {"twin.losses_equal"};
constexpr Names kTime = {"time.step_ms"};

/// True if training must change a value of every weight tensor. Adam moves a weight by the learning rate in each step,
/// in one direction for as long as its first moment averages (10 steps with beta1 0.9); later steps may go back. A
/// norm's weight in BF16 starts at 1, and changes if it moves down by 2^-9: in one step without master weights.
bool moves_every_weight(const CellConfig& cell) {
  constexpr double kHalfAStepBelowOne = 0x1p-9, kStepsOfOneDirection = 10.0;
  const TrainingConfig& training = cell.training;
  const bool has_idle_expert = cell.model.layer == "grouped_linear" && cell.model.split == GroupSplit::kUneven;
  // The weight of a token's only expert is 1, whatever the router's logits are.
  const bool has_idle_router = routes_tokens(cell.model) && cell.model.top_k == 1;
  if ((training.optimizer != Optimizer::kAdam && training.optimizer != Optimizer::kForeachAdam) || has_idle_expert ||
      has_idle_router)
    return false;
  const bool keeps_small_steps = training.master_weights != Master::kNone || training.param_dtype == ParamDType::kF32;
  // Steps of the warm-up are not counted, and the cosine has half the learning rate on average.
  const double steps = keeps_small_steps ? static_cast<double>(training.steps - training.warmup_steps) : 1.0;
  const double share = training.learning_rate_schedule == RateSchedule::kCosine ? 0.5 : 1.0;
  return std::min(steps, kStepsOfOneDirection) * share * training.learning_rate >= kHalfAStepBelowOne;
}

/// On a GPU a library's sums may have a random order.
bool has_twin_by_default(const CellConfig& cell) { return !is_library(cell) || cell.device == "cpu"; }

bool exchanges_tokens(const CellConfig& cell) { return cell.expert_parallel > 1; }

using Gates = GroupGate[];
constexpr Gates kMemoryGates = {{.metric = "memory.unexplained_bytes"},
                                {.metric = "memory.unbalanced_bytes"},
                                {.metric = "memory.retained_bytes", .of_before = false}};
constexpr Gates kTrafficGates = {
    {.metric = "traffic.all_gather_bytes", .predicted = true, .applies = has_ranks},
    {.metric = "traffic.reduce_scatter_bytes", .predicted = true, .applies = has_ranks},
    {.metric = "traffic.all_reduce_bytes", .predicted = true, .applies = has_ranks},
    {.metric = "traffic.ring_exchange_bytes", .predicted = true, .applies = has_ranks},
    {.metric = "traffic.all_to_all_bytes", .predicted = true, .applies = exchanges_tokens},
    {.metric = "traffic.all_to_all_scale_bytes", .predicted = true, .applies = exchanges_tokens},
    {.metric = "traffic.collectives", .predicted = true, .applies = has_ranks}};
constexpr Gates kParityGates = {
    {.metric = "parity.twin_faults",
     .of_before = false,
     .of_values = true,
     .of_libraries = true,
     .applies = has_twin_by_default},
    {.metric = "parity.weights_moved",
     .value = 1,
     .of_before = false,
     .of_values = true,
     .applies = moves_every_weight},
    {.metric = "parity.ranks_equal", .value = 1, .of_before = false, .of_values = true, .applies = has_ranks},
    {.metric = "parity.gathered_equals_unsharded",
     .value = 1,
     .of_before = false,
     .of_values = true,
     .applies = is_sharded},
    {.metric = "parity.bitwise_equal", .of_values = true, .has_floor = true, .of_libraries = true},
    {.metric = "parity.scales_equal", .of_before = false, .of_values = true, .has_floor = true, .of_libraries = true},
    {.metric = "parity.validation_keeps_scales",
     .of_before = false,
     .of_values = true,
     .has_floor = true,
     .of_libraries = true},
    {.metric = "parity.same_weights_grad_sqnr_db",
     .of_before = false,
     .of_values = true,
     .has_floor = true,
     .of_libraries = true}};

constexpr std::array kGroups{
    MetricGroup{.name = "memory", .alone = false, .compared_with_bf16 = true, .main = kMemory, .gates = kMemoryGates},
    MetricGroup{
        .name = "traffic", .alone = false, .compared_with_bf16 = false, .main = kTraffic, .gates = kTrafficGates},
    MetricGroup{.name = "host", .alone = true, .compared_with_bf16 = false, .main = kHost},
    MetricGroup{.name = "parity",
                .alone = false,
                .compared_with_bf16 = true,
                .companions = 2,
                .main = kParity,
                .gates = kParityGates},
    MetricGroup{.name = "reference", .alone = false, .compared_with_bf16 = false, .companions = 1, .main = kReference},
    MetricGroup{.name = "twin", .alone = false, .compared_with_bf16 = false, .companions = 1, .main = kTwin},
    MetricGroup{.name = "time", .alone = true, .compared_with_bf16 = false, .main = kTime},
};

bool belongs(std::string_view name, std::string_view row) {
  if (name == row || !row.ends_with('*')) return name == row;
  const std::string_view prefix = row.substr(0, row.size() - 1);
  if (name.size() <= prefix.size() || !name.starts_with(prefix)) return false;
  const auto in_names = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return std::ranges::all_of(name.substr(prefix.size()), in_names);
}

}  // namespace

bool Metric::is_predicted() const {
  if (group() != "memory" && group() != "traffic") return false;
  return exact && !is_family() && name != "memory.reserved_peak_bytes" && name != "memory.reserved_growth_bytes" &&
         name != "memory.unexplained_bytes" && name != "memory.unbalanced_bytes" && name != "memory.growth_bytes";
}

std::span<const Metric> metrics() { return kMetrics; }

const Metric* find_metric(std::string_view name) {
  for (const Metric& metric : kMetrics)
    if (belongs(name, metric.name)) return &metric;
  return nullptr;
}

std::string present_metric_name(const std::string& name) {
  const auto row = std::find_if(std::begin(kMetrics), std::end(kMetrics), [&](const Metric& metric) {
    return !metric.former_name.empty() && metric.former_name == name;
  });
  return row == std::end(kMetrics) ? name : std::string(row->name);
}

std::span<const MetricGroup> metric_groups() { return kGroups; }

bool any_group(const std::vector<std::string>& measure, bool MetricGroup::* property) {
  return std::any_of(kGroups.begin(), kGroups.end(), [&](const MetricGroup& group) {
    return group.*property && std::find(measure.begin(), measure.end(), group.name) != measure.end();
  });
}

}  // namespace fp8lab
