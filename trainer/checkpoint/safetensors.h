// The safetensors format (huggingface/safetensors, README and src/tensor.rs). Eight bytes with the length N of a header
// (little-endian) stand before N bytes of JSON. The bytes of the tensors follow one after another, row-major,
// little-endian. Headers are plain values; callers read and write the data.
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
  std::string dtype;                // in the format's spelling: "F32", "BF16", ...
  std::vector<std::int64_t> shape;  // empty for a scalar; sizes may be 0
  std::int64_t begin = 0, end = 0;  // bytes, from the begin of the data
  std::int64_t bytes() const { return end - begin; }
  bool operator==(const SafetensorsTensor&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // in the order of their data
  std::int64_t data_begin = 0;             // byte in the file: 8 + N

  std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
  bool operator==(const SafetensorsHeader&) const = default;
};

inline constexpr std::int64_t safetensors_length_bytes = 8, safetensors_largest_header = 100'000'000;
inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

// Parses the header of a file of `size` bytes; `file` has at least the header, if that ends within them. Accepts any
// whitespace padding and any order of tensor names. Refuses duplicate or unknown keys, holes and overlaps between
// tensors, bytes after the last tensor, sizes that overflow, and headers of more than 100,000,000 bytes. Time and
// memory are linear in the size of any header. Throws Error (request) with `name` and the fault.
SafetensorsHeader parse_safetensors(std::span<const std::uint8_t> file, std::int64_t size, const std::string& name);
// The same for a file on disk; reads only the header. Also throws the errors of InputFile::read.
SafetensorsHeader read_safetensors(const InputFile& file);

// Bytes of a tensor, from its dtype and shape. Throws Error (request) for a dtype that the format does not have, or a
// negative extent. So it does for a size that overflows or is not a whole number of bytes.
std::int64_t safetensors_bytes(const SafetensorsTensor& tensor);
// Orders the tensors as the reference does (widest dtype first, then by name) and sets `begin` and `end` without gaps.
// Throws Error (request) as safetensors_bytes() and safetensors_prefix().
SafetensorsHeader arrange_safetensors(std::vector<SafetensorsTensor> tensors,
                                      std::map<std::string, std::string> metadata = {{"format", "pt"}});
// The begin of a file: length and JSON, padded with blanks to a multiple of 8 bytes. Throws Error (request) for a
// header that no reader accepts: duplicate names, a text that is not UTF-8, or too many bytes.
std::string safetensors_prefix(const SafetensorsHeader& header);

// Bits of an element; nothing for a dtype that the format does not have.
std::optional<int> safetensors_bits(std::string_view dtype);
// Conversion from a DType to the format's name and back; nothing if Weft has no such dtype.
std::string_view safetensors_dtype(DType dtype);
std::optional<DType> dtype_of_safetensors(std::string_view dtype);

}  // namespace weft
