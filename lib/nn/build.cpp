#include "nn/build.h"

#include "core/check.h"
#include "core/fnv1a.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

std::unique_ptr<Parameter> declare(Build& build, const std::string& name, const Shape& shape, Init init) {
  Device& device = build.runtime.device;
  auto parameter = std::make_unique<Parameter>();
  parameter->name = name;
  parameter->spec = {shape, build.dtype};
  parameter->init = init;
  parameter->init_deviation = build.init_deviation;
  parameter->initial_in = build.initial_in;
  parameter->holder = device.holder(HolderKind::kParameter, name);
  parameter->grad_holder = device.holder(HolderKind::kGradient, name);
  build.registry.parameters.push_back(parameter.get());
  return parameter;
}

}  // namespace

std::uint64_t stream_of(std::string_view name) { return fnv1a(name); }

Tensor initial_values(Runtime& runtime, const Parameter& parameter, HolderId holder) {
  if (!parameter.initial) fail("initial_values: '" + parameter.name + "' no longer holds them");
  const InitialValues& from = *parameter.initial;
  Device& device = runtime.device;
  Tensor values = device.allocate(parameter.spec, holder);
  if (from.kept)
    device.write_bytes(values, from.kept.bytes());
  else if (parameter.init == Init::kNormal)
    random_fill(
        device, values,
        {.seed = from.seed, .stream = from.stream, .row_offset = from.first_row, .scale = parameter.init_deviation});
  else
    fill(device, values, parameter.init == Init::kOnes ? 1.0f : 0.0f);
  return values;
}

void initialize(Runtime& runtime, Parameter& parameter, std::string_view full_name, std::int64_t first_row) {
  Device& device = runtime.device;
  const HolderId holder = parameter.in_eight_bits() ? runtime.workspace(parameter.name) : parameter.holder;
  parameter.initial =
      InitialValues{.seed = runtime.seed, .stream = stream_of(full_name), .first_row = first_row, .kept = {}};
  Tensor values = initial_values(runtime, parameter, holder);
  if (!parameter.in_eight_bits()) {
    parameter.value = std::move(values);
    return;
  }
  parameter.quantized = quantize(device, values, *parameter.quantizer);
  switch (parameter.initial_in) {
    case InitialValuesIn::kSeed: break;
    case InitialValuesIn::kHost:
      parameter.initial->kept =
          HostCopy(device.memory().host_copies(),
                   device.computes() ? device.read_bytes(values) : std::vector<std::byte>(), values.bytes());
      break;
    case InitialValuesIn::kLost: parameter.initial.reset();
  }
}

std::unique_ptr<Parameter> make_parameter(Build& build, const std::string& name, const Shape& shape, Init init,
                                          RowPart part) {
  auto parameter = declare(build, name, shape, init);
  parameter->part = part;
  if (!build.deferred_init) initialize(build.runtime, *parameter, name, part.part * shape[0]);
  return parameter;
}

std::unique_ptr<Parameter> make_weight(Build& build, const std::string& name, const Shape& shape,
                                       const Quantizer& quantizer, float deviation, RowPart part) {
  auto parameter = declare(build, name, shape, Init::kNormal);
  parameter->init_deviation = deviation;
  parameter->part = part;
  if (build.eight_bit_weights && build.recipe.quantized) {
    parameter->quantizer = std::make_unique<Quantizer>(quantizer);
    parameter->quantizer->holder = parameter->holder;
  }
  if (!build.deferred_init) initialize(build.runtime, *parameter, name, part.part * shape.rows());
  return parameter;
}

}  // namespace fp8lab
