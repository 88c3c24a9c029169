#include "harness/eager/layer.h"

// The products of a layer: in its own type, or by torchao's Float8Linear in eight bits.
namespace fp8lab::eager {

Block cast_to_float8(Heap& heap, Bytes elements, bool is_f32, Stream stream) {
  const auto temporary = [&](Bytes bytes) { return heap.allocate(bytes, Owner::kTemporaries, stream); };
  Block copy = is_f32 ? 0 : temporary(elements * kF32);
  Block scaled = temporary(elements * kF32);
  heap.free(copy);
  Block clamped = temporary(elements * kF32);
  const Block out = temporary(elements);
  heap.free(clamped);
  heap.free(scaled);
  return out;
}

void make_gradient(const Numbers& numbers, Heap& heap, Parameter& parameter) {
  if (parameter.is_frozen) return;
  (parameter.gradient == 0 ? parameter.gradient : parameter.added) =
      heap.allocate(parameter.elements() * numbers.element, Owner::kGradients);
}

Block Layer::multiply(const Product& product) {
  Block out = product_of(product);
  if (!numbers_.float8 || product.parameters.size() == 1) return out;
  const Block sum = allocate(numbers_.rows(product.outputs));
  heap_.free(out);
  return sum;
}

Block Layer::product_of(const Product& product) {
  Block input = numbers_.float8 ? cast(product.inputs) : 0;
  Block weight = numbers_.float8 ? cast_weight(product) : 0;
  const Block out = result(product.is_kept, numbers_.rows(product.outputs));
  heap_.begin_product();
  heap_.free(input);
  heap_.free(weight);
  return out;
}

Block Layer::cast_weight(const Product& product) {
  if (numbers_.float8_gathers) return 0;
  return cast_to_float8(heap_, product.inputs * product.outputs, numbers_.element == kF32);
}

// torchao's matmul_with_hp_or_float8_args.backward(), whose variables live until it returns. A product on eight bits
// takes its first matrix by rows and its second one by columns, others are copied.
Block Layer::float8_backward(const Product& product) {
  for (std::size_t i = 1; i < product.parameters.size(); ++i) make_gradient(product.parameters[i]);
  Block gradient = cast(product.outputs);
  Block weight = cast_weight(product);
  Block copy = temporary(product.inputs * product.outputs);
  const Block of_input = temporary(numbers_.rows(product.inputs));
  heap_.free(copy);
  Block again = cast(product.outputs);
  Block input = cast(product.inputs);
  Block rows = temporary(numbers_.tokens * product.outputs), columns = temporary(numbers_.tokens * product.inputs);
  make_gradient(product.parameters.front());
  for (Block* block : {&rows, &columns, &input, &again, &weight, &gradient}) heap_.free(*block);
  return of_input;
}

Block Layer::multiply_backward(const Product& product, Block& input, Block& gradient, bool frees_input) {
  Block of_input = 0;
  if (numbers_.float8) {
    of_input = float8_backward(product);
    heap_.begin_product();
  } else if (product.parameters.size() > 1) {  // addmm: its bias's gradient is a sum that comes last
    of_input = temporary(numbers_.rows(product.inputs));
    heap_.begin_product();
    for (const std::size_t parameter : product.parameters) make_gradient(parameter);
  } else {
    make_gradient(product.parameters.front());
    heap_.begin_product();
    of_input = temporary(numbers_.rows(product.inputs));
  }
  Block none = 0;
  heap_.free_read(gradient, {frees_input ? &input : &none}, recomputed_);
  add_gradients(product.parameters);
  return of_input;
}

}  // namespace fp8lab::eager
