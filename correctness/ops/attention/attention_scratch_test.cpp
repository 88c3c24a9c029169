#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "ops/attention/attention_fixture.h"

// Counts the bytes that kernels allocate from the heap. Devices get their memory by aligned allocation, which is not
// counted.
namespace {

std::atomic<std::int64_t> live_bytes{0};
std::atomic<std::int64_t> peak_bytes{0};

}  // namespace

// Each block's size is stored before it. Not inlined: otherwise g++ sees free() of a pointer from `new` and warns.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  auto* header = static_cast<std::max_align_t*>(std::malloc(sizeof(std::max_align_t) + bytes));
  if (header == nullptr) throw std::bad_alloc();
  const auto size = static_cast<std::int64_t>(bytes);
  std::memcpy(header, &size, sizeof size);
  const std::int64_t live = live_bytes += size;
  if (live > peak_bytes) peak_bytes = live;
  return header + 1;
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  if (block == nullptr) return;
  std::max_align_t* header = static_cast<std::max_align_t*>(block) - 1;
  std::int64_t size = 0;
  std::memcpy(&size, header, sizeof size);
  live_bytes -= size;
  std::free(header);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace fp8lab::attention_test {
namespace {

struct Peaks {
  std::int64_t forward;
  std::int64_t backward;
};

Peaks scratch_peaks(std::int64_t seq) {
  const std::unique_ptr<Device> device = open_device("cpu");
  const AttentionShape shape = make_shape({.seq = seq, .head_dim = 16});
  const Qkv qkv = make_qkv(*device, shape, DType::kBF16);
  const auto peak_of = [&](const auto& work) {
    const std::int64_t before = live_bytes;
    peak_bytes = before;
    work();
    return peak_bytes - before;
  };
  AttentionOutputs out;
  Peaks peaks{};
  peaks.forward = peak_of([&] { out = run_forward(*device, shape, qkv, DType::kBF16); });
  peaks.backward =
      peak_of([&] { run_backward(*device, shape, {qkv, {out.o, {}}, {out.o, {}}, out.lse, {}, {}}, DType::kBF16); });
  return peaks;
}

TEST(AttentionScratch, GrowsWithSeqAndNotWithItsSquare) {
  const Peaks at_2048 = scratch_peaks(2048);
  const Peaks at_8192 = scratch_peaks(8192);
  EXPECT_GT(at_2048.forward, 0);
  EXPECT_GT(at_2048.backward, 0);
  // Four times the tokens need at most four times the scratch, plus what the test itself allocates.
  EXPECT_LT(at_8192.forward, 4 * at_2048.forward + 65536);
  EXPECT_LT(at_8192.backward, 4 * at_2048.backward + 65536);
  // One S x S matrix of floats would be 256 MiB.
  EXPECT_LT(at_8192.forward, 4 << 20);
  EXPECT_LT(at_8192.backward, 8 << 20);
}

}  // namespace
}  // namespace fp8lab::attention_test
