// Runs as one HTML page, which needs no other file and no network. It has curves, memory beside its plan, expert load,
// the planned and the measured step, differences of configurations, and samples. A run is read from its directory
// (trainer/run/run_directory.h).
//
// The page itself is HTML, CSS and JavaScript in page/, and shares the drawing of steps with tools/picture/page. Curves
// are drawn by dygraphs, which a build takes from Debian's libjs-dygraphs; its licence is in the page.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "tools/picture/picture.h"
#include "trainer/config/config.h"

namespace weft {

// metrics.jsonl as columns. The reader is lenient where a page can be. A run may be going on, have been killed, or be
// of another version, with other fields in its lines.

// The values of one field. A line without the field has no entry. A line with null, which is written for a value that
// is not finite, has a NaN.
struct StepColumn {
  std::vector<std::size_t> rows;  // ascending, in StepTable::steps
  std::vector<double> values;     // of these rows
};

inline constexpr std::string_view predictor_column = "mtp_losses.";  // before the number of the predictor, from 1

struct StepTable {
  std::vector<std::int64_t> steps;      // ascending, at least one
  std::vector<double> tokens, seconds;  // by row: sums up to the end of the step, of the lines there are
  // By field, nested ones with dots: "loss", "validation.loss", "memory.activations", "moe.3.max_over_mean" (of block
  // 3), "mtp_losses.1" (of the first predictor). Rates by parameter group are one column "lr" with the largest.
  std::map<std::string, StepColumn> columns;
  std::vector<std::size_t> spikes;  // rows whose line has a "spike": an object that tells it, or true
  // The first row under the hashes of the last one. A run that goes on may have another configuration.
  std::size_t first_own_row = 0;
  bool cut_off = false;  // the file ends inside a line, which is left out

  // Null if no line has the field.
  const StepColumn* find(const std::string& field) const;
  // Of the rows from first_own_row on. Empty if none of them has the field.
  StepColumn own(const std::string& field) const;
};

// A step that comes again, after a run went back to a checkpoint, replaces the earlier one and those behind it. Throws
// Error (request) with file and line: an unreadable file, no whole line, a line that is no JSON object with a step.
StepTable read_step_table(const std::filesystem::path& file);

// Points of a curve on a page: more than the pixels of a wide screen need.
inline constexpr std::size_t most_points = 2000;

// The indices to draw of a curve, ascending. A curve of at most `most` values keeps all of them. Of a longer one the
// first and the last value are kept. So are the least and the largest value of each of (most - 2) / 2 stretches of
// equal length. Where some values are not finite, there are (most - 2) / 3 stretches. Each keeps the first of its own,
// so that the gap stays. A spike of one step therefore stays at its height. `most` is at least 5.
std::vector<std::size_t> kept_points(std::span<const double> values, std::size_t most = most_points);

// A stretch of indices: begin, and end behind the last.
struct PointRange {
  std::size_t begin = 0, end = 0;
};
// `count` indices as at most `most` stretches, whose lengths differ by at most one.
std::vector<PointRange> equal_stretches(std::size_t count, std::size_t most);

// The step of a run as planned, by simulation, beside the step as measured, from its traces.

// A recorded step of one pipeline.
struct MeasuredStep {
  Picture picture;  // ranks without a trace have no boxes
  std::int64_t step = 0;
  std::vector<std::int64_t> recorded = {};  // all steps in the traces, ascending
  std::vector<int> traced = {};             // pipeline ranks with a trace
};

struct StepLanes {
  Picture planned;
  std::vector<BucketBytes> peaks;        // bytes by pipeline rank, by dry runs with tokens routed evenly
  std::string costs;                     // in words: "modelled for cpu"
  std::optional<MeasuredStep> measured;  // absent without traces
  std::string unmeasured;                // why there is none although there are traces
};

// The pipeline is the one with most traced ranks. Of its recorded steps the one with the median time is shown. Its
// times are counted from the start of its first action on any traced rank. An action begins when its lane is free, so
// that waits for other lanes are part of it. Throws Error (request or failure) if the step cannot be planned, or has
// too many actions to draw.
StepLanes step_lanes(const Config& config, const std::filesystem::path& directory);

// Both steps as one picture: below each row of the plan, the same rank as measured. Without a measured step, the plan.
Picture paired(const StepLanes& lanes);

// Texts that the weights of a checkpoint go on with.
struct CheckpointSamples {
  std::int64_t step = 0;
  std::vector<std::string> texts;  // without the prompt; bytes of the model, perhaps no UTF-8
};

struct ReportedRun {
  std::filesystem::path directory;  // as given
  std::string name;                 // run.name, with the directory behind it if another run has the same
  Config config;
  std::string config_text;  // config.toml
  StepTable table;
  std::optional<StepLanes> lanes;
  std::string unplanned;  // why the step has no lanes
  std::vector<CheckpointSamples> samples;
};

// The page with the marks WEFT_TITLE, WEFT_DATA (of the steps' pictures, picture_formats.h) and WEFT_REPORT
// (report_data in run_page.cpp). Empty in a build without dygraphs.
std::string_view run_page_template();

// The template must not be empty.
std::string run_page(std::span<const ReportedRun> runs, std::string_view version, std::string_view prompt);

}  // namespace weft
