// Runs that differ from a configuration by words of the command line, each planned for one card.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "trainer/planning/moves.h"
#include "trainer/planning/run_plan.h"

namespace weft {

// The configuration with words added, through its reader and all its rules. Throws Error (request) as the reader does.
using ReadWith = std::function<Config(const Overrides& words)>;

// A run with words added, planned.
struct Trial {
  Overrides words;
  std::string refused;  // why the configuration cannot take them; then there is nothing else
  int world = 0;
  std::int64_t batch = 0;  // sequences of a step
  BucketBytes peak;        // of the fullest rank
  Verdict verdict;
  double seconds = 0.0;  // of a step
  bool fits() const { return refused.empty() && verdict.fits(); }
};
Trial try_words(const ReadWith& read, const Hardware& hardware, const Overrides& words);

// The least that a run with words added takes, where it is not refused.
struct Need {
  std::string refused;
  Verdict verdict;
  bool fits() const { return refused.empty() && verdict.fits(); }
};

// Trials of one configuration on one card, which both outlive them.
class Trials {
 public:
  Trials(const ReadWith& read, const Hardware& hardware) : read_(read), hardware_(hardware) {}

  Config config(const Overrides& words) const { return read_(words); }
  int node_ranks() const { return hardware_.node_ranks(); }
  // Each set of words is planned once. May be called by several threads.
  Trial with(const Overrides& words) const;
  // Of a trial that fits no more than it needs, in a fraction of its time.
  Need least(const Overrides& words) const;
  // Whether a trial fits, in a fraction of its time.
  bool fits(const Overrides& words) const;
  // With a strength of a move on top. Further words for families are there only where they change something.
  Trial with(const Overrides& words, const MoveWords& strength) const;
  // The mildest strength that fits, or else the one that needs least; absent where there is nothing to change. With
  // `world`, only trials on as many ranks count.
  std::optional<Trial> best(const Move& move, const Overrides& words, std::optional<int> world = std::nullopt) const;

 private:
  bool same(const Overrides& plain, const Overrides& whole) const;

  const ReadWith& read_;
  const Hardware& hardware_;
  mutable std::mutex mutex_;
  mutable std::map<Overrides, Trial> known_;
};

}  // namespace weft
