#pragma once

#include <string>
#include <string_view>

#include "core/check.h"

namespace fp8lab {

/// The row of `table` whose member `name` is `wanted`. Throws Error with all names if there is none: "recipe 'fp9' is
/// not known; the recipes are bf16, delayed". `kind` names one row in singular; an s makes its plural.
template <class Table>
const auto& row_by_name(const Table& table, std::string_view kind, std::string_view wanted) {
  std::string names;
  for (const auto& row : table) {
    if (row.name == wanted) return row;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  fail(std::string(kind) + " '" + std::string(wanted) + "' is not known; the " + std::string(kind) + "s are " + names);
}

}  // namespace fp8lab
