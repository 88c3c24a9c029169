#include "memory/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace fp8lab {

/// One holder's claim on a block, and the event with which it began.
struct Hold {
  HolderId holder = 0;
  int count = 0;
  std::size_t since_event = 0;
};

struct Memory::Block {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  HolderId attributed_to = 0;
  std::vector<Hold> holds;  // few; its capacity is kept when the record is used again
};

namespace {

/// "context of layers[0].attention: q"
std::string text_of(const Holder& holder) {
  return fmt::format("{}{}{}{}{}", name(holder.kind), holder.owner.empty() ? "" : " of ", holder.owner,
                     holder.what.empty() ? "" : ": ", holder.what);
}

/// The holders that an error of missing memory names; they have nearly all of it.
constexpr std::size_t kMostHolders = 5;

/// "1000 B", "64.00 MiB"
std::string size_text(std::int64_t bytes) {
  constexpr std::pair<std::int64_t, std::string_view> kUnits[] = {
      {std::int64_t{1} << 30, "GiB"}, {std::int64_t{1} << 20, "MiB"}, {std::int64_t{1} << 10, "KiB"}};
  for (const auto& [unit, name] : kUnits)
    if (bytes >= 10 * unit || (bytes >= unit && bytes % unit == 0))
      return fmt::format("{:.2f} {}", static_cast<double>(bytes) / static_cast<double>(unit), name);
  return fmt::format("{} B", bytes);
}

}  // namespace

Memory::Memory(std::unique_ptr<SegmentSource> source, MemoryOptions options)
    : options_(options), allocator_(std::move(source), options.capacity_bytes) {
  ledger_.record_timeline(options.record_timeline);
}

Memory::~Memory() = default;

Memory::Block* Memory::take_block() {
  if (spare_blocks_.empty()) {
    blocks_.push_back(std::make_unique<Block>());
    spare_blocks_.push_back(blocks_.back().get());
    blocks_.back()->holds.reserve(4);
    spare_blocks_.reserve(blocks_.size());  // remove_hold() must not allocate
  }
  Block* block = spare_blocks_.back();
  spare_blocks_.pop_back();
  return block;
}

void Memory::place(HolderId holder, Pool pool) {
  if (pools_.size() <= holder) pools_.resize(holder + 1, Pool::kOwn);
  pools_[holder] = pool;
}

BufferRef Memory::allocate(std::int64_t bytes, HolderId holder) {
  check(bytes >= 0, "allocate: negative size");
  const Pool pool = pool_of(holder);
  std::byte* data = allocator_.allocate(static_cast<std::size_t>(bytes), pool);
  if (!data) {
    std::vector<std::string> account;
    std::int64_t others = 0;
    const HolderBytes holders = folded_by_index(ledger_.by_holder());
    const auto add_line = [&](std::int64_t held, std::string_view label) {
      account.push_back(fmt::format("\n  {:>10}  {}", size_text(held), label));
    };
    for (const auto& [label, held] : holders)
      if (account.size() < kMostHolders)
        add_line(held, label);
      else
        others += held;
    if (holders.size() > kMostHolders) add_line(others, fmt::format("{} other holders", holders.size() - kMostHolders));
    const std::string held_by =
        account.empty()
            ? fmt::format("nothing is held, but memory comes in segments of {} and more",
                          size_text(static_cast<std::int64_t>(CachingAllocator::kSmallestSegment)))
            : fmt::format("held by:{}", fmt::join(account, ";"));  // which also separates them if they are on one line
    const bool together = pool == Pool::kGathered && allocator_.gather_source() != nullptr;
    const std::string limit = options_.capacity_bytes == 0
                                  ? ""
                                  : ", capacity " + size_text(static_cast<std::int64_t>(options_.capacity_bytes));
    throw OutOfMemory(fmt::format("out of device memory{}: {} asked for by {}, {} live, {} reserved{}; {}",
                                  together ? ", here or on a rank that gathers with this one" : "", size_text(bytes),
                                  text_of(ledger_.holder(holder)), size_text(ledger_.live_bytes()),
                                  size_text(static_cast<std::int64_t>(allocator_.reserved_bytes())), limit, held_by));
  }
  if (options_.poison) allocator_.fill(data, std::byte{0xFF}, static_cast<std::size_t>(bytes));
  Block* block = take_block();
  block->data = data;
  block->bytes = bytes;
  ++allocations_;
  block->attributed_to = holder;
  block->holds.assign(1, Hold{holder, 1, ledger_.events_seen()});
  ledger_.on_allocate(bytes, holder);
  return BufferRef(this, block, holder);
}

void Memory::attribute(Block* block) {
  const auto first = std::min_element(block->holds.begin(), block->holds.end(), [&](const Hold& a, const Hold& b) {
    const HolderKind kind_a = ledger_.holder(a.holder).kind, kind_b = ledger_.holder(b.holder).kind;
    return kind_a != kind_b ? kind_a < kind_b : a.since_event < b.since_event;
  });
  ledger_.on_transfer(block->bytes, block->attributed_to, first->holder);
  block->attributed_to = first->holder;
}

void Memory::add_hold(Block* block, HolderId holder) {
  for (Hold& hold : block->holds) {
    if (hold.holder != holder) continue;
    ++hold.count;
    return;
  }
  block->holds.push_back({holder, 1, ledger_.events_seen()});
  attribute(block);
}

void Memory::remove_hold(Block* block, HolderId holder) noexcept {
  const auto hold =
      std::find_if(block->holds.begin(), block->holds.end(), [&](const Hold& h) { return h.holder == holder; });
  if (--hold->count > 0) return;
  block->holds.erase(hold);
  if (!block->holds.empty()) {
    attribute(block);
    return;
  }
  ledger_.on_free(block->bytes, block->attributed_to);
  if (options_.poison) allocator_.fill(block->data, std::byte{0xFF}, static_cast<std::size_t>(block->bytes));
  allocator_.free(block->data);
  spare_blocks_.push_back(block);
}

void Memory::move_hold(Block* block, HolderId from, HolderId to) {
  if (from == to) return;
  const auto same = [](HolderId id) { return [id](const Hold& hold) { return hold.holder == id; }; };
  const auto old_hold = std::find_if(block->holds.begin(), block->holds.end(), same(from));
  if (--old_hold->count == 0) block->holds.erase(old_hold);
  const auto new_hold = std::find_if(block->holds.begin(), block->holds.end(), same(to));
  if (new_hold != block->holds.end())
    ++new_hold->count;
  else
    block->holds.push_back({to, 1, ledger_.events_seen()});
  attribute(block);
}

BufferRef::BufferRef(const BufferRef& other) : memory_(other.memory_), block_(other.block_), holder_(other.holder_) {
  if (block_) memory_->add_hold(block_, holder_);
}

BufferRef::BufferRef(BufferRef&& other) noexcept
    : memory_(other.memory_), block_(std::exchange(other.block_, nullptr)), holder_(other.holder_) {}

BufferRef& BufferRef::operator=(BufferRef other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(block_, other.block_);
  std::swap(holder_, other.holder_);
  return *this;
}

BufferRef::~BufferRef() {
  if (block_) memory_->remove_hold(block_, holder_);
}

std::byte* BufferRef::data() const { return block_ ? block_->data : nullptr; }
std::int64_t BufferRef::bytes() const { return block_ ? block_->bytes : 0; }

BufferRef BufferRef::held_by(HolderId holder) const {
  if (!block_) return {};
  memory_->add_hold(block_, holder);
  return BufferRef(memory_, block_, holder);
}

void BufferRef::rename(HolderId holder) {
  if (block_) memory_->move_hold(block_, holder_, holder);
  holder_ = holder;
}

}  // namespace fp8lab
