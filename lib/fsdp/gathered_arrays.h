#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/process_group.h"
#include "fsdp/row_split.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

/// One array of a sharded parameter: its shape when unsharded, and where each rank's bytes lie in it. Each rank holds
/// contiguous full rows, so they are sent from their storage and received in place. Every rank sends as many bytes. The
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

/// Row-wise orientation, for every format of weights.
GatheredOrientation gathered_rowwise(const QuantFormat& format, const Shape& shape, const RowSplit& split,
                                     bool strip_scale_padding);
/// Column-wise orientation, for formats whose column-wise orientation is not the transpose of the row-wise one. If it
/// is the transpose, it is made after the gather.
GatheredOrientation gathered_columnwise(const QuantFormat& format, const Shape& shape, const RowSplit& split,
                                        bool strip_scale_padding);
/// Column-wise orientation of square blocks as untransposed_columnwise() copies it.
GatheredOrientation gathered_untransposed_columnwise(const QuantFormat& format, const Shape& shape,
                                                     const RowSplit& split);

}  // namespace fp8lab
