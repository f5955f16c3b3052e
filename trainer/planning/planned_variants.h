// Runs that differ from a configuration by command-line words, each planned for one card.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "trainer/planning/remedies.h"
#include "trainer/planning/run_plan.h"

namespace weft {

// Reads the configuration with words added; all its rules apply. Throws Error (request) as the reader does.
using ReadWith = std::function<Config(const Overrides& words)>;

// The plan of a run with words added.
struct PlannedVariant : RunOutline {
  Overrides words = {};
  std::string refused = {};  // why the configuration cannot take the words; the other fields are then empty
  std::int64_t batch = 0;    // sequences of a step
  // Peak and reserved bytes under the worst routing, where they were asked for and routing changes any.
  std::optional<std::int64_t> worst_needed = {};
  bool fits() const { return refused.empty() && verdict.fits(); }
  bool fits_in_worst_case() const { return fits() && (!worst_needed || verdict.fit_of(*worst_needed) == Fit::fits); }
};
// Whether a run with verdict `one` is nearer to fitting than `other`: within the host's memory first, then by bytes on
// the device.
bool needs_less(const Verdict& one, const Verdict& other);
// The first line of a refusal, without its place.
std::string reason_of(std::string_view refusal);

// Variants of one configuration, planned on one card and judged under one routing. Configuration and card must outlive
// this object.
class PlannedVariants {
 public:
  PlannedVariants(const ReadWith& read, const Hardware& hardware, Routing routing = Routing::even)
      : read_(read), hardware_(hardware), routing_(routing) {}

  Config config(const Overrides& words) const { return read_(words); }
  int node_ranks() const { return hardware_.node_ranks(); }
  // Plans each set of words once. Thread-safe.
  PlannedVariant with(const Overrides& words) const;
  // The least memory that a variant needs, in a fraction of its time. Absent if the words are refused.
  std::optional<Verdict> least(const Overrides& words) const;
  // Whether a variant fits, in a fraction of its time.
  bool fits(const Overrides& words) const;
  // With a strength of a remedy added. The words by_family are added only if they change something.
  PlannedVariant with(const Overrides& words, const RemedyOverrides& strength) const;
  // The mildest strength that fits, or else the strength that needs least memory. Absent if the remedy has no
  // strengths. With `world`, only variants on that many ranks count.
  std::optional<PlannedVariant> best(const Remedy& remedy, const Overrides& words,
                                     std::optional<int> world = std::nullopt) const;

 private:
  const PlannedVariant* known(const Overrides& words) const;  // null if the words were not planned yet

  const ReadWith& read_;
  const Hardware& hardware_;
  Routing routing_;
  mutable std::mutex mutex_;
  mutable std::map<Overrides, PlannedVariant> known_;
};

// Sizes of a run in growing order, by their numbers from 1 to `most`.
struct SizeScale {
  int most = 1;
  std::function<std::int64_t(int number)> size;
  std::function<double(double size)> number;  // the inverse, with the part between two sizes
};
// The number of the largest size that fits, and the size behind it.
struct SizeLimit {
  int fits = 0;
  std::int64_t fits_bytes = 0;
  std::optional<std::int64_t> exceeds = {};  // absent if that size is refused, or the scale ends
  std::int64_t exceeds_bytes = 0;
};
// Continues from `known`, of which `fits` and `fits_bytes` are given. `need` is absent for a size that is refused; all
// larger sizes then count as refused. Larger sizes never need less memory. The need is nearly linear in the size, so a
// line through the last two sizes predicts the limit.
SizeLimit find_size_limit(const SizeScale& scale, SizeLimit known,
                          const std::function<std::optional<Verdict>(std::int64_t size)>& need);

inline constexpr int most_ranks = 1 << 16;                            // largest world that is tried
inline constexpr std::int64_t longest_tried = std::int64_t{1} << 24;  // tokens of a sequence

struct MinimumWorld {
  Overrides words;         // what was changed besides the number of ranks
  PlannedVariant variant;  // with the smallest number that fits
};

// With `words`: the smallest data_shard that fits; without any, above the configured one, which is known not to fit. The
// batch goes with it. Beyond one node, only whole nodes are tried. Absent if no number up to 65,536 ranks fits.
std::optional<MinimumWorld> find_ranks(const PlannedVariants& variants, const Overrides& words);
// The same for the configuration as it is. If no number of ranks fits, the fewest with remedies that lower other bytes
// than state.
std::optional<MinimumWorld> ranks_that_fit(const PlannedVariants& variants);

}  // namespace weft
