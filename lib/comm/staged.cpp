#include "comm/staged.h"

#include <utility>
#include <vector>

#include "core/shape.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kLineBytes = 64;

class StagedGroup final : public ProcessGroup {
 public:
  StagedGroup(ProcessGroup& host, Device& device, std::unique_ptr<ProcessGroup> owned = nullptr)
      : ProcessGroup(identity_of(host)),
        host_(host),
        owned_(std::move(owned)),
        device_(device),
        memory_(*device.peer_access()) {}

  const Device* device() const override { return &device_; }
  ProcessGroup& host() override { return host_; }

 private:
  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    std::int64_t total = 0;
    for (const GatherPart& part : parts) total += lines(part.offsets_bytes.back());
    std::byte* at = staging(total);
    gathers_.assign(parts.begin(), parts.end());
    for (GatherPart& part : gathers_) {
      const std::int64_t first = part.offsets_bytes[own()], bytes = part.offsets_bytes[own() + 1] - first;
      memory_.to_host(at + first, part.from, bytes);
      part.from = at + first;
      part.to = at;
      at += lines(part.offsets_bytes.back());
    }
    do_over(host_, call, std::span<const GatherPart>(gathers_));
    for (std::size_t i = 0; i < parts.size(); ++i)
      memory_.from_host(parts[i].to, gathers_[i].to, parts[i].offsets_bytes.back());
  }

  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    std::int64_t total = 0;
    for (const ScatterPart& part : parts) total += lines(bytes_of(part.offsets_elems.back(), part.dtype));
    std::byte* at = staging(total);
    scatters_.assign(parts.begin(), parts.end());
    for (ScatterPart& part : scatters_) {
      const std::int64_t bytes = bytes_of(part.offsets_elems.back(), part.dtype);
      memory_.to_host(at, part.from, bytes);
      part.from = at;
      part.to = at + bytes_of(part.offsets_elems[own()], part.dtype);
      at += lines(bytes);
    }
    do_over(host_, call, std::span<const ScatterPart>(scatters_));
    for (std::size_t i = 0; i < parts.size(); ++i)
      memory_.from_host(parts[i].to, scatters_[i].to,
                        bytes_of(parts[i].offsets_elems[own() + 1] - parts[i].offsets_elems[own()], parts[i].dtype));
  }

  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    std::int64_t total = 0;
    for (const ReducePart& part : parts) total += lines(bytes_of(part.elems, part.dtype));
    std::byte* at = staging(total);
    reductions_.assign(parts.begin(), parts.end());
    for (ReducePart& part : reductions_) {
      const std::int64_t bytes = bytes_of(part.elems, part.dtype);
      memory_.to_host(at, part.data, bytes);
      part.data = at;
      at += lines(bytes);
    }
    do_over(host_, call, std::span<const ReducePart>(reductions_));
    for (std::size_t i = 0; i < parts.size(); ++i)
      memory_.from_host(parts[i].data, reductions_[i].data, bytes_of(parts[i].elems, parts[i].dtype));
  }

  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    std::int64_t total = 0;
    for (const BroadcastPart& part : parts) total += lines(part.bytes);
    std::byte* at = staging(total);
    broadcasts_.assign(parts.begin(), parts.end());
    for (BroadcastPart& part : broadcasts_) {
      if (rank() == call.root) memory_.to_host(at, part.data, part.bytes);
      part.data = at;
      at += lines(part.bytes);
    }
    do_over(host_, call, std::span<const BroadcastPart>(broadcasts_));
    if (rank() == call.root) return;
    for (std::size_t i = 0; i < parts.size(); ++i)
      memory_.from_host(parts[i].data, broadcasts_[i].data, parts[i].bytes);
  }

  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    std::int64_t total = 0;
    for (const ExchangePart& part : parts) total += 2 * lines(part.bytes);
    std::byte* at = staging(total);
    exchanges_.assign(parts.begin(), parts.end());
    for (ExchangePart& part : exchanges_) {
      memory_.to_host(at, part.from, part.bytes);
      part.from = at;
      part.to = at + lines(part.bytes);
      at += 2 * lines(part.bytes);
    }
    do_over(host_, call, std::span<const ExchangePart>(exchanges_));
    for (std::size_t i = 0; i < parts.size(); ++i) memory_.from_host(parts[i].to, exchanges_[i].to, parts[i].bytes);
  }

  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    const auto sent = [&](const AllToAllPart& part) { return place_sent(part, rank(), size()); };
    const auto received = [&](const AllToAllPart& part) { return place_received(part, size(), rank()); };
    std::int64_t total = 0;
    for (const AllToAllPart& part : parts) total += lines(sent(part)) + lines(received(part));
    std::byte* at = staging(total);
    all_to_alls_.assign(parts.begin(), parts.end());
    for (AllToAllPart& part : all_to_alls_) {
      memory_.to_host(at, part.from, sent(part));
      part.from = at;
      part.to = at + lines(sent(part));
      at += lines(sent(part)) + lines(received(part));
    }
    do_over(host_, call, std::span<const AllToAllPart>(all_to_alls_));
    for (std::size_t i = 0; i < parts.size(); ++i)
      memory_.from_host(parts[i].to, all_to_alls_[i].to, received(parts[i]));
  }

  void do_barrier(const Signature& call) override { barrier_over(host_, call); }

  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    std::unique_ptr<ProcessGroup> group = split_over(host_, call, color, std::move(identity));
    ProcessGroup& host = *group;
    return std::make_unique<StagedGroup>(host, device_, std::move(group));
  }

  std::size_t own() const { return static_cast<std::size_t>(rank()); }
  static std::int64_t lines(std::int64_t bytes) { return round_up(bytes, kLineBytes); }
  static std::int64_t bytes_of(std::int64_t elems, DType dtype) {
    return elems * static_cast<std::int64_t>(size_bytes(dtype));
  }

  /// Host memory for `bytes`, aligned to a line. One line more is allocated for the alignment.
  std::byte* staging(std::int64_t bytes) {
    const auto needed = static_cast<std::size_t>(bytes + kLineBytes);
    if (staging_.size() < needed) staging_.resize(needed);
    const auto at = reinterpret_cast<std::uintptr_t>(staging_.data());
    return staging_.data() + (static_cast<std::uintptr_t>(kLineBytes) - at % kLineBytes) % kLineBytes;
  }

  ProcessGroup& host_;
  std::unique_ptr<ProcessGroup> owned_;
  Device& device_;
  PeerAccess& memory_;
  std::vector<std::byte> staging_;
  std::vector<GatherPart> gathers_;  // these vectors keep their memory between calls
  std::vector<ScatterPart> scatters_;
  std::vector<ReducePart> reductions_;
  std::vector<BroadcastPart> broadcasts_;
  std::vector<ExchangePart> exchanges_;
  std::vector<AllToAllPart> all_to_alls_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_staged_group(ProcessGroup& host, Device& device) {
  return std::make_unique<StagedGroup>(host, device);
}

}  // namespace fp8lab
