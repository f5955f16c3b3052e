// Segments that are recomputed in backward: the place of R in a list, and its cost in gathers (nothing), memory and
// traffic. The checker finds lists that get it wrong.
#include <gtest/gtest.h>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/pipeline/text/text.h"
#include "tests/parallel/peak_at_any_times.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_interpreter.h"
#include "tests/parallel/stream_interpreter.h"
#include "tests/parallel/traffic.h"

namespace weft {
namespace {

// How the parameters of a block are wrapped: one unit, one a segment, or one for attention and norms beside one for
// the experts. In the last case the second segment reads both.
enum class Wrap : std::uint8_t { block, half_block, experts_apart };
constexpr Wrap all_wraps[] = {Wrap::block, Wrap::half_block, Wrap::experts_apart};

struct Model {
  int stages = 1, blocks = 1;  // of each stage
  Wrap wrap = Wrap::block;
  UnitPolicy policy = {};
  bool recomputes = true;
  int segments = 2;  // of a block; a third reads what the second does
};

// An embedding, blocks of two segments and a head: "e0", "b0.a", "b0.m", .., "h0". Only blocks are recomputed.
ProgramTables tables_of(const Model& model, const std::vector<int>& ranks) {
  ProgramTables tables;
  const auto unit = [&](int stage) {
    const int index = static_cast<int>(tables.units.size());
    tables.units.push_back({.name = fmt::format("u{}", index),
                            .stage = stage,
                            .unsharded_bytes = 1,
                            .island_bytes = 1,
                            .gather_bytes = 1,
                            .policy = model.policy});
    return index;
  };
  const auto segment = [&](std::string name, int stage, std::vector<int> units) {
    tables.segments.push_back({.name = std::move(name), .stage = stage, .units = std::move(units)});
    tables.stages[static_cast<std::size_t>(stage)].segments.push_back(static_cast<int>(tables.segments.size()) - 1);
  };
  for (int stage = 0; stage < model.stages; ++stage) {
    tables.stages.push_back({.rank = ranks[static_cast<std::size_t>(stage)], .output_bytes = 8});
    if (stage == 0) {
      segment("e0", stage, {unit(stage)});
      tables.segments.back().reads_weights_backward = false;
    }
    for (int block = stage * model.blocks; block < (stage + 1) * model.blocks; ++block) {
      const int first = unit(stage), second = model.wrap == Wrap::block ? first : unit(stage);
      segment(fmt::format("b{}.a", block), stage, {first});
      segment(fmt::format("b{}.m", block), stage,
              model.wrap == Wrap::experts_apart ? std::vector{first, second} : std::vector{second});
      if (model.segments > 2) segment(fmt::format("b{}.n", block), stage, {second});
      for (int s = 1; s <= model.segments && model.recomputes; ++s) {
        tables.segments[tables.segments.size() - static_cast<std::size_t>(s)].region = block;
      }
    }
    if (stage + 1 == model.stages) segment("h0", stage, {unit(stage)});
  }
  return tables;
}

std::vector<int> ranks_of(const Schedule& schedule, const OrderInput& input) {
  std::vector<int> ranks;
  for (int stage = 0; stage < input.ranks * input.chunks; ++stage) {
    ranks.push_back(rank_of(schedule.placement, input.ranks, stage));
  }
  return ranks;
}

Program compiled_of(Model model, const Schedule& schedule, const OrderInput& input) {
  model.stages = input.ranks * input.chunks;
  return compile(tables_of(model, ranks_of(schedule, input)), schedule, input);
}

Program one_rank(const Model& model, std::string_view schedule, int microbatches) {
  return compiled_of(model, find_schedule(schedule), {.ranks = 1, .microbatches = microbatches});
}

Program without(Program program, Op op) {
  for (auto& list : program.ranks) {
    std::erase_if(list, [&](const Action& action) { return action.op == op; });
  }
  return program;
}

// The compute actions of rank 0.
std::string compute_cells(const Program& program) {
  Program only = program;
  std::erase_if(only.ranks[0], [](const Action& action) { return !is_compute(action.op); });
  return cells(only, 0);
}

TEST(Recompute, StandsInFrontOfTheBackwardOfItsBlock) {
  EXPECT_EQ(compute_cells(one_rank({.blocks = 2}, "1f1b", 1)),
            "0F0(e0) 0F0(b0.a) 0F0(b0.m) 0F0(b1.a) 0F0(b1.m) 0F0(h0) "
            "0B0(h0) 0R0(b1.a) 0R0(b1.m) 0B0(b1.m) 0B0(b1.a) 0R0(b0.a) 0R0(b0.m) 0B0(b0.m) 0B0(b0.a) 0B0(e0)");
  // Before the input gradient, where weight gradients stand apart.
  EXPECT_EQ(compute_cells(one_rank({.blocks = 1}, "zb_h1", 1)),
            "0F0(e0) 0F0(b0.a) 0F0(b0.m) 0F0(h0) 0I0(h0) 0R0(b0.a) 0R0(b0.m) 0I0(b0.m) 0I0(b0.a) 0I0(e0) "
            "0W0(h0) 0W0(b0.m) 0W0(b0.a) 0W0(e0)");
  EXPECT_EQ(compute_cells(one_rank({.blocks = 1, .recomputes = false}, "1f1b", 1)),
            "0F0(e0) 0F0(b0.a) 0F0(b0.m) 0F0(h0) 0B0(h0) 0B0(b0.m) 0B0(b0.a) 0B0(e0)");
}

// Behind what it receives: the gradient is on its way meanwhile.
TEST(Recompute, StandsBehindTheGradientThatItsBackwardWaitsFor) {
  ProgramTables tables = stage_tables(2, 2, {.residency = Residency::step});
  for (std::size_t s = 0; s < tables.segments.size(); ++s) tables.segments[s].region = static_cast<int>(s / 2);
  Program program = compiled(tables, "1f1b", 1);
  std::erase_if(program.ranks[0],
                [](const Action& action) { return !is_compute(action.op) && !is_receive(action.op); });
  EXPECT_EQ(cells(program, 0),
            "0F0(blocks.0) 0F0(blocks.1) 0RECV_B0 0R0(blocks.0) 0R0(blocks.1) 0B0(blocks.1) 0B0(blocks.0)");
}

// In an overlapped pair it is marked as the backward is, and the pair stays one.
TEST(Recompute, IsPartOfAnOverlappedPair) {
  const OrderInput input{.ranks = 2, .chunks = 2, .microbatches = 6};
  const Program program = compiled_of({.blocks = 2}, find_schedule("dualpipev"), input);
  EXPECT_TRUE(find_violations(program).empty());
  for (const auto& list : program.ranks) {
    const Overlaps overlaps = find_overlaps(list);
    EXPECT_TRUE(overlaps.broken.empty());
    EXPECT_FALSE(overlaps.pairs.empty());
    std::size_t marked = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].op != Op::recompute) continue;
      EXPECT_EQ(overlaps.pair_of[i].has_value(), list[i].overlapped);
      if (!list[i].overlapped) continue;
      ++marked;
      const OverlappedPair& pair = overlaps.pairs[*overlaps.pair_of[i]];
      EXPECT_TRUE(pair.recomputes);
      EXPECT_EQ(pair.backward.stage, list[i].stage);
      EXPECT_EQ(pair.backward.microbatch, list[i].microbatch);
      EXPECT_TRUE(makes_input_gradient(pair.backward.op));
    }
    EXPECT_EQ(marked, overlaps.pairs.size() * 4);
  }
  // As text, of segments and of stages.
  for (Detail detail : {Detail::everything, Detail::stages_only}) {
    const std::string text = to_csv(program, detail);
    EXPECT_EQ(to_csv(from_csv(program, text), Detail::everything), text);
    EXPECT_NE(text.find("OVERLAP_F_B"), std::string::npos);
  }
  // Half of its mark is missing.
  Program broken = program;
  const auto half = std::ranges::find_if(
      broken.ranks[0], [](const Action& action) { return action.op == Op::recompute && action.overlapped; });
  half->overlapped = false;
  const auto findings = find_violations(broken);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().violation, Violation::broken_pair);
}

// One R a stage and microbatch, in front of its backward.
TEST(Recompute, OfAWholeStageIsOneActionAsText) {
  const Program program = one_rank({.blocks = 3, .policy = {.residency = Residency::step}}, "1f1b", 2);
  const std::string stages = to_csv(program, Detail::stages_only);
  EXPECT_EQ(stages, "0UNSHARD,0F0,0R0,0B0,0F1,0R1,0B1,0RESHARD,0REDUCE_GRAD,GRAD_NORM,STEP\n");
  EXPECT_TRUE(find_violations(from_csv(program, stages)).empty());
  // R is no part of an order.
  EXPECT_EQ(to_csv(program, Detail::compute_only), "0F0,0B0,0F1,0B1\n");
  Program order = program;
  order.ranks = {at_detail(program.ranks[0], Detail::stages_only)};
  std::erase_if(order.ranks[0], [](const Action& action) { return !is_compute(action.op); });
  EXPECT_EQ(format_timeline(order), "pp 0  | 0 {0}[ 0  ] 1 {1}[ 1  ]|\n");
}

constexpr Residency residencies[] = {Residency::reshard_after_use,
                                     Residency::keep_after_forward,
                                     Residency::keep_after_backward,
                                     Residency::while_on_stage,
                                     Residency::window,
                                     Residency::step,
                                     Residency::island};

UnitPolicy policy_of(Residency residency, int lookahead) {
  return {.residency = residency, .window_stages = 1, .island_ranks = 2, .lookahead = lookahead};
}

// Whatever the schedule, wrapping, residency and lookahead, a program is sound and has R once for each segment and
// microbatch. An interpreter that keeps of a region's forward its input alone runs it to its end with the right
// numbers. A unit has no more gathers, wide or over islands, than without R and without lookahead. Lookahead keeps
// what would be gathered where it is dropped, but another unit is next where R reads first. Fewer there are where R is
// the next to read what a backward of the same block has just read.
TEST(Recompute, TakesNoGatherMore) {
  int programs = 0, sound_of_stages = 0;
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 3, 2, 6)) {
      if (input.microbatches != 1 && input.microbatches != 2 && input.microbatches != 6) continue;
      for (Wrap wrap : all_wraps) {
        for (Residency residency : residencies) {
          const int lookahead = programs % 3, blocks = 1 + programs % 2, segments = 2 + programs / 2 % 2;
          const Model model{
              .blocks = blocks, .wrap = wrap, .policy = policy_of(residency, lookahead), .segments = segments};
          SCOPED_TRACE(fmt::format("{}, {}, wrap {}, lookahead {}, {} blocks of {}", described(schedule, input),
                                   name_of(residency), static_cast<int>(wrap), lookahead, blocks, segments));
          const Program program = compiled_of(model, schedule, input);
          const auto findings = find_violations(program);
          ASSERT_TRUE(findings.empty()) << findings.front().message;
          ASSERT_EQ(fault_when_run(program), "");
          Model kept = model;
          kept.recomputes = false;
          const Program plain = compiled_of(kept, schedule, input);
          kept.policy.lookahead = 0;
          const Program unhurried = compiled_of(kept, schedule, input);
          // Of stages the text is sound where it is without R; what islands hold it does not tell.
          const auto faults_of_stages = [](const Program& whole) {
            return find_violations(from_csv(whole, to_csv(whole, Detail::stages_only)));
          };
          const auto of_stages = faults_of_stages(program);
          ASSERT_TRUE(of_stages.empty() || !faults_of_stages(plain).empty()) << of_stages.front().message;
          sound_of_stages += of_stages.empty();
          for (int rank = 0; rank < input.ranks; ++rank) {
            ASSERT_EQ(count_of(program, rank, Op::recompute), segments * blocks * input.chunks * input.microbatches);
            for (int unit = 0; unit < static_cast<int>(program.units.size()); ++unit) {
              for (Op op : {Op::unshard, Op::unshard_secondary, Op::reshard, Op::reshard_secondary}) {
                ASSERT_LE(count_of(program, rank, op, unit), count_of(unhurried, rank, op, unit))
                    << name_of(op) << " " << program.units[static_cast<std::size_t>(unit)].name << " on rank " << rank;
              }
            }
          }
          ++programs;
        }
      }
    }
  }
  EXPECT_GT(programs, 1000);
  EXPECT_GT(sound_of_stages, programs / 2);
}

TEST(Recompute, RunsOnStreams) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 3, 2, 6)) {
      if (input.microbatches != 6) continue;
      const Program program =
          compiled_of({.blocks = 1, .wrap = Wrap::half_block, .policy = policy_of(Residency::reshard_after_use, 1)},
                      schedule, input);
      for (bool hosts_wait : {false, true}) {
        EXPECT_EQ(standstill_on_streams(program, 7, {.hosts_wait = hosts_wait}), "") << described(schedule, input);
      }
    }
  }
}

// --- check ----------------------------------------------------------------------------------------------------------

class RecomputeCheck : public ::testing::Test {
 protected:
  std::size_t place(std::string_view cell) const {
    const auto& list = program.ranks[0];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (format_action(program, list[i]) == cell) return i;
    }
    ADD_FAILURE() << cell;
    return 0;
  }
  void erase(std::string_view cell) {
    program.ranks[0].erase(program.ranks[0].begin() + static_cast<std::ptrdiff_t>(place(cell)));
  }
  // In front of another one.
  void insert(std::string_view text, std::string_view before) {
    const Action action = parse_action(program, text);
    program.ranks[0].insert(program.ranks[0].begin() + static_cast<std::ptrdiff_t>(place(before)), action);
  }
  void expect(Violation violation, std::string_view at, std::string_view words) {
    const auto findings = find_violations(program);
    ASSERT_FALSE(findings.empty());
    EXPECT_EQ(name_of(findings.front().violation), name_of(violation));
    EXPECT_EQ(format_action(program, program.ranks[0][findings.front().index]), at);
    EXPECT_NE(findings.front().message.find(words), std::string::npos) << findings.front().message;
    EXPECT_NE(fault_when_run(program), "");
  }

  Program program = one_rank({.blocks = 2, .policy = {.lookahead = 0}}, "zb_h1", 2);
};

TEST_F(RecomputeCheck, MissesAnR) {
  erase("0R0(b1.m)");
  expect(Violation::missing_recompute, "0I0(b1.m)", "comes before its R");
}

TEST_F(RecomputeCheck, MissesTheRBehindAnother) {
  erase("0R0(b1.a)");
  expect(Violation::segment_order, "0R0(b1.m)", "before b1.a has");
}

TEST_F(RecomputeCheck, FindsOneTooMany) {
  insert("0R0(b0.m)", "0I0(b0.m)");
  EXPECT_EQ(program.ranks[0][place("0I0(b0.m)") - 1], program.ranks[0][place("0I0(b0.m)") - 2]);
  expect(Violation::repeated_compute, "0R0(b0.m)", "was done before");
}

TEST_F(RecomputeCheck, FindsOneBehindItsInputGradient) {
  erase("0R1(b1.m)");
  insert("0R1(b1.m)", "0I1(b1.a)");
  expect(Violation::missing_recompute, "0I1(b1.m)", "comes before its R");
}

TEST_F(RecomputeCheck, FindsOneBeforeItsForward) {
  erase("0R0(b0.a)");
  insert("0R0(b0.a)", "0F0(b0.a)");
  expect(Violation::idle_recompute, "0R0(b0.a)", "comes before its forward");
}

TEST_F(RecomputeCheck, FindsOneOfASegmentThatKeepsEverything) {
  insert("0R0(h0)", "0I0(h0)");
  expect(Violation::idle_recompute, "0R0(h0)", "keeps all that is read");
}

TEST_F(RecomputeCheck, FindsOneOfAShardedUnit) {
  const std::size_t at = place("0R0(b0.a)");
  ASSERT_EQ(format_action(program, program.ranks[0][at - 1]), "0UNSHARD(u1)");
  std::swap(program.ranks[0][at], program.ranks[0][at - 1]);
  expect(Violation::used_while_sharded, "0R0(b0.a)", "u1 is read while it is sharded");
}

TEST_F(RecomputeCheck, FindsOneInAForwardProgram) {
  program.forward_only = true;
  for (auto& list : program.ranks) {
    std::erase_if(list, [](const Action& action) {
      return makes_input_gradient(action.op) || action.op == Op::backward_weight || is_reduction(action.op);
    });
  }
  const auto findings = find_violations(program);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().violation, Violation::beyond_forward);
}

// What all findings of a program without any R say.
TEST_F(RecomputeCheck, AProgramWithoutAnyIsRefused) {
  program = without(program, Op::recompute);
  std::size_t missing = 0;
  for (const Finding& finding : find_violations(program)) missing += finding.violation == Violation::missing_recompute;
  EXPECT_EQ(missing, 2u * 2 * 2);
}

TEST(RecomputeText, OfAStageNeedsAMicrobatch) {
  const ProgramTables tables = schedule_only_tables(1, 1);
  EXPECT_EQ(parse_action(tables, "0R3"), (Action{.op = Op::recompute, .stage = 0, .microbatch = 3}));
  EXPECT_THROW(parse_action(tables, "0R"), Error);
  EXPECT_THROW(parse_action(tables, "R0"), Error);
  EXPECT_THROW(parse_cell(tables, "(0F0;0R1)OVERLAP_F_B"), Error);
}

// --- memory, time and traffic ---------------------------------------------------------------------------------------

// Of block b0 the attention keeps 100, the MLP 1000, and after the input gradient 30 and 200; their input has 7. The
// embedding keeps 1, the head 20.
ProgramTables sized_tables(bool recomputes, int blocks) {
  ProgramTables tables = tables_of({.blocks = blocks, .recomputes = recomputes}, {0});
  for (ProgramUnit& unit : tables.units) unit.unsharded_bytes = unit.island_bytes = 0;
  for (ProgramSegment& segment : tables.segments) {
    const char kind = segment.name.back();
    const bool first = kind == 'a', block = segment.name.front() == 'b';
    segment.activation_bytes = first ? 100 : block ? 1000 : segment.name.front() == 'e' ? 1 : 20;
    segment.pending_bytes = first ? 30 : block ? 200 : 0;
    if (segment.region && first) segment.checkpoint_bytes = 7;
  }
  return tables;
}

// By hand. A forward has what the segment that runs makes, on top of the inputs of blocks before. A backward has one
// whole block, on top of the inputs before it.
TEST(RecomputeMemory, KeepsInputsAndMakesOneBlockAtATime) {
  const auto peak = [](std::string_view schedule, bool recomputes, int blocks, int microbatches) {
    return transient_peak(compiled(sized_tables(recomputes, blocks), schedule, microbatches), 0);
  };
  EXPECT_EQ(peak("1f1b", false, 4, 3).buckets[Bucket::activations], 1 + 4 * 1100 + 20);
  // The last block: its input is a part of its activations then; the head's is gone.
  EXPECT_EQ(peak("1f1b", true, 4, 3).buckets[Bucket::activations], 1 + 3 * 7 + 1100);
  EXPECT_EQ(peak("gpipe", false, 4, 3).buckets[Bucket::activations], 3 * (1 + 4 * 1100 + 20));
  EXPECT_EQ(peak("gpipe", true, 4, 3).buckets[Bucket::activations], 2 * (1 + 4 * 7 + 20) + 1 + 3 * 7 + 1100);
  // What waits for weight gradients of the second block is there while the first is recomputed: 230. At five times as
  // much the peak is that of both blocks.
  Program split = compiled(sized_tables(true, 2), "zb_h1", 1);
  EXPECT_EQ(transient_peak(split, 0).buckets[Bucket::activations], 1 + 230 + 1100);
  for (ProgramSegment& segment : split.segments) segment.pending_bytes *= 5;
  EXPECT_EQ(transient_peak(split, 0).buckets[Bucket::activations], 1 + 2 * 5 * 230);
}

// The two other walks: at any times the peak is no less than in the order of the list. A simulated lane has the same
// peak where it is alone.
TEST(RecomputeMemory, IsTheSameInEveryWalk) {
  for (const char* schedule : {"1f1b", "gpipe", "zb_h1"}) {
    const Program program = compiled(sized_tables(true, 3), schedule, 4);
    const std::int64_t peak = transient_peak(program, 0).buckets[Bucket::activations];
    EXPECT_EQ(peak_at_any_times(program, 0), peak);
    const Simulation simulation = simulate(program, even_costs(program));
    std::int64_t most = 0, last = -1;
    for (const MemorySample& sample : memory_curve(program, simulation, 0)) {
      most = std::max(most, sample.bytes[Bucket::activations]);
      last = sample.bytes[Bucket::activations];
    }
    EXPECT_EQ(most, peak);
    EXPECT_EQ(last, 0);
  }
}

TEST(RecomputeTime, TakesAForwardMore) {
  const Program again = compiled(sized_tables(true, 3), "1f1b", 4), kept = compiled(sized_tables(false, 3), "1f1b", 4);
  ProgramCosts costs = even_costs(again);
  for (std::size_t s = 0; s < costs.segments.size(); ++s)
    costs.segments[s] = {1.0 + static_cast<double>(s), 16.0, 32.0};
  // Of six segments of blocks, numbered 1 to 6.
  const double more = 4 * (2.0 + 3 + 4 + 5 + 6 + 7);
  EXPECT_EQ(simulate(again, costs).seconds, simulate(kept, costs).seconds + more);
  // Of the whole stage R takes what its segments in regions take.
  EXPECT_EQ(cost_of(again, costs, parse_action(again, "0R0")), more / 4);
  EXPECT_EQ(cost_of(again, costs, parse_action(again, "0R0(b0.m)")), costs.segments[2].forward);
}

TEST(RecomputeTraffic, CountsTheCollectivesOfR) {
  ProgramTables tables = sized_tables(true, 1);
  tables.segments[1].collectives = {{Op::forward, CollectiveOp::all_gather, Group::tp, 1, 64},
                                    {Op::backward_input, CollectiveOp::reduce_scatter, Group::tp, 1, 32}};
  const Program kept = compiled(tables, "1f1b", 3);
  tables.segments[1].collectives.push_back({Op::recompute, CollectiveOp::all_gather, Group::tp, 1, 64});
  const Program again = compiled(tables, "1f1b", 3);
  const Mesh mesh(Degrees{.tensor = 2});
  const auto counted = [&](const Program& program, CollectiveOp op) {
    return traffic_of(program, mesh, 0).exact[{std::string(name_of(Group::tp)), op}];
  };
  EXPECT_EQ(counted(kept, CollectiveOp::all_gather), (CommunicationCount{3, 192}));
  EXPECT_EQ(counted(again, CollectiveOp::all_gather), (CommunicationCount{6, 384}));
  EXPECT_EQ(counted(again, CollectiveOp::reduce_scatter), counted(kept, CollectiveOp::reduce_scatter));
}

}  // namespace
}  // namespace weft
