#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace fp8lab {

/// Counts the host memory in which one rank keeps copies of tensors. Device memory is the Ledger's.
class HostCopies {
 public:
  std::int64_t live_bytes() const { return live_; }
  std::int64_t peak_bytes() const { return peak_; }

 private:
  friend class HostCopy;
  void add(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

/// A tensor's bytes in host memory. It is counted from its construction to its destruction, before which `counted` must
/// live. A device that computes nothing has sizes and no bytes.
class HostCopy {
 public:
  HostCopy() = default;
  /// `bytes`: `size` of them, or none if there are no values.
  HostCopy(HostCopies& counted, std::vector<std::byte> bytes, std::int64_t size)
      : counted_(&counted), bytes_(std::move(bytes)), size_(size) {
    counted.add(size);
  }
  HostCopy(HostCopy&& other) noexcept { swap(other); }
  HostCopy& operator=(HostCopy other) noexcept {
    swap(other);
    return *this;
  }
  ~HostCopy() {
    if (counted_ != nullptr) counted_->add(-size_);
  }

  explicit operator bool() const { return counted_ != nullptr; }
  std::span<const std::byte> bytes() const { return bytes_; }
  /// A copy of `count` bytes from `first` on.
  HostCopy part(std::int64_t first, std::int64_t count) const {
    if (counted_ == nullptr) return {};
    const auto begin = bytes_.begin() + (bytes_.empty() ? 0 : first);
    return {*counted_, {begin, begin + (bytes_.empty() ? 0 : count)}, count};
  }

 private:
  void swap(HostCopy& other) noexcept {
    std::swap(counted_, other.counted_);
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
  }

  HostCopies* counted_ = nullptr;
  std::vector<std::byte> bytes_;
  std::int64_t size_ = 0;
};

}  // namespace fp8lab
