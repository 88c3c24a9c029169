#pragma once

#include <cstdint>

namespace fp8lab {

/// How often the calling thread has taken memory from the heap through operator new, in any of its forms, since it
/// started: the difference of two calls is the count of what lies between them. Never decreases, and costs an increment
/// per allocation.
///
/// A program that calls this gets counting operators new with it; all others keep the library's own. Under the
/// sanitizers, which provide operators of their own, malloc() and its kin count too.
std::int64_t heap_allocations() noexcept;

}  // namespace fp8lab
