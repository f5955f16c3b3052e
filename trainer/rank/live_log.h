// The tensors that are live at the memory peak, found from allocations and releases without keeping all of them. A step
// may have millions of tensors, but only few are live at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
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
  void came(const void* data, const LiveTensors& tensor) { came_.insert_or_assign(data, tensor); }
  // `data` may be unknown: a tensor allocated before the log began.
  void went(const void* data) {
    if (came_.erase(data) == 0) gone_.push_back(data);
  }
  // The live bytes are now the most so far.
  void mark_peak() {
    for (const void* data : gone_) peak_.erase(data);  // first, since later tensors may reuse their addresses
    for (const auto& [data, tensor] : came_) peak_.insert_or_assign(data, tensor);
    gone_.clear();
    came_.clear();
  }

  // The tensors that were live at the last mark_peak(), summed and sorted by bucket and action.
  std::vector<LiveTensors> at_peak() const {
    std::map<std::pair<Bucket, std::optional<std::size_t>>, std::int64_t> sums;
    for (const auto& [data, tensor] : peak_) sums[{tensor.bucket, tensor.action}] += tensor.bytes;
    std::vector<LiveTensors> result;
    for (const auto& [key, bytes] : sums) {
      if (bytes > 0) result.push_back({key.first, key.second, bytes});
    }
    return result;
  }
  // Number of tensors that the log keeps.
  std::size_t size() const { return peak_.size() + came_.size() + gone_.size(); }

 private:
  std::unordered_map<const void*, LiveTensors> peak_;
  // The difference between the live tensors and those of peak_. Clearing an unordered_map takes the time of the most
  // elements that it ever had.
  std::map<const void*, LiveTensors> came_;
  std::vector<const void*> gone_;
};

}  // namespace weft
