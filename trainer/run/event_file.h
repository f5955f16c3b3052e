// The files of a run that grow: lines, and the event files of TensorBoard. Event files have the metrics of a run, for
// its pages and for programs that read such files. A record is a protocol buffer (tensorboard/compat/proto/event.proto
// and summary.proto) in a frame with checksums (tensorflow/core/lib/io/record_writer.h). Few fields are needed, so they
// are encoded here.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/rank/metrics.h"

namespace weft {

// A file of lines, or of records (EventFile), that grows during a run and survives a full disk. Lines that cannot be
// written wait in memory and are written with a later line. The file has either the whole of a line or nothing of it.
class LinesFile {
 public:
  // Appends to an existing file. Throws Error (request) if it cannot be opened.
  explicit LinesFile(std::string name);
  LinesFile(LinesFile&&) = delete;
  // Writes lines that wait, if there is room again: a failed run ends without finish().
  ~LinesFile();

  // A line ends with a line break. Returns a sentence when lines begin to wait, and when all waiting lines have been
  // written. At most 10,000 lines wait; older ones are lost.
  std::optional<std::string> append(std::string line);
  // Throws Error (failure) if lines still wait or have been lost.
  void finish();

 private:
  // Writes as many waiting lines as possible. Returns errno of the first failure, or 0.
  int write_waiting();

  std::string name_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;  // of whole lines in the file
  std::deque<std::string> waiting_;
  std::int64_t lost_ = 0;
  int trouble_ = 0;  // why lines wait
};

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

class EventFile : public LinesFile {
 public:
  // A new file in `folder`, which is made, for a run that has taken `steps` steps. Throws Error if it cannot be
  // written.
  EventFile(const std::filesystem::path& folder, std::int64_t steps);

  // Returns a sentence when writing begins to fail or works again; the run continues (LinesFile).
  std::optional<std::string> append(const StepMetrics& reported);
};

}  // namespace weft
