// Mutations of JSON that leave JSON behind, for the fuzzers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace weft {

using Chance = std::minstd_rand;

// Large lists and objects get no more attention than small ones.
inline nlohmann::json& some_value(nlohmann::json& root, Chance& chance) {
  nlohmann::json* value = &root;
  while (value->is_structured() && !value->empty() && chance() % 6 != 0) {
    auto child = value->begin();
    std::advance(child, chance() % value->size());
    value = &*child;
  }
  return *value;
}

inline void mutate_value(nlohmann::json& value, Chance& chance) {
  if (value.is_string() && chance() % 8 != 0) {
    std::string text = value.get<std::string>();
    const std::size_t size = text.size();
    text.resize(size + 16);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, text.size()));
    value = text;
  } else if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_structured() && !value.empty() && chance() % 2 == 0) {
    auto child = value.begin();
    std::advance(child, chance() % value.size());
    value.erase(child);
  } else {
    const nlohmann::json others[] = {nullptr,
                                     false,
                                     0,
                                     1,
                                     -1,
                                     std::int64_t{1} << chance() % 63,
                                     1e300,
                                     "",
                                     "a",
                                     nlohmann::json::array(),
                                     nlohmann::json::object()};
    value = others[chance() % std::size(others)];
  }
}

// A mutated byte seldom leaves JSON behind, so a value takes the place of another, joins it, or changes. Empty for a
// text that is no JSON.
inline std::string mutated_json(std::string_view text, unsigned seed) {
  constexpr std::ptrdiff_t most_brackets = 4000;  // the library writes values by recursion
  if (std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; }) > most_brackets) return {};
  nlohmann::json root = nlohmann::json::parse(text, nullptr, false);
  if (root.is_discarded()) return {};
  Chance chance(seed);
  nlohmann::json& value = some_value(root, chance);
  const nlohmann::json other = some_value(root, chance);
  switch (chance() % 4) {
    case 0:
      value = other;
      break;
    case 1:
      if (value.is_array()) {
        value.insert(value.begin() + static_cast<std::ptrdiff_t>(chance() % (value.size() + 1)), other);
      } else {
        value = nlohmann::json::array({value, other});
      }
      break;
    default:
      mutate_value(value, chance);
  }
  return root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace weft
