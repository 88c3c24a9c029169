#include "core/heap_allocations.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local std::int64_t count = 0;

void* checked(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

namespace fp8lab {

std::int64_t heap_allocations() noexcept { return count; }

}  // namespace fp8lab

// The other forms of operator new, for arrays and without exceptions, call one of these. They are not inlined, because
// g++ would see free() called on a pointer from `new` and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++count;
  return checked(std::malloc(std::max<std::size_t>(bytes, 1)));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++count;
  const auto multiple = static_cast<std::size_t>(alignment);
  return checked(std::aligned_alloc(multiple, (std::max<std::size_t>(bytes, 1) + multiple - 1) / multiple * multiple));
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }
