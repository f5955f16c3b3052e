// Whether what a rank takes fits on a card.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/runtime/ledger.h"
#include "trainer/costs/hardware.h"

namespace weft {

enum class Fit : std::uint8_t {
  fits,
  tight,    // above 95 % of the card: refused, because allocators and libraries need what is left
  exceeds,  // above the card
  unknown,  // hardware without a memory of its own
};
std::string_view name_of(Fit fit);

// Of the fullest rank against one card.
struct Verdict {
  Fit fit = Fit::unknown;
  std::int64_t needed = 0;    // peak and reserve
  std::int64_t reserved = 0;  // of the hardware, beside what is planned
  std::int64_t memory = 0;    // of the card
  // What decides: the largest bucket of the fullest rank.
  Bucket deciding = Bucket::workspace;
  std::int64_t deciding_bytes = 0;

  static constexpr double limit = 0.95;  // of the card
  std::int64_t headroom() const { return memory - needed; }
  bool fits() const { return fit == Fit::fits || fit == Fit::unknown; }
  std::string text() const;  // one sentence
  bool operator==(const Verdict&) const = default;
};
Verdict judge(const Hardware& hardware, const BucketBytes& peak);

}  // namespace weft
