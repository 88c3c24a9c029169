#pragma once

#include <nccl.h>

#include <utility>

#include "core/shared_library.h"

namespace fp8lab::nccl {

/// The NCCL functions in use. Windows that map other ranks' memory into this process came with 2.28, so older versions
/// are refused.
struct NcclLibrary : SharedLibrary {
  NcclLibrary();
  explicit NcclLibrary(Wanted wanted);

  decltype(&::ncclGetVersion) get_version = find("ncclGetVersion");
  decltype(&::ncclGetErrorString) error_string = find("ncclGetErrorString");
  decltype(&::ncclGetLastError) last_error = find("ncclGetLastError");
  decltype(&::ncclGetUniqueId) get_unique_id = find("ncclGetUniqueId");
  decltype(&::ncclCommInitRankConfig) comm_init = find("ncclCommInitRankConfig");
  decltype(&::ncclCommDestroy) comm_destroy = find("ncclCommDestroy");
  decltype(&::ncclCommAbort) comm_abort = find("ncclCommAbort");
  decltype(&::ncclCommGetAsyncError) comm_async_error = find("ncclCommGetAsyncError");
  decltype(&::ncclMemAlloc) mem_alloc = find("ncclMemAlloc");
  decltype(&::ncclMemFree) mem_free = find("ncclMemFree");
  decltype(&::ncclCommWindowRegister) window_register = find("ncclCommWindowRegister");
  decltype(&::ncclCommWindowDeregister) window_deregister = find("ncclCommWindowDeregister");
  decltype(&::ncclGroupStart) group_start = find("ncclGroupStart");
  decltype(&::ncclGroupEnd) group_end = find("ncclGroupEnd");
  decltype(&::ncclAllGather) all_gather = find("ncclAllGather");
  decltype(&::ncclBroadcast) broadcast = find("ncclBroadcast");
  decltype(&::ncclSend) send = find("ncclSend");
  decltype(&::ncclRecv) receive = find("ncclRecv");
};

/// The library, loaded. Throws Error with what to install if it is missing.
inline const NcclLibrary& api() { return need_library<NcclLibrary>(); }

}  // namespace fp8lab::nccl
