#include "nn/build.h"

#include "ops/elementwise.h"

namespace fp8lab {

std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::unique_ptr<Parameter> make_parameter(Build& build, const std::string& name, const Shape& shape, Init init) {
  Device& device = build.runtime.device;
  auto parameter = std::make_unique<Parameter>();
  parameter->name = name;
  parameter->value = device.allocate({shape, build.dtype}, device.holder(HolderKind::kParameter, name));
  parameter->grad_holder = device.holder(HolderKind::kGradient, name);
  if (init == Init::kNormal)
    random_fill(device, parameter->value, {.seed = build.runtime.seed, .stream = stream_of(name), .scale = 0.02f});
  else
    fill(device, parameter->value, init == Init::kOnes ? 1.0f : 0.0f);
  build.registry.parameters.push_back(parameter.get());
  return parameter;
}

}  // namespace fp8lab
