// The parsers of data and its tokens, for the fuzzers (parsers.cpp). Each takes a text, and throws Error if it refuses
// it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace weft {

inline std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Not an Error, which would be taken for a refusal.
inline void expect(bool holds, const char* statement) {
  if (holds) return;
  std::fprintf(stderr, "expected: %s\n", statement);
  std::abort();
}

void megatron_index(std::string_view text);
void number_tables(std::string_view text);
void datatrove_index(std::string_view text);
void token_shard(std::string_view text);
void token_losses(std::string_view text);
void token_facts(std::string_view text);
void documents(std::string_view text);
void chat_template(std::string_view text);
void unpacked_file(std::string_view text);

}  // namespace weft
