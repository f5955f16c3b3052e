// Runs that differ from a configuration by command-line words, each planned for one card.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "trainer/planning/remedies.h"
#include "trainer/planning/run_plan.h"

namespace weft {

// Reads the configuration with words added; all its rules apply. Throws Error (request) as the reader does.
using ReadWith = std::function<Config(const Overrides& words)>;

// The plan of a run with words added.
struct Trial {
  Overrides words;
  std::string refused;  // why the configuration cannot take the words; the other fields are then empty
  int world = 0;
  std::int64_t batch = 0;  // sequences of a step
  BucketBytes peak;        // of the fullest rank
  Verdict verdict;
  double seconds = 0.0;  // of a step
  bool fits() const { return refused.empty() && verdict.fits(); }
};
Trial try_words(const ReadWith& read, const Hardware& hardware, const Overrides& words);

// The least memory that a run with words added needs, unless the words are refused.
struct Need {
  std::string refused;
  Verdict verdict;
  bool fits() const { return refused.empty() && verdict.fits(); }
};

// Trials of one configuration on one card. Configuration and card must outlive the Trials.
class Trials {
 public:
  Trials(const ReadWith& read, const Hardware& hardware) : read_(read), hardware_(hardware) {}

  Config config(const Overrides& words) const { return read_(words); }
  int node_ranks() const { return hardware_.node_ranks(); }
  // Plans each set of words once. Thread-safe.
  Trial with(const Overrides& words) const;
  // The least memory of a trial, in a fraction of its time.
  Need least(const Overrides& words) const;
  // Whether a trial fits, in a fraction of its time.
  bool fits(const Overrides& words) const;
  // With a strength of a remedy added. The words by_family are added only if they change something.
  Trial with(const Overrides& words, const RemedyOverrides& strength) const;
  // The mildest strength that fits, or else the strength that needs least memory. Absent if the remedy has no
  // strengths. With `world`, only trials on that many ranks count.
  std::optional<Trial> best(const Remedy& remedy, const Overrides& words,
                            std::optional<int> world = std::nullopt) const;

 private:
  bool same(const Overrides& plain, const Overrides& whole) const;

  const ReadWith& read_;
  const Hardware& hardware_;
  mutable std::mutex mutex_;
  mutable std::map<Overrides, Trial> known_;
};

}  // namespace weft
