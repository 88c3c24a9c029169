#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/nccl/communicator.h"
#include "comm/nccl/nccl_library.h"

namespace fp8lab::nccl {

/// Groups everything issued in its scope into one launch (ncclGroupStart, ncclGroupEnd).
class Launch {
 public:
  Launch() { nccl_check(api().group_start(), "ncclGroupStart"); }
  void go() {
    open_ = false;
    nccl_check(api().group_end(), "ncclGroupEnd");
  }
  ~Launch() {
    if (open_) api().group_end();
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

 private:
  bool open_ = true;
};

inline void send(Communicator& over, const std::byte* from, std::int64_t bytes, int to, cudaStream_t stream) {
  if (bytes > 0)
    nccl_check(api().send(from, static_cast<std::size_t>(bytes), ncclUint8, to, over.get(), stream), "ncclSend");
}

inline void receive(Communicator& over, std::byte* to, std::int64_t bytes, int from, cudaStream_t stream) {
  if (bytes > 0)
    nccl_check(api().receive(to, static_cast<std::size_t>(bytes), ncclUint8, from, over.get(), stream), "ncclRecv");
}

}  // namespace fp8lab::nccl
