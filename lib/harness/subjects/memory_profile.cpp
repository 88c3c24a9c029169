#include "harness/subjects/memory_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/subjects/fsdp2_buffers.h"

namespace fp8lab {
namespace {

/// Bytes of Adam's state for an element.
double state_bytes(const TrainingConfig& training) {
  if (training.optimizer == Optimizer::kNone) return 0.0;
  const double master = training.master_weights == Master::kF32         ? 4.0
                        : training.master_weights == Master::kRemainder ? 2.0
                                                                        : 0.0;
  return master + 2.0 * (training.moments == Moments::kF32 ? 4.0 : 2.0);
}

/// Bytes alive, by what they are for.
struct Alive {
  double parameters = 0, optimizer = 0, state = 0, input = 0, context = 0, gradients = 0, workspace = 0, fsdp = 0;

  double total() const { return parameters + optimizer + state + input + context + gradients + workspace + fsdp; }

  /// With what `times` layers leave, of whose gradients a rank holds a `share`.
  Alive plus(const TermsByKind& kinds, const Sizes& sizes, double times = 1.0, double share = 1.0) const {
    Alive out = *this;
    for (const auto& [kind, terms] : kinds) {
      const double bytes = times * sizes.of(terms);
      (kind == "context"    ? out.context
       : kind == "gradient" ? out.gradients
                            : out.workspace) += kind == "gradient" ? share * bytes : bytes;
    }
    return out;
  }
  Alive with_fsdp(double bytes) const {
    Alive out = *this;
    out.fsdp = bytes;
    return out;
  }

  Estimate as_owners(std::string phase) const {
    Estimate out;
    out.peak_phase = std::move(phase);
    for (const auto& [owner, bytes] :
         {std::pair("parameters", parameters), std::pair("optimizer state", optimizer),
          std::pair("recipe state", state), std::pair("input", input), std::pair("saved for backward", context),
          std::pair("gradients", gradients), std::pair("FSDP2's buffers", fsdp), std::pair("temporaries", workspace)})
      if (bytes > 0) out.peak_by_owner.emplace_back(owner, static_cast<std::int64_t>(bytes));
    std::ranges::stable_sort(out.peak_by_owner, std::greater<>(), [](const auto& entry) { return entry.second; });
    return out;
  }
};

/// The highest of several moments.
struct Highest {
  Alive alive;
  std::string phase;

  void consider(const Alive& moment, const char* of) {
    if (phase.empty() || moment.total() > alive.total()) {
      alive = moment;
      phase = of;
    }
  }
};

/// Products of two widths, which count weights; other terms count tokens.
constexpr std::array kOfWeights{"hidden*hidden", "hidden*ffn", "hidden*qkv"};

/// Takes the FP8 copies of weights out of what is saved for backward.
void drop_copies(TermsByKind& kinds) {
  if (const auto context = kinds.find("context"); context != kinds.end())
    for (const char* term : kOfWeights) context->second.erase(term);
}

/// Elements of the weight whose gradient was made last by this moment of a layer's backward, which begins with the last
/// weight; gradients have 16 bits. The last two weights are the MLP's, whose backward is one function: it keeps the
/// copy of the last one until it has ended.
double weights_in_use(const ProfileRow& row, const TermsByKind& moment, const Sizes& sizes) {
  const auto gradient = moment.find("gradient");
  double left = gradient == moment.end() ? 0.0 : sizes.of(gradient->second) / 2.0, in_use = 0.0;
  for (auto weight = row.weights.rbegin(); weight != row.weights.rend(); ++weight) {
    const double elements = sizes.of(*weight);
    if (weight != row.weights.rbegin() && elements > left) break;
    in_use = elements + (weight == row.weights.rbegin() + 1 ? in_use : 0.0);
    left -= elements;
  }
  return in_use;
}

/// The row of a micro-batch that finds the gradients of those before it: a layer's are added to them one function after
/// the other, so what its backward leaves is no more, and the MLP's are freed before attention's are made.
ProfileRow adding_gradients(ProfileRow row) {
  row.backward.erase("gradient");
  for (std::vector<TermsByKind>* moments : {&row.backward_moments, &row.spread_moments})
    for (TermsByKind& moment : *moments)
      if (const auto gradient = moment.find("gradient"); gradient != moment.end()) {
        Terms& terms = gradient->second;
        if (terms.contains("hidden*hidden") || terms.contains("hidden*qkv")) terms.erase("hidden*ffn");
      }
  return row;
}

/// The row without copies of weights from forward to backward. Forward has one orientation of the weight it multiplies
/// by, taken as the largest, and backward makes the other one for the time of its product: a byte an element.
ProfileRow without_copies(ProfileRow row, const Sizes& sizes, double largest) {
  drop_copies(row.forward);
  for (std::vector<TermsByKind>* moments : {&row.forward_moments, &row.backward_moments, &row.spread_moments})
    for (TermsByKind& moment : *moments) {
      moment["workspace"]["bytes"] += moments == &row.forward_moments ? largest : weights_in_use(row, moment, sizes);
      drop_copies(moment);
    }
  drop_copies(row.backward);
  return row;
}

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

Estimate MemoryProfile::estimate_of(const ProfileRow& of_kind, const CellConfig& cell) const {
  const Sizes sizes(cell.model);
  ProfileRow row = of_kind;
  const ProfileLoss& loss = losses_.at(to_text(find_key("training.loss")->get(cell)));
  const auto layers = static_cast<double>(cell.model.layers);
  double elements = 0.0, largest = 0.0;
  for (const Terms& weight : row.weights) {
    elements += sizes.of(weight);
    largest = std::max(largest, sizes.of(weight));
  }
  const double vectors = sizes.of(row.vectors), bytes_of_input = 2.0 * sizes.of("tokens*hidden").value();
  const Fsdp2Buffers fsdp(cell, 2.0 * (elements + vectors));
  const double share = fsdp.share();
  // A layer in 16 bits has no copies.
  if (fsdp.is_sharded() && row.recipe != "bf16" && drops_sharded_copies())
    row = without_copies(std::move(row), sizes, largest);

  Alive base;
  base.parameters = share * layers * (static_cast<double>(row.bytes_of_weight) * elements + 2.0 * vectors);
  // Adam makes its state in its first step, which is also the last one of which figures are if there is no other.
  const double state = share * layers * (elements + vectors) * state_bytes(cell.training);
  const bool has_stepped = cell.training.steps > 1;
  base.optimizer = has_stepped ? state : 0.0;
  base.state = layers * static_cast<double>(row.state);
  base.input = bytes_of_input + sizes.of(loss.held);
  base.workspace = scratch_;

  double gradients = 0.0;  // when backward has ended
  if (const auto gradient = row.backward.find("gradient"); gradient != row.backward.end())
    gradients = share * layers * sizes.of(gradient->second);
  Alive before = base;
  if (cell.training.micro_batches > 1) {
    before.gradients = gradients;
    row = adding_gradients(std::move(row));
  }
  before.context += sizes.of(row.before);
  Highest peak;
  Alive end_of_forward;
  std::map<std::string, double> figures;
  const double given = sizes.of(loss.backward), surplus = sizes.of(loss.surplus);
  const auto moments_of = [&](double done) -> const std::vector<TermsByKind>& {
    return done == 0.0 && !loss.surplus.empty() ? row.spread_moments : row.backward_moments;
  };
  const bool recomputed = cell.training.checkpoint == Recompute::kFull;
  if (recomputed) {
    // Each layer's input is kept; its backward begins with its forward, whose output is dropped.
    end_of_forward = before;
    end_of_forward.context += layers * bytes_of_input;
    for (const TermsByKind& moment : loss.forward_moments) peak.consider(end_of_forward.plus(moment, sizes), "forward");
    end_of_forward.context += sizes.of(loss.forward);
    for (const TermsByKind& moment : loss.backward_moments)
      peak.consider(end_of_forward.plus(moment, sizes), "backward");
    Alive recomputing = end_of_forward;
    recomputing.workspace += given;
    for (const TermsByKind& moment : row.forward_moments) peak.consider(recomputing.plus(moment, sizes), "backward");
    const auto of_layer = [&](double done) {
      Alive alive = recomputing.plus(row.forward, sizes);
      alive.context -= (1.0 + done) * bytes_of_input;
      if (done > 0) alive.workspace += surplus;
      const auto gradient = row.backward.find("gradient");
      if (gradient != row.backward.end()) alive.gradients += done * sizes.of(gradient->second);
      return alive;
    };
    for (const double done : {0.0, layers - 1.0})
      for (const TermsByKind& moment : moments_of(done)) peak.consider(of_layer(done).plus(moment, sizes), "backward");
  } else {
    const auto after = [&](double done) {
      Alive alive = before.plus(row.forward, sizes, done);
      if (done > 0) alive.context += sizes.of(row.first_surplus);
      return alive;
    };
    end_of_forward = after(layers).with_fsdp(fsdp.after_forward(layers));
    Highest forward;
    for (const TermsByKind& moment : row.forward_moments)
      for (const double done : {0.0, layers - 1.0})
        forward.consider(after(done).plus(moment, sizes).with_fsdp(fsdp.in_forward(done)), "forward");
    for (const TermsByKind& moment : loss.forward_moments)
      forward.consider(end_of_forward.plus(moment, sizes), "forward");
    end_of_forward.context += sizes.of(loss.forward);
    // FP8 weights that Adam has written may be turned in the next forward, and a sharded layer's own peak may
    // be below the loss's in the run that made the profile; profiles hold neither.
    const bool turned = cell.training.optimizer != Optimizer::kNone && row.quantized_weights && has_stepped;
    if (!turned && !fsdp.is_sharded()) figures["memory.forward_peak_bytes"] = forward.alive.total();
    peak.consider(forward.alive, "forward");
    for (const TermsByKind& moment : loss.backward_moments)
      peak.consider(end_of_forward.plus(moment, sizes), "backward");
    const auto in_backward = [&](double done) {
      Alive alive = end_of_forward.plus(row.backward, sizes, done, share);
      alive.workspace += given + (done > 0 ? surplus : 0.0);
      return alive;
    };
    // Between its first and last layers backward's memory is linear in what is done.
    for (const double done : {0.0, std::min(1.0, layers - 1.0), std::max(layers - 2.0, 0.0), layers - 1.0}) {
      for (const TermsByKind& moment : moments_of(done))
        peak.consider(in_backward(done).plus(moment, sizes).with_fsdp(fsdp.in_backward(done)), "backward");
      // Behind the layer its gradients are among FSDP2's buffers.
      if (fsdp.is_sharded()) {
        Alive reducing = in_backward(done).plus(row.backward, sizes, 1.0, 0.0).with_fsdp(fsdp.in_reduce(done));
        if (done == 0.0) reducing.workspace += surplus;
        peak.consider(reducing, "backward");
      }
    }
  }

  Alive end_of_backward = base;
  end_of_backward.gradients = gradients;
  if (cell.training.keep_loss) end_of_backward.context = sizes.of(loss.kept);
  Alive end_of_step = end_of_backward;
  end_of_step.gradients = 0.0;
  end_of_step.optimizer = state;
  if (cell.training.optimizer == Optimizer::kAdam) {
    Alive stepping = end_of_backward;
    stepping.optimizer = state;
    stepping.workspace += share * (row.adam_all * layers * elements + row.adam_largest * largest +
                                   row.adam_last * (row.weights.empty() ? 0.0 : sizes.of(row.weights.back())));
    figures["memory.optimizer_peak_bytes"] = stepping.total();
    peak.consider(stepping, "optimizer");
  }

  Estimate out = peak.alive.as_owners(peak.phase);
  figures["memory.peak_bytes"] = peak.alive.total();
  figures["memory.weight_bytes"] = base.parameters;
  figures["memory.retained_bytes"] = 0.0;
  figures["memory.end_of_forward_bytes"] = end_of_forward.total();
  figures["memory.end_of_backward_bytes"] = end_of_backward.total();
  figures["memory.end_of_step_bytes"] = end_of_step.total();
  const std::string held = "memory.forward_by_holder.";
  figures[held + "parameter"] = end_of_forward.parameters;
  figures[held + "optimizer_state"] = end_of_forward.optimizer;
  figures[held + "recipe_state"] = end_of_forward.state;
  figures[held + "input"] = end_of_forward.input;
  figures[held + "output"] = sizes.of(loss.kept);
  figures[held + "context"] = end_of_forward.context - sizes.of(loss.kept);
  figures[held + "workspace"] = end_of_forward.workspace;
  if (end_of_forward.fsdp > 0) figures[held + "unsharded"] = end_of_forward.fsdp;
  for (auto& [name, bytes] : figures) bytes = static_cast<double>(static_cast<std::int64_t>(bytes));
  out.figures = std::move(figures);
  return out;
}

}  // namespace fp8lab
