// Runs that are full of one thing each, with that thing named. The first remedy that is said to be enough is so when it
// is planned anew. A remedy that is said not to help does not at any strength.
#include <gtest/gtest.h>

#include <ostream>

#include "trainer/planning/explain.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

constexpr const char* base = R"([model]
layers = "d*4"
vocab_size = 256
hidden_size = 128
intermediate_size = 384
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 32
[parallelism]
data_shard = 4
[precision]
compute = "bfloat16"
[training]
sequence_length = 32
global_batch_size = 16
microbatch_size = 1
[data]
train = ["none.txt"]
)";

struct FullRun {
  std::string name;
  Bucket dominant = Bucket::workspace;
  Cause cause = Cause::workspace;
  double card = 0.0;  // of the peak
  Overrides words = {};
  std::string_view first = {};  // remedy that fits; empty: a combination, or more ranks
};

void PrintTo(const FullRun& run, std::ostream* out) {
  *out << run.name;
}

std::vector<FullRun> full_runs() {
  const Overrides experts = {"--model.layers=e*4", "--model.moe.num_experts=8", "--model.moe.num_experts_per_tok=4",
                             "--model.moe.moe_intermediate_size=16", "--training.microbatch_size=4"};
  const Overrides muon = {
      "--optimizer.name=muon",     "--optimizer.embedding.name=sgd",    "--optimizer.head.name=sgd",
      "--optimizer.root.name=sgd", "--optimizer.vectors.name=sgd",      "--optimizer.routing.name=sgd",
      "--model.layers=d*16",       "--shard.reduction=each_microbatch", "--shard.reduce_inputs=0",
      "--shard.wrap=half_block",   "--training.sequence_length=2",      "--parallelism.data_shard=2"};
  const Overrides helpers = {"--model.layers=e*4",
                             "--model.moe.num_experts=2048",
                             "--model.moe.num_experts_per_tok=1",
                             "--model.moe.moe_intermediate_size=1",
                             "--parallelism.data_shard=16",
                             "--optimizer.name=sgd",
                             "--optimizer.momentum=0.0",
                             "--training.sequence_length=8",
                             "--shard.residency=reshard_after_use",
                             "--shard.reduction=last_microbatch",
                             "--training.frozen=[\"routing\", \"experts\"]"};
  return {
      {.name = "activations",
       .dominant = Bucket::activations,
       .cause = Cause::activations,
       .card = 0.8,
       .words = {"--training.sequence_length=512", "--training.microbatch_size=4"},
       .first = "recompute selective"},
      {.name = "activations_in_flight",
       .dominant = Bucket::activations,
       .cause = Cause::activations,
       .card = 0.7,
       .words = {"--parallelism.pipeline=4", "--pipeline.schedule=gpipe", "--parallelism.data_shard=1",
                 "--training.sequence_length=512", "--training.recompute=full", "--model.layers=d*8"},
       .first = "a schedule with fewer microbatches in flight"},
      {.name = "optimizer_state",
       .dominant = Bucket::optimizer_state,
       .cause = Cause::state,
       .card = 0.7,
       .words = {"--shard.strategy=no_shard"},
       .first = "strategy up"},
      {.name = "sharded_gradients",
       .dominant = Bucket::sharded_gradients,
       .cause = Cause::state,
       .card = 0.8,
       .words = {"--shard.strategy=no_shard", "--optimizer.name=sgd", "--optimizer.momentum=0.0",
                 "--precision.parameters=bfloat16", "--shard.reduction=each_microbatch"},
       .first = "strategy up"},
      {.name = "sharded_parameters",
       .dominant = Bucket::sharded_parameters,
       .cause = Cause::state,
       .card = 0.6,
       .words = {"--optimizer.name=sgd", "--optimizer.momentum=0.0", "--training.frozen=[\"dense\"]",
                 "--parallelism.data_replicate=4", "--parallelism.data_shard=1"},
       .first = "data_replicate down, data_shard up"},
      {.name = "replicated_parameters",
       .dominant = Bucket::replicated_parameters,
       .cause = Cause::state,
       .card = 0.8,
       .words = helpers,
       .first = "expert up"},
      {.name = "unsharded_parameters",
       .dominant = Bucket::unsharded_parameters,
       .cause = Cause::unsharded_parameters,
       .card = 0.9,
       .words = {"--shard.strategy=shard_grad_op", "--optimizer.name=sgd", "--precision.compute=float32",
                 "--parallelism.data_shard=8", "--shard.reduction=each_microbatch"},
       .first = "strategy up"},
      {.name = "unsharded_gradients",
       .dominant = Bucket::unsharded_gradients,
       .cause = Cause::unsharded_gradients,
       .card = 0.8,
       .words = {"--shard.strategy=full_shard", "--optimizer.name=sgd", "--parallelism.data_shard=8",
                 "--shard.reduction=last_microbatch"},
       .first = "reduction each_microbatch"},
      {.name = "moe_routing",
       .dominant = Bucket::moe_routing,
       .cause = Cause::routing,
       .card = 0.8,
       .words = {"--model.layers=e*1", "--model.moe.num_experts=64", "--model.moe.num_experts_per_tok=16",
                 "--model.moe.moe_intermediate_size=2", "--training.microbatch_size=4",
                 "--training.sequence_length=128", "--parallelism.expert=4", "--training.recompute=full"},
       .first = "microbatch_size down, accumulation up"},
      {.name = "communication",
       .dominant = Bucket::communication,
       .cause = Cause::state /* its three buckets together are more */,
       .card = 0.9,
       .words = muon,
       .first = "a rule with fewer states"},
      {.name = "workspace",
       .dominant = Bucket::workspace,
       .cause = Cause::workspace,
       .card = 0.8,
       .words = {"--model.vocab_size=16384", "--training.sequence_length=256", "--training.microbatch_size=2",
                 "--training.frozen=[\"head\"]", "--optimizer.name=sgd"},
       .first = "microbatch_size down, accumulation up"},
  };
}

class ExplainCauses : public testing::TestWithParam<FullRun> {};

TEST_P(ExplainCauses, AreNamedAndTheirRemediesHold) {
  const FullRun& run = GetParam();
  const ReadWith read = [&](const Overrides& words) {
    return read_config_text(base, "run.toml", merged_words(run.words, words)).config;
  };
  // A card that is somewhat smaller than the peak, with nothing reserved.
  Hardware card = find_hardware("cpu");
  const BucketBytes peak = plan_run(read({}), card).peak();
  for (std::size_t b = 0; b < bucket_count; ++b) EXPECT_LE(peak.bytes[b], peak[run.dominant]) << to_text(peak);
  card.memory = Figure{run.card * static_cast<double>(peak.total()), "chosen"};

  const Explanation explanation = explain_run(read, card);
  EXPECT_EQ(name_of(explanation.cause), name_of(run.cause)) << to_text(peak);
  EXPECT_EQ(explanation.cause_bytes, bytes_of(run.cause, peak));
  const TriedRemedy* first = explanation.first_that_fits();
  EXPECT_EQ(first ? first->remedy.name : std::string_view(), run.first);
  if (first) {
    const RunPlan planned = plan_run(read(first->variant.words), card);
    EXPECT_TRUE(planned.verdict.fits());
    EXPECT_EQ(planned.peak(), first->variant.peak);
    EXPECT_FALSE(explanation.combination);
  } else {
    ASSERT_TRUE(explanation.combination || explanation.minimum_world || explanation.asked_for_ranks);
    if (explanation.combination) {
      EXPECT_TRUE(plan_run(read(explanation.combination->words), card).verdict.fits());
    }
  }
  for (const TriedRemedy& cannot : explanation.cannot) {
    for (const RemedyOverrides& strength : cannot.remedy.strengths(read({}))) {
      for (const Overrides& words : {strength.words, merged_words(strength.words, strength.by_family)}) {
        EXPECT_FALSE(PlannedVariants(read, card).with(words).fits()) << cannot.remedy.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExplainCauses, testing::ValuesIn(full_runs()),
                         [](const auto& run) { return run.param.name; });

}  // namespace
}  // namespace weft
