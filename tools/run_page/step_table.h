// metrics.jsonl as columns. The reader is lenient where a page can be. A run may be going on, have been killed, or be
// of another version, with other fields in its lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

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
  // The first row under the layout and program of the last one. A run that goes on may have changed them.
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

}  // namespace weft
