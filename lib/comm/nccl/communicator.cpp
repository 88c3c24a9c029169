#include "comm/nccl/communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>
#include <utility>

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

std::string error_text(ncclResult_t status, std::string_view call) {
  const std::string_view last = api().last_error(nullptr);
  return fmt::format("{}: {}{}{}", call, api().error_string(status), last.empty() ? "" : ": ", last);
}

std::string late_text(std::string_view call, std::string_view group, std::chrono::nanoseconds timeout) {
  return fmt::format("{} did not return on this rank within {:g} s in group '{}': a rank that came to it died or hangs",
                     call, std::chrono::duration<double>(timeout).count(), group);
}

template <class Thread, class Function>
Thread start_thread(Function&& function) {
  try {
    return Thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    fail(fmt::format("no thread can be started for an NCCL communicator: {}", error.what()));
  }
}

/// ncclCommInitRankConfig(), in a thread of its own: it waits for every rank of the group, and nothing ends it before
/// it has returned the communicator. If it is late, the thread is left behind and destroys what it still gets.
class Opening {
 public:
  static ncclComm_t open(const Communicator::Args& args, int ordinal) {
    const auto opening = std::make_shared<Opening>();
    start_thread<std::thread>([opening, id = args.id, rank = args.rank, ranks = args.ranks, ordinal] {
      opening->call(id, rank, ranks, ordinal);
    }).detach();
    return opening->await(args);
  }

 private:
  static constexpr std::string_view kCall = "ncclCommInitRankConfig";

  void call(const ncclUniqueId& id, int rank, int ranks, int ordinal) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    cudaSetDevice(ordinal);
    const ncclResult_t status = api().comm_init(&comm, ranks, id, rank, &config);
    const std::lock_guard lock(mutex_);
    if (status != ncclSuccess)
      error_ = error_text(status, kCall);
    else if (left_)
      api().comm_abort(comm);
    else
      comm_ = comm;
    returned_ = true;
    changed_.notify_all();
  }

  ncclComm_t await(const Communicator::Args& args) {
    std::unique_lock lock(mutex_);
    left_ = !changed_.wait_for(lock, args.timeout, [&] { return returned_; });
    if (left_) fail(late_text(kCall, args.group, args.timeout));
    if (!error_.empty()) fail(error_);
    return comm_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool returned_ = false;
  bool left_ = false;
  std::string error_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

void nccl_check(ncclResult_t status, std::string_view call) {
  if (status != ncclSuccess) fail(error_text(status, call));
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
      abort_flag_(args.abort_flag),
      one_process_(args.one_process),
      notify_(args.notify) {
  for (PendingOnStream& pending : pending_)
    for (Pending& collective : pending.ring) collective.finished = cuda::make_event();
  comm_ = Opening::open(args, ordinal_);
  try {
    watch_ = start_thread<std::jthread>([this](const std::stop_token& ended) { watch_loop(ended); });
  } catch (...) {
    api().comm_abort(comm_);
    throw;
  }
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
  {
    const Use use(*this, "ncclCommWindowRegister");
    use.check(api().window_register(comm_, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC), "ncclCommWindowRegister");
  }
  {
    const std::lock_guard lock(mutex_);
    windows_[memory] = window;
  }
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

Communicator::Use::Use(Communicator& over, const char* function) : over_(over) {
  const std::lock_guard lock(over.mutex_);
  if (over.aborted_)
    fail(fmt::format("{} in group '{}': its collectives were ended{}{}", function, over.group_,
                     over.trouble_->cause().empty() ? "" : ": ", over.trouble_->cause()));
  over.in_use_ = {.function = function, .deadline = Clock::now() + over.timeout_};
}

Communicator::Use::~Use() {
  const std::lock_guard lock(over_.mutex_);
  over_.in_use_.reset();
}

void Communicator::Use::check(ncclResult_t status, std::string_view call) const {
  if (status == ncclSuccess) return;
  const std::string cause = over_.trouble_->cause();
  fail(cause.empty() ? error_text(status, call) : cause);
}

void Communicator::watch(const Signature& call, cudaStream_t stream) {
  std::unique_lock lock(mutex_);
  if (aborted_) return;
  PendingOnStream& pending = pending_on(stream);
  Pending& collective = pending.next();
  // A GPU that waits for another one may have no room for more work, so this call may block until the watching thread
  // ends what runs.
  lock.unlock();
  cuda_check(cudaEventRecord(collective.finished.get(), stream), "cudaEventRecord");
  lock.lock();
  collective.call = call;
  collective.deadline = Clock::now() + timeout_;
  pending.add(collective);
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
  return ring[(first + std::min(count, ring.size() - 1)) % ring.size()];
}

/// Meanwhile the watching thread may have dropped all of them, also the newest that is replaced.
void Communicator::PendingOnStream::add(const Pending& next) {
  const auto place = static_cast<std::size_t>(&next - ring.data());
  if (count == 0) first = place;
  count = std::max(count, (place + ring.size() - first) % ring.size() + 1);
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

void Communicator::report_use() {
  if (!in_use_too_long() || std::exchange(in_use_->reported, true)) return;
  const std::string text = late_text(in_use_->function, group_, timeout_);
  trouble_->set(text);
  if (notify_) notify_(fmt::format("rank {}: {}", rank_, text));
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
    report_use();
    const bool may_abort = !in_use_ || (one_process_ && in_use_too_long());
    if (!trouble_->cause().empty() && may_abort) return end_all();
    never_notified_.wait_for(lock, ended, kWatchInterval, [] { return false; });
  }
}

}  // namespace fp8lab::nccl
