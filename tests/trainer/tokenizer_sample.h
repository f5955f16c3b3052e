// The tokenizer of tokenizer_golden.py: 256 characters of bytes and 60 merges.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/error.h"
#include "tests/trainer/tokenizer_golden.h"
#include "trainer/tokenizer/tokenizer_file.h"

namespace weft::tokenizer_test {

using Json = nlohmann::json;

// The code points of the byte alphabet by their definition: the printed ones of Latin-1, then those from U+0100 on.
inline std::vector<std::string> alphabet() {
  std::vector<std::string> characters;
  const auto add = [&](int code) {
    characters.push_back(
        code < 0x80 ? std::string(1, static_cast<char>(code))
                    : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))});
  };
  for (int code = '!'; code <= '~'; ++code) add(code);
  for (int code = 0xa1; code <= 0xac; ++code) add(code);
  for (int code = 0xae; code <= 0xff; ++code) add(code);
  for (int code = 0x100; code < 0x100 + 68; ++code) add(code);
  return characters;
}

// A tokenizer.json; `parts` replaces whole parts of it.
inline Json sample_json(const Json& parts = Json::object()) {
  Json vocab = Json::object(), merges = Json::array();
  for (const std::string& character : alphabet()) vocab[character] = vocab.size();
  for (const std::string_view merge : tokenizer_golden::merges) {
    const std::size_t space = merge.find(' ');
    std::string token(merge.substr(0, space));
    token += merge.substr(space + 1);
    vocab[token] = vocab.size();
    merges.push_back(merge);
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  Json json = {{"version", "1.0"},
               {"added_tokens", Json::array()},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level},
               {"post_processor", nullptr},
               {"decoder", byte_level},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  json.update(parts);
  return json;
}

inline std::shared_ptr<const Tokenizer> sample(const Json& parts = Json::object()) {
  return parse_tokenizer_json(sample_json(parts).dump(), "tokenizer.json");
}

// The refusal of a file; empty if it is read.
inline std::string refusal_of_parts(const Json& parts) {
  return refusal_of([&] { sample(parts); }).value_or("");
}
inline std::string refusal_of_text(const std::string& text) {
  return refusal_of([&] { parse_tokenizer_json(text, "tokenizer.json"); }).value_or("");
}
inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::vector<std::int32_t> parsed_ids(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::int32_t> ids;
  for (std::int32_t id; stream >> id;) ids.push_back(id);
  return ids;
}

}  // namespace weft::tokenizer_test
