// Event files of TensorBoard: the metrics of a run, for its pages and for programs that read such files. A record is a
// protocol buffer (tensorboard/compat/proto/event.proto and summary.proto) in a frame with checksums
// (tensorflow/core/lib/io/record_writer.h). Few fields are needed, so they are encoded here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/rank/metrics.h"
#include "trainer/run/lines_file.h"

namespace weft {

inline constexpr const char* events_folder = "tensorboard";           // in a run's directory
inline constexpr const char* events_prefix = "events.out.tfevents.";  // of the names of event files

// CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes);

struct EventScalar {
  std::string tag;
  float value = 0.0f;
};

// Records with their frames; times are in seconds since 1970. The first record of a file names the format.
std::string first_record(double time);
// Tells readers to drop what earlier files have of `step` and of later steps, which the run takes again.
std::string restart_record(double time, std::int64_t step);
std::string scalar_record(double time, std::int64_t step, std::span<const EventScalar> scalars);

// Scalars that a reported step writes (docs/metrics.md).
std::vector<EventScalar> event_scalars(const StepMetrics& reported);

class EventFile {
 public:
  // A new file in `folder`, which is made, for a run that has taken `steps` steps. Throws Error if it cannot be
  // written.
  EventFile(const std::filesystem::path& folder, std::int64_t steps);

  // Returns a sentence when writing begins to fail or works again; the run continues (lines_file.h).
  std::optional<std::string> append(const StepMetrics& reported);
  // Throws Error (failure) if records are missing.
  void finish() { records_->finish(); }

 private:
  std::optional<LinesFile> records_;
};

}  // namespace weft
