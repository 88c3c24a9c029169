#include "harness/cell/vocabulary.h"

#include <algorithm>

namespace fp8lab {
namespace {

template <class Row>
std::vector<std::string> names(const std::vector<Row>& rows) {
  std::vector<std::string> out;
  for (const Row& row : rows) out.push_back(row.name);
  return out;
}

}  // namespace

std::vector<std::string> names_of(const std::vector<Term>& terms) { return names(terms); }
std::vector<std::string> names_of(const std::vector<FixTerm>& terms) { return names(terms); }

const Term* find_term(const std::vector<Term>& terms, std::string_view name) {
  const auto it = std::find_if(terms.begin(), terms.end(), [&](const Term& term) { return term.name == name; });
  return it == terms.end() ? nullptr : &*it;
}

}  // namespace fp8lab
