#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"

/// How the ranks of one process access each other's GPU memory, in the order of their streams. Nothing here waits for a
/// GPU unless its comment mentions it.
///
/// The ranks that take part in a collective each have a PeerStream and call:
///
///     begin()           orders what this rank launched so far before what others do with its buffers
///     (barrier)
///     await_begun(r)    for every r whose buffers are accessed, then copy() and reduce()
///     end()             orders what this rank's copies and reductions do before what others launch after this
///     (barrier)
///     await_ended(r)    for every r
///
/// The barriers are between the host threads. Events are recorded before a barrier and waited for after it, so none is
/// recorded again while another rank has yet to wait for it. The next collective's begin() may follow at once.
namespace fp8lab {

/// A copy between any GPUs of this process; `to` must not overlap `from`, or must be equal to it.
struct PeerCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
};

/// One array, summed or maximised over ranks by the rules of comm/reduce.h, bit for bit.
struct PeerReduction {
  DType dtype = DType::kF32;
  bool maximum = false;
  std::int64_t elems = 0;
  std::span<const std::byte* const> sources = {};  ///< one per rank, in order; aligned to elements
  std::span<std::byte* const> targets = {};        ///< each receives all results; may be among the sources
};

/// Which units of a GPU copy.
enum class PeerCopyPath : std::uint8_t {
  kBySize,  ///< multiprocessors if little is copied, else copy engines
  kProcessors,
  kCopyEngines,
};

/// A rank's events, shared with the other ranks of the collective. Lives as long as any rank holds it.
class PeerSlot {
 public:
  virtual ~PeerSlot() = default;
};

/// One rank's part in the collectives of one group, on its own GPU. Used only by the rank's thread.
class PeerStream {
 public:
  virtual ~PeerStream() = default;

  virtual std::shared_ptr<PeerSlot> slot() const = 0;
  /// Sets the slots of all ranks, in rank order; called before the first collective. Throws Error if this GPU cannot
  /// access another's memory.
  virtual void admit(std::span<const std::shared_ptr<PeerSlot>> slots) = 0;

  /// Begins a collective. `async`: on a separate stream, after everything launched so far; what is launched later does
  /// not wait for it before wait_for_async().
  virtual void begin(bool async) = 0;
  virtual void await_begun(int rank) = 0;
  /// `own`: copies within this GPU's memory, which may run at the same time as `copies`.
  virtual void copy(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path) = 0;
  virtual void reduce(std::span<const PeerReduction> reductions) = 0;
  virtual void end() = 0;
  virtual void await_ended(int rank) = 0;
  /// Orders work launched from now on after the collectives that were begun with `async`.
  virtual void wait_for_async() = 0;
  /// Waits for the GPU and ignores its errors: afterwards nothing that this stream began is still running.
  virtual void quiesce() noexcept = 0;
};

/// Access of the ranks' collectives to a GPU's memory. Belongs to its device.
class PeerAccess {
 public:
  virtual ~PeerAccess() = default;

  /// An identifier of the GPU: equal for two devices on one GPU, in whatever processes, and different otherwise.
  virtual std::string gpu() const = 0;
  virtual std::unique_ptr<PeerStream> open_stream() = 0;

  /// Copies after everything launched so far; returns when the copy is done.
  virtual void to_host(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void from_host(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
};

}  // namespace fp8lab
