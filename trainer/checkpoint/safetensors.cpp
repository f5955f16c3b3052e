#include "trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t length_bytes = 8;
constexpr std::int64_t largest_header = 100'000'000;

struct FormatDtype {
  std::string_view name;
  int bits;
};
// In the order of the reference's enumeration, which sorts tensors.
constexpr std::array<FormatDtype, 22> dtypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

int place_of(std::string_view dtype) {
  const auto found = std::ranges::find(dtypes, dtype, &FormatDtype::name);
  return static_cast<int>(found - dtypes.begin());
}

// a * b of sizes that are not negative; nothing where it does not fit.
std::optional<std::int64_t> product(std::int64_t a, std::int64_t b) {
  if (a != 0 && b > std::numeric_limits<std::int64_t>::max() / a) return std::nullopt;
  return a * b;
}

std::int64_t size_of_json(const Json& value, const std::string& what) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits || value.get<std::int64_t>() < 0) fail_request("{} is {}, not a size", what, value.dump());
  return value.get<std::int64_t>();
}

// Keys may stand only once: which of two counts is anybody's guess.
Json parse_once(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail_request("the key {} stands twice", parsed.dump());
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    fail_request("the header is no JSON: {}", error.what());
  }
}

std::map<std::string, std::string> parse_metadata(const Json& value) {
  if (!value.is_object()) fail_request("__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail_request("__metadata__.{} is {}, not a text", key, text.dump());
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

SafetensorsTensor parse_tensor(const std::string& name, const Json& value) {
  if (!value.is_object()) fail_request("tensor {} is not an object", name);
  for (const auto& [key, part] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") fail_request("tensor {}: unknown key {}", name, key);
  }
  const bool whole = value.contains("dtype") && value["dtype"].is_string() && value.contains("shape") &&
                     value["shape"].is_array() && value.contains("data_offsets") && value["data_offsets"].is_array() &&
                     value["data_offsets"].size() == 2;
  if (!whole) fail_request("tensor {} needs a dtype, a shape and two data_offsets", name);
  SafetensorsTensor tensor;
  tensor.name = name;
  tensor.dtype = value["dtype"].get<std::string>();
  const auto bits = safetensors_bits(tensor.dtype);
  if (!bits) fail_request("tensor {}: the format has no dtype {}", name, tensor.dtype);
  std::optional<std::int64_t> size = *bits;
  bool empty = false;
  for (const Json& extent : value["shape"]) {
    tensor.shape.push_back(size_of_json(extent, fmt::format("tensor {}: an extent", name)));
    empty = empty || tensor.shape.back() == 0;
    if (size) size = product(*size, std::max<std::int64_t>(tensor.shape.back(), 1));
  }
  if (!size) fail_request("tensor {}: its size overflows", name);
  if (empty) size = 0;
  if (*size % 8 != 0) fail_request("tensor {} ends within a byte", name);
  tensor.begin = size_of_json(value["data_offsets"][0], fmt::format("tensor {}: where it begins", name));
  tensor.end = size_of_json(value["data_offsets"][1], fmt::format("tensor {}: where it ends", name));
  if (tensor.end < tensor.begin || tensor.bytes() != *size / 8) {
    fail_request("tensor {}: data_offsets [{}, {}] do not hold its {} bytes", name, tensor.begin, tensor.end,
                 *size / 8);
  }
  return tensor;
}

SafetensorsHeader parse_header(std::span<const std::uint8_t> file) {
  const auto size = std::ssize(file);
  if (size < length_bytes) fail_request("{} bytes are too few for a header", size);
  std::uint64_t length = 0;
  for (int byte = 7; byte >= 0; --byte) length = length << 8 | file[static_cast<std::size_t>(byte)];
  if (length > static_cast<std::uint64_t>(largest_header)) {
    fail_request("a header of {} bytes is larger than the format allows ({})", length, largest_header);
  }
  SafetensorsHeader header;
  header.data_begin = length_bytes + static_cast<std::int64_t>(length);
  if (header.data_begin > size) fail_request("the header of {} bytes goes beyond the end of the file", length);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + length_bytes, length);
  if (!text.starts_with('{')) fail_request("the header does not begin with {{");
  const Json json = parse_once(text);
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value);
    } else {
      header.tensors.push_back(parse_tensor(name, value));
    }
  }
  std::ranges::sort(header.tensors, {}, [](const SafetensorsTensor& t) { return std::pair(t.begin, t.end); });
  std::int64_t end = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != end) {
      fail_request("tensor {} begins at byte {} of the data, but what is before it ends at {}", tensor.name,
                   tensor.begin, end);
    }
    end = tensor.end;
  }
  if (header.data_begin + end != size) {
    fail_request("the tensors take {} bytes, but {} stand behind the header", end, size - header.data_begin);
  }
  return header;
}

}  // namespace

const SafetensorsTensor* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &SafetensorsTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

SafetensorsHeader parse_safetensors(std::span<const std::uint8_t> file, const std::string& name) {
  try {
    return parse_header(file);
  } catch (const Error& error) {
    fail_request("{}: {}", name, error.what());
  }
}

SafetensorsHeader arrange_safetensors(std::vector<SafetensorsTensor> tensors,
                                      std::map<std::string, std::string> metadata) {
  std::ranges::sort(tensors, [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    const int first = place_of(a.dtype), second = place_of(b.dtype);
    return first != second ? first > second : a.name < b.name;
  });
  SafetensorsHeader header{std::move(metadata), std::move(tensors)};
  std::int64_t end = 0;
  for (SafetensorsTensor& tensor : header.tensors) {
    std::int64_t bits = safetensors_bits(tensor.dtype).value();
    for (const std::int64_t extent : tensor.shape) bits *= extent;
    tensor.begin = end;
    end = tensor.end = end + bits / 8;
  }
  header.data_begin = std::ssize(safetensors_prefix(header));
  return header;
}

std::string safetensors_prefix(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const SafetensorsTensor& tensor : header.tensors) {
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = json.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(length_bytes, '\0');
  for (std::size_t byte = 0; byte < length.size(); ++byte) length[byte] = static_cast<char>(text.size() >> (8 * byte));
  return length + text;
}

std::optional<int> safetensors_bits(std::string_view dtype) {
  const int place = place_of(dtype);
  if (place == std::ssize(dtypes)) return std::nullopt;
  return dtypes[static_cast<std::size_t>(place)].bits;
}

std::string_view safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "F32";
    case DType::bfloat16:
      return "BF16";
    case DType::float16:
      return "F16";
    case DType::float64:
      return "F64";
    case DType::int32:
      return "I32";
  }
  return "F32";
}

std::optional<DType> dtype_of_safetensors(std::string_view dtype) {
  for (const DType known : {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32}) {
    if (safetensors_dtype(known) == dtype) return known;
  }
  return std::nullopt;
}

}  // namespace weft
