// The hardware that a configuration names, the costs of actions on it, and whether the memory of a rank fits on it.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "parallel/runtime/quantities.h"
#include "trainer/config/config.h"
#include "trainer/config/hardware_table.h"

namespace weft {

// The table row that [hardware] names, by default the one for the run's device (cpu, or h200 for cuda). Figures set in
// [hardware] replace the row's, and their source says so.
Hardware hardware_of(const Config& config);

// The device of ranks on this hardware.
DeviceKind device_of(const Hardware& hardware);
// The configuration of a step that is planned for its hardware, on whatever device the run would be.
Config on_hardware(Config config);

// The peak of a device in operations a second, in the dtype that dense parts compute in. It is
// hardware.flops_per_second if that is set. On a GPU it is else that of hardware.name, or of `card` if it is a name of
// known hardware. Otherwise nothing.
std::optional<double> known_peak(const Config& config, const std::optional<std::string>& card);

// A printed figure of a card; figures_of() lists them in the order of reading.
struct NamedFigure {
  std::string_view name;  // the key of [hardware], if there is one
  std::string_view unit;
  std::optional<Figure> figure;
};
std::vector<NamedFigure> figures_of(const Hardware& hardware);

// Rates are those of the compute dtype of dense parts. A group has the link inside a node if no group of its kind
// leaves a node. Otherwise it has its share of the rate out of a node (topology.h).
HardwareCosts hardware_costs(const Hardware& hardware, const Config& config, const Mesh& mesh);

enum class Fit : std::uint8_t {
  fits,
  tight,    // above 95 % of the card: refused, because allocators and libraries need the rest
  exceeds,  // above the card, or above 95 % of the host's part for it
  unknown,  // hardware without a memory of its own
};
constexpr auto enum_names(Fit) {
  return name_list("fits", "tight", "exceeds", "unknown");
}
// The same for readers, after "this run": "does not fit".
std::string_view words_of(Fit fit);

// The fullest rank compared with one card; sizes in bytes.
struct Verdict {
  Fit fit = Fit::unknown;
  std::int64_t needed = 0;    // peak plus `reserved`
  std::int64_t reserved = 0;  // by the hardware, beside the planned bytes
  std::int64_t memory = 0;    // of the card
  // In host memory, of the rank with most, and the host's part for a card; 0 if unknown.
  std::int64_t host_needed = 0, host_memory = 0;
  // The largest bucket of the fullest rank.
  Bucket deciding = Bucket::workspace;
  std::int64_t deciding_bytes = 0;

  static constexpr double limit = 0.95;       // fraction of the card's memory
  static constexpr double little_room = 0.1;  // likewise
  std::int64_t headroom() const { return memory - needed; }
  bool exceeds_host() const {
    return host_memory > 0 && static_cast<double>(host_needed) > limit * static_cast<double>(host_memory);
  }
  // Whether it fits, but allocators or a longer text may soon exceed the card.
  bool leaves_little_room() const;
  bool fits() const { return fit == Fit::fits || fit == Fit::unknown; }
  // The same for a run that needs `needed_bytes` on this card.
  Fit fit_of(std::int64_t needed_bytes) const;
  // Of its sentences.
  ByteUnit unit() const { return byte_unit(std::max(needed, memory)); }
  std::string text() const;  // one sentence
  bool operator==(const Verdict&) const = default;
};
Verdict judge(const Hardware& hardware, const BucketBytes& peak, std::int64_t host_needed = 0);

}  // namespace weft
