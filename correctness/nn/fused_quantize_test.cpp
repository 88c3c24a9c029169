// Norms and activations that cast or measure their results as they compute them, compared with storing the results
// first: every bit that backward reads, and every amax.

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/cores/activation_core.h"
#include "nn/cores/linear_core.h"
#include "nn/cores/norm_core.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/recipe_names.h"
#include "support/test_device.h"

namespace fp8lab {
namespace {

// A GPU's one-pass kernels take rows of 256 in 16 bits; rows of 384, and f32, use other kernels there.
constexpr std::int64_t kChainTokens = 128, kHidden = 256, kFfn = 384;

using Bytes = std::map<std::string, std::vector<std::byte>>;

/// Two products, one after a norm and one after an activation, with parameters far from their initial values.
class Chain {
 public:
  Chain(std::string_view recipe, std::string_view arch, std::string_view form, DType dtype, bool fused)
      : device_(support::open_poisoned_device(arch)),
        recipe_(make_recipe(recipe)),
        build_{.runtime = runtime_, .recipe = recipe_, .registry = registry_, .dtype = dtype, .fused_quantize = fused},
        form_(layer_form(form)),
        norm_(build_, "norm", form_.norm, kHidden, form_.bias),
        fc1_(build_, "fc1", {.in = kHidden, .out = inner(), .bias = form_.bias}),
        activation_("activation", form_.activation),
        fc2_(build_, "fc2", {.in = kFfn, .out = kHidden, .bias = form_.bias}) {
    for (const Parameter* parameter : registry_.parameters)
      device_->write(parameter->value,
                     reference::gaussian_values(parameter->value.numel(), stream_of(parameter->name), 0.3));
  }

  /// The requests of each product to the module that computes its input, and to the module that computes its gradient.
  std::vector<std::string> requests() {
    std::vector<std::string> all;
    for (LinearCore* core : {&fc1_, &fc2_}) {
      const OperandRequest request = core->begin_forward(runtime_);
      all.push_back(std::string(request.cast ? "cast" : "") + (request.measure ? "measure" : ""));
      all.push_back(core->measures_gradient() ? "measure" : "");
    }
    return all;
  }

  /// The results of a forward and all that backward would read. Inputs grow, so that scales change.
  Bytes step(int index) {
    const Tensor x =
        support::make_tensor(*device_, {kChainTokens, kHidden}, build_.dtype,
                             reference::gaussian_values(kChainTokens * kHidden, 5 + index, 1.0 + 2.0 * index));
    NormCore::Forward normed = norm_.forward(runtime_, x, fc1_.begin_forward(runtime_));
    LinearCore::Forward first = fc1_.forward(runtime_, std::move(normed.y));
    LinearCore::Forward second =
        fc2_.forward(runtime_, activation_.forward(runtime_, first.y, fc2_.begin_forward(runtime_)));
    Bytes bytes;
    add(bytes, "mean", normed.mean);
    add(bytes, "rstd", normed.rstd);
    add(bytes, "fc1", first);
    add(bytes, "fc2", second);
    for (const RoleScales* scales : registry_.forward_scales) {
      const Tensor amaxes = scales->delayed()->amaxes();
      add(bytes, "amaxes " + std::to_string(bytes.size()), amaxes.reshaped(Shape{amaxes.numel()}));
    }
    update_scales(runtime_, registry_.forward_scales, nullptr);
    return bytes;
  }

 private:
  std::int64_t inner() const { return form_.activation == ActivationKind::kSwiglu ? 2 * kFfn : kFfn; }
  void add(Bytes& bytes, const std::string& name, const Tensor& tensor) {
    if (tensor) bytes[name] = device_->read_bytes(tensor);
  }
  void add(Bytes& bytes, const std::string& name, const QuantizedTensor& tensor) {
    add(bytes, name + " row-wise data", tensor.rowwise().data);
    add(bytes, name + " row-wise scales", tensor.rowwise().scale_inv);
    add(bytes, name + " column-wise data", tensor.columnwise().data);
    add(bytes, name + " column-wise scales", tensor.columnwise().scale_inv);
  }
  void add(Bytes& bytes, const std::string& name, const LinearCore::Forward& result) {
    add(bytes, name + " y", result.y);
    add(bytes, name + " x", result.x.plain);
    add(bytes, name + " x", result.x.quantized);
    if (result.weight.copy) add(bytes, name + " weight", *result.weight.copy);
  }

  std::unique_ptr<Device> device_;
  Runtime runtime_{.device = *device_, .behaviors = {}};
  Recipe recipe_;
  Registry registry_;
  Build build_;
  LayerForm form_;
  NormCore norm_;
  LinearCore fc1_;
  ActivationCore activation_;
  LinearCore fc2_;
};

// A known scale needs no amax first; a scale of the amax needs it; blocks along both sides need the values.
TEST(FusedQuantize, RequestsDependOnTheKindOfScale) {
  const std::map<std::string_view, std::vector<std::string>> asked = {
      {"delayed", {"cast", "", "cast", ""}}, {"current", {"measure", "measure", "measure", "measure"}}};
  const std::vector<std::string> nothing(4);
  for (const char* recipe : support::recipe_names())
    for (const std::string_view arch : support::test_archs())
      for (const bool fused : {true, false})
        EXPECT_EQ(Chain(recipe, arch, "gpt", DType::kBF16, fused).requests(),
                  fused && asked.contains(recipe) ? asked.at(recipe) : nothing)
            << recipe << " on " << arch;
}

TEST(FusedQuantize, SavesTheSameBytesForBackward) {
  for (const char* recipe : support::recipe_names())
    for (const std::string_view arch : support::test_archs())
      for (const char* form : {"gpt", "llama"})
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
          Chain fused(recipe, arch, form, dtype, true), stored(recipe, arch, form, dtype, false);
          for (int step = 0; step < 3; ++step) {
            const Bytes made = fused.step(step), expected = stored.step(step);
            ASSERT_EQ(made.size(), expected.size());
            for (const auto& [name, bytes] : expected)
              EXPECT_TRUE(made.contains(name) && made.at(name) == bytes)
                  << name << " of step " << step << ", " << recipe << " on " << arch << ", " << form;
          }
        }
}

}  // namespace
}  // namespace fp8lab
