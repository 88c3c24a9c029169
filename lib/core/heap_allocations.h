#pragma once

#include <cstdint>

namespace fp8lab {

/// Number of allocations that the calling thread has made through operator new, in any of its forms, since it started.
/// The difference of two calls counts the allocations between them. Costs one increment per allocation.
///
/// Only a program that calls this is linked with counting operators new; all others keep the library's own. Under
/// sanitizers, which provide operators of their own, malloc() and related functions count too.
std::int64_t heap_allocations() noexcept;

}  // namespace fp8lab
