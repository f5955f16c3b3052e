#include "trainer/planning/trials.h"

#include <utility>

#include "parallel/runtime/refusal.h"

namespace weft {
namespace {

// The first line of a refusal, without its place.
std::string reason_of(std::string_view line) {
  line = line.substr(0, line.find('\n'));
  constexpr std::string_view mark = ": error: ";
  if (const std::size_t at = line.find(mark); at != std::string_view::npos) line.remove_prefix(at + mark.size());
  return std::string(line);
}

}  // namespace

Trial try_words(const ReadWith& read, const Hardware& hardware, const Overrides& words) {
  Trial trial;
  trial.words = words;
  const auto refused = refusal_of([&] {
    const Config config = read(words);
    const RunOutline outline = outline_run(config, hardware);
    trial.world = outline.world;
    trial.batch = config.training.global_batch_size;
    trial.peak = outline.peak;
    trial.verdict = outline.verdict;
    trial.seconds = outline.time.seconds;
  });
  if (refused) trial.refused = reason_of(*refused);
  return trial;
}

Trial Trials::with(const Overrides& words) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(words); found != known_.end()) return found->second;
  }
  Trial trial = try_words(read_, hardware_, words);
  const std::lock_guard lock(mutex_);
  return known_.try_emplace(words, std::move(trial)).first->second;
}

Need Trials::least(const Overrides& words) const {
  Need need;
  const auto refused = refusal_of([&] { need.verdict = least_need(read_(words), hardware_); });
  if (refused) need.refused = reason_of(*refused);
  return need;
}

bool Trials::fits(const Overrides& words) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(words); found != known_.end()) return found->second.fits();
  }
  bool fits = false;
  refusal_of([&] { fits = fits_on(read_(words), hardware_); });
  return fits;
}

Trial Trials::with(const Overrides& words, const RemedyOverrides& strength) const {
  const Overrides plain = merged_words(words, strength.words);
  if (strength.by_family.empty()) return with(plain);
  const Overrides whole = merged_words(plain, strength.by_family);
  return with(same(plain, whole) ? plain : whole);
}

std::optional<Trial> Trials::best(const Remedy& remedy, const Overrides& words, std::optional<int> world) const {
  std::optional<Trial> best;
  for (const RemedyOverrides& strength : remedy.strengths(config(words))) {
    Trial trial = with(words, strength);
    if (world && trial.world != *world) continue;
    const bool better =
        !best || !best->refused.empty() || (trial.refused.empty() && trial.verdict.needed < best->verdict.needed);
    if (better) best = std::move(trial);
    if (best->fits()) break;
  }
  return best;
}

bool Trials::same(const Overrides& plain, const Overrides& whole) const {
  bool same = false;
  refusal_of([&] { same = read_(plain) == read_(whole); });
  return same;
}

}  // namespace weft
