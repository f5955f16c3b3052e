// Token files written plainly, number by number, and a judge of their bytes: both share nothing with trainer/data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {

// The little-endian bytes of a number, lowest first.
inline void put(std::string& to, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(number >> (8 * i) & 0xff);
}

inline std::int64_t taken(std::string_view from, std::size_t at, int bytes, bool is_signed) {
  std::uint64_t number = 0;
  for (int i = 0; i < bytes; ++i) number |= std::uint64_t{static_cast<std::uint8_t>(from[at + i])} << (8 * i);
  if (is_signed && bytes < 8 && (number >> (8 * bytes - 1) & 1) != 0) number |= ~std::uint64_t{0} << (8 * bytes);
  return static_cast<std::int64_t>(number);
}

// A document is one or more sequences of ids.
using PlainDocument = std::vector<std::vector<std::int64_t>>;

struct PlainFiles {
  std::string index, data;
};

inline int plain_width(int code) {
  constexpr int widths[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  return widths[code];
}

// Files of Megatron with tokens of the type with that code.
inline PlainFiles plain_megatron(const std::vector<PlainDocument>& documents, int code) {
  std::string lengths, offsets, begins, data;
  std::uint64_t sequences = 0;
  put(begins, 0, 8);
  for (const PlainDocument& document : documents) {
    for (const auto& sequence : document) {
      put(lengths, sequence.size(), 4);
      put(offsets, data.size(), 8);
      for (const std::int64_t id : sequence) put(data, static_cast<std::uint64_t>(id), plain_width(code));
      ++sequences;
    }
    put(begins, sequences, 8);
  }
  std::string index = "MMIDIDX";
  put(index, 0, 2);
  put(index, 1, 8);
  put(index, static_cast<std::uint64_t>(code), 1);
  put(index, sequences, 8);
  put(index, documents.size() + 1, 8);
  return {index + lengths + offsets + begins, data};
}

// Files of datatrove: the index and the tokens.
inline PlainFiles plain_datatrove(const std::vector<PlainDocument>& documents, int width) {
  PlainFiles files;
  std::uint64_t tokens = 0;
  for (const PlainDocument& document : documents) {
    for (const auto& sequence : document) {
      for (const std::int64_t id : sequence) put(files.data, static_cast<std::uint64_t>(id), width);
      tokens += sequence.size();
    }
    put(files.index, tokens, 8);
  }
  return files;
}

inline std::string plain_llm_c(std::uint64_t magic, std::uint64_t version, std::span<const std::int64_t> ids,
                               int width) {
  std::string bytes;
  put(bytes, magic, 4);
  put(bytes, version, 4);
  put(bytes, ids.size(), 4);
  bytes.resize(1024);
  for (const std::int64_t id : ids) put(bytes, static_cast<std::uint64_t>(id), width);
  return bytes;
}

inline std::vector<std::int64_t> plain_tokens(const std::vector<PlainDocument>& documents) {
  std::vector<std::int64_t> ids;
  for (const PlainDocument& document : documents) {
    for (const auto& sequence : document) ids.insert(ids.end(), sequence.begin(), sequence.end());
  }
  return ids;
}

// `count` documents of 0 to 3 sequences of 0 to 9 ids below `end`; at least one token.
inline std::vector<PlainDocument> random_documents(std::mt19937& chance, int count, std::int64_t end) {
  std::vector<PlainDocument> documents(static_cast<std::size_t>(count));
  for (PlainDocument& document : documents) {
    document.resize(chance() % 4);
    for (auto& sequence : document) {
      sequence.resize(chance() % 10);
      for (std::int64_t& id : sequence) id = static_cast<std::int64_t>(chance() % static_cast<std::uint64_t>(end));
    }
  }
  documents.push_back({{7 % end}});
  return documents;
}

// Whether an index of Megatron keeps every promise of its format for `data_bytes` bytes of tokens.
inline bool is_sound_megatron(std::string_view index, std::uint64_t data_bytes) {
  if (index.size() < 34 || index.substr(0, 9) != std::string_view("MMIDIDX\0\0", 9)) return false;
  const auto code = static_cast<std::uint8_t>(index[17]);
  if (taken(index, 9, 8, false) != 1 || code < 1 || code > 8 || code == 6 || code == 7) return false;
  const auto sequences = static_cast<std::uint64_t>(taken(index, 18, 8, false));
  const auto begins = static_cast<std::uint64_t>(taken(index, 26, 8, false));
  if (sequences > index.size() || begins > index.size() || begins == 0) return false;
  if (index.size() != 34 + 12 * sequences + 8 * begins) return false;
  std::uint64_t end = 0;
  for (std::uint64_t s = 0; s < sequences; ++s) {
    const std::int64_t length = taken(index, 34 + 4 * s, 4, true);
    if (length < 0 || taken(index, 34 + 4 * sequences + 8 * s, 8, true) != static_cast<std::int64_t>(end)) return false;
    end += static_cast<std::uint64_t>(length * plain_width(code));
  }
  std::int64_t before = 0;
  for (std::uint64_t d = 0; d < begins; ++d) {
    const std::int64_t begin = taken(index, 34 + 12 * sequences + 8 * d, 8, true);
    if (begin < before || (d == 0 && begin != 0)) return false;
    before = begin;
  }
  return before == static_cast<std::int64_t>(sequences) && end == data_bytes;
}

// The same for datatrove.
inline bool is_sound_datatrove(std::string_view index, std::uint64_t data_bytes) {
  if (index.empty() || index.size() % 8 != 0 || data_bytes == 0) return false;
  std::int64_t before = 0;
  for (std::size_t at = 0; at < index.size(); at += 8) {
    const std::int64_t end = taken(index, at, 8, true);
    if (end < before) return false;
    before = end;
  }
  const auto tokens = static_cast<std::uint64_t>(before);
  return tokens <= data_bytes && (tokens * 2 == data_bytes || tokens * 4 == data_bytes);
}

// The message of a refusal, or "accepted". Failures and other exceptions pass through and fail the test.
template <typename Action>
std::string token_refusal(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request) throw;
    return error.what();
  }
  return "accepted";
}

inline std::string hex_bytes(std::string_view hex) {
  std::string bytes, digits;
  for (const char c : hex) {
    if (c != ' ' && c != '\n') digits += c;
  }
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// Megatron's own builder wrote these for the documents [1 2 3 0] [4 5 0] [6 7 8 9 10 0] as uint16.
inline PlainFiles golden_megatron() {
  return {hex_bytes("4d4d4944494458000001000000000000 00080300000000000000040000000000"
                    "00000400000003000000060000000000 00000000000008000000000000000e00"
                    "00000000000000000000000000000100 00000000000002000000000000000300"
                    "000000000000"),
          hex_bytes("01000200030000000400050000000600 070008000900 0a000000")};
}

inline std::vector<PlainDocument> golden_documents() {
  return {{{1, 2, 3, 0}}, {{4, 5, 0}}, {{6, 7, 8, 9, 10, 0}}};
}

}  // namespace weft
