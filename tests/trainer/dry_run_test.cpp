// A dry run against the ledgers and counters of real ones. They agree on every bucket of every rank at its peak to the
// byte, and on every call of a communicator. Where experts are dealt over ranks, the rows that a rank receives are the
// router's affair. The dry run deals them evenly, or as the worst routing does, which no run exceeds.
#include "trainer/rank/dry_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layers/kernels/kernels.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

DryRun dry_run_of(const Config& config, const Mesh& mesh, int rank) {
  return dry_run(config, mesh, step_program(ResolvedRun(config), mesh.coordinates(rank)), rank);
}

class DryRunOfLayouts : public testing::TestWithParam<TinyLayout> {};

std::vector<TinyLayout> planned_layouts() {
  const PrecisionConfig narrow{.compute = DType::bfloat16};
  const PrecisionConfig float8{.compute = ProductFormat::float8}, blocks{.compute = ProductFormat::float8_blocks};
  constexpr Recompute selective = Recompute::selective, full = Recompute::full;
  return {
      {.name = "one_rank"},
      {.name = "moe", .layers = "d e d e"},
      {.name = "bf16", .layers = "d e d e", .precision = narrow},
      {.name = "no_shard", .degrees = {.data_shard = 2}, .strategy = ShardStrategy::no_shard},
      {.name = "optimizer", .degrees = {.data_shard = 2}, .strategy = ShardStrategy::optimizer},
      {.name = "shard_grad_op", .degrees = {.data_shard = 2}, .strategy = ShardStrategy::shard_grad_op},
      {.name = "full_shard", .degrees = {.data_shard = 4}, .residency = "reshard_after_use"},
      {.name = "hybrid", .layers = "d e d e", .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "island", .degrees = {.data_shard = 4}, .residency = "2", .precision = narrow, .lookahead = 2},
      {.name = "pp2", .layers = "d e d e", .degrees = {.pipeline = 2}},
      {.name = "pp2_bf16_reduction",
       .degrees = {.pipeline = 2, .data_shard = 2},
       .reduction = "each_microbatch",
       .precision = {.compute = DType::bfloat16, .reduction = DType::bfloat16},
       .accumulate_sharded = true},
      {.name = "interleaved", .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "interleaved", .chunks = 2},
      {.name = "zbv", .layers = "d e d e", .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2},
      {.name = "dualpipev", .degrees = {.pipeline = 2}, .schedule = "dualpipev", .residency = "step", .chunks = 2},
      {.name = "tp2", .layers = "d e d e", .degrees = {.tensor = 2}, .precision = narrow},
      {.name = "tp4", .degrees = {.tensor = 4}},
      {.name = "cp2", .layers = "d e d e", .degrees = {.context = 2}},
      {.name = "tied_apart", .degrees = {.pipeline = 2, .data_shard = 2}, .tied = true},
      {.name = "predictors_apart", .layers = "d e m*2", .degrees = {.pipeline = 4}, .stages = "Ed|e|mm|L"},
      {.name = "predictor",
       .layers = "d e m",
       .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2},
       .precision = narrow,
       .recompute = selective},
      {.name = "predictor_zbv_full",
       .layers = "d e d m",
       .degrees = {.pipeline = 2},
       .schedule = "zbv",
       .chunks = 2,
       .recompute = full},
      {.name = "frozen", .layers = "d e d e", .degrees = {.data_shard = 2}, .frozen = {Family::experts}},
      {.name = "selective", .layers = "d e d e", .degrees = {.pipeline = 2, .tensor = 2}, .recompute = selective},
      {.name = "full", .layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2}, .recompute = full},
      {.name = "float8", .layers = "d e d e", .precision = float8, .wide = true},
      {.name = "float8_blocks", .layers = "d e d e", .precision = blocks, .wide = true},
      {.name = "float8_blocks_tp2_etp2_selective",
       .layers = "d e d e",
       .degrees = {.tensor = 2, .expert_tensor = 2},
       .precision = blocks,
       .recompute = selective,
       .wide = true},
      {.name = "float8_pp2_tp2",
       .layers = "d e d e",
       .degrees = {.pipeline = 2, .tensor = 2},
       .precision = float8,
       .recompute = selective,
       .wide = true},
      {.name = "full_zbv",
       .degrees = {.pipeline = 2},
       .schedule = "zbv",
       .precision = narrow,
       .chunks = 2,
       .recompute = full},
  };
}

TEST_P(DryRunOfLayouts, HasEveryBucketOfEveryRankToTheByte) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  const Mesh mesh(config.parallelism);
  const KeptRun run = run_kept(config);
  ASSERT_EQ(std::ssize(run.measured), mesh.world());
  CommunicationCounters counted;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const DryRun dry = dry_run_of(config, mesh, rank);
    EXPECT_EQ(to_text(dry.peak), to_text(run.measured[static_cast<std::size_t>(rank)])) << "rank " << rank;
    BucketBytes live;
    for (const LiveTensors& each : dry.live) live[each.bucket] += each.bytes;
    EXPECT_EQ(live, dry.peak) << "the list of what is live is the peak";
    for (const auto& [key, count] : dry.communication) {
      counted[key].count += count.count;
      counted[key].bytes += count.bytes;
    }
  }
  EXPECT_EQ(counted, run.steps.back().communication);
}

// What a device may meet before the first step: as often forwards as backwards, each once, and all can be called.
TEST_P(DryRunOfLayouts, TellsEachAttentionOnce) {
  const Config config = config_of(GetParam());
  const Mesh mesh(config.parallelism);
  const StepCalls calls = dry_calls(config, mesh, step_program(ResolvedRun(config), mesh.coordinates(0)), 0);
  const auto backwards = std::ranges::count_if(calls.attention, &AttentionCall::is_backward);
  EXPECT_GT(backwards, 0);
  EXPECT_EQ(std::ssize(calls.attention), 2 * backwards);
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  MemoryLedger ledger(*device, *stream);
  PhaseClock clock;
  const auto products = make_cpu_matrix_products();
  const LayerKernels kernels = cpu_layer_kernels();
  KernelContext context{ledger, clock, *stream, *products, kernels};
  for (auto call = calls.attention.begin(); call != calls.attention.end(); ++call) {
    EXPECT_EQ(std::find(call + 1, calls.attention.end(), *call), calls.attention.end());
    run_once(context, *call);
    EXPECT_EQ(ledger.live().total(), 0);
  }
}

// The rules that keep less or more than AdamW, and one that moves whole matrices through communication and workspace.
TEST(DryRun, HasTheBytesOfEveryUpdateRule) {
  for (const auto& [rule, state] :
       {std::pair(UpdateRule::sgd, DType::float32), std::pair(UpdateRule::lion, DType::float32),
        std::pair(UpdateRule::lamb, DType::float32), std::pair(UpdateRule::muon, DType::float32),
        std::pair(UpdateRule::muon, DType::bfloat16)}) {
    Config config = config_of({.layers = "d e d e", .degrees = {.data_shard = 2, .tensor = 2}});
    config.optimizer.rule = rule;
    config.optimizer.state = state;
    config.run.steps = 1;
    const Mesh mesh(config.parallelism);
    const KeptRun run = run_kept(config);
    for (int rank = 0; rank < mesh.world(); ++rank) {
      EXPECT_EQ(to_text(dry_run_of(config, mesh, rank).peak), to_text(run.measured[static_cast<std::size_t>(rank)]))
          << name_of(rule) << ", rank " << rank;
    }
  }
}

// How many rows of a microbatch a rank receives is the router's affair. Only the memory kept of them may differ from a
// dry run. Of these peaks routed rows are less than a tenth. A rank's part of a microbatch of 12 to 24 tokens is within
// a tenth or so of even. The sum over ranks of what is communicated cannot differ at all: every row that one rank sends
// another receives.
// cuDNN's backward keeps sums of rows, and as many scores as queries times keys where its bits repeat, else dq in
// float32. Other kernels of attention take less.
TEST(DryRun, CountsTheWorkspaceOfAttentionOfAGpu) {
  const auto workspace = [](const AttentionChoice& attention, bool deterministic) {
    Config config = config_of({.layers = "A", .precision = {.compute = DType::bfloat16}});
    config.run.device = DeviceKind::cuda;
    config.run.attention = attention;
    config.run.deterministic = deterministic;
    config.training.sequence_length = 512;
    const DryRun dry = dry_run_of(config, Mesh(config.parallelism), 0);
    return dry.peak[Bucket::workspace] - dry.walk.before[Bucket::workspace];
  };
  const ModelConfig model = tiny_config("A").model;
  const std::int64_t queries = tiny_config("A").training.microbatch_size * model.num_attention_heads * 512;
  EXPECT_EQ(workspace({}, true), 4 * queries + 2 * queries * 512);
  EXPECT_LT(workspace({}, false), 2 * queries * 512);
  EXPECT_LT(workspace({.kernel = AttentionChoice::Kernel::own}, true), 2 * queries * 512);
}

TEST(DryRun, DealsRowsEvenlyWhereRoutersDoNot) {
  for (const Degrees& degrees :
       {Degrees{.data_shard = 2, .expert = 2}, Degrees{.pipeline = 2, .data_shard = 2, .expert = 2},
        Degrees{.data_shard = 2, .tensor = 2, .expert = 2, .expert_tensor = 2}}) {
    Config config = config_of({.layers = "d e d e", .degrees = degrees});
    config.run.steps = 1;
    const Mesh mesh(config.parallelism);
    const KeptRun run = run_kept(config);
    CommunicationCounters counted;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const DryRun dry = dry_run_of(config, mesh, rank);
      const BucketBytes& measured = run.measured[static_cast<std::size_t>(rank)];
      EXPECT_EQ(differing_static_buckets(dry.peak, measured), std::vector<Bucket>());
      EXPECT_NEAR(static_cast<double>(measured.total()), static_cast<double>(dry.peak.total()),
                  0.01 * static_cast<double>(dry.peak.total()));
      for (const auto& [key, count] : dry.communication) {
        counted[key].count += count.count;
        counted[key].bytes += count.bytes;
      }
    }
    EXPECT_EQ(counted, run.steps.back().communication);
  }
}

// A text of one letter: every token but those of other positions looks alike to a router, and all choose the same
// experts.
TEST(DryRun, KnowsTheMostThatAnyRoutingTakes) {
  const TemporaryFolder folder;
  std::ofstream(folder / "same.txt") << std::string(4096, 'a');
  for (const auto& [degrees, real_fraction] :
       {std::pair(Degrees{.data_shard = 2, .expert = 2}, 1.0),
        std::pair(Degrees{.pipeline = 2, .data_shard = 4, .expert = 4}, 1.0),
        std::pair(Degrees{.data_shard = 2, .tensor = 2, .expert = 2, .expert_tensor = 2}, 1.0),
        // Of two choices one is a null slot if they are even.
        std::pair(Degrees{.data_shard = 2}, 0.5)}) {
    Config config = config_of({.layers = "d e", .degrees = degrees});
    config.data.train = {(folder / "same.txt").string()};
    config.model.moe.num_experts_per_tok = 1;
    config.model.moe.real_fraction = real_fraction;
    config.model.moe.moe_intermediate_size = 64;
    config.training.sequence_length = 64;
    config.run.steps = 2;
    config.run.seed = 2;
    EXPECT_TRUE(routing_decides(config));
    const Mesh mesh(config.parallelism);
    const ResolvedRun resolved(config);
    const KeptRun run = run_kept(config);
    bool exceeds_even = false;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const std::int64_t measured = run.measured[static_cast<std::size_t>(rank)].total();
      const Program program = step_program(resolved, mesh.coordinates(rank));
      const std::int64_t worst = dry_peak(config, mesh, program, rank, Routing::worst).total();
      EXPECT_LE(measured, worst) << "rank " << rank;
      exceeds_even |= measured > dry_peak(config, mesh, program, rank).total();
    }
    EXPECT_TRUE(exceeds_even) << "the routing was even: it shows nothing";
  }
  Config alone = config_of({.layers = "d e", .degrees = {.data_shard = 2}});
  EXPECT_FALSE(routing_decides(alone));
  alone.model.moe.capacity_factor = 1.0;
  EXPECT_TRUE(routing_decides(alone));
  alone.model.moe.pad_to_capacity = true;
  EXPECT_FALSE(routing_decides(alone));
}

// The list of what is live names the action that brought it; a gather that is left out of a list is missed.
TEST(DryRun, NamesTheActionsBehindThePeak) {
  const Config config = config_of({.degrees = {.pipeline = 2, .data_shard = 2}});
  const Mesh mesh(config.parallelism);
  const Program program = step_program(ResolvedRun(config), mesh.coordinates(0));
  const DryRun dry = dry_run(config, mesh, program, 0);
  ASSERT_TRUE(dry.peak_action);
  const auto& actions = program.ranks[0];
  for (const LiveTensors& live : dry.live) {
    if (!live.action) continue;
    EXPECT_LE(*live.action, *dry.peak_action);
    const Op op = actions[*live.action].op;
    if (live.bucket == Bucket::unsharded_parameters) {
      EXPECT_TRUE(is_gather(op)) << name_of(op);
    }
    if (live.bucket == Bucket::unsharded_gradients) {
      EXPECT_TRUE(makes_weight_gradient(op)) << name_of(op);
    }
    if (live.bucket == Bucket::activations) {
      EXPECT_TRUE(is_compute(op) || is_receive(op)) << name_of(op);
    }
  }
  Program broken = program;
  std::erase_if(broken.ranks[0], [](const Action& action) { return is_gather(action.op); });
  EXPECT_THROW(dry_run(config, mesh, broken, 0), Error);
}

INSTANTIATE_TEST_SUITE_P(All, DryRunOfLayouts, testing::ValuesIn(planned_layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace weft
