#include "trainer/resolve/step_programs.h"

#include <algorithm>

#include "parallel/pipeline/accounts/accounts.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/rank/dry_run.h"
#include "trainer/rank/forward_plan.h"

namespace weft {
namespace {

// peak(program, rank) of the first rank of each class.
template <typename Peak>
std::vector<ClassPeak> class_peaks_by(StepPrograms& programs, Peak peak) {
  const std::vector<RankClass> classes = rank_classes(programs.run().config(), programs.run().mesh());
  std::vector<ClassPeak> peaks(classes.size());
  for_each_class(programs, classes, dry_threads(), [&](std::size_t number, const Program& program) {
    peaks[number] = {classes[number], peak(program, classes[number].first)};
  });
  return peaks;
}

BucketBytes fullest_of(const std::vector<ClassPeak>& peaks) {
  return std::ranges::max_element(peaks, {}, [](const ClassPeak& each) { return each.peak.total(); })->peak;
}

}  // namespace

const Program& StepPrograms::of(const Coordinates& at) {
  const std::int64_t rows = vocabulary_rows(run_.config(), at);
  const auto found = programs_.find(rows);
  return found != programs_.end() ? found->second : programs_.emplace(rows, step_program(run_, at)).first->second;
}

void for_each_class(StepPrograms& programs, std::span<const RankClass> classes, std::size_t threads,
                    const std::function<void(std::size_t number, const Program& program)>& visit) {
  std::vector<const Program*> program_of;
  for (const RankClass& ranks : classes) program_of.push_back(&programs.of(ranks.at));
  spread_work(classes.size(), threads, [&](std::size_t i) { visit(i, *program_of[i]); });
}

std::vector<ClassPeak> class_peaks(StepPrograms& programs, Routing routing) {
  const ResolvedRun& run = programs.run();
  return class_peaks_by(programs, [&](const Program& program, int rank) {
    return dry_peak(run.config(), run.mesh(), program, rank, routing);
  });
}

BucketBytes fullest_peak(StepPrograms& programs, Routing routing) {
  return fullest_of(class_peaks(programs, routing));
}

BucketBytes fullest_peak(const ResolvedRun& run, Routing routing) {
  StepPrograms programs(run);
  return fullest_peak(programs, routing);
}

BucketBytes fullest_validation_peak(StepPrograms& programs, Routing routing) {
  const ResolvedRun& run = programs.run();
  const Config forward = without_training(run.config());
  return fullest_of(class_peaks_by(programs, [&](const Program& program, int rank) {
    return dry_forward_peak(run.config(), run.mesh(), program, rank, forward, routing);
  }));
}

std::int64_t host_need(const ResolvedRun& run, const Program& program) {
  const Config& config = run.config();
  if (config.state_offload == 0.0 && config.training.offload == 0.0) return 0;
  std::int64_t most = 0;
  for (int pp = 0; pp < config.parallelism.pipeline; ++pp) {
    const std::int64_t states = host_state_bytes(plan_stages(config, run.mesh(), {.pp = pp}, run.layout()));
    most = std::max(most, states + host_activation_bytes(program, pp));
  }
  return most;
}

std::int64_t host_need(const ResolvedRun& run) {
  StepPrograms programs(run);
  return host_need(run, programs.of_first_rank());
}

BucketBytes fullest_peak_until(const ResolvedRun& run, const std::function<bool(const BucketBytes& peak)>& enough,
                               Routing routing) {
  BucketBytes fullest;
  StepPrograms programs(run);
  for (const RankClass& ranks : rank_classes(run.config(), run.mesh())) {
    const BucketBytes peak = dry_peak(run.config(), run.mesh(), programs.of(ranks.at), ranks.first, routing);
    if (peak.total() > fullest.total()) fullest = peak;
    if (enough(fullest)) break;
  }
  return fullest;
}

}  // namespace weft
