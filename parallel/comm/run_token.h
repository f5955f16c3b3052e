// The secret shared by the ranks of a run, and the keyed hash with which they prove to each other that they know it. No
// cryptographic library is linked. SipHash-2-4 is small, has a published specification and is made for short messages.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/comm/process_environment.h"

namespace weft {

struct RunToken {
  std::array<std::uint8_t, 16> bytes{};
};

inline constexpr const char* run_token_variable = "WEFT_RUN_TOKEN";

// The value of WEFT_RUN_TOKEN; nothing if it is not set. Throws Error (request), without the value, if the value is not
// 32 hexadecimal digits: a token that can be guessed would be worse than none.
std::optional<RunToken> run_token(const EnvironmentLookup& lookup = environment_variable);

// A new random value for WEFT_RUN_TOKEN, or for another text that no other run has.
std::string new_run_token();

// At most 256 bytes from the system's random generator, suitable for secrets.
std::string random_bytes(std::size_t count);

// SipHash-2-4 (Aumasson and Bernstein, 2012).
std::uint64_t sip_hash(const RunToken& key, std::string_view bytes);

}  // namespace weft
