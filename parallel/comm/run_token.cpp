#include "parallel/comm/run_token.h"

#include <sys/random.h>

#include <bit>
#include <cstring>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"

namespace weft {

std::optional<RunToken> run_token(const EnvironmentLookup& lookup) {
  const auto text = lookup(run_token_variable);
  if (!text) return std::nullopt;
  RunToken token;
  bool whole = text->size() == 2 * token.bytes.size();
  for (std::size_t i = 0; whole && i < token.bytes.size(); ++i) {
    const auto byte = parsed_number<std::uint8_t>(std::string_view(*text).substr(2 * i, 2), 16);
    whole = byte.has_value();
    token.bytes[i] = byte.value_or(0);
  }
  if (!whole) {
    fail_request("{} is not 32 hexadecimal digits; write one with: openssl rand -hex 16", run_token_variable);
  }
  return token;
}

std::string new_run_token() {
  std::string text;
  for (const char byte : random_bytes(RunToken().bytes.size())) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  // getrandom(2) returns up to 256 bytes in one piece.
  require(count <= 256 && getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count),
          "the system has random bytes");
  return bytes;
}

std::uint64_t sip_hash(const RunToken& key, std::string_view bytes) {
  // In the byte order of the machine, which is little-endian on all machines that Weft supports.
  const auto word = [](const void* from, std::size_t count) {
    std::uint64_t value = 0;
    if (count > 0) std::memcpy(&value, from, count);
    return value;
  };
  const std::uint64_t k0 = word(key.bytes.data(), 8), k1 = word(key.bytes.data() + 8, 8);
  std::uint64_t v0 = k0 ^ 0x736f6d6570736575u, v1 = k1 ^ 0x646f72616e646f6du;
  std::uint64_t v2 = k0 ^ 0x6c7967656e657261u, v3 = k1 ^ 0x7465646279746573u;
  const auto run_rounds = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](std::uint64_t message) {
    v3 ^= message;
    run_rounds(2);
    v0 ^= message;
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) take(word(bytes.data() + at, 8));
  take(word(bytes.data() + at, bytes.size() - at) | std::uint64_t{bytes.size()} << 56);
  v2 ^= 0xff;
  run_rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace weft
