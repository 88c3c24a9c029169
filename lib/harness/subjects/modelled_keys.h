#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/keys.h"

namespace fp8lab {

/// Why predictions of a library do not cover other values of a key than its default.
struct KeyReason {
  std::string_view key, text;
};

/// True for keys that say what runs, that are sizes of a model, or that change no byte: learning rates, seeds, and what
/// the values of scales are.
bool changes_no_terms(std::string_view path);

/// "KEY: reason" for each key of the cell whose value is not the default and which neither changes_no_terms() nor
/// `modelled` takes; so a new key is refused until it is known to be modelled. Keys without a row in `reasons` are
/// refused since `figures` ("profiles") cover cells that leave them out.
std::vector<std::string> unmodelled_keys(const CellConfig& cell, Arm arm,
                                         const std::function<bool(const Key&)>& modelled,
                                         std::span<const KeyReason> reasons, std::string_view figures);

}  // namespace fp8lab
