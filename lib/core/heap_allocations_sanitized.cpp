#include <cstddef>

#include "core/heap_allocations.h"

// The sanitizers' operators new must not be replaced, because they pair each allocation with its form of deallocation.
// Instead this defines a hook that their runtime calls; its header comes only with clang's runtime.
extern "C" void __sanitizer_malloc_hook(const volatile void* block, std::size_t bytes);

namespace {

thread_local std::int64_t count = 0;

}  // namespace

extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t) { ++count; }

namespace fp8lab {

std::int64_t heap_allocations() noexcept { return count; }

}  // namespace fp8lab
