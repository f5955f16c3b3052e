// The safetensors format (huggingface/safetensors, README and src/tensor.rs): eight bytes with the length N of a header
// (little-endian), N bytes of JSON, then the tensors' bytes one after another, rows first, little-endian. Headers are
// plain values; data is read and written by whoever has it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/input_file.h"

namespace weft {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                // as the format writes it: "F32", "BF16", ...
  std::vector<std::int64_t> shape;  // empty for a scalar; sizes may be 0
  std::int64_t begin = 0, end = 0;  // bytes, from where the data begins
  std::int64_t bytes() const { return end - begin; }
  bool operator==(const SafetensorsTensor&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // in the order of their data
  std::int64_t data_begin = 0;             // of the file: 8 + N

  std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
  const SafetensorsTensor* find(std::string_view name) const;
  bool operator==(const SafetensorsHeader&) const = default;
};

inline constexpr std::int64_t safetensors_length_bytes = 8, safetensors_largest_header = 100'000'000;
inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

// Of a whole file. Takes what the format allows: any whitespace padding, tensors in any order of names, but no key
// twice or that the format does not have, no hole and no overlap between tensors, nothing behind the last one, no size
// that overflows, and at most 100,000,000 bytes of header. Time and memory are linear in the header, whatever it holds.
// Throws Error (request) naming `name` and what is wrong.
SafetensorsHeader parse_safetensors(std::span<const std::uint8_t> file, const std::string& name);
// The same of a file, of which only the header is read. Also throws as InputFile::read.
SafetensorsHeader read_safetensors(const InputFile& file);

// Bytes that dtype and shape make. Throws Error (request): a dtype that the format does not have, an extent below zero,
// a size that overflows or is no whole number of bytes.
std::int64_t safetensors_bytes(const SafetensorsTensor& tensor);
// Puts tensors in the reference's order (widest dtype first, then by name), one behind the other. `begin` and `end` are
// set here. Throws Error (request) as the two functions beside it.
SafetensorsHeader arrange_safetensors(std::vector<SafetensorsTensor> tensors,
                                      std::map<std::string, std::string> metadata = {{"format", "pt"}});
// What a file begins with: length and JSON, padded with blanks to a multiple of 8 bytes. Throws Error (request) where
// no reader could read it: a name twice, a text that is not UTF-8, a header too large.
std::string safetensors_prefix(const SafetensorsHeader& header);

// Bits of an element; nothing for a dtype that the format does not have.
std::optional<int> safetensors_bits(std::string_view dtype);
// The format's word, and the way back; nothing where Weft has no such dtype.
std::string_view safetensors_dtype(DType dtype);
std::optional<DType> dtype_of_safetensors(std::string_view dtype);

}  // namespace weft
