// Parses headers as a stream of events, without a JSON document. So an invalid header of any size or depth is parsed
// and stored only up to its first fault.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/runtime/error.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

// The functions return whether to continue. Faults throw Error.
class HeaderEvents final : public nlohmann::json_sax<SortedJson> {
 public:
  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(text); }
  bool binary(binary_t&) override { unexpected("binary"); }
  bool number_unsigned(number_unsigned_t value) override {
    if ((place_ != Place::shape && place_ != Place::offsets) || value > std::uint64_t{INT64_MAX}) {
      unexpected(std::to_string(value));
    }
    (place_ == Place::shape ? tensor_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header_.metadata[key_] = std::move(value);
    } else if (place_ == Place::tensor && key_ == "dtype") {
      tensor_.dtype = std::move(value);
    } else {
      unexpected("a text");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::header;
    } else if (place_ == Place::header && key_ == safetensors_metadata_key) {
      place_ = Place::metadata;
    } else if (place_ == Place::header) {
      place_ = Place::tensor;
      tensor_ = {};
      tensor_.name = key_;
      offsets_.clear();
    } else {
      unexpected("an object");
    }
    inner_keys_.clear();
    return true;
  }
  bool key(string_t& key) override {
    auto& keys = place_ == Place::header ? keys_ : inner_keys_;
    if (!keys.insert(key).second) fail_request("the key {} stands twice{}", key, where());
    if (place_ == Place::tensor && key != "dtype" && key != "shape" && key != "data_offsets") {
      fail_request("tensor {}: unknown key {}", tensor_.name, key);
    }
    key_ = std::move(key);
    return true;
  }
  bool end_object() override {
    if (place_ == Place::tensor) end_tensor();
    place_ = place_ == Place::header ? Place::outside : Place::header;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") unexpected("a list");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }
  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fail_request("the header is no JSON: {}", error.what());
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };

  std::string where() const {
    if (place_ == Place::metadata) return fmt::format(" in {}", safetensors_metadata_key);
    return place_ == Place::header || place_ == Place::outside ? "" : fmt::format(" in tensor {}", tensor_.name);
  }
  [[noreturn]] void unexpected(const std::string& what) const {
    switch (place_) {
      case Place::outside:
        break;
      case Place::header:
        fail_request("tensor {} is {}, not an object", key_, what);
      case Place::metadata:
        fail_request("{}.{} is {}, not a text", safetensors_metadata_key, key_, what);
      case Place::tensor:
        fail_request("tensor {}: {} is {}, not {}", tensor_.name, key_, what, key_ == "dtype" ? "a text" : "a list");
      case Place::shape:
      case Place::offsets:
        fail_request("tensor {}: {} has {}, not a size", tensor_.name, key_, what);
    }
    fail_request("the header is {}, not an object", what);
  }
  void end_tensor() {
    if (!inner_keys_.contains("dtype") || !inner_keys_.contains("shape") || offsets_.size() != 2) {
      fail_request("tensor {} needs a dtype, a shape and two data_offsets", tensor_.name);
    }
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    const std::int64_t bytes = safetensors_bytes(tensor_);
    if (tensor_.end < tensor_.begin || tensor_.bytes() != bytes) {
      fail_request("tensor {}: data_offsets [{}, {}] do not hold its {} bytes", tensor_.name, tensor_.begin,
                   tensor_.end, bytes);
    }
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader& header_;
  Place place_ = Place::outside;
  std::string key_;                          // of the next value
  std::set<std::string> keys_, inner_keys_;  // of the header, and of the current object in it
  SafetensorsTensor tensor_;
  std::vector<std::int64_t> offsets_;
};

SafetensorsHeader parse_header(std::span<const std::uint8_t> file, std::int64_t size) {
  if (size < safetensors_length_bytes) fail_request("{} bytes are too few for a header", size);
  std::uint64_t length = 0;
  for (int byte = 7; byte >= 0; --byte) length = length << 8 | file[static_cast<std::size_t>(byte)];
  if (length > static_cast<std::uint64_t>(safetensors_largest_header)) {
    fail_request("a header of {} bytes is larger than the format allows ({})", length, safetensors_largest_header);
  }
  SafetensorsHeader header;
  header.data_begin = safetensors_length_bytes + static_cast<std::int64_t>(length);
  if (header.data_begin > size) fail_request("the header of {} bytes goes beyond the end of the file", length);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + safetensors_length_bytes, length);
  if (!text.starts_with('{')) fail_request("the header does not begin with {{");
  // nlohmann would stop parsing at a byte of 0.
  if (text.find('\0') != std::string_view::npos) fail_request("the header is no JSON: it has a byte of 0");
  HeaderEvents events(header);
  SortedJson::sax_parse(text, &events);
  // Tensors without bytes may have the same place; they keep the order of the header.
  std::ranges::stable_sort(header.tensors, {}, [](const SafetensorsTensor& t) { return std::pair(t.begin, t.end); });
  std::int64_t end = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != end) {
      fail_request("tensor {} begins at byte {} of the data, but what is before it ends at {}", tensor.name,
                   tensor.begin, end);
    }
    end = tensor.end;
  }
  if (end != size - header.data_begin) {
    fail_request("the tensors take {} bytes, but {} stand behind the header", end, size - header.data_begin);
  }
  return header;
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::uint8_t> file, std::int64_t size, const std::string& name) {
  constexpr std::size_t readable = 1000;  // names and texts may be as long as a header
  try {
    return parse_header(file, size);
  } catch (const Error& error) {
    const std::string_view what = error.what();
    fail_request("{}: {}{}", name, what.substr(0, readable), what.size() > readable ? " ..." : "");
  }
}

SafetensorsHeader read_safetensors(const InputFile& file) {
  std::vector<std::uint8_t> begin(static_cast<std::size_t>(std::min(file.size(), safetensors_length_bytes)));
  file.read(0, begin);
  std::uint64_t length = 0;
  for (std::size_t byte = begin.size(); byte-- > 0;) length = length << 8 | begin[byte];
  const std::int64_t header =
      std::min(static_cast<std::int64_t>(std::min<std::uint64_t>(length, safetensors_largest_header)),
               file.size() - std::ssize(begin));
  begin.resize(begin.size() + static_cast<std::size_t>(header));
  file.read(0, begin);
  return parse_safetensors(begin, file.size(), file.name());
}

}  // namespace weft
