#pragma once

#include <cstdint>
#include <vector>

#include "comm/process_group.h"
#include "fsdp/row_split.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

/// One array of a parameter that ranks hold in pieces: its shape when unsharded and where each rank's bytes lie in it.
/// Pieces are runs of full rows, so they are sent from where they lie and land where they belong.
struct GatheredArray {
  TensorSpec unsharded;                     ///< padding included
  std::vector<std::int64_t> offsets_bytes;  ///< one per rank, and the end
  std::int64_t filled_rows = 0;             ///< rows of `unsharded` that pieces fill; those below are padding, zero
  Content content = Content::kPayload;
};

/// Quantized data and scales of one orientation.
struct GatheredOrientation {
  GatheredArray data;
  GatheredArray scales;  ///< without offsets where the scale is the entire tensor's: it does not travel
  bool scales_travel() const { return !scales.offsets_bytes.empty(); }
};

GatheredArray gathered_values(const TensorSpec& unsharded, const RowSplit& split);

/// Row-wise, for every format that weights have.
GatheredOrientation gathered_rowwise(const QuantFormat& format, const Shape& shape, const RowSplit& split,
                                     bool strip_scale_padding);
/// Column-wise, for formats whose column-wise orientation is no transpose of the other: where it is one, it is made
/// after the gather.
GatheredOrientation gathered_columnwise(const QuantFormat& format, const Shape& shape, const RowSplit& split,
                                        bool strip_scale_padding);

}  // namespace fp8lab
