#include "tools/picture/picture_formats.h"

#include <fmt/format.h>

#include "tools/picture/picture_style.h"

namespace weft {
namespace {

// In a run's trace, thread 0 is the host.
int thread_of(Lane lane) {
  return 1 + static_cast<int>(lane);
}

ChromeEvent event_of(int rank, const PictureBox& box) {
  ChromeEvent event{rank, thread_of(box.lane), box.action, std::string(name_of(box.kind)), box.start, box.end, {}};
  if (box.stage) event.arguments.emplace_back("stage", std::int64_t{*box.stage});
  if (box.microbatch) event.arguments.emplace_back("microbatch", std::int64_t{*box.microbatch});
  if (box.bytes > 0) event.arguments.emplace_back("bytes", box.bytes);
  if (box.actions > 1) event.arguments.emplace_back("actions", std::int64_t{box.actions});
  if (!box.waited_for.empty()) {
    event.arguments.emplace_back("waited", box.waited);
    event.arguments.emplace_back("waited_for", box.waited_for);
  }
  if (box.critical) event.arguments.emplace_back("critical_path", true);
  return event;
}

}  // namespace

ChromeTrace chrome_trace_of(const Picture& picture) {
  ChromeTrace trace;
  for (const PictureRank& rank : picture.ranks) {
    ChromeProcess process{rank.rank, fmt::format("rank {}", rank.rank), {}};
    for (Lane lane : picture.lanes) process.threads.push_back({thread_of(lane), std::string(name_of(lane))});
    trace.processes.push_back(std::move(process));
    for (const PictureBox& box : rank.boxes) trace.events.push_back(event_of(rank.rank, box));
    for (const MemorySample& sample : rank.memory) {
      ChromeCounter counter{rank.rank, "memory", sample.time, {}};
      for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
        const BucketStyle style = bucket_style(bucket);
        counter.values.emplace_back(std::string(style.name), sample.*style.bytes);
      }
      trace.counters.push_back(std::move(counter));
    }
  }
  return trace;
}

}  // namespace weft
