#include "parallel/runtime/checksum.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace weft {

std::uint64_t checksum(std::span<const std::uint8_t> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

std::uint64_t checksum(std::string_view text) {
  return XXH64(text.data(), text.size(), 0);
}

std::string checksum_text(std::uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

struct RunningChecksum::State {
  XXH64_state_t xxh;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) {
  reset();
}

RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::reset() {
  XXH64_reset(&state_->xxh, 0);
}

void RunningChecksum::add(std::span<const std::uint8_t> bytes) {
  XXH64_update(&state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::value() const {
  return XXH64_digest(&state_->xxh);
}

}  // namespace weft
