#pragma once

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/check.h"

namespace fp8lab {

/// The words of an enum's values in scenario files and results, in the order of the values 0, 1, ... Every enum that is
/// the type of a key specialises this.
template <class Enum>
inline constexpr std::array<std::string_view, 0> kWords{};

/// A value of an enum that a scenario file spells as a word: "full" and Recompute::kFull are the same.
template <class Enum>
class Word {
 public:
  constexpr Word(Enum value = {}) : value_(value) {}
  /// Throws Error if `text` is not a word of the enum.
  Word(std::string_view text) : value_(of(text)) {}
  Word(const char* text) : Word(std::string_view(text)) {}
  Word(const std::string& text) : Word(std::string_view(text)) {}

  constexpr operator Enum() const { return value_; }
  constexpr std::string_view text() const { return kWords<Enum>[static_cast<std::size_t>(value_)]; }

  friend constexpr bool operator==(Word a, Word b) { return a.value_ == b.value_; }
  friend constexpr bool operator==(Word a, Enum b) { return a.value_ == b; }

 private:
  static Enum of(std::string_view text) {
    for (std::size_t i = 0; i < kWords<Enum>.size(); ++i)
      if (kWords<Enum>[i] == text) return static_cast<Enum>(i);
    fail(std::string("'").append(text).append("' is no word of this key"));
  }

  Enum value_;
};

}  // namespace fp8lab
