// The measures of each rule of a diagnosis, and the things that it leaves unsaid. Runs without a fault are said to have
// none.
#include "trainer/diagnosis/diagnose.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/diagnosed_run.h"
#include "trainer/costs/hardware.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

TEST(Diagnosis, FindsNothingInHealthyRuns) {
  const Overrides pipelined_mixture =
      pipelined_dense + mixture + Overrides{"parallelism.expert=2", "pipeline.schedule=\"1f1b\""};
  // Reductions over tensor ranks are counted with what segments exchange among them.
  const Overrides tensor_mixture =
      pipelined_mixture + Overrides{"model.layers=\"d e\"", "model.hidden_size=128", "parallelism.tensor=2",
                                    "training.global_batch_size=128"};
  const std::vector<Overrides> healthy = {{},
                                          pipelined_dense,
                                          pipelined_mixture,
                                          tensor_mixture,
                                          sharded_hybrid,
                                          {"shard.strategy=\"shard_grad_op\"", "training.global_batch_size=16"}};
  for (const Overrides& overrides : healthy) {
    const Diagnosed found = diagnosed(overrides);
    EXPECT_EQ(found.names, std::vector<std::string>{}) << found.text;
  }
}

const RuleVerdict& verdict_of(const Diagnosis& diagnosis, std::string_view rule) {
  return std::ranges::find(diagnosis.rules, rule, &RuleResult::rule)->verdict;
}

// The CPU does one thing after the other, so a gather that comes earlier hides behind nothing.
TEST(Diagnosis, LookaheadCostsNothingWhereLanesTakeTurns) {
  for (const Overrides& stack : {Overrides{}, sharded_hybrid}) {
    const Diagnosed found = diagnosed(stack + Overrides{"shard.lookahead=0"});
    EXPECT_EQ(found.names, std::vector<std::string>{}) << found.text;
    EXPECT_NE(verdict_of(found.diagnosis, "lookahead_off").note.find("take turns"), std::string::npos) << found.text;
  }
}

// Late gathers are waited for, but on a card this slow not for a hundredth of a step.
TEST(Diagnosis, LookaheadIsNoFaultWhereNothingIsLost) {
  const TemporaryFolder folder;
  leave_run(folder, {"shard.lookahead=0"});
  RunOutputs run = read_run(folder.path());
  const HardwareConfig slow_card{.name = "cpu", .flops_per_second = 1e8};
  retimed_on_own_lanes(run, slow_card);
  const Diagnosed found = diagnosed(run, slow_card);
  EXPECT_EQ(found.names, std::vector<std::string>{}) << found.text;
  EXPECT_NE(verdict_of(found.diagnosis, "lookahead_off").note.find("stands still for"), std::string::npos);
}

// The simulator knows for what computation waits, by another account than the spans': of the rank that waits most for
// gathers they agree.
TEST(TracedWaits, AreThoseOfTheSimulatedStep) {
  for (const Overrides& overrides :
       {Overrides{"shard.lookahead=0"}, sharded_hybrid + Overrides{"shard.lookahead=0"}, sharded_hybrid,
        pipelined_dense + Overrides{"shard.residency=\"reshard_after_use\"", "shard.reduction=\"each_microbatch\""},
        pipelined_hybrid + Overrides{"shard.residency=\"reshard_after_use\"", "shard.lookahead=0"}}) {
    const TemporaryFolder folder;
    leave_run(folder, overrides);
    RunOutputs run = read_run(folder.path());
    const auto simulations = retimed_on_own_lanes(run, cpu_rates);
    const RunEvidence evidence = gather_evidence(run);
    double gathers = 0.0;
    for (const RankTrace& trace : run.traces) {
      const Coordinates at = evidence.mesh.coordinates(trace.rank);
      const Program program = step_program(ResolvedRun(run.config), at);
      const Simulation& simulation = simulations[static_cast<std::size_t>(trace.rank)];
      gathers = std::max(gathers, rank_times(program, simulation, at.pp).gathers);
    }
    const auto most = most_waiting(evidence, &TracedExchange::gathers);
    ASSERT_TRUE(most);
    EXPECT_NEAR(most->seconds, gathers, 1e-9) << overrides.back();
    EXPECT_GT(most->seconds, 0.0);
  }
}

// Seconds of a step in the spans of gathers, by call and rank.
std::vector<std::array<double, 4>> gather_spans(const RunOutputs& run) {
  std::vector<std::array<double, 4>> calls;
  for (const RankTrace& trace : run.traces) {
    std::size_t call = 0;
    for (const TraceSpan& span : trace.spans) {
      if (!span.name.starts_with("unshard ")) continue;
      if (call == calls.size()) calls.emplace_back();
      calls[call++][static_cast<std::size_t>(trace.rank)] = (span.end - span.begin) / 2.0;
    }
  }
  return calls;
}

// Summed by hand from the spans. On the CPU computation stands still for the whole of a gather, and the last rank to
// come waits for no other. One rank computes five times as long; the others wait for it, and that is no gather's cost.
// Twice as long was too little beside other tests on the same cores.
TEST(Diagnosis, ClaimsTheTimeThatTheTracesShow) {
  RunFaults faults;
  faults.slowness = [](int rank) { return rank == 2 ? 5.0 : 1.0; };
  const TemporaryFolder folder;
  leave_run(folder, {"precision.compute=\"float32\""}, faults);
  const RunOutputs run = read_run(folder.path());
  double least = 0.0, first = 0.0;
  for (const std::array<double, 4>& call : gather_spans(run)) {
    least += *std::ranges::min_element(call);
    first += call[0];
  }
  const Diagnosed found = diagnosed(run);
  const auto finding = verdict_of(found.diagnosis, "gathers_in_fp32").finding;
  ASSERT_TRUE(finding && finding->step) << found.text;
  EXPECT_EQ(finding->step->basis, Basis::measured);
  EXPECT_NEAR(finding->step->seconds, least, 1e-9);
  EXPECT_NE(finding->step->source.find("trace_rank"), std::string::npos) << finding->step->source;
  EXPECT_LT(finding->step->seconds, first / 2.0);
}

// A rank that takes twice as long for everything, in the clocks of its trace alone.
TEST(Diagnosis, NamesASlowRank) {
  RunFaults faults;
  faults.slowness = [](int rank) { return rank == 2 ? 2.0 : 1.0; };
  const Diagnosed found = diagnosed(Overrides{}, {}, faults);
  ASSERT_EQ(found.names, std::vector<std::string>{"slow_rank"}) << found.text;
  EXPECT_NE(found.diagnosis.findings.front().sentence.find("rank 2 "), std::string::npos);
  EXPECT_EQ(found.diagnosis.findings.front().evidence.size(), 1u);
  EXPECT_EQ(found.diagnosis.findings.front().evidence.front().source, "trace_rank2.json");
}

// In a pipeline the slow one is told from an uneven layout by the other rank of its stage.
TEST(Diagnosis, NamesASlowRankOfAPipeline) {
  RunFaults faults;
  faults.slowness = [](int rank) { return rank == 3 ? 2.0 : 1.0; };
  const Diagnosed found = diagnosed(pipelined_dense, {}, faults);
  ASSERT_EQ(found.names, std::vector<std::string>{"slow_rank"}) << found.text;
  EXPECT_NE(found.diagnosis.findings.front().sentence.find("rank 3 "), std::string::npos);
}

// Where every token is the same letter, every token goes to the same two of eight experts: four times the mean.
TEST(Diagnosis, NamesCrowdedExperts) {
  RunFaults faults;
  faults.text = "a";
  const Overrides eight = mixture + Overrides{"model.moe.num_experts=8", "model.moe.router_aux_loss_coef=0.0"};
  const Diagnosed found = diagnosed(eight, {}, faults);
  ASSERT_EQ(found.names, std::vector<std::string>{"expert_imbalance"}) << found.text;
  EXPECT_NE(found.text.find("4.00"), std::string::npos) << found.text;
  EXPECT_NE(found.text.find("collapsed experts, which get no token: "), std::string::npos) << found.text;
  EXPECT_NE(found.text.find(" in all of 3 steps; expected none"), std::string::npos) << found.text;
  EXPECT_EQ(changes_of(found.diagnosis.findings.front()), Overrides{"model.moe.router_aux_loss_coef=0.01"});
}

// Two ranks with four experts each, of which one rank has both that every token goes to.
TEST(Diagnosis, NamesAStarvingRank) {
  RunFaults faults;
  faults.text = "a";
  faults.before_first_step = [](RankRun& run) {
    for (const auto& [block, bias] : run.stages().selection_biases()) fill(run.stream(), bias.rows_from(0, 2), 9.0f);
  };
  const Diagnosed found =
      diagnosed(sharded_hybrid + Overrides{"model.moe.num_experts=8", "model.moe.router_aux_loss_coef=0.0",
                                           "model.moe.selection_bias=true", "model.moe.bias_update_rate=0.0"},
                {}, faults);
  ASSERT_EQ(found.names, std::vector<std::string>{"expert_imbalance"}) << found.text;
  EXPECT_NE(found.text.find("the starving rank, rank 1 of an expert group (experts 4 to 7)"), std::string::npos)
      << found.text;
  EXPECT_EQ(changes_of(found.diagnosis.findings.front()), Overrides{"model.moe.bias_update_rate=0.001"});
}

// Tokens that are all alike go to two of eight experts whatever the bias: six rise and two fall in every step.
TEST(Diagnosis, NamesABiasThatRunsAway) {
  RunFaults faults;
  faults.text = "a";
  const Diagnosed found = diagnosed(
      mixture + Overrides{"model.moe.num_experts=8", "model.moe.selection_bias=true", "model.moe.bias_update_rate=1"},
      {}, faults);
  EXPECT_EQ(found.names, std::vector<std::string>{"bias_runs_away"}) << found.text;
  EXPECT_NE(found.text.find("model.moe.bias_update_rate = 0.1"), std::string::npos) << found.text;
}

// What a library would take for itself, in the ledger of one rank: the bucket and its assumption are named, however few
// bytes they are.
TEST(Diagnosis, NamesMemoryThatWasNotPredicted) {
  std::array<Tensor, 4> taken;
  RunFaults faults;
  faults.before_first_step = [&](RankRun& run) {
    if (run.rank() != 1) return;
    taken[1] = run.ledger().allocate(Bucket::workspace, DType::float32, 1, 1);
  };
  faults.after_last_step = [&](RankRun& run) { taken[static_cast<std::size_t>(run.rank())].reset(); };
  // One rank that holds all experts has as many rows whatever is routed where.
  for (const Overrides& stack : {Overrides{}, mixture + Overrides{"model.hidden_size=128"}}) {
    const Diagnosed found = diagnosed(stack, {}, faults);
    ASSERT_EQ(found.names, std::vector<std::string>{"memory"}) << found.text;
    const DiagnosedFault& finding = found.diagnosis.findings.front();
    ASSERT_EQ(finding.evidence.size(), 2u);
    EXPECT_EQ(finding.evidence.front().what, "peak of rank 1");
    EXPECT_EQ(finding.evidence.back().what, "workspace of rank 1");
    EXPECT_NE(finding.evidence.back().expected.find("the workspace that they declare"), std::string::npos);
    EXPECT_EQ(finding.memory.value_or(MemoryCost{}).bytes, 4);
  }
}

// Experts over ranks: one rank gets all rows when every token is the same letter. That is more than predicted for an
// even routing and no fault, up to what the worst routing takes; a byte beyond it is one.
TEST(Diagnosis, BoundsRoutedMemoryByTheWorstRouting) {
  RunFaults faults;
  faults.text = "a";
  const TemporaryFolder folder;
  leave_run(folder, sharded_hybrid + Overrides{"model.moe.num_experts_per_tok=1"}, faults);
  RunOutputs run = read_run(folder.path());
  EXPECT_TRUE(std::ranges::any_of(run.memory, [](const RankMemory& memory) {
    return memory.measured.total() > memory.predicted.total();
  })) << "the routing was even: it shows nothing";
  const auto outcome = [&] { return verdict_of(diagnosed(run).diagnosis, "memory").outcome; };
  EXPECT_EQ(outcome(), RuleVerdict::Outcome::silent);

  const ResolvedRun resolved(run.config);
  const Program program = step_program(resolved, resolved.mesh().coordinates(0));
  const std::int64_t worst = dry_peak(resolved.config(), resolved.mesh(), program, 0, Routing::worst).total();
  BucketBytes& measured = run.memory[0].measured;
  measured[Bucket::activations] += worst - measured.total();
  EXPECT_EQ(outcome(), RuleVerdict::Outcome::silent);
  measured[Bucket::activations] += 1;
  ASSERT_EQ(outcome(), RuleVerdict::Outcome::found);
  const auto finding = verdict_of(diagnosed(run).diagnosis, "memory").finding;
  EXPECT_EQ(finding->memory->bytes, 1);
  EXPECT_NE(finding->evidence.front().expected.find(fmt::format("at most {} bytes", worst)), std::string::npos);
}

// On a GPU libraries take workspace that no dry run has: bytes that it can explain are no fault, any other is.
TEST(Diagnosis, ForgivesAGpuItsLibrariesWorkspace) {
  const TemporaryFolder folder;
  leave_run(folder, {});
  RunOutputs run = read_run(folder.path());
  retimed_on_own_lanes(run, cpu_rates);
  run.memory[2].measured[Bucket::workspace] += 5000;
  const Diagnosed found = diagnosed(run, cpu_rates);
  EXPECT_EQ(found.names, std::vector<std::string>{}) << found.text;
  EXPECT_NE(verdict_of(found.diagnosis, "memory").note.find("rank 2 holds 5000 bytes more"), std::string::npos);
  const std::int64_t workspace = run.memory[2].measured[Bucket::workspace];
  run.memory[2].measured[Bucket::activations] += workspace - 5000 + 1;
  EXPECT_EQ(diagnosed(run, cpu_rates).names, std::vector<std::string>{"memory"});
}

// Static buckets agree to the byte, or units are not those of the plan.
TEST(Diagnosis, NamesAStaticBucketThatDiffersByAByte) {
  const TemporaryFolder folder;
  leave_run(folder, {});
  RunOutputs run = read_run(folder.path());
  run.memory[3].measured[Bucket::optimizer_state] += 1;
  const Diagnosed found = diagnosed(run);
  ASSERT_EQ(found.names, std::vector<std::string>{"memory"}) << found.text;
  EXPECT_EQ(found.diagnosis.findings.front().evidence.front().what, "optimizer_state of rank 3");
}

// The smallest memory of which a plan may fill so many bytes.
HardwareConfig room_for(std::int64_t bytes) {
  return {.memory = static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) / Verdict::limit))};
}

// What a change takes has to be there: under a budget that the run fills, nothing is proposed that would not fit.
TEST(Diagnosis, ProposesOnlyWhatFits) {
  const TemporaryFolder folder;
  leave_run(folder, pipelined_dense +
                        Overrides{"shard.residency=\"reshard_after_use\"", "shard.reduction=\"each_microbatch\""});
  const RunOutputs run = read_run(folder.path());
  std::int64_t peak = 0;
  for (const StepMetrics& step : run.steps) peak = std::max(peak, step.peak_bytes);
  const Diagnosed full = diagnosed(run, {.memory = peak});
  EXPECT_EQ(full.names, std::vector<std::string>{}) << full.text;
  const Diagnosed free = diagnosed(run, {.memory = 2 * peak});
  EXPECT_EQ(std::set(free.names.begin(), free.names.end()),
            (std::set<std::string>{"gathers_repeated", "reductions_not_deferred"}))
      << free.text;
}

// Merged units, a larger batch and another layout take memory too. On a card that is as full as a plan may make it,
// none of them is proposed. A note says why where it takes more.
TEST(Diagnosis, ProposesNoUnitsBatchOrLayoutThatDoNotFit) {
  const std::vector<std::pair<std::string, Overrides>> faults = {
      {"units_too_small", {"shard.wrap=\"half_block\""}},
      {"batch_below_break_even",
       {"training.microbatch_size=1", "training.sequence_length=8", "training.global_batch_size=4"}},
      {"stage_imbalance", pipelined_dense + Overrides{"pipeline.layout=\"Ed|dddL\""}}};
  for (const auto& [rule, overrides] : faults) {
    const TemporaryFolder folder;
    leave_run(folder,
              overrides + Overrides{"shard.residency=\"reshard_after_use\"", "shard.reduction=\"last_microbatch\""});
    const RunOutputs run = read_run(folder.path());
    std::int64_t peak = 0;
    for (const StepMetrics& step : run.steps) peak = std::max(peak, step.peak_bytes);
    const Diagnosis free = diagnosed(run, room_for(4 * peak)).diagnosis;
    const auto finding = verdict_of(free, rule).finding;
    ASSERT_TRUE(finding) << rule;
    const bool more = std::ranges::any_of(finding->evidence, [](const EvidenceLine& line) {
      return line.expected.find(" bytes more") != std::string::npos;
    });
    const Diagnosis full = diagnosed(run, room_for(peak)).diagnosis;
    const RuleVerdict& verdict = verdict_of(full, rule);
    EXPECT_EQ(verdict.outcome == RuleVerdict::Outcome::silent, more) << rule << ": " << verdict.note;
    EXPECT_EQ(verdict.note.find(" of 0 that are free") != std::string::npos, more) << rule << ": " << verdict.note;
    EXPECT_TRUE(more || rule == "stage_imbalance") << rule;
  }
}

// Above 95 % of a card `weft train` refuses to start: a change that would reach there does not fit.
TEST(Diagnosis, LeavesTheRoomThatPlansLeave) {
  const TemporaryFolder folder;
  leave_run(folder, {});
  const RunOutputs run = read_run(folder.path());
  RunOutputs same = run;
  std::int64_t peak = 0;
  for (const StepMetrics& step : run.steps) peak = std::max(peak, step.peak_bytes);
  same.config.hardware = room_for(peak + 1000);
  EXPECT_EQ(gather_evidence(same).headroom_bytes(), 1000);
  same.config.hardware.memory = peak + 1000;
  EXPECT_EQ(gather_evidence(same).headroom_bytes(), 0);
}

// Without a pipeline parameters are dropped to save memory; that is a fault only where memory is known to be idle.
// Nothing of the run is left to be chosen by the memory that it is later judged with.
const Overrides timing_written_out = {"shard.residency=\"reshard_after_use\"", "shard.reduction=\"last_microbatch\""};

TEST(Diagnosis, KeepsParametersOnlyWhereMemoryIsKnown) {
  const TemporaryFolder folder;
  leave_run(folder, timing_written_out);
  const RunOutputs run = read_run(folder.path());
  EXPECT_EQ(diagnosed(run).names, std::vector<std::string>{});
  EXPECT_EQ(diagnosed(run, {.memory = std::int64_t{1} << 30}).names, std::vector<std::string>{"gathers_repeated"});
}

// Routers that balance over all ranks add sums in every microbatch, in the group and by the operation that reduces
// their gradients.
TEST(Diagnosis, SumsOfRoutersAreNoReductions) {
  const Diagnosed found = diagnosed(
      mixture + timing_written_out +
      Overrides{"model.moe.aux_loss=\"global\"", "model.moe.router_aux_loss_coef=0.01", "training.microbatch_size=2"});
  EXPECT_EQ(verdict_of(found.diagnosis, "reductions_not_deferred").outcome, RuleVerdict::Outcome::silent) << found.text;
}

// Gradients that add up in shards are reduced by every microbatch, though `reduction` says the last: the change is the
// accumulation alone, and mends it. Of shard_grad_op the strategy says the rest.
TEST(Diagnosis, NamesTheAccumulationInShards) {
  const auto changes_with = [](const Overrides& overrides) {
    const Diagnosed found = diagnosed(pipelined_dense + overrides, {.memory = std::int64_t{1} << 30});
    const auto finding = verdict_of(found.diagnosis, "reductions_not_deferred").finding;
    return finding ? changes_of(*finding) : Overrides{};
  };
  const Overrides in_shards = timing_written_out + Overrides{"shard.accumulation=\"sharded\""};
  const Overrides unsharded = {"shard.accumulation=\"unsharded\""};
  EXPECT_EQ(changes_with(in_shards), unsharded);
  EXPECT_EQ(changes_with(in_shards + unsharded), Overrides{});
  const Overrides second = {"shard.strategy=\"shard_grad_op\"", "shard.accumulation=\"sharded\""};
  const Overrides both = Overrides{"shard.strategy=\"optimizer\""} + unsharded;
  EXPECT_EQ(changes_with(second), both);
  EXPECT_EQ(changes_with(second + both), Overrides{});
}

// What waits in host memory comes back where there is room for it: activations first, as they travel more often.
TEST(Diagnosis, TakesBackFromHostMemoryWhatFits) {
  const TemporaryFolder folder;
  leave_run(folder, timing_written_out + Overrides{"training.offload=1.0", "optimizer.offload=1.0"});
  const RunOutputs run = read_run(folder.path());
  std::int64_t peak = 0;
  for (const StepMetrics& step : run.steps) peak = std::max(peak, step.peak_bytes);
  const auto changes_in = [&](std::int64_t room) {
    const Diagnosed found = diagnosed(run, room_for(peak + room));
    for (const DiagnosedFault& finding : found.diagnosis.findings) {
      if (finding.rule == "host_memory_unneeded") return changes_of(finding);
    }
    return Overrides{};
  };
  const auto peak_with = [&](const Overrides& overrides) {
    const TemporaryFolder other;
    leave_run(other, timing_written_out + overrides);
    std::int64_t bytes = 0;
    for (const StepMetrics& step : read_run(other.path()).steps) bytes = std::max(bytes, step.peak_bytes);
    return bytes;
  };
  const std::int64_t activations = peak_with({"optimizer.offload=1.0"}) - peak, all = peak_with({}) - peak;
  ASSERT_LT(0, activations);
  ASSERT_LT(activations, all);
  const Overrides first = {"training.offload=0.0"}, both = {"training.offload=0.0", "optimizer.offload=0.0"};
  EXPECT_EQ(changes_in(all), both);
  EXPECT_EQ(changes_in(all - 1), first);
  EXPECT_EQ(changes_in(activations), first);
  EXPECT_NE(changes_in(activations - 1), first);
  EXPECT_EQ(changes_in(0), Overrides{});
  EXPECT_EQ(verdict_of(diagnosed(run).diagnosis, "host_memory_unneeded").outcome, RuleVerdict::Outcome::silent);
}

// Both sides of the break-even, by the same run on faster and slower networks. One rank a node: no hybrid helps.
TEST(Diagnosis, BreakEvenIsWhereTheExchangeTakesAsLongAsComputation) {
  const TemporaryFolder folder;
  leave_run(folder, timing_written_out);
  const RunOutputs run = read_run(folder.path());
  const HardwareConfig fast{.ranks_per_node = 1, .node_bytes_per_second = 1e12};
  const RunEvidence evidence = gather_evidence(run);
  const RunHardware hardware = evidence.hardware;
  RunOutputs same = run;
  same.config.hardware = fast;
  const RunEvidence on_fast = gather_evidence(same);
  // Every rank is a node, and the ring of 4 leaves each of them with 3/4 of what a rank counts.
  double counted = 0.0;
  for (const auto& [key, count] : run.steps.back().communication) {
    if (key.group == "dp_shard") counted += static_cast<double>(count.bytes) / 4.0;
  }
  const double egress = 0.75 * counted;
  EXPECT_DOUBLE_EQ(node_egress_bytes(on_fast.measured.exchange, on_fast.mesh, on_fast.hardware), egress);
  const double even = egress / evidence.compute_seconds(hardware.reached_flops);  // bytes a second
  EXPECT_EQ(diagnosed(run, {.ranks_per_node = 1, .node_bytes_per_second = 1.01 * even}).names,
            std::vector<std::string>{});
  EXPECT_EQ(diagnosed(run, {.ranks_per_node = 1, .node_bytes_per_second = 0.99 * even}).names,
            std::vector<std::string>{"batch_below_break_even"});
}

// By its rates the network is too slow for this batch, but computation waited for nothing to speak of. Where the traces
// say so, the model is not believed.
TEST(Diagnosis, BelievesTracesBeforeAModel) {
  const TemporaryFolder folder;
  leave_run(folder, timing_written_out);
  RunOutputs run = read_run(folder.path());
  retimed_on_own_lanes(run, {.name = "cpu", .flops_per_second = 1e8});
  const HardwareConfig slow_network{.name = "cpu", .ranks_per_node = 1, .node_bytes_per_second = 1e9};
  const Diagnosed traced = diagnosed(run, slow_network);
  EXPECT_EQ(traced.names, std::vector<std::string>{}) << traced.text;
  EXPECT_NE(verdict_of(traced.diagnosis, "batch_below_break_even").note.find("stands still for"), std::string::npos);
  run.traces.clear();
  const Diagnosed untraced = diagnosed(run, slow_network);
  ASSERT_EQ(untraced.names, std::vector<std::string>{"batch_below_break_even"}) << untraced.text;
  EXPECT_EQ(untraced.diagnosis.findings.front().step.value_or(StepCost{}).basis, Basis::modelled);
}

// A layout is refused beside counts of blocks at the ends, so the change takes them back. It can be made as it stands.
TEST(Diagnosis, TakesBackCountsOfBlocksWithTheLayout) {
  const std::vector<std::pair<Overrides, Overrides>> ends = {
      {{"pipeline.first_stage_blocks=1"}, {"pipeline.first_stage_blocks=\"auto\""}},
      {{"pipeline.last_stage_blocks=3"}, {"pipeline.last_stage_blocks=\"auto\""}},
  };
  for (const auto& [written, freed] : ends) {
    const Diagnosed found = diagnosed(pipelined_dense + written);
    ASSERT_EQ(found.names, std::vector<std::string>{"stage_imbalance"}) << found.text;
    const Overrides changes = changes_of(found.diagnosis.findings.front());
    EXPECT_EQ(changes, Overrides{"pipeline.layout=\"Edd|ddL\""} + freed);
    const Diagnosed mended = diagnosed(pipelined_dense + written + changes);
    EXPECT_EQ(mended.names, std::vector<std::string>{}) << mended.text;
  }
}

// What costs most comes first: the same two faults on links with little and with much latency.
TEST(Diagnosis, TellsTheMostExpensiveFirst) {
  const TemporaryFolder folder;
  leave_run(folder, pipelined_dense + timing_written_out + Overrides{"precision.compute=\"float32\""});
  const Diagnosed found = diagnosed(read_run(folder.path()), {.memory = std::int64_t{1} << 30});
  ASSERT_EQ(found.names.size(), 2u) << found.text;
  const auto& findings = found.diagnosis.findings;
  ASSERT_TRUE(findings[0].step && findings[1].step) << found.text;
  EXPECT_GE(findings[0].step->seconds, findings[1].step->seconds);
  EXPECT_EQ(std::set(found.names.begin(), found.names.end()),
            (std::set<std::string>{"gathers_in_fp32", "gathers_repeated"}));
}

}  // namespace
}  // namespace weft
