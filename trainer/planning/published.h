// How sure modelled steps are: how far they are from steps that others have published, and which of them the model
// cannot tell apart. The model has constants of data sheets and one share of the peak that products reach; until a
// run's own costs are measured, this is all that is known of its error.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/costs/hardware.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

// One entry of a table such as configs/published/runs.toml.
struct PublishedRun {
  std::string name;
  std::filesystem::path model;  // a file that is included
  std::string hardware, source;
  Overrides words;  // what the publication says of the run
  // One of these, of one GPU: tokens a second, or operations that the model demands (step_flops.h) a second.
  std::optional<double> tokens_per_second = {}, flops_per_second = {};
};
// Throws Error (request) naming what is missing.
std::vector<PublishedRun> read_published_runs(const std::filesystem::path& file);

struct PublishedStep {
  PublishedRun run;
  int gpus = 1;
  std::int64_t sequence_length = 0, sequences = 0;  // of a step
  double published = 0.0, modelled = 0.0;           // seconds of a step
  double ratio() const { return modelled / published; }
  // Whether both are layouts of one step: the same model, sequences and hardware.
  bool same_work(const PublishedStep& other) const;
};
// Throws Error (request) as plan_run does.
PublishedStep plan_published(const PublishedRun& run);

// The error of the model over published steps.
struct ModelError {
  int runs = 0;
  double least = 0.0, most = 0.0;  // modelled over published seconds
  // Of two layouts of one step: how many pairs there are, how many of them the model puts in the wrong order, and the
  // largest factor by which their modelled quotient is off the published one. 1 without such a pair.
  int pairs = 0, misordered = 0;
  double apart = 1.0;
  bool operator==(const ModelError&) const = default;
};
ModelError model_error_of(std::span<const PublishedStep> steps);

// Of configs/published/runs.toml: `least` is rounded down, `most` and `apart` up. A test compares it with the table.
inline constexpr ModelError model_error{
    .runs = 9, .least = 0.44, .most = 1.51, .pairs = 6, .misordered = 6, .apart = 3.4};

// How sure the seconds of steps are, and which of them differ by less than that.
struct Certainty {
  std::string text;    // one line
  double apart = 1.0;  // two steps whose quotient is below it tie; 1: none do
  bool ties(double one, double other) const;
};
// Of steps that are modelled for the hardware.
Certainty modelled_certainty(const Hardware& hardware);
// Of steps whose costs `source` ("runs/x, measured") gives: they are not modelled, and differences count as they are.
Certainty given_certainty(const std::string& source);
// Of the plans of a configuration: given where pipeline.costs names a table.
Certainty certainty_of(const Config& config, const Hardware& hardware);

// For each of the steps, 1 and the number of steps that are faster and no tie with it. Steps that tie with the fastest
// are all 1.
std::vector<int> ranks_with_ties(std::span<const double> seconds, const Certainty& certainty);
// "3", or "3=" where others of the ranks are the same.
std::string rank_text(std::span<const int> ranks, std::size_t index);

}  // namespace weft
