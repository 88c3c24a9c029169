#include "comm/nccl/communicator.h"

#include <fmt/core.h>

#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "comm/nccl/nccl_library.h"
#include "comm/run.h"
#include "core/check.h"

namespace fp8lab::nccl {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(20);

/// The beginning of a window's record on the GPU since 2.28 (ncclWindow_vidmem of nccl_device/impl/core__types.h), by
/// which kernels find other ranks' memory.
struct WindowHead {
  void* host = nullptr;
  std::byte* of_first_rank = nullptr;  ///< memory of the first rank that is mapped here
  int rank_here = 0;                   ///< this rank's number among those that are mapped here
  int rank = 0;
  std::uint32_t stride_4gib = 0;  ///< from one rank's memory to the next, in units of 4 GiB
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
  for (PendingOnStream& pending : pending_)
    for (Pending& collective : pending.ring) collective.finished = cuda::make_event();
  watch_ = std::jthread([this](const std::stop_token& ended) { watch_loop(ended); });
}

Communicator::~Communicator() {
  // The watching thread still runs, so this loop ends.
  for (bool finished = false; !finished;) {
    std::unique_lock lock(mutex_);
    if (!aborted_) drop_finished();
    finished = aborted_ || all_finished();
    if (!finished) never_notified_.wait_for(lock, kWatchInterval);
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
  Pending& collective = pending_on(stream).next();
  cuda_check(cudaEventRecord(collective.finished.get(), stream), "cudaEventRecord");
  collective.call = call;
  collective.deadline = Clock::now() + timeout_;
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (!aborted_) end_all();
}

/// The caller holds the lock.
void Communicator::end_all() noexcept {
  aborted_ = true;
  abort_flag_->set();
  api().comm_abort(comm_);
}

/// The caller holds the lock, here and in the functions below.
Communicator::PendingOnStream& Communicator::pending_on(cudaStream_t stream) {
  for (PendingOnStream& pending : pending_) {
    if (pending.stream == nullptr) pending.stream = stream;
    if (pending.stream == stream) return pending;
  }
  fail("a group's collectives go on two streams at most");
}

Communicator::Pending& Communicator::PendingOnStream::next() {
  if (count == ring.size()) drop_finished();
  if (count < ring.size()) ++count;
  return ring[(first + count - 1) % ring.size()];
}

/// An event with an error counts as finished: its GPU reports the error itself.
void Communicator::PendingOnStream::drop_finished() {
  while (count > 0 && cudaEventQuery(oldest().finished.get()) != cudaErrorNotReady) {
    first = (first + 1) % ring.size();
    --count;
  }
}

void Communicator::drop_finished() {
  for (PendingOnStream& pending : pending_) pending.drop_finished();
}

bool Communicator::all_finished() const {
  return std::all_of(pending_.begin(), pending_.end(),
                     [](const PendingOnStream& pending) { return pending.count == 0; });
}

void Communicator::watch_loop(const std::stop_token& ended) {
  cudaSetDevice(ordinal_);
  std::unique_lock lock(mutex_);
  while (!ended.stop_requested() && !aborted_) {
    drop_finished();
    ncclResult_t state = ncclSuccess;
    api().comm_async_error(comm_, &state);
    if (state != ncclSuccess && state != ncclInProgress)
      trouble_->set(fmt::format("NCCL gave up in group '{}': {}", group_, api().error_string(state)));
    for (PendingOnStream& pending : pending_)
      if (pending.count > 0 && Clock::now() >= pending.oldest().deadline)
        trouble_->set(
            fmt::format("{} did not finish on this rank's GPU within {:g} s: a rank that came to it died or hangs",
                        describe(pending.oldest().call, group_), std::chrono::duration<double>(timeout_).count()));
    if (!trouble_->cause().empty()) return end_all();
    never_notified_.wait_for(lock, ended, kWatchInterval, [] { return false; });
  }
}

}  // namespace fp8lab::nccl
