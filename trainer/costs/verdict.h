// Whether the memory of a rank fits on a card.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/runtime/ledger.h"
#include "trainer/costs/hardware.h"

namespace weft {

enum class Fit : std::uint8_t {
  fits,
  tight,    // above 95 % of the card: refused, because allocators and libraries need the rest
  exceeds,  // above the card
  unknown,  // hardware without a memory of its own
};
std::string_view name_of(Fit fit);

// The fullest rank compared with one card; sizes in bytes.
struct Verdict {
  Fit fit = Fit::unknown;
  std::int64_t needed = 0;    // peak plus `reserved`
  std::int64_t reserved = 0;  // by the hardware, beside the planned bytes
  std::int64_t memory = 0;    // of the card
  // The largest bucket of the fullest rank.
  Bucket deciding = Bucket::workspace;
  std::int64_t deciding_bytes = 0;

  static constexpr double limit = 0.95;  // fraction of the card's memory
  std::int64_t headroom() const { return memory - needed; }
  bool fits() const { return fit == Fit::fits || fit == Fit::unknown; }
  std::string text() const;  // one sentence
  bool operator==(const Verdict&) const = default;
};
Verdict judge(const Hardware& hardware, const BucketBytes& peak);

}  // namespace weft
