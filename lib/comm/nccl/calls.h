#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/nccl/communicator.h"
#include "comm/nccl/nccl_library.h"

namespace fp8lab::nccl {

/// NCCL calls on one stream that go() launches together (ncclGroupStart, ncclGroupEnd). Calls of no bytes are left out.
/// Every function throws Error as Communicator::Use does.
class Launch {
 public:
  Launch(Communicator& over, cudaStream_t stream) : use_(over, "ncclGroupEnd"), stream_(stream) {
    use_.check(api().group_start(), "ncclGroupStart");
  }
  ~Launch() {
    if (open_) api().group_end();
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void send(const std::byte* from, std::int64_t bytes, int to) {
    if (bytes > 0) use_.check(api().send(from, size(bytes), ncclUint8, to, use_.comm(), stream_), "ncclSend");
  }
  void receive(std::byte* to, std::int64_t bytes, int from) {
    if (bytes > 0) use_.check(api().receive(to, size(bytes), ncclUint8, from, use_.comm(), stream_), "ncclRecv");
  }
  /// `bytes` of each rank.
  void all_gather(const std::byte* from, std::byte* to, std::int64_t bytes) {
    if (bytes > 0)
      use_.check(api().all_gather(from, to, size(bytes), ncclUint8, use_.comm(), stream_), "ncclAllGather");
  }
  void broadcast(std::byte* data, std::int64_t bytes, int root) {
    if (bytes > 0)
      use_.check(api().broadcast(data, data, size(bytes), ncclUint8, root, use_.comm(), stream_), "ncclBroadcast");
  }
  /// The last call. It blocks if ranks connect for the first time.
  void go() {
    open_ = false;
    use_.check(api().group_end(), "ncclGroupEnd");
  }

 private:
  static std::size_t size(std::int64_t bytes) { return static_cast<std::size_t>(bytes); }

  Communicator::Use use_;
  cudaStream_t stream_;
  bool open_ = true;
};

}  // namespace fp8lab::nccl
