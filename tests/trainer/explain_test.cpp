// Explanations of runs that do not fit, against figures known by other means. Closed formulas give the bytes, and plans
// that are made anew the verdicts. The state of models is sixteen bytes for each parameter.
#include "trainer/planning/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "parallel/pipeline/orders/orders.h"
#include "trainer/planning/compare.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

ReadWith reader_of(std::string file, Overrides given = {}) {
  return [file = std::string(WEFT_SOURCE_DIR) + "/configs/" + file, given = std::move(given)](const Overrides& words) {
    return read_config(file, merged_words(given, words)).config;
  };
}

bool fits(const ReadWith& read, const Hardware& hardware, const Overrides& words) {
  return plan_run(read(words), hardware).verdict.fits();
}

std::vector<std::string_view> names_of(const std::vector<TriedRemedy>& remedies) {
  std::vector<std::string_view> names;
  for (const TriedRemedy& tried : remedies) names.push_back(tried.remedy.name);
  return names;
}

const TriedRemedy* find_remedy(const std::vector<TriedRemedy>& remedies, std::string_view name) {
  for (const TriedRemedy& tried : remedies) {
    if (tried.remedy.name == name) return &tried;
  }
  return nullptr;
}

// 6,738,415,616 parameters at 16 bytes over 16 ranks.
constexpr std::int64_t state_of_7b = 6'738'415'616;

std::int64_t block_bytes(const RankPlan& rank) {
  std::int64_t sum = 0;
  for (const LiveItem& item : rank.live) {
    if (item.bucket == Bucket::activations && item.what.starts_with("blocks.")) sum += item.bytes;
  }
  return sum;
}

Explanation explain_7b(std::int64_t sequence) {
  return explain_run(reader_of("plan_7b_long.toml", {fmt::format("--training.sequence_length={}", sequence)}),
                     find_hardware("a100-80gb"));
}

// In bfloat16 a block keeps of each token, with h hidden, f inside and a heads:
//   each of two norms    its input and its output, 4 h, and a float32
//   attention            queries, keys and values 6 h, its output 2 h, a float32 for each head
//   SwiGLU               gate, up and their product, 6 f
// 16 h + 6 f + 8 + 4 a = 131,720 bytes, where the textbook says 34 h = 139,264.
TEST(Explain, ActivationsOfLongSequencesAreThoseOfTheClosedFormula) {
  constexpr std::int64_t h = 4096, f = 11008, a = 32, token = 16 * h + 6 * f + 8 + 4 * a;
  static_assert(token == 131'720);
  struct Row {
    std::int64_t sequence;
    double textbook;  // GB, 34 s b h of all layers
    bool fits;
  };
  for (const Row& row :
       {Row{2048, 9.1, true}, Row{8192, 36.5, true}, Row{32768, 146.0, false}, Row{131072, 584.1, false}}) {
    const Explanation explanation = explain_7b(row.sequence);
    const RankPlan& rank = explanation.plan.ranks[explanation.plan.fullest];
    // Where the head fills the peak all blocks are whole; elsewhere one of them is on its way back.
    const std::int64_t kept = 32 * row.sequence * token, slack = row.fits ? row.sequence * token : 0;
    EXPECT_LE(std::abs(block_bytes(rank) - kept), slack) << row.sequence;
    EXPECT_NEAR(static_cast<double>(kept) / 1e9, row.textbook * token / (34.0 * h), 0.05) << row.sequence;
    EXPECT_EQ(explanation.plan.verdict.fits(), row.fits) << row.sequence;
    if (row.fits) {
      EXPECT_TRUE(explanation.remedies.empty());
      EXPECT_TRUE(explanation.cannot.empty());
      EXPECT_FALSE(explanation.combination);
      EXPECT_FALSE(explanation.limits.empty());
      continue;
    }
    EXPECT_EQ(explanation.activations.block_token, token);
    EXPECT_EQ(explanation.activations.textbook_token, 34 * h);
    // 5 a s^2 of a block; 131,072 tokens: 2,749 GB.
    EXPECT_EQ(explanation.activations.scores, 5 * a * row.sequence * row.sequence);
    // Of 1,024 tokens: four tiles of the 1,048 that 128 MiB hold.
    EXPECT_EQ(explanation.activations.logits, 1024 * 32000 * 4);
    EXPECT_EQ(explanation.activations.dlogits, row.sequence * 32000 * 2);
  }
}

// "A D" is "d" in two blocks, and a layer of the textbook.
TEST(Explain, BlocksOfOnePartAreHalvesOfALayer) {
  const Explanation halves =
      explain_run(reader_of("plan_7b_long.toml", {"--training.sequence_length=131072", "--model.layers=(A D)*32"}),
                  find_hardware("a100-80gb"));
  const ActivationFacts facts = halves.activations, whole = explain_7b(131072).activations;
  EXPECT_EQ(facts.block_token, whole.block_token);
  EXPECT_EQ(facts.scores, whole.scores);
  EXPECT_EQ(facts.textbook_token, whole.textbook_token);
}

TEST(Explain, RemediesAgainstActivationsStandInOrder) {
  const Explanation explanation = explain_7b(131072);
  EXPECT_EQ(explanation.cause, Cause::activations);
  // Padding is less than a row a unit and shard: 34 units of rows of 4,096, 16 bytes each.
  EXPECT_GE(explanation.state_bytes, state_of_7b);
  EXPECT_LT(explanation.state_bytes, state_of_7b + 34 * 4096 * 16);
  const std::vector<std::string_view> expected = {
      "recompute selective", "recompute full", "tensor up", "context up", "pipeline up", "activations in host memory"};
  EXPECT_EQ(names_of(explanation.remedies), expected);  // one sequence at a time is the least there is
  const std::int64_t needed = explanation.plan.verdict.needed;
  const PlannedVariant& selective = explanation.remedies[0].variant;
  const PlannedVariant& full = explanation.remedies[1].variant;
  EXPECT_LT(selective.verdict.needed, needed);
  EXPECT_LT(full.verdict.needed, selective.verdict.needed);
  ASSERT_TRUE(explanation.first_that_fits());
  EXPECT_EQ(explanation.first_that_fits()->remedy.name, "recompute full");
  ASSERT_TRUE(explanation.fastest_that_fits());
  for (const TriedRemedy& tried : explanation.remedies) {
    if (!tried.variant.fits()) continue;
    EXPECT_GE(tried.variant.time.seconds, explanation.fastest_that_fits()->variant.time.seconds);
  }
  EXPECT_EQ(explanation.fastest_that_fits()->remedy.name, "tensor up");
  EXPECT_TRUE(fits(reader_of("plan_7b_long.toml"), find_hardware("a100-80gb"), full.words));
}

// The state alone, whatever the number of ranks: it is 6.74 GB.
TEST(Explain, MoreShardingRecoversNoMoreThanStateAndIsNeverAMoveAgainstActivations) {
  const Explanation explanation = explain_7b(131072);
  ASSERT_TRUE(explanation.more_sharding);
  const std::int64_t recovered = explanation.plan.verdict.needed - explanation.more_sharding->verdict.needed;
  EXPECT_GT(recovered, state_of_7b * 9 / 10);
  EXPECT_LE(recovered, explanation.state_bytes);
  EXPECT_FALSE(explanation.more_sharding->fits());
  EXPECT_FALSE(find_remedy(explanation.remedies, "strategy up"));
}

// Both layouts begin with the fewest microbatches that they take: one, and two for each of two ranks of a pipeline.
TEST(Explain, ARunThatFitsHasNoRemediesAndAnExactLimit) {
  const Overrides dualpipev = {"--parallelism.pipeline=2", "--pipeline.schedule=dualpipev", "--pipeline.chunks=2",
                               "--parallelism.data_shard=8", "--training.global_batch_size=32"};
  const Hardware& card = find_hardware("a100-80gb");
  for (const Overrides& layout : {Overrides{}, dualpipev}) {
    const ReadWith read = reader_of("plan_7b_long.toml", merged_words({"--training.sequence_length=8192"}, layout));
    const std::int64_t batch = read({}).training.global_batch_size;
    const Explanation explanation = explain_run(read, card);
    ASSERT_EQ(explanation.limits.size(), 2u);
    for (const Limit& limit : explanation.limits) {
      ASSERT_TRUE(limit.exceeds) << limit.what << limit.reason;
      EXPECT_EQ(*limit.exceeds, 2 * limit.fits) << limit.what;
      const auto words = [&](std::int64_t value) {
        const std::int64_t sequences = limit.what == "training.microbatch_size" ? batch * value : batch;
        return Overrides{fmt::format("--{}={}", limit.what, value),
                         fmt::format("--training.global_batch_size={}", sequences)};
      };
      const Verdict verdict = plan_run(read(words(limit.fits)), card).verdict;
      EXPECT_TRUE(verdict.fits()) << limit.what;
      EXPECT_EQ(verdict.needed, limit.fits_bytes) << limit.what;
      EXPECT_EQ(limit.batch.value_or(batch), read(words(limit.fits)).training.global_batch_size) << limit.what;
      EXPECT_FALSE(fits(read, card, words(*limit.exceeds))) << limit.what;
    }
  }
}

// The double fits with even routing alone on this card, and is not told to fit.
TEST(Explain, TheLimitOfWhatAlwaysFitsIsThatOfTheWorstRouting) {
  const ReadWith read = reader_of("quickstart.toml", {"--parallelism.expert=2"});
  Hardware card = find_hardware("h100");
  card.reserved_memory.value = 0.0;
  const auto words = [](std::int64_t size) { return Overrides{fmt::format("--training.sequence_length={}", size)}; };
  const std::int64_t now = read({}).training.sequence_length;
  const auto need = [&](std::int64_t size) { return worst_need(read(words(size)), card).value(); };
  card.memory = Figure{static_cast<double>(need(2 * now) - 1) / Verdict::limit};
  ASSERT_TRUE(fits(read, card, words(2 * now))) << "the card shows nothing";
  const Explanation explanation = explain_run(read, card);
  ASSERT_EQ(explanation.plan.judging(), Routing::worst);
  const Limit& limit = explanation.limits.at(1);
  EXPECT_EQ(limit.fits, now);
  EXPECT_EQ(limit.fits_bytes, need(now));
  EXPECT_EQ(limit.exceeds, 2 * now);
  EXPECT_EQ(limit.exceeds_bytes, need(2 * now));
}

// With remedies fewer ranks may do than there are.
TEST(Explain, FewestRanksWithRemediesMayBeFewerThanThereAre) {
  const ReadWith read = reader_of("plan_7b_long.toml");
  Hardware card = find_hardware("h100");
  const PlannedVariants variants(read, card);
  const Overrides words = {"--training.recompute=full", "--training.microbatch_size=1"};
  const std::optional<MinimumWorld> fewest = find_ranks(variants, words);
  ASSERT_TRUE(fewest);
  const int shards = read(fewest->variant.words).parallelism.data_shard, now = read({}).parallelism.data_shard;
  EXPECT_LE(shards, now);
  EXPECT_TRUE(fits(read, card, fewest->variant.words));
  const std::int64_t of_one = read(words).training.global_batch_size / now;
  for (int fewer = 1; fewer < shards; ++fewer) {
    EXPECT_FALSE(fits(read, card,
                      merged_words(words, {fmt::format("--parallelism.data_shard={}", fewer),
                                           fmt::format("--training.global_batch_size={}", of_one * fewer)})))
        << fewer;
  }
}

// 2^31 choices of tokens are too many to deal: of 2^12 sequences, those of 2^18 tokens with two choices each.
TEST(Explain, ASizeThatIsRefusedIsNoLimitOfMemory) {
  const ReadWith read =
      reader_of("quickstart.toml", {"--training.microbatch_size=4096", "--training.global_batch_size=16384"});
  Hardware card = find_hardware("h100");
  card.memory = Figure{0x1p60};
  const std::vector<Limit> limits = explain_run(read, card).limits;
  ASSERT_EQ(limits.size(), 2u);
  for (const Limit& limit : limits) {
    EXPECT_FALSE(limit.exceeds) << limit.what;
    EXPECT_EQ(limit.refused, 2 * limit.fits) << limit.what;
    EXPECT_NE(limit.reason.find("2.15e+09 tokens to deal; at most 2147483647"), std::string::npos) << limit.reason;
  }
  EXPECT_EQ(limits[0].fits, 1 << 22);
  EXPECT_EQ(limits[1].fits, 1 << 17);
}

// A comparison tries eighths of doublings too. On the larger card neither reaches the limit.
TEST(Explain, TheLongestSequenceIsThatOfAComparison) {
  const ReadWith read = reader_of("quickstart.toml");
  Hardware card = find_hardware("h100");
  for (const bool reached : {true, false}) {
    const std::int64_t longest = longest_sequence(read({}), card).value();
    const Limit limit = explain_run(read, card).limits.at(1);
    EXPECT_LE(limit.fits, longest);
    EXPECT_LT(longest, 2 * limit.fits);
    EXPECT_EQ(limit.exceeds.has_value(), reached);
    EXPECT_FALSE(limit.refused) << limit.reason;
    EXPECT_TRUE(reached || limit.fits == longest) << limit.fits;
    card.memory = Figure{0x1p60};
  }
}

TEST(Explain, HardwareWithoutMemoryIsNotJudged) {
  const Explanation explanation = explain_run(reader_of("plan_7b_long.toml"), find_hardware("cpu"));
  EXPECT_EQ(explanation.plan.verdict.fit, Fit::unknown);
  EXPECT_TRUE(explanation.remedies.empty());
  EXPECT_TRUE(explanation.limits.empty());
}

// The verdict of the coarse formula on 70e9 parameters and 8 cards, for the real model: 68,976,648,192 parameters.
TEST(Explain, StateThatExceedsTheCardIsSaidSoAndNoBatchHelps) {
  const ReadWith read =
      reader_of("plan_7b_long.toml",
                {"--model.layers=d*80", "--model.hidden_size=8192", "--model.intermediate_size=28672",
                 "--model.num_attention_heads=64", "--model.num_key_value_heads=8", "--parallelism.data_shard=8",
                 "--training.sequence_length=2048", "--training.global_batch_size=32", "--training.microbatch_size=4"});
  const Hardware& card = find_hardware("a100-80gb");
  const Explanation explanation = explain_run(read, card);
  EXPECT_EQ(explanation.plan.parameters.total, 68'976'648'192);
  EXPECT_TRUE(explanation.state_exceeds);
  EXPECT_EQ(explanation.cause, Cause::state);
  // 16 bytes over 8 ranks; padding of 82 units of rows of 8,192, as above.
  EXPECT_GE(explanation.state_bytes, 2 * 68'976'648'192);
  EXPECT_LT(explanation.state_bytes, 2 * 68'976'648'192 + 82 * 8192 * 16);

  const TriedRemedy* batch = find_remedy(explanation.cannot, "microbatch_size down, accumulation up");
  ASSERT_TRUE(batch);
  // Each batch and microbatch, with everything recomputed too.
  for (const int size : {1, 2, 4}) {
    for (const int sequences : {8 * size, 64}) {
      EXPECT_FALSE(fits(read, card,
                        {fmt::format("--training.microbatch_size={}", size), "--training.recompute=full",
                         fmt::format("--training.global_batch_size={}", sequences)}));
    }
  }
  // So many ranks fit and a node less does not.
  ASSERT_TRUE(explanation.minimum_world);
  const PlannedVariant& more = explanation.minimum_world->variant;
  EXPECT_TRUE(fits(read, card, more.words));
  const Config with = read(explanation.minimum_world->words);
  EXPECT_FALSE(fits(read, card, merged_words(explanation.minimum_world->words, scaled_words(with, more.world - 8))));
}

// What is too much for the host comes back; nothing that takes more of it is proposed.
TEST(Explain, AHostThatIsTooSmallIsRelieved) {
  const ReadWith read = reader_of("quickstart.toml");
  Hardware card = find_hardware("h100");
  card.reserved_memory.value = 0.0;
  card.host_memory = Figure{1000};
  const ReadWith moved = [&](const Overrides& words) {
    return read(merged_words({"--training.offload=1", "--optimizer.offload=1"}, words));
  };
  const Explanation explanation = explain_run(moved, card);
  ASSERT_FALSE(explanation.plan.verdict.fits());
  EXPECT_EQ(explanation.remedies.front().remedy.name, "activations on the device");
  const Explanation alone =
      explain_run([&](const Overrides& words) { return read(merged_words({"--training.offload=1"}, words)); }, card);
  ASSERT_TRUE(alone.first_that_fits());
  EXPECT_EQ(alone.first_that_fits()->variant.words, Overrides{"--training.offload=0"});
}

// A run whose memory depends much on the routing.
ReadWith reader_of_many_rows() {
  return reader_of("quickstart.toml",
                   {"--model.hidden_size=1024", "--model.intermediate_size=4096", "--model.num_attention_heads=8",
                    "--model.head_dim=128", "--model.moe.num_experts_per_tok=4",
                    "--model.moe.moe_intermediate_size=704", "--training.sequence_length=4096",
                    "--training.global_batch_size=64", "--training.microbatch_size=2", "--precision.compute=bfloat16"});
}

// A remedy that fits while tokens are routed evenly says what the worst routing brings.
TEST(Explain, RemediesTellTheWorstRouting) {
  const ReadWith read = reader_of_many_rows();
  Hardware card = find_hardware("h100");
  const RunPlan plan = plan_run(read({}), card);
  ASSERT_GT(plan.worst_bytes().value_or(0), plan.peak().total());
  int always = 0, evenly = 0;
  for (const double part : {0.95, 0.85, 0.75}) {
    card.memory = Figure{part * static_cast<double>(plan.verdict.needed)};
    const Explanation explanation = explain_run(read, card);
    ASSERT_FALSE(explanation.plan.verdict.fits());
    const TriedRemedy* first = nullptr;
    for (const TriedRemedy& tried : explanation.remedies) {
      EXPECT_EQ(tried.variant.worst_needed.has_value(), tried.variant.fits());
      if (!tried.variant.fits()) continue;
      const RunPlan followed = plan_run(read(tried.variant.words), card);
      EXPECT_EQ(*tried.variant.worst_needed, *followed.worst_bytes() + followed.verdict.reserved);
      const bool fits = followed.worst_fit() == Fit::fits;
      EXPECT_EQ(tried.variant.fits_in_worst_case(), fits);
      ++(fits ? always : evenly);
      if (fits && first == nullptr && tried.variant.world == plan.world) first = &tried;
    }
    EXPECT_EQ(explanation.first_that_always_fits(), first);
  }
  EXPECT_GT(always, 0);
  EXPECT_GT(evenly, 0);
}

// A run that fits while tokens are routed evenly, and only then, is explained under the worst routing.
TEST(Explain, WhatFitsEvenlyAloneIsJudgedUnderTheWorstRouting) {
  const ReadWith read = reader_of_many_rows();
  Hardware card = find_hardware("h100");
  const RunPlan plan = plan_run(read({}), card);
  const std::int64_t worst = plan.worst_bytes().value() + plan.verdict.reserved;
  card.memory = Figure{0.5 * static_cast<double>(plan.verdict.needed + worst) / Verdict::limit};
  ASSERT_TRUE(plan_run(read({}), card).verdict.fits());
  const Explanation explanation = explain_run(read, card);
  EXPECT_EQ(explanation.routing, Routing::worst);
  EXPECT_FALSE(explanation.limits.empty());
  EXPECT_EQ(explanation.cause, Cause::routing);
  EXPECT_EQ(explanation.judged.verdict.needed, worst);
  ASSERT_TRUE(explanation.first_that_fits());
  for (const TriedRemedy& tried : explanation.remedies) {
    const RunPlan followed = plan_run(read(tried.variant.words), card);
    EXPECT_EQ(tried.variant.verdict.needed, followed.worst_bytes().value() + followed.verdict.reserved)
        << tried.remedy.name;
    EXPECT_EQ(tried.variant.fits(), followed.worst_fit() == Fit::fits) << tried.remedy.name;
  }
  // With room for the worst routing, nothing is to be tried.
  card.memory = Figure{static_cast<double>(worst + 64) / Verdict::limit};
  EXPECT_TRUE(explain_run(read, card).remedies.empty());
}

// A configuration for one GPU has ranks that are threads; on several GPUs they are processes.
TEST(Explain, MoreRanksThanAGpuAreProcesses) {
  const ReadWith read = reader_of("h200_moe_8x1b.toml");
  const Hardware& card = find_hardware("h100");
  const Explanation explanation = explain_run(read, card);
  ASSERT_TRUE(explanation.minimum_world);
  EXPECT_EQ(explanation.minimum_world->variant.world, 2);
  EXPECT_TRUE(fits(read, card, explanation.minimum_world->variant.words));
}

TEST(Explain, WhatOneMoveCannotDoSeveralDo) {
  // 131,072 tokens on a card of 40 GB: no single remedy is enough.
  const ReadWith read = reader_of("plan_7b_long.toml");
  const Hardware& card = find_hardware("a100-40gb");
  const Explanation explanation = explain_run(read, card);
  ASSERT_FALSE(explanation.first_that_fits());
  ASSERT_TRUE(explanation.combination);
  EXPECT_EQ(explanation.combination->world, 16);
  EXPECT_GT(explanation.combined.size(), 1u);
  EXPECT_TRUE(fits(read, card, explanation.combination->words));
  // None of its words is there for nothing.
  for (const std::string& word : explanation.combination->words) {
    if (word.find("data_shard") != std::string::npos) continue;  // follows from another degree
    Overrides fewer;
    for (const std::string& other : explanation.combination->words) {
      if (other != word) fewer.push_back(other);
    }
    const PlannedVariant variant = PlannedVariants(read, card).with(fewer);
    EXPECT_TRUE(!variant.fits() || variant.world != 16) << word;
  }
}

TEST(Explain, AMoveThatTheConfigurationCannotTakeIsRefusedWithTheReason) {
  const ReadWith read =
      reader_of("plan_7b_long.toml", {"--model.num_attention_heads=31", "--model.num_key_value_heads=31"});
  const Explanation explanation = explain_run(read, find_hardware("a100-80gb"));
  EXPECT_FALSE(find_remedy(explanation.remedies, "tensor up"));
  const TriedRemedy* tensor = find_remedy(explanation.refused, "tensor up");
  ASSERT_TRUE(tensor);
  EXPECT_NE(tensor->variant.refused.find("num_attention_heads 31 does not split over parallelism.tensor"),
            std::string::npos)
      << tensor->variant.refused;
  EXPECT_FALSE(tensor->variant.fits());
}

// The first of four ranks keeps four microbatches of its blocks and the last keeps one. Stages are dealt by an estimate
// of the bytes, which is within 15 % of the best split here.
TEST(Explain, StagesDealtByMemoryTakeLess) {
  const ReadWith read = reader_of(
      "plan_7b_long.toml", {"--parallelism.pipeline=4", "--parallelism.data_shard=4", "--training.sequence_length=8192",
                            "--model.layers=d*12", "--training.global_batch_size=64"});
  const Hardware& card = find_hardware("a100-80gb");
  const auto remedies = remedies_for(Cause::activations);
  const auto remedy = std::ranges::find(remedies, "stages dealt by memory", [](const Remedy& one) { return one.name; });
  ASSERT_NE(remedy, remedies.end());
  const auto strengths = remedy->strengths(read({}));
  ASSERT_EQ(strengths.size(), 1u);
  const std::int64_t least = outline_run(read(strengths.front().words), card).peak.total();
  EXPECT_LT(least, outline_run(read({}), card).peak.total());
  std::int64_t best = least;
  for (int first = 1; first <= 3; ++first) {
    for (int second = first; second <= 4; ++second) {
      for (int third = second; first + second + third < 12; ++third) {
        const std::string layout =
            fmt::format("Ed*{}|d*{}|d*{}|d*{}L", first, second, third, 12 - first - second - third);
        best = std::min(best, outline_run(read({"--pipeline.layout=" + layout}), card).peak.total());
      }
    }
  }
  EXPECT_LE(static_cast<double>(least), 1.15 * static_cast<double>(best));
  EXPECT_TRUE(remedy->strengths(read(strengths.front().words)).empty());
}

// Of the test's own walk: most chunks that one of four ranks keeps, over the chunks of a rank.
double microbatches_in_flight(const Schedule& schedule, int chunks) {
  int most = 0;
  for (const auto& actions : schedule.order({.ranks = 4, .chunks = chunks, .microbatches = 16})) {
    int kept = 0;
    for (const Action& action : actions) {
      kept += (action.op == Op::forward ? 1 : 0) - (makes_weight_gradient(action.op) ? 1 : 0);
      most = std::max(most, kept);
    }
  }
  return static_cast<double>(most) / chunks;
}

// Every row of the table is considered. From any schedule, ever fewer microbatches are offered. Each smaller number
// that a row keeps has an offer.
TEST(LeanerSchedules, AreFoundAmongAllOfTheTable) {
  const auto remedies = remedies_for(Cause::activations);
  const auto remedy = std::ranges::find(remedies, "a schedule with fewer microbatches in flight",
                                        [](const Remedy& one) { return one.name; });
  ASSERT_NE(remedy, remedies.end());
  for (const Schedule& now : schedules()) {
    SCOPED_TRACE(now.name);
    Config config;
    config.parallelism.pipeline = 4;
    config.pipeline.schedule = now.name;
    config.pipeline.chunks = now.shown_chunks();
    double kept = microbatches_in_flight(now, now.shown_chunks());
    std::set<double> fewer, offered;
    for (const Schedule& other : schedules()) {
      const double of_other = microbatches_in_flight(other, other.least_chunks);
      if (of_other < kept) fewer.insert(of_other);
    }
    for (const RemedyOverrides& strength : remedy->strengths(config)) {
      const std::string& first = strength.words.front();
      const Schedule& choice = find_schedule(first.substr(first.find('=') + 1));
      const double of_choice = microbatches_in_flight(choice, choice.least_chunks);
      EXPECT_LT(of_choice, kept) << first;
      kept = of_choice;
      offered.insert(of_choice);
    }
    EXPECT_EQ(offered, fewer);
  }
}

}  // namespace
}  // namespace weft
