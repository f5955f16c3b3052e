#include "trainer/rank/live_log.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace weft {

std::vector<LiveTensors> LiveLog::at_peak() {
  settle();
  std::map<std::pair<Bucket, std::optional<std::size_t>>, std::int64_t> sums;
  for (const auto& [data, tensor] : peak_) sums[{tensor.bucket, tensor.action}] += tensor.bytes;
  std::vector<LiveTensors> result;
  for (const auto& [key, bytes] : sums) {
    if (bytes > 0) result.push_back({key.first, key.second, bytes});
  }
  return result;
}

void LiveLog::settle() {
  for (const Entry& entry : std::span(log_).first(of_peak_)) {
    if (entry.comes) {
      peak_[entry.data] = entry.tensor;
    } else {
      peak_.erase(entry.data);
    }
  }
  log_.erase(log_.begin(), log_.begin() + static_cast<std::ptrdiff_t>(of_peak_));
  of_peak_ = 0;
}

void LiveLog::shorten() {
  settle();
  // Releases of tensors that the peak had come first in the result: later allocations may reuse their addresses.
  std::vector<Entry> left;
  std::unordered_map<const void*, Entry> came;
  for (const Entry& entry : log_) {
    if (entry.comes) {
      came.insert_or_assign(entry.data, entry);
    } else if (came.erase(entry.data) == 0) {
      left.push_back(entry);
    }
  }
  for (const auto& [data, entry] : came) left.push_back(entry);
  log_ = std::move(left);
  most_entries_ = std::max(entries_, 2 * log_.size());
}

}  // namespace weft
