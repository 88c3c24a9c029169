#include "comm/nccl/communicator.h"

#include <fmt/core.h>

#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "comm/nccl/nccl_library.h"
#include "comm/run.h"
#include "core/check.h"

namespace fp8lab::nccl {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);

/// How a window begins on the GPU since 2.28 (ncclWindow_vidmem of nccl_device/impl/core__types.h): what kernels find
/// others' memory by.
struct WindowHead {
  void* host = nullptr;
  std::byte* of_first_rank = nullptr;  ///< of those whose memory is mapped here
  int rank_here = 0;                   ///< among those
  int rank = 0;
  std::uint32_t stride_4gib = 0;  ///< from one rank's to the next, in units of 4 GiB
};

bool is_on_gpu(const void* at) {
  cudaPointerAttributes attributes{};
  const bool known = cudaPointerGetAttributes(&attributes, at) == cudaSuccess;
  if (!known) cudaGetLastError();
  return known && attributes.type == cudaMemoryTypeDevice;
}

}  // namespace

void nccl_check(ncclResult_t status, std::string_view call) {
  if (status == ncclSuccess) return;
  const std::string_view last = api().last_error(nullptr);
  fail(fmt::format("{}: {}{}{}", call, api().error_string(status), last.empty() ? "" : ": ", last));
}

void Trouble::set(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (cause_.empty()) cause_ = cause;
}

std::string Trouble::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

Communicator::Communicator(const Args& args, cuda::CudaContext& gpu)
    : rank_(args.rank),
      ranks_(args.ranks),
      ordinal_(gpu.ordinal()),
      group_(args.group),
      timeout_(args.timeout),
      trouble_(args.trouble),
      abort_flag_(args.abort_flag) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  nccl_check(api().comm_init(&comm_, args.ranks, args.id, args.rank, &config), "ncclCommInitRankConfig");
  for (Flights& flights : flights_)
    for (Flight& flight : flights.ring) flight.landed = cuda::make_event();
  watch_ = std::jthread([this](const std::stop_token& ended) { look(ended); });
}

Communicator::~Communicator() {
  // What is under way is still being watched, so this ends.
  for (bool landed = false; !landed;) {
    std::unique_lock lock(mutex_);
    if (!aborted_) drop_landed();
    landed = aborted_ || all_landed();
    if (!landed) never_.wait_for(lock, kLook);
  }
  watch_.request_stop();
  watch_.join();
  if (aborted_) return;
  for (const auto& [memory, window] : windows_)
    if (window != nullptr) api().window_deregister(comm_, window);
  api().comm_destroy(comm_);
}

std::vector<std::byte*> Communicator::add_window(void* memory, std::size_t bytes) {
  ncclWindow_t window = nullptr;
  nccl_check(api().window_register(comm_, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC), "ncclCommWindowRegister");
  const std::lock_guard lock(mutex_);
  windows_[memory] = window;
  WindowHead head;
  if (!is_on_gpu(window) || cudaMemcpy(&head, window, sizeof head, cudaMemcpyDefault) != cudaSuccess) return {};
  if (head.rank_here != rank_) return {};
  std::vector<std::byte*> by_rank;
  const std::uintptr_t stride = static_cast<std::uintptr_t>(head.stride_4gib) << 32;
  for (int rank = 0; rank < ranks_; ++rank) {
    by_rank.push_back(head.of_first_rank + stride * static_cast<std::uintptr_t>(rank));
    if (!is_on_gpu(by_rank.back())) return {};
  }
  return by_rank;
}

void Communicator::drop_window(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find(memory);
  if (found == windows_.end()) return;
  if (!aborted_ && found->second != nullptr) api().window_deregister(comm_, found->second);
  windows_.erase(found);
}

void Communicator::watch(const Signature& call, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return;
  Flight& flight = flights_on(stream).next();
  cuda_check(cudaEventRecord(flight.landed.get(), stream), "cudaEventRecord");
  flight.call = call;
  flight.deadline = Clock::now() + timeout_;
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) end_all();
}

/// With the lock.
void Communicator::end_all() noexcept {
  aborted_ = true;
  abort_flag_->set();
  api().comm_abort(comm_);
}

/// With the lock, as all below.
Communicator::Flights& Communicator::flights_on(cudaStream_t stream) {
  for (Flights& flights : flights_) {
    if (flights.stream == nullptr) flights.stream = stream;
    if (flights.stream == stream) return flights;
  }
  fail("a group's collectives go on two streams at most");
}

Communicator::Flight& Communicator::Flights::next() {
  if (count == ring.size()) drop_landed();
  if (count < ring.size()) ++count;
  return ring[(first + count - 1) % ring.size()];
}

/// An event that answers with an error belongs to a GPU that will say so itself.
void Communicator::Flights::drop_landed() {
  while (count > 0 && cudaEventQuery(oldest().landed.get()) != cudaErrorNotReady) {
    first = (first + 1) % ring.size();
    --count;
  }
}

void Communicator::drop_landed() {
  for (Flights& flights : flights_) flights.drop_landed();
}

bool Communicator::all_landed() const {
  return std::all_of(flights_.begin(), flights_.end(), [](const Flights& flights) { return flights.count == 0; });
}

void Communicator::look(const std::stop_token& ended) {
  cudaSetDevice(ordinal_);
  std::unique_lock lock(mutex_);
  while (!ended.stop_requested() && !aborted_) {
    drop_landed();
    ncclResult_t state = ncclSuccess;
    api().comm_async_error(comm_, &state);
    if (state != ncclSuccess && state != ncclInProgress)
      trouble_->set(fmt::format("NCCL gave up in group '{}': {}", group_, api().error_string(state)));
    for (Flights& flights : flights_)
      if (flights.count > 0 && Clock::now() >= flights.oldest().deadline)
        trouble_->set(
            fmt::format("{} did not finish on this rank's GPU within {:g} s: a rank that came to it died or hangs",
                        describe(flights.oldest().call, group_), std::chrono::duration<double>(timeout_).count()));
    if (!trouble_->cause().empty()) return end_all();
    never_.wait_for(lock, ended, kLook, [] { return false; });
  }
}

}  // namespace fp8lab::nccl
