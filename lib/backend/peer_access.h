#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"

/// How ranks reach each other's memory where it is a GPU's, in the order of streams. Nothing here waits for a GPU
/// unless it says so.
///
/// Ranks of one process that take part in a collective, each with a lane of its own:
///
///     begin()           what this rank launched so far comes before what others do with its buffers
///     (barrier)
///     await_begun(r)    for every r whose buffers are touched, then copy() and reduce()
///     end()             what was asked for of others comes before what they launch after this
///     (barrier)
///     await_ended(r)    for every r
///
/// The barriers are the host's: events are recorded before one and waited for after it, so none is recorded anew while
/// another rank has yet to wait for it. The next collective's begin() may follow at once.
namespace fp8lab {

/// Bytes of any GPU of this process; `to` is apart from `from`, or the same.
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
  std::span<std::byte* const> targets = {};        ///< each is given all results; may be among the sources
};

/// Which of a GPU's units copy.
enum class PeerCopyPath : std::uint8_t {
  kBySize,  ///< multiprocessors where little is copied, else copy engines
  kProcessors,
  kCopyEngines,
};

/// What a rank shows the others of its lane. Lives as long as anybody holds it.
class PeerSlot {
 public:
  virtual ~PeerSlot() = default;
};

/// One rank's part in the collectives of one group, on its own GPU. Used by the rank's thread.
class PeerStream {
 public:
  virtual ~PeerStream() = default;

  virtual std::shared_ptr<PeerSlot> slot() const = 0;
  /// The slots of all ranks, in order, before the first collective. Throws Error where this GPU cannot reach another's
  /// memory.
  virtual void admit(std::span<const std::shared_ptr<PeerSlot>> slots) = 0;

  /// `aside`: on a stream of the lane's own, behind what was launched so far; what is launched later does not wait for
  /// it before join().
  virtual void begin(bool aside) = 0;
  virtual void await_begun(int rank) = 0;
  /// `own`: from this GPU's own memory, which may go on beside the others.
  virtual void copy(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path) = 0;
  virtual void reduce(std::span<const PeerReduction> reductions) = 0;
  virtual void end() = 0;
  virtual void await_ended(int rank) = 0;
  /// Work launched from now on comes after the collectives that went aside.
  virtual void join() = 0;
  /// Waits for the GPU, whatever it answers: nothing that this lane began is under way any more.
  virtual void quiesce() noexcept = 0;
};

/// A GPU's memory for the ranks' collectives. Belongs to its device.
class PeerAccess {
 public:
  virtual ~PeerAccess() = default;

  /// The same for two devices on one GPU, in whatever process, and for no others.
  virtual std::string gpu() const = 0;
  virtual std::unique_ptr<PeerStream> open_stream() = 0;

  /// Behind what was launched; returns when done.
  virtual void to_host(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void from_host(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
};

}  // namespace fp8lab
