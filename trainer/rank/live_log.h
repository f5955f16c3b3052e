// The tensors that are live at the memory peak, found from allocations and releases without keeping all of them. A step
// may have millions of tensors, but only few are live at once.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "parallel/runtime/ledger.h"

namespace weft {

// Tensors that are live at the peak, by the action of the rank's list that allocated them. Tensors allocated before the
// first action have no action; they stay live for the whole run.
struct LiveTensors {
  Bucket bucket = Bucket::workspace;
  std::optional<std::size_t> action = {};
  std::int64_t bytes = 0;

  bool operator==(const LiveTensors&) const = default;
};

class LiveLog {
 public:
  // The log is shortened when it reaches `entries` entries, or twice the entries left after the last shortening if that
  // is more.
  explicit LiveLog(std::size_t entries = std::size_t{1} << 20) : entries_(entries), most_entries_(entries) {}

  void came(const void* data, const LiveTensors& tensor) { add({data, tensor, true}); }
  // `data` may be unknown: a tensor allocated before the log began.
  void went(const void* data) { add({data, {}, false}); }
  // The live bytes are now the most so far.
  void mark_peak() { of_peak_ = log_.size(); }

  // The tensors that were live at the last mark_peak(), summed and sorted by bucket and action.
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
  // Applies the entries before the peak to peak_.
  void settle();
  // Removes tensors that were both allocated and released since the peak.
  void shorten();

  std::size_t entries_, most_entries_;
  std::vector<Entry> log_;
  std::size_t of_peak_ = 0;  // number of entries before the last mark_peak()
  std::unordered_map<const void*, LiveTensors> peak_;
};

}  // namespace weft
