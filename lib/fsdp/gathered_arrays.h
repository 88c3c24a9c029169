#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/device.h"
#include "comm/process_group.h"
#include "fsdp/row_split.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

/// One array of a sharded parameter: its shape when unsharded, and where each rank's bytes lie in it. Each rank holds
/// contiguous full rows, so they are sent from their storage and received in place. All send equally many bytes. The
/// padding of ranks with fewer rows arrives after all rows, so that the unsharded array is the start of what arrives.
struct GatheredArray {
  TensorSpec unsharded;                     ///< padding of scales included
  std::vector<std::int64_t> offsets_bytes;  ///< begin of each rank's bytes, and the end
  std::int64_t filled_rows = 0;             ///< rows of `unsharded` with values; rows after them are zero padding
  Content content = Content::kPayload;

  std::int64_t bytes_of_rank() const { return offsets_bytes[1]; }
  /// The bytes of the storage into which ranks gather.
  std::int64_t storage_bytes() const { return std::max(offsets_bytes.back(), unsharded.bytes()); }
};

/// Quantized data and scales of one orientation.
struct GatheredOrientation {
  GatheredArray data;
  GatheredArray scales;  ///< without offsets if the format is per-tensor: that scale does not travel
  bool scales_travel() const { return !scales.offsets_bytes.empty(); }
};

GatheredArray gathered_values(const TensorSpec& unsharded, const RowSplit& split);

/// What ranks gather of a parameter: its values in high precision, or its orientations in eight bits.
struct GatherLayout {
  GatheredArray values;  ///< if there is no `rowwise`
  std::optional<GatheredOrientation> rowwise{};
  /// If it is not the transpose of the row-wise orientation, which is made after the gather.
  std::optional<GatheredOrientation> columnwise{};
};
/// `format`: of a parameter in eight bits, else null.
GatherLayout gather_layout(const TensorSpec& unsharded, const QuantFormat* format, const RowSplit& split);

/// The elements of `tensor` and zeros after them, in storage of `bytes` bytes at least.
Tensor padded(Device& device, const Tensor& tensor, std::int64_t bytes, HolderId holder);
/// A row like `row`: the elements of `tensor`, and zeros after them.
Tensor followed_by_zeros(Device& device, const Tensor& tensor, const TensorSpec& row, HolderId holder);

/// Lists the parts of a gather of one parameter. Allocates what they are gathered into, from `device` and for `holder`.
class GatherParts {
 public:
  GatherParts(Device& device, HolderId holder, std::vector<GatherPart>& parts)
      : device_(device), holder_(holder), parts_(parts) {}
  void add(const GatheredArray& array, const Tensor& from, Tensor& to);
  void add(const GatheredOrientation& orientation, const QuantizedOrientation& from, QuantizedOrientation& to);

 private:
  Device& device_;
  HolderId holder_;
  std::vector<GatherPart>& parts_;
};

}  // namespace fp8lab
