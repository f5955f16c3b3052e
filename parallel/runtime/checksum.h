// XXH64 (Yann Collet's xxHash, seed 0), which is about as fast as reading memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace weft {

std::uint64_t checksum(std::span<const std::uint8_t> bytes);
std::uint64_t checksum(std::string_view text);
// The 16 hexadecimal digits of a checksum, as files keep it.
std::string checksum_text(std::uint64_t checksum);

// The same checksum of bytes that arrive in pieces.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  void reset();
  void add(std::span<const std::uint8_t> bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
