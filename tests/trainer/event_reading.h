// Reads event files of TensorBoard, from the definition of the format: nothing is shared with the writer.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct ReadEvent {
  double time = 0.0;
  std::int64_t step = 0;
  std::string version;
  bool restarts = false;
  std::map<std::string, float> scalars;
};

// A field of a protocol buffer: its number, and its value or its bytes.
class EventFields {
 public:
  explicit EventFields(std::string_view bytes) : bytes_(bytes) {}
  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        value = varint();
        break;
      case 1:
        content = take(8);
        break;
      case 2:
        content = take(varint());
        break;
      case 5:
        content = take(4);
        break;
      default:
        throw std::runtime_error("no wire type of a protocol buffer");
    }
    return true;
  }
  template <typename Number>
  Number as() const {
    Number number{};
    if (content.size() != sizeof number) throw std::runtime_error("a number of another size");
    std::memcpy(&number, content.data(), sizeof number);
    return number;
  }

  int field = 0;
  std::uint64_t value = 0;
  std::string_view content;

 private:
  std::string_view take(std::size_t bytes) {
    if (bytes > bytes_.size()) throw std::runtime_error("a field is cut off");
    const std::string_view taken = bytes_.substr(0, bytes);
    bytes_.remove_prefix(bytes);
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      number |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return number;
    }
  }
  std::string_view bytes_;
};

// Bit by bit, in the other direction than a table would: a division of polynomials.
inline std::uint32_t masked_checksum(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((static_cast<unsigned char>(byte) >> bit) & 1u) != (crc & 1u);
      crc = (crc >> 1) ^ (one ? 0x82F63B78u : 0u);
    }
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

// Throws where a record is cut off or a checksum is wrong.
inline std::vector<ReadEvent> read_events(std::string_view bytes) {
  std::vector<ReadEvent> events;
  const auto number = [&](auto of, std::size_t at) {
    if (bytes.size() < at + sizeof of) throw std::runtime_error("a record is cut off");
    std::memcpy(&of, bytes.data() + at, sizeof of);
    return of;
  };
  while (!bytes.empty()) {
    const std::size_t length = number(std::uint64_t{}, 0);
    if (number(std::uint32_t{}, 8) != masked_checksum(bytes.substr(0, 8))) throw std::runtime_error("length");
    const std::string_view event = bytes.substr(12, length);
    if (number(std::uint32_t{}, 12 + length) != masked_checksum(event)) throw std::runtime_error("checksum");
    bytes.remove_prefix(16 + length);
    ReadEvent& read = events.emplace_back();
    for (EventFields fields(event); fields.next();) {
      if (fields.field == 1) read.time = fields.as<double>();
      if (fields.field == 2) read.step = static_cast<std::int64_t>(fields.value);
      if (fields.field == 3) read.version = fields.content;
      if (fields.field == 7) read.restarts = fields.content == std::string_view("\x08\x01", 2);
      if (fields.field != 5) continue;
      for (EventFields summary(fields.content); summary.next();) {
        std::string tag;
        float scalar = 0.0f;
        for (EventFields value(summary.content); value.next();) {
          if (value.field == 1) tag = value.content;
          if (value.field == 2) scalar = value.as<float>();
        }
        read.scalars[tag] = scalar;
      }
    }
  }
  return events;
}

inline std::vector<ReadEvent> read_event_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  return read_events(std::string_view(bytes));
}

}  // namespace weft
