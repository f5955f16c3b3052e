#include "trainer/resolve/rank_classes.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

#include "trainer/config/update_groups.h"
#include "trainer/optimizer/muon_rows.h"

namespace weft {
namespace {

// What the step of muon takes on a rank: bytes that it sends and allocates, for each of muon's groups.
using MuonShare = std::vector<std::int64_t>;

// Of the ranks of a pipeline coordinate; empty without muon.
std::vector<MuonShare> muon_shares(const Config& config, const Mesh& mesh, int pipeline_rank) {
  const ResolvedGroups groups = resolved_groups(config);
  std::vector<MuonShare> shares(static_cast<std::size_t>(mesh.degrees().stage_ranks()));
  for (const auto& [group, plan] : muon_plans(config, mesh, pipeline_rank)) {
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const MuonCost cost = muon_cost(plan, rank, groups[group].newton_schulz);
      MuonShare& share = shares[static_cast<std::size_t>(rank)];
      for (const ProgramCollective& collective : cost.collectives) share.push_back(collective.bytes);
      for (const Bucket bucket : {Bucket::communication, Bucket::workspace}) share.push_back(cost.at_peak[bucket]);
    }
  }
  return shares;
}

}  // namespace

std::int64_t vocabulary_rows(const Config& config, const Coordinates& at) {
  return balanced_part(config.model.vocab_size, config.parallelism.tensor, at.tp).count;
}

std::vector<RankClass> rank_classes(const Config& config, const Mesh& mesh) {
  // Ranks of a stage differ in rows of the vocabulary, which need not divide, and in whole matrices they own (muon).
  const int ranks_of_stage = mesh.degrees().stage_ranks();
  std::vector<MuonShare> shares;
  std::map<std::tuple<int, std::int64_t, MuonShare>, RankClass> classes;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    if (rank % ranks_of_stage == 0) shares = muon_shares(config, mesh, at.pp);
    const MuonShare& share = shares[static_cast<std::size_t>(rank % ranks_of_stage)];
    const auto found = classes.try_emplace({at.pp, vocabulary_rows(config, at), share},
                                           RankClass{.first = rank, .ranks = 0, .at = at});
    ++found.first->second.ranks;
  }
  std::vector<RankClass> result;
  for (const auto& [key, ranks] : classes) result.push_back(ranks);
  std::ranges::sort(result, std::ranges::less{}, &RankClass::first);
  return result;
}

}  // namespace weft
