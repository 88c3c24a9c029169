#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/caching_allocator.h"
#include "memory/host_copies.h"
#include "memory/ledger.h"

namespace fp8lab {

class BufferRef;

struct MemoryOptions {
  std::size_t capacity_bytes = 0;  ///< 0: as much as the source provides
  /// Fills fresh and freed blocks with 0xFF (NaN in every float format), so that reading uninitialised memory shows.
  bool poison = false;
  bool record_timeline = false;  ///< the ledger records its events from the first one on
};

/// One device's memory for one rank: blocks, their named holders and the ledger. Blocks are reference counted by
/// BufferRef; the last claim to end frees the block. A Memory must outlive every BufferRef that it returned. Not
/// thread-safe.
class Memory {
 public:
  explicit Memory(std::unique_ptr<SegmentSource> source, MemoryOptions options = {});
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Throws OutOfMemory with the ledger's account of that moment.
  BufferRef allocate(std::int64_t bytes, HolderId holder);

  /// Puts later allocations for `holder` into `pool`, whoever allocates them. The rule goes by holder and not by block,
  /// so that a block which replaces another, as after loading a checkpoint, lies in the same pool.
  void place(HolderId holder, Pool pool);
  Pool pool_of(HolderId holder) const { return holder < pools_.size() ? pools_[holder] : Pool::kOwn; }
  /// Calls CachingAllocator::gather_from().
  void gather_from(std::unique_ptr<SegmentSource> source) { allocator_.gather_from(std::move(source)); }

  /// Gives segments that nothing uses back to the device. Work on them must have ended.
  void release_cached() noexcept { allocator_.release_cached(); }

  Ledger& ledger() { return ledger_; }
  const Ledger& ledger() const { return ledger_; }
  HostCopies& host_copies() { return host_copies_; }
  const CachingAllocator& allocator() const { return allocator_; }
  std::int64_t allocations() const { return allocations_; }

 private:
  friend class BufferRef;
  struct Block;

  void add_hold(Block* block, HolderId holder);
  void remove_hold(Block* block, HolderId holder) noexcept;
  /// Moves one claim from one holder to another as a single event.
  void move_hold(Block* block, HolderId from, HolderId to);
  void attribute(Block* block);
  Block* take_block();

  MemoryOptions options_;
  Ledger ledger_;
  CachingAllocator allocator_;
  HostCopies host_copies_;
  std::vector<Pool> pools_;  // by holder; kOwn for holders beyond its end
  std::int64_t allocations_ = 0;
  std::vector<std::unique_ptr<Block>> blocks_;  // freed records are used again
  std::vector<Block*> spare_blocks_;
};

/// A named claim on a block, by reference count: the block lives while any claim does. Copies keep the holder's name.
class BufferRef {
 public:
  BufferRef() = default;
  BufferRef(const BufferRef& other);
  BufferRef(BufferRef&& other) noexcept;
  BufferRef& operator=(BufferRef other) noexcept;
  ~BufferRef();

  explicit operator bool() const { return block_ != nullptr; }
  std::byte* data() const;
  std::int64_t bytes() const;
  HolderId holder() const { return holder_; }
  Memory* memory() const { return memory_; }
  /// True if both claim the same block.
  bool same_block(const BufferRef& other) const { return block_ == other.block_; }

  /// A second claim on the same block under another name.
  BufferRef held_by(HolderId holder) const;
  /// Gives this claim another name.
  void rename(HolderId holder);

 private:
  friend class Memory;
  BufferRef(Memory* memory, Memory::Block* block, HolderId holder) : memory_(memory), block_(block), holder_(holder) {}

  Memory* memory_ = nullptr;
  Memory::Block* block_ = nullptr;
  HolderId holder_ = 0;
};

}  // namespace fp8lab
