#include "trainer/rank_classes.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "trainer/dry_run.h"
#include "trainer/optimizer/muon_rows.h"

namespace weft {

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

void for_each_class(const ResolvedRun& run,
                    const std::function<bool(const RankClass& ranks, const Program& program)>& visit) {
  const Config& config = run.config();
  // One program serves the classes that see the same sizes: those of equal shares of the vocabulary.
  std::map<std::int64_t, Program> programs;
  for (const RankClass& ranks : rank_classes(config, run.mesh())) {
    const std::int64_t rows = balanced_part(config.model.vocab_size, config.parallelism.tensor, ranks.at.tp).count;
    auto found = programs.find(rows);
    if (found == programs.end()) found = programs.emplace(rows, step_program(run, ranks.at)).first;
    if (!visit(ranks, found->second)) return;
  }
}

BucketBytes fullest_peak(const ResolvedRun& run, const std::function<bool(const BucketBytes& peak)>& enough) {
  BucketBytes fullest;
  for_each_class(run, [&](const RankClass& ranks, const Program& program) {
    const BucketBytes peak = dry_run(run.config(), run.mesh(), program, ranks.first).peak;
    if (peak.total() > fullest.total()) fullest = peak;
    return !enough(fullest);
  });
  return fullest;
}

}  // namespace weft
