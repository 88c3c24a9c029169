#include "harness/subjects/recorded_keys.h"

#include "harness/cell/keys.h"

namespace fp8lab {
namespace {

Value value_from(const Key& key, const JsonReader& json) {
  switch (key.type) {
    case KeyType::kSwitch: return json.flag();
    case KeyType::kInteger: return json.integer();
    case KeyType::kNumber: return json.number();
    default: return json.text_of_scalar();  // a word can be true or false
  }
}

}  // namespace

void set_recorded_keys(const JsonReader& keys, CellConfig& cell) {
  keys.each_member([&](const std::string& path, const JsonReader& value) {
    const Key* const key = find_key(path);
    if (key == nullptr) value.refuse_for("belongs to no key of a cell");
    key->set(cell, value_from(*key, value));
  });
}

}  // namespace fp8lab
