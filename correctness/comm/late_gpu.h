#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "comm/reduce.h"

/// A GPU made of host memory. Work launched on it runs later, on threads of its own, ordered only by streams and
/// events. A collective that misses an ordering therefore fails on any machine, and ThreadSanitizer sees it.
namespace fp8lab::comm_test {

class LateEvent {
 public:
  std::uint64_t next() { return ++recorded_; }
  std::uint64_t last() const { return recorded_; }
  void happen(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    happened_ = std::max(happened_, number);
    changed_.notify_all();
  }
  void await(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return happened_ >= number; });
  }

 private:
  std::uint64_t recorded_ = 0;  ///< the host's, who waits for the others before they read it
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t happened_ = 0;
};

class LateStream {
 public:
  ~LateStream() { drain(); }
  void launch(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void record(const std::shared_ptr<LateEvent>& event) {
    launch([event, number = event->next()] { event->happen(number); });
  }
  void wait(const std::shared_ptr<LateEvent>& event) {
    launch([event, number = event->last()] { event->await(number); });
  }
  void drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty() && !busy_; });
  }

 private:
  void run(const std::stop_token& ended) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, ended, [&] { return !work_.empty(); })) {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
  std::jthread thread_{[this](const std::stop_token& ended) { run(ended); }};
};

struct LatePeerSlot final : PeerSlot {
  std::shared_ptr<LateEvent> begun = std::make_shared<LateEvent>();
  std::shared_ptr<LateEvent> ended = std::make_shared<LateEvent>();
};

/// Faults that a test injects around the copies that a LateGpu launches.
struct LateFaults {
  std::function<void()> before_copy = [] {};
  std::function<void()> after_copy = [] {};
};

class LatePeerStream final : public PeerStream {
 public:
  LatePeerStream(LateStream& stream, const LateFaults& faults) : main_(stream), faults_(faults), stream_(&stream) {}
  ~LatePeerStream() override { LatePeerStream::quiesce(); }
  std::shared_ptr<PeerSlot> slot() const override { return slot_; }
  void admit(std::span<const std::shared_ptr<PeerSlot>> slots) override {
    for (const auto& slot : slots) slots_.push_back(std::static_pointer_cast<LatePeerSlot>(slot));
  }
  void begin(bool async) override {
    stream_ = async ? &side_ : &main_;
    if (async) {
      main_.record(forked_);
      side_.wait(forked_);
    }
    stream_->record(slot_->begun);
  }
  void await_begun(int rank) override { stream_->wait(slots_[static_cast<std::size_t>(rank)]->begun); }
  void copy(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath) override {
    faults_.before_copy();
    std::vector<PeerCopy> both(copies.begin(), copies.end());
    both.insert(both.end(), own.begin(), own.end());
    stream_->launch([all = std::move(both)] {
      for (const PeerCopy& copy : all)
        if (copy.from != copy.to && copy.bytes > 0)
          std::memcpy(copy.to, copy.from, static_cast<std::size_t>(copy.bytes));
    });
    faults_.after_copy();
  }
  void reduce(std::span<const PeerReduction> reductions) override {
    for (const PeerReduction& one : reductions)
      stream_->launch([dtype = one.dtype, op = one.maximum ? ReduceOp::kMax : ReduceOp::kSum, elems = one.elems,
                       sources = std::vector(one.sources.begin(), one.sources.end()),
                       targets = std::vector(one.targets.begin(), one.targets.end())] {
        if (elems > 0)
          fp8lab::reduce({.op = op, .dtype = dtype, .elems = elems, .sources = sources, .targets = targets});
      });
  }
  void end() override { stream_->record(slot_->ended); }
  void await_ended(int rank) override { stream_->wait(slots_[static_cast<std::size_t>(rank)]->ended); }
  void wait_for_async() override {
    side_.record(joined_);
    main_.wait(joined_);
  }
  void quiesce() noexcept override {
    main_.drain();
    side_.drain();
  }

 private:
  LateStream& main_;
  const LateFaults& faults_;
  LateStream side_;
  LateStream* stream_;
  std::shared_ptr<LatePeerSlot> slot_ = std::make_shared<LatePeerSlot>();
  std::vector<std::shared_ptr<LatePeerSlot>> slots_;
  std::shared_ptr<LateEvent> forked_ = std::make_shared<LateEvent>();
  std::shared_ptr<LateEvent> joined_ = std::make_shared<LateEvent>();
};

class LateAccess final : public PeerAccess {
 public:
  std::string gpu() const override { return "late"; }
  std::unique_ptr<PeerStream> open_stream() override { return std::make_unique<LatePeerStream>(stream, faults); }
  void to_host(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    stream.drain();
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void from_host(std::byte* to, const std::byte* from, std::int64_t bytes) override { to_host(to, from, bytes); }

  LateStream stream;
  LateFaults faults;
};

class LateMemory final : public SegmentSource {
 public:
  explicit LateMemory(std::shared_ptr<LateAccess> access) : access_(std::move(access)) {}
  std::byte* reserve(std::size_t bytes) override {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{4096}, std::nothrow));
  }
  void release(std::byte* segment, std::size_t) noexcept override {
    access_->stream.drain();
    ::operator delete(segment, std::align_val_t{4096});
  }
  void fill(std::byte* at, std::byte value, std::size_t bytes) noexcept override {
    access_->stream.launch([=] { std::memset(at, std::to_integer<int>(value), bytes); });
  }

 private:
  std::shared_ptr<LateAccess> access_;
};

/// A device with memory and without kernels.
class LateGpu final : public Device {
 public:
  static std::unique_ptr<Device> open() {
    static const std::unique_ptr<Device> kernels = open_device("meta");
    return std::unique_ptr<Device>(new LateGpu(kernels->kernels(), std::make_shared<LateAccess>()));
  }
  bool computes() const override { return true; }
  void copy_values_to_host(const Tensor&, std::span<float>) override {}
  void copy_bytes_to_host(const Tensor& tensor, std::span<std::byte> bytes) override {
    access_->to_host(bytes.data(), tensor.view().data, tensor.bytes());
  }
  void write_bytes(const Tensor& tensor, std::span<const std::byte> bytes) override {
    access_->from_host(tensor.view().data, bytes.data(), static_cast<std::int64_t>(bytes.size()));
  }
  void write(const Tensor&, std::span<const float>) override {}
  void copy_bytes(const Tensor& from, const Tensor& to) override {
    access_->stream.launch([from = from.view().data, to = to.view().data,
                            bytes = static_cast<std::size_t>(from.bytes())] { std::memcpy(to, from, bytes); });
  }
  void synchronize() override { access_->stream.drain(); }
  LateAccess* peer_access() override { return access_.get(); }

 private:
  LateGpu(const KernelTable& kernels, std::shared_ptr<LateAccess> access)
      : Device("late", arch_profile("hopper"), kernels, std::make_unique<LateMemory>(access),
               {.capacity_bytes = 0, .poison = true}, std::make_unique<ExecContext>()),
        access_(std::move(access)) {}

  std::shared_ptr<LateAccess> access_;
};

}  // namespace fp8lab::comm_test
