#include "trainer/costs/verdict.h"

#include <fmt/format.h>

#include "parallel/runtime/quantities.h"

namespace weft {

std::string_view name_of(Fit fit) {
  constexpr std::string_view names[] = {"fits", "tight", "exceeds", "unknown"};
  return names[static_cast<std::size_t>(fit)];
}

Verdict judge(const Hardware& hardware, const BucketBytes& peak) {
  Verdict verdict;
  verdict.reserved = static_cast<std::int64_t>(hardware.reserved_memory.value);
  verdict.needed = peak.total() + verdict.reserved;
  for (std::size_t b = 0; b < bucket_count; ++b) {
    const auto bucket = static_cast<Bucket>(b);
    if (peak[bucket] <= verdict.deciding_bytes) continue;
    verdict.deciding = bucket;
    verdict.deciding_bytes = peak[bucket];
  }
  if (!hardware.memory) return verdict;
  verdict.memory = static_cast<std::int64_t>(hardware.memory->value);
  const auto memory = static_cast<double>(verdict.memory);
  verdict.fit = verdict.needed > verdict.memory                                 ? Fit::exceeds
                : static_cast<double>(verdict.needed) > Verdict::limit * memory ? Fit::tight
                                                                                : Fit::fits;
  return verdict;
}

std::string Verdict::text() const {
  const std::string term =
      fmt::format("{} decides with {:.2f} GiB", weft::name_of(deciding), gibibytes(deciding_bytes));
  const std::string need = fmt::format("{:.2f} GiB with {:.2f} GiB reserved", gibibytes(needed), gibibytes(reserved));
  switch (fit) {
    case Fit::fits:
      return fmt::format("fits: {} of {:.2f} GiB, {:.2f} GiB left; {}", need, gibibytes(memory), gibibytes(headroom()),
                         term);
    case Fit::tight:
      return fmt::format("refused: {} is more than {:.0f} % of {:.2f} GiB; {}", need, 100.0 * limit, gibibytes(memory),
                         term);
    case Fit::exceeds:
      return fmt::format("does not fit: {} exceeds {:.2f} GiB by {:.2f} GiB; {}", need, gibibytes(memory),
                         gibibytes(-headroom()), term);
    case Fit::unknown:
      break;
  }
  return fmt::format("not judged: the hardware has no memory of its own (hardware.memory sets one); {}", term);
}

}  // namespace weft
