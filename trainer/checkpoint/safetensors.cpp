#include "trainer/checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

struct FormatDtype {
  std::string_view name;
  int bits;
};
// In the order of the reference's enumeration, which is used to sort tensors.
constexpr std::array<FormatDtype, 22> dtypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

struct SavedDtype {
  DType dtype;
  std::string_view name;
};
constexpr SavedDtype saved_dtypes[] = {{DType::float32, "F32"},
                                       {DType::bfloat16, "BF16"},
                                       {DType::float16, "F16"},
                                       {DType::float64, "F64"},
                                       {DType::int32, "I32"}};

int place_of(std::string_view dtype) {
  const auto found = std::ranges::find(dtypes, dtype, &FormatDtype::name);
  return static_cast<int>(found - dtypes.begin());
}

}  // namespace

std::int64_t safetensors_bytes(const SafetensorsTensor& tensor) {
  const auto bits = safetensors_bits(tensor.dtype);
  if (!bits) fail_request("tensor {}: the format has no dtype {}", tensor.name, tensor.dtype);
  std::int64_t size = 1;
  bool fits = true;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) fail_request("tensor {}: an extent is {}", tensor.name, extent);
    fits = fits && !__builtin_mul_overflow(size, extent, &size);
  }
  if (!fits || __builtin_mul_overflow(size, *bits, &size)) {
    fail_request("tensor {}: its size overflows", tensor.name);
  }
  if (size % 8 != 0) fail_request("tensor {} ends within a byte", tensor.name);
  return size / 8;
}

SafetensorsHeader arrange_safetensors(std::vector<SafetensorsTensor> tensors,
                                      std::map<std::string, std::string> metadata) {
  std::ranges::sort(tensors, {}, [](const SafetensorsTensor& tensor) {
    return std::pair(-place_of(tensor.dtype), std::string_view(tensor.name));
  });
  SafetensorsHeader header{std::move(metadata), std::move(tensors)};
  std::int64_t end = 0;
  for (SafetensorsTensor& tensor : header.tensors) {
    tensor.begin = end;
    if (__builtin_add_overflow(end, safetensors_bytes(tensor), &end)) {
      fail_request("tensor {}: the size of all tensors overflows", tensor.name);
    }
    tensor.end = end;
  }
  header.data_begin = std::ssize(safetensors_prefix(header));
  return header;
}

// The text of each tensor is formatted here, not by nlohmann: its documents search all keys before they insert one.
std::string safetensors_prefix(const SafetensorsHeader& header) {
  std::string text = "{";
  std::set<std::string_view> names;
  try {
    if (!header.metadata.empty()) {
      text += fmt::format("\"{}\":{}", safetensors_metadata_key, SortedJson(header.metadata).dump());
    }
    for (const SafetensorsTensor& tensor : header.tensors) {
      if (tensor.name == safetensors_metadata_key || !names.insert(tensor.name).second) {
        fail_request("no second tensor can be named {}", tensor.name);
      }
      text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          text.size() > 1 ? "," : "", SortedJson(tensor.name).dump(), tensor.dtype,
                          fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
    }
  } catch (const SortedJson::exception& error) {
    fail_request("a name is no text: {}", error.what());
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (std::ssize(text) > safetensors_largest_header) {
    fail_request("a header of {} bytes is larger than the format allows ({})", text.size(), safetensors_largest_header);
  }
  std::string length(safetensors_length_bytes, '\0');
  for (std::size_t byte = 0; byte < length.size(); ++byte) length[byte] = static_cast<char>(text.size() >> (8 * byte));
  return length + text;
}

std::optional<int> safetensors_bits(std::string_view dtype) {
  const int place = place_of(dtype);
  if (place == std::ssize(dtypes)) return std::nullopt;
  return dtypes[static_cast<std::size_t>(place)].bits;
}

std::string_view safetensors_dtype(DType dtype) {
  const auto found = std::ranges::find(saved_dtypes, dtype, &SavedDtype::dtype);
  if (found == std::end(saved_dtypes)) fail("a checkpoint has no {}", name_of(dtype));
  return found->name;
}

std::optional<DType> dtype_of_safetensors(std::string_view dtype) {
  const auto found = std::ranges::find(saved_dtypes, dtype, &SavedDtype::name);
  return found == std::end(saved_dtypes) ? std::nullopt : std::optional(found->dtype);
}

}  // namespace weft
