// The certainty of modelled steps: their error against published steps, and which steps the model cannot tell apart.
// The model uses constants of data sheets and one share of the peak for products. Until the costs of a run are
// measured, these errors are all that is known of its accuracy.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
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
  Overrides words = {};  // settings of the run that the publication states
  // One of these is set, per GPU: tokens a second, or operations a second as the model demands them (step_flops.h).
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
  // Over pairs of layouts of one step: the number of pairs, and the number that the model puts in the wrong order. Then
  // the largest factor between the modelled and the published quotient. The factor is 1 without such pairs.
  int pairs = 0, misordered = 0;
  double apart = 1.0;
  bool operator==(const ModelError&) const = default;
};
ModelError model_error_of(std::span<const PublishedStep> steps);

// Of configs/published/runs.toml: `least` is rounded down, so finely that its reciprocal keeps two digits, `most` and
// `apart` up. A test compares it with the table.
inline constexpr ModelError model_error{
    .runs = 9, .least = 0.446, .most = 1.51, .pairs = 6, .misordered = 6, .apart = 3.4};

// The certainty of the seconds of steps, and which steps differ by less than it.
struct Certainty {
  std::string text;    // one line
  double apart = 1.0;  // two steps tie if their quotient is below it; 1: no ties
  bool ties(double one, double other) const;
};
// For steps that are modelled for the hardware.
Certainty modelled_certainty(const Hardware& hardware);
// For steps with costs from `source` ("runs/x, measured"). They are not modelled, so every difference counts.
Certainty given_certainty(const std::string& source);
// For the plans of a configuration: given_certainty if pipeline.costs names a table.
Certainty certainty_of(const Config& config, const Hardware& hardware);

// For each step, whose time `seconds` gives: 1 plus the number of steps that are faster and do not tie with it. Steps
// that tie with the fastest all have rank 1.
template <typename Steps, typename Seconds = std::identity>
std::vector<int> ranks_with_ties(const Steps& steps, const Certainty& certainty, const Seconds& seconds = {}) {
  std::vector<int> ranks;
  for (const auto& step : steps) {
    const double own = std::invoke(seconds, step);
    const auto faster = [&](double other) { return other < own && !certainty.ties(other, own); };
    ranks.push_back(1 + static_cast<int>(std::ranges::count_if(steps, faster, std::cref(seconds))));
  }
  return ranks;
}
// "3", or "3=" if other steps have the same rank.
std::string rank_text(std::span<const int> ranks, std::size_t index);

}  // namespace weft
