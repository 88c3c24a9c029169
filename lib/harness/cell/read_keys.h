#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/keys.h"

// Which keys a cell reads. Rows of layers, recipes, optimizers and subjects list the keys that only some rows of their
// table read; read_keys.cpp has the keys that depend on another key's value.
namespace fp8lab {

/// Why a cell does not read a key, and what to write.
struct Unread {
  std::string_view decides;  ///< the path of the key that decides it
  std::string reason;        ///< "layer transformer_layer does not read it, grouped_linear does"
  std::string remedy;        ///< "write `layer: grouped_linear`; transformer_layer reads heads, kv_heads, ..."
};

/// Nothing if the cell reads the key: another value of the key makes another training, memory, traffic or verdict.
/// Devices are not considered: `meta` computes no values, so no value of `learning_rate` changes its figures.
std::optional<Unread> why_unread(const Key& key, const CellConfig& cell, const Vocabulary& vocabulary);

/// Sets each of `given` that the cell does not read to its default, so that it hides no other key, and returns the
/// reasons, in the order of `given`; nothing for a key that the cell reads, or for nullptr.
std::vector<std::optional<Unread>> drop_unread(const std::vector<const Key*>& given, CellConfig& cell,
                                               const Vocabulary& vocabulary);

/// Which cells read the key, for its description: "layers multihead_attention and transformer_layer; ..."; "" if every
/// cell does.
std::string read_by(const Key& key, const Vocabulary& vocabulary);

}  // namespace fp8lab
