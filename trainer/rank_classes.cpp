#include "trainer/rank_classes.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "parallel/runtime/spread_work.h"
#include "trainer/dry_run.h"
#include "trainer/optimizer/muon_rows.h"

namespace weft {
namespace {

// One program serves the classes that see the same sizes: those of equal shares of the vocabulary.
class ClassPrograms {
 public:
  explicit ClassPrograms(const ResolvedRun& run) : run_(run) {}

  const Program& of(const RankClass& ranks) {
    const Config& config = run_.config();
    const std::int64_t rows = balanced_part(config.model.vocab_size, config.parallelism.tensor, ranks.at.tp).count;
    const auto found = programs_.find(rows);
    return found != programs_.end() ? found->second
                                    : programs_.emplace(rows, step_program(run_, ranks.at)).first->second;
  }

 private:
  const ResolvedRun& run_;
  std::map<std::int64_t, Program> programs_;
};

}  // namespace

std::vector<RankClass> rank_classes(const Config& config, const Mesh& mesh) {
  // Only rows of the vocabulary need not divide; and owners of whole matrices each have their own.
  const bool own_matrices = !muon_groups(config).empty();
  std::map<std::tuple<int, std::int64_t, int>, RankClass> classes;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    const std::int64_t rows = balanced_part(config.model.vocab_size, config.parallelism.tensor, at.tp).count;
    const auto [found, fresh] =
        classes.try_emplace({at.pp, rows, own_matrices ? rank : 0}, RankClass{.first = rank, .ranks = 0, .at = at});
    ++found->second.ranks;
  }
  std::vector<RankClass> result;
  for (const auto& [key, ranks] : classes) result.push_back(ranks);
  std::ranges::sort(result, std::ranges::less{}, &RankClass::first);
  return result;
}

void for_each_class(const ResolvedRun& run, std::span<const RankClass> classes, std::size_t threads,
                    const std::function<void(std::size_t number, const Program& program)>& visit) {
  ClassPrograms programs(run);
  std::vector<const Program*> program_of;
  for (const RankClass& ranks : classes) program_of.push_back(&programs.of(ranks));
  spread_work(classes.size(), threads, [&](std::size_t i) { visit(i, *program_of[i]); });
}

std::size_t class_threads() {
  return std::min<std::size_t>(host_cores(), 8);
}

BucketBytes fullest_peak(const ResolvedRun& run, std::size_t threads) {
  const std::vector<RankClass> classes = rank_classes(run.config(), run.mesh());
  std::vector<BucketBytes> peaks(classes.size());
  for_each_class(run, classes, threads, [&](std::size_t number, const Program& program) {
    peaks[number] = dry_peak(run.config(), run.mesh(), program, classes[number].first);
  });
  return *std::ranges::max_element(peaks, {}, &BucketBytes::total);
}

BucketBytes fullest_peak_until(const ResolvedRun& run, const std::function<bool(const BucketBytes& peak)>& enough) {
  BucketBytes fullest;
  ClassPrograms programs(run);
  for (const RankClass& ranks : rank_classes(run.config(), run.mesh())) {
    const BucketBytes peak = dry_peak(run.config(), run.mesh(), programs.of(ranks), ranks.first);
    if (peak.total() > fullest.total()) fullest = peak;
    if (enough(fullest)) break;
  }
  return fullest;
}

}  // namespace weft
