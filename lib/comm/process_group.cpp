#include "comm/process_group.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "backend/device.h"
#include "comm/reduce.h"
#include "comm/staged.h"

namespace fp8lab {
namespace {

bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
  const auto first_a = reinterpret_cast<std::uintptr_t>(a);
  const auto first_b = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && first_a < first_b + static_cast<std::uintptr_t>(b_bytes) &&
         first_b < first_a + static_cast<std::uintptr_t>(a_bytes);
}

/// Sizes of parts, with payload and scales apart.
struct Sizes {
  TrafficCount count{.collectives = 1};

  void add(Content content, std::int64_t bytes) {
    (content == Content::kScales ? count.scale_bytes : count.payload_bytes) += bytes;
  }
  std::int64_t total() const { return count.payload_bytes + count.scale_bytes; }
};

}  // namespace

void Traffic::add(CollectiveKind kind, const TrafficCount& count) {
  TrafficCount& sum = counts_[static_cast<std::size_t>(kind)];
  sum.collectives += count.collectives;
  sum.payload_bytes += count.payload_bytes;
  sum.scale_bytes += count.scale_bytes;
}

ProcessGroup::ProcessGroup(Identity identity)
    : name_(std::move(identity.name)),
      world_ranks_(std::move(identity.world_ranks)),
      rank_(identity.rank),
      local_rank_(identity.local_rank),
      moves_data_(identity.moves_data) {}

ProcessGroup::Identity ProcessGroup::identity_of(const ProcessGroup& group) {
  return {.name = group.name_,
          .world_ranks = group.world_ranks_,
          .rank = group.rank_,
          .local_rank = group.local_rank_,
          .moves_data = group.moves_data_};
}

void ProcessGroup::all_gather(std::span<const GatherPart> parts, std::string_view label) {
  gather(parts, label, false);
}
void ProcessGroup::all_gather_async(std::span<const GatherPart> parts, std::string_view label) {
  gather(parts, label, true);
}

void ProcessGroup::gather(std::span<const GatherPart> parts, std::string_view label, bool async) {
  Signature call = begin(CollectiveKind::kAllGather, label);
  Sizes sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const GatherPart& part = parts[i];
    const std::int64_t total = check_offsets(call, i, part.offsets_bytes);
    const std::int64_t first = part.offsets_bytes[static_cast<std::size_t>(rank_)];
    const std::int64_t own = part.offsets_bytes[static_cast<std::size_t>(rank_) + 1] - first;
    check_buffer(call, i, part.from, own);
    check_buffer(call, i, part.to, total);
    check_own_place(call, i, part.from, own, part.to + first, part.to, total);
    call.mix(static_cast<std::uint64_t>(part.content));
    for (const std::int64_t offset : part.offsets_bytes) call.mix(static_cast<std::uint64_t>(offset));
    sizes.add(part.content, total);
  }
  call.parts = static_cast<std::int64_t>(parts.size());
  call.bytes = sizes.total();
  do_all_gather(call, parts, async);
  complete(call, sizes.count);
}

void ProcessGroup::reduce_scatter(std::span<const ScatterPart> parts, std::string_view label) {
  Signature call = begin(CollectiveKind::kReduceScatter, label);
  Sizes sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ScatterPart& part = parts[i];
    check_reducible(call, i, part.dtype);
    const auto element = static_cast<std::int64_t>(size_bytes(part.dtype));
    const std::int64_t total = check_offsets(call, i, part.offsets_elems) * element;
    const std::int64_t first = part.offsets_elems[static_cast<std::size_t>(rank_)] * element;
    const std::int64_t own = part.offsets_elems[static_cast<std::size_t>(rank_) + 1] * element - first;
    check_buffer(call, i, part.from, total, size_bytes(part.dtype));
    check_buffer(call, i, part.to, own, size_bytes(part.dtype));
    check_own_place(call, i, part.to, own, part.from + first, part.from, total);
    call.mix(static_cast<std::uint64_t>(part.content));
    call.mix(static_cast<std::uint64_t>(part.dtype));
    for (const std::int64_t offset : part.offsets_elems) call.mix(static_cast<std::uint64_t>(offset));
    sizes.add(part.content, total);
  }
  call.parts = static_cast<std::int64_t>(parts.size());
  call.bytes = sizes.total();
  do_reduce_scatter(call, parts);
  complete(call, sizes.count);
}

void ProcessGroup::all_reduce(ReduceOp op, std::span<const ReducePart> parts, std::string_view label) {
  Signature call = begin(CollectiveKind::kAllReduce, label);
  Sizes sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ReducePart& part = parts[i];
    check_reducible(call, i, part.dtype);
    if (part.elems < 0) refuse(call, i, fmt::format("has {} elements; a size is at least 0", part.elems));
    const std::int64_t total = part.elems * static_cast<std::int64_t>(size_bytes(part.dtype));
    check_buffer(call, i, part.data, total, size_bytes(part.dtype));
    call.mix(static_cast<std::uint64_t>(part.content));
    call.mix(static_cast<std::uint64_t>(part.dtype));
    call.mix(static_cast<std::uint64_t>(part.elems));
    sizes.add(part.content, total);
  }
  call.op = op;
  call.parts = static_cast<std::int64_t>(parts.size());
  call.bytes = sizes.total();
  do_all_reduce(call, parts);
  complete(call, sizes.count);
}

void ProcessGroup::broadcast(int root, std::span<const BroadcastPart> parts, std::string_view label) {
  Signature call = begin(CollectiveKind::kBroadcast, label);
  if (root < 0 || root >= size())
    fail(fmt::format("{} '{}' of group '{}': root {} is none of its {} ranks", fp8lab::name(call.kind), label, name_,
                     root, size()));
  Sizes sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const BroadcastPart& part = parts[i];
    if (part.bytes < 0) refuse(call, i, fmt::format("has {} bytes; a size is at least 0", part.bytes));
    check_buffer(call, i, part.data, part.bytes);
    call.mix(static_cast<std::uint64_t>(part.content));
    call.mix(static_cast<std::uint64_t>(part.bytes));
    sizes.add(part.content, part.bytes);
  }
  call.root = root;
  call.parts = static_cast<std::int64_t>(parts.size());
  call.bytes = sizes.total();
  do_broadcast(call, parts);
  complete(call, sizes.count);
}

void ProcessGroup::ring_exchange(int shift, std::span<const ExchangePart> parts, std::string_view label) {
  Signature call = begin(CollectiveKind::kRingExchange, label);
  call.shift = (shift % size() + size()) % size();
  if (call.shift == 0 && size() > 1)
    fail(fmt::format("{} '{}' of group '{}': by {} each of its {} ranks would send to itself", fp8lab::name(call.kind),
                     label, name_, shift, size()));
  Sizes sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ExchangePart& part = parts[i];
    if (part.bytes < 0) refuse(call, i, fmt::format("has {} bytes; a size is at least 0", part.bytes));
    check_buffer(call, i, part.from, part.bytes);
    check_buffer(call, i, part.to, part.bytes);
    if (overlap(part.from, part.bytes, part.to, part.bytes))
      refuse(call, i, "is received in the memory from which it is sent; the two must not overlap");
    call.mix(static_cast<std::uint64_t>(part.content));
    call.mix(static_cast<std::uint64_t>(part.bytes));
    sizes.add(part.content, part.bytes * size());
  }
  call.parts = static_cast<std::int64_t>(parts.size());
  call.bytes = sizes.total();
  do_ring_exchange(call, parts);
  complete(call, sizes.count);
}

void ProcessGroup::all_to_all(std::span<const AllToAllPart> parts, std::string_view label) {
  Signature call = begin(CollectiveKind::kAllToAll, label);
  Sizes sizes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const AllToAllPart& part = parts[i];
    if (part.bytes.size() != world_ranks_.size() * world_ranks_.size())
      refuse(call, i,
             fmt::format("has {} sizes; {} ranks need {} of them, one for each sender and receiver", part.bytes.size(),
                         size(), world_ranks_.size() * world_ranks_.size()));
    call.mix(static_cast<std::uint64_t>(part.content));
    std::int64_t total = 0;
    for (const std::int64_t bytes : part.bytes) {
      if (bytes < 0) refuse(call, i, fmt::format("has {} bytes; a size is at least 0", bytes));
      call.mix(static_cast<std::uint64_t>(bytes));
      total += bytes;
    }
    const std::int64_t sent = place_sent(part, rank_, size()), received = place_received(part, size(), rank_);
    check_buffer(call, i, part.from, sent);
    check_buffer(call, i, part.to, received);
    if (overlap(part.from, sent, part.to, received))
      refuse(call, i, "is received in the memory from which it is sent; the two must not overlap");
    sizes.add(part.content, total);
  }
  call.parts = static_cast<std::int64_t>(parts.size());
  call.bytes = sizes.total();
  do_all_to_all(call, parts);
  complete(call, sizes.count);
}

std::int64_t ProcessGroup::place_sent(const AllToAllPart& part, int sender, int receiver) const {
  std::int64_t place = 0;
  for (int before = 0; before < receiver; ++before) place += bytes_between(part, sender, before);
  return place;
}

std::int64_t ProcessGroup::place_received(const AllToAllPart& part, int sender, int receiver) const {
  std::int64_t place = 0;
  for (int before = 0; before < sender; ++before) place += bytes_between(part, before, receiver);
  return place;
}

void ProcessGroup::barrier(std::string_view label) {
  const Signature call = begin(CollectiveKind::kBarrier, label);
  do_barrier(call);
  complete(call, Sizes().count);
}

std::unique_ptr<ProcessGroup> ProcessGroup::split(std::span<const SplitPlace> places, std::string_view name) {
  Signature call = begin(CollectiveKind::kSplit, name);
  if (places.size() != world_ranks_.size())
    fail(fmt::format("split '{}' of group '{}': {} places for {} ranks; each rank needs one", name, name_,
                     places.size(), size()));
  for (const SplitPlace& place : places) {
    call.mix(static_cast<std::uint64_t>(place.color));
    call.mix(static_cast<std::uint64_t>(place.key));
  }
  const auto place_of = [&](int rank) { return places[static_cast<std::size_t>(rank)]; };
  const int color = place_of(rank_).color;
  std::vector<int> members;
  for (int rank = 0; rank < size(); ++rank)
    if (place_of(rank).color == color) members.push_back(rank);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return place_of(a).key < place_of(b).key; });

  Identity identity{
      .name = std::string(name), .world_ranks = {}, .rank = 0, .local_rank = local_rank_, .moves_data = moves_data_};
  for (const int member : members) {
    if (member == rank_) identity.rank = static_cast<int>(identity.world_ranks.size());
    identity.world_ranks.push_back(world_rank(member));
  }
  std::unique_ptr<ProcessGroup> group = do_split(call, color, std::move(identity));
  complete(call, Sizes().count);
  return group;
}

std::unique_ptr<ProcessGroup> ProcessGroup::for_device(Device& device) {
  Signature call = begin(CollectiveKind::kAttach, device.name());
  const bool through_host = moves_data_ && device.peer_access() != nullptr;
  std::unique_ptr<ProcessGroup> group =
      through_host ? do_for_device(call, device) : do_split(call, 0, identity_of(*this));
  complete(call, Sizes().count);
  return group;
}

std::unique_ptr<ProcessGroup> ProcessGroup::do_for_device(const Signature& call, Device& device) {
  do_barrier(call);
  return make_staged_group(*this, device);
}

Signature ProcessGroup::begin(CollectiveKind kind, std::string_view label) {
  Signature call{.kind = kind, .sequence = issued_ + 1};
  call.set_label(label);
  return call;
}

void ProcessGroup::refuse(const Signature& call, std::size_t part, const std::string& problem) const {
  fail(fmt::format("{} '{}' of group '{}': part {} {}", fp8lab::name(call.kind), call.label.data(), name_, part,
                   problem));
}

std::int64_t ProcessGroup::check_offsets(const Signature& call, std::size_t part,
                                         std::span<const std::int64_t> offsets) const {
  if (offsets.size() != world_ranks_.size() + 1)
    refuse(call, part, fmt::format("has {} offsets; {} ranks need {}", offsets.size(), size(), size() + 1));
  if (offsets.front() != 0) refuse(call, part, fmt::format("starts at offset {}; the first is 0", offsets.front()));
  for (std::size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1])
      refuse(call, part, fmt::format("has offset {} after {}; offsets never decrease", offsets[i], offsets[i - 1]));
  return offsets.back();
}

void ProcessGroup::check_buffer(const Signature& call, std::size_t part, const std::byte* data, std::int64_t bytes,
                                std::size_t alignment) const {
  if (bytes == 0) return;
  if (data == nullptr) refuse(call, part, fmt::format("has {} bytes at a null address", bytes));
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    refuse(call, part, fmt::format("lies at an address that is no multiple of its elements' {} bytes", alignment));
}

void ProcessGroup::check_own_place(const Signature& call, std::size_t part, const std::byte* own,
                                   std::int64_t own_bytes, const std::byte* own_place, const std::byte* full,
                                   std::int64_t full_bytes) const {
  if (own == own_place || !overlap(own, own_bytes, full, full_bytes)) return;
  refuse(call, part, "has its rank's bytes inside the full array, but not in their own place");
}

void ProcessGroup::check_reducible(const Signature& call, std::size_t part, DType dtype) const {
  if (!reducible(dtype))
    refuse(call, part, fmt::format("is {}; f32, bf16, i32 and i64 can be reduced", fp8lab::name(dtype)));
}

void ProcessGroup::complete(const Signature& call, const TrafficCount& counted) {
  issued_ = call.sequence;
  traffic_.add(call.kind, counted);
}

}  // namespace fp8lab
