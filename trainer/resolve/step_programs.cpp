#include "trainer/resolve/step_programs.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>

#include "parallel/pipeline/accounts/accounts.h"
#include "trainer/config/update_groups.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/rank/forward_plan.h"

namespace weft {
namespace {

// What the step of muon takes on a rank: bytes that it sends and allocates, for each of muon's groups.
using MuonShare = std::vector<std::int64_t>;

// Of the ranks of a pipeline coordinate; empty without muon.
std::vector<MuonShare> muon_shares(const Config& config, const Mesh& mesh, int pipeline_rank) {
  const ResolvedGroups groups = resolved_groups(config);
  std::vector<MuonShare> shares(static_cast<std::size_t>(mesh.degrees().stage_ranks()));
  for (const auto& [group, plan] : muon_plans(config, mesh, pipeline_rank)) {
    const std::vector<MuonCost> costs = muon_costs(plan, groups[group].newton_schulz);
    for (std::size_t rank = 0; rank < costs.size(); ++rank) {
      const MuonCost& cost = costs[rank];
      MuonShare& share = shares[rank];
      for (const ProgramCollective& collective : cost.collectives) share.push_back(collective.bytes);
      for (const Bucket bucket : {Bucket::communication, Bucket::workspace}) share.push_back(cost.at_peak[bucket]);
    }
  }
  return shares;
}

BucketBytes fullest_of(const std::vector<ClassPeak>& peaks) {
  return std::ranges::max_element(peaks, {}, [](const ClassPeak& each) { return each.peak.total(); })->peak;
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

const Program& StepPrograms::of(const Coordinates& at) {
  const std::int64_t rows = vocabulary_rows(run_.config(), at);
  const auto found = programs_.find(rows);
  return found != programs_.end() ? found->second : programs_.emplace(rows, step_program(run_, at)).first->second;
}

std::vector<ClassPeak> class_peaks(StepPrograms& programs, Routing routing) {
  const ResolvedRun& run = programs.run();
  return of_each_class(programs, [&](const RankClass& ranks, const Program& program) {
    return ClassPeak{ranks, dry_peak(run.config(), run.mesh(), program, ranks.first, routing)};
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
  return fullest_of(of_each_class(programs, [&](const RankClass& ranks, const Program& program) {
    return ClassPeak{ranks, dry_forward_peak(run.config(), run.mesh(), program, ranks.first, forward, routing)};
  }));
}

std::int64_t host_need(StepPrograms& programs) {
  const ResolvedRun& run = programs.run();
  const Config& config = run.config();
  if (config.state_offload == 0.0 && config.training.offload == 0.0) return 0;
  const Program& program = programs.of_first_rank();
  std::int64_t most = 0;
  for (int pp = 0; pp < config.parallelism.pipeline; ++pp) {
    const std::int64_t states = host_state_bytes(plan_stages(config, run.mesh(), {.pp = pp}, run.layout()));
    most = std::max(most, states + host_activation_bytes(program, pp));
  }
  return most;
}

}  // namespace weft
