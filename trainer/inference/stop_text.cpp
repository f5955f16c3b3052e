#include "trainer/inference/stop_text.h"

#include <algorithm>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) fail_request("an empty stop text would end every text before it begins");
  }
}

std::string StopText::feed(std::string_view bytes) {
  std::string given;
  for (const char byte : bytes) {
    if (stopped_) break;
    held_ += byte;
    std::size_t complete = 0, begun = 0;  // bytes of the longest stop, and of the longest begin of a stop, ending here
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop)) complete = std::max(complete, stop.size());
      for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > begun; --length) {
        if (held_.ends_with(std::string_view(stop).substr(0, length))) begun = length;
      }
    }
    stopped_ = complete > 0;
    const std::size_t ready = held_.size() - (stopped_ ? complete : begun);
    given += held_.substr(0, ready);
    held_.erase(0, stopped_ ? held_.size() : ready);
  }
  return given;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

}  // namespace weft
