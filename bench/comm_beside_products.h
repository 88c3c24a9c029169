#pragma once

#include <benchmark/benchmark.h>

#include "comm_modes.h"

// Rows of bench_comm_gpu in which products of matrices and a gather run at once.
namespace fp8lab {

/// Only products, and products while 512 MiB are gathered on another stream. `slowdown`: time of the products during
/// the gather relative to only products. `hidden`: the fraction of the gather's time that the overlap hides.
void gather_beside_products(benchmark::State& state, const Mode& mode);

/// Products of a GPU while its gather of 4 MiB, on another stream, waits for the other GPUs, which run products first.
/// `slowdown`: time of the products relative to products without a waiting gather.
void products_beside_late_ranks(benchmark::State& state, const Mode& mode);

}  // namespace fp8lab
