// Which tensors there were when there was most: from what comes and goes, without keeping all of it. A step may have
// millions of tensors, of which few are there at once.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "parallel/runtime/ledger.h"

namespace weft {

// Tensors that are there at the peak, by the action of the rank's list that allocated them; of those without one, which
// are there before the first action, the run keeps all.
struct LiveTensors {
  Bucket bucket = Bucket::workspace;
  std::optional<std::size_t> action = {};
  std::int64_t bytes = 0;

  bool operator==(const LiveTensors&) const = default;
};

class LiveLog {
 public:
  // Shortens itself whenever it has so many entries and half of them have no effect.
  explicit LiveLog(std::size_t entries = std::size_t{1} << 20) : entries_(entries), most_entries_(entries) {}

  void came(const void* data, const LiveTensors& tensor) { add({data, tensor, true}); }
  // Tensors that never came may go: those from before the log.
  void went(const void* data) { add({data, {}, false}); }
  // There is most now.
  void mark_peak() { of_peak_ = log_.size(); }

  // What there was when mark_peak() was called last, summed and sorted by bucket and action.
  std::vector<LiveTensors> at_peak();
  std::size_t size() const { return log_.size(); }

 private:
  struct Entry {
    const void* data;
    LiveTensors tensor;
    bool comes;
  };

  void add(const Entry& entry) {
    if (log_.size() >= most_entries_) shorten();
    log_.push_back(entry);
  }
  // Enters what came before the peak into peak_.
  void settle();
  // Leaves out what came and went since the peak.
  void shorten();

  std::size_t entries_, most_entries_;
  std::vector<Entry> log_;
  std::size_t of_peak_ = 0;  // entries before this one are part of the peak
  std::unordered_map<const void*, LiveTensors> peak_;
};

}  // namespace weft
