#include "harness/scenario/variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "harness/cell/spelling.h"

namespace fp8lab {
namespace {

constexpr const char* kVariants = "variants";
/// Keys that the file and its variants share.
constexpr std::array<std::string_view, 3> kOfTheFile{"version", "name", kVariants};

bool is_of_the_file(std::string_view key) { return std::ranges::find(kOfTheFile, key) != kOfTheFile.end(); }

/// Puts the keys of a variant in place of the file's.
YamlNode varied(const NodeReader& reader, const YamlNode& base, const YamlEntry& variant) {
  const std::string where = fmt::format("{}.{}", kVariants, quotable(variant.key));
  const YamlNode& keys = reader.as_map(variant, where);
  if (keys.entries.empty())
    reader.refuse(variant.place, fmt::format("`{}` is empty, so it would repeat the file's own scenario", where));
  YamlNode out = base;
  YamlEntry* const name = out.find("name");
  name->value.text += "-" + variant.key;
  name->place = variant.place;  // the line at which the variant's scenario begins
  if (!keys.find("claims")) std::erase_if(out.entries, [](const YamlEntry& one) { return one.key == "claims"; });
  for (const YamlEntry& entry : keys.entries) {
    if (is_of_the_file(entry.key))
      reader.refuse(entry.place, fmt::format("`{}.{}`: `{}` belongs to the file, at the top level", where,
                                             quotable(entry.key), quotable(entry.key)));
    const bool removes = entry.value.kind == YamlNode::Kind::kNull;
    YamlEntry* const replaced = out.find(entry.key);
    if (removes && replaced == nullptr)
      reader.refuse(entry.place, fmt::format("`{}.{}` has no value, and the file has no `{}` that this would remove",
                                             where, quotable(entry.key), quotable(entry.key)));
    if (removes)
      std::erase_if(out.entries, [&](const YamlEntry& one) { return one.key == entry.key; });
    else if (replaced != nullptr)
      *replaced = entry;
    else
      out.entries.push_back(entry);
  }
  return out;
}

}  // namespace

std::vector<YamlNode> scenarios_of_file(const NodeReader& reader, const YamlNode& root, Mistakes& mistakes) {
  YamlNode base = root;
  std::erase_if(base.entries, [](const YamlEntry& entry) { return entry.key == kVariants; });
  std::vector<YamlNode> out{base};
  const YamlEntry* const variants = root.find(kVariants);
  const YamlEntry* const name = base.find("name");
  if (variants == nullptr || name == nullptr || !name->value.is_scalar()) return out;
  mistakes.collect([&] {
    const YamlNode& all = reader.as_map(*variants, kVariants);
    if (all.entries.empty())
      reader.refuse(variants->place, "`variants` is empty; remove it or give it a name with keys");
    for (const YamlEntry& variant : all.entries)
      mistakes.collect([&] { out.push_back(varied(reader, base, variant)); });
  });
  return out;
}

}  // namespace fp8lab
