// Text made a token at a time against the whole model in double, and of every layout against one rank.
#include "trainer/inference/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "layers/kernels/matrix_products.h"
#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "tests/trainer/initial_weights.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/used_layouts.h"

namespace weft {
namespace {

constexpr std::int64_t sequences = 2, length = 12;

// Different tokens in both sequences, of the whole vocabulary.
std::vector<std::vector<std::int32_t>> random_texts(const Config& config) {
  const RandomStream random(23, "generation");
  std::vector<std::vector<std::int32_t>> texts(sequences);
  for (std::uint64_t i = 0; i < sequences * length; ++i) {
    texts[i / length].push_back(
        static_cast<std::int32_t>(random.bits(i) % static_cast<std::uint64_t>(config.model.vocab_size)));
  }
  return texts;
}

// [sequence][position][entry of the vocabulary] of the texts fed in passes of these lengths.
using Logits = std::vector<std::vector<std::vector<double>>>;

Logits fed(const Config& tiny, const std::vector<std::int64_t>& lengths, const FillWeights& fill_weights = {},
           const BackendFactory& make_backend = {}) {
  const Config config = for_generation(tiny);
  const Mesh mesh(config.parallelism);
  const auto texts = random_texts(config);
  Logits logits(sequences);
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankContext& context) {
    // One position more than is needed, for faults that reach for it.
    GenerationRun run(config, mesh, sequences, length + 1, fill_weights, context);
    run.run().ledger().reset_peak();
    for (const std::int64_t count : lengths) {
      std::vector<std::int32_t> tokens;
      for (const auto& text : texts) {
        const auto first = text.begin() + run.position();
        tokens.insert(tokens.end(), first, first + count);
      }
      const std::vector<float> made = run.feed(tokens, sequences, count);
      if (context.world.rank() != run.sampler()) continue;
      auto next = made.begin();
      for (auto& of_sequence : logits) {
        for (std::int64_t i = 0; i < count; ++i, next += config.model.vocab_size) {
          of_sequence.emplace_back(next, next + config.model.vocab_size);
        }
      }
    }
    const BucketBytes measured = run.run().ledger().at_peak();
    EXPECT_TRUE(differing_static_buckets(static_bytes(run.run().stages().planned()), measured).empty());
    for (Bucket bucket : {Bucket::sharded_gradients, Bucket::unsharded_gradients, Bucket::optimizer_state}) {
      EXPECT_EQ(measured[bucket], 0) << name_of(bucket);
    }
  });
  return logits;
}

// Minus the logarithm of a token's probability.
double surprise(const std::vector<double>& logits, std::size_t token) {
  double largest = logits[0], sum = 0.0;
  for (double logit : logits) largest = std::max(largest, logit);
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[token];
}

// Largest difference of the surprises of a few tokens at every position from those of the model in double. That model
// sees whole sequences and has no cache.
double distance_from_reference(const Config& config, const NamedValues& weights, const Logits& logits) {
  const auto texts = random_texts(config);
  const auto hidden = static_cast<std::ptrdiff_t>(config.model.hidden_size);
  const ModelReference reference(config.model, weights, length, 1.0);
  double distance = 0.0;
  for (std::size_t s = 0; s < texts.size(); ++s) {
    Values x = reference.embedding(texts[s]);
    for (int block = 0; block < config.model.layers(); ++block) {
      double auxiliary = 0.0;
      x = reference.block(block, x, auxiliary);
    }
    for (std::ptrdiff_t position = 0; position < length; ++position) {
      const Values row(x.begin() + position * hidden, x.begin() + (position + 1) * hidden);
      for (std::int32_t token : {0, 1, 100, 129, 130, 258}) {
        const double expected = reference.head(row, std::vector{token});
        const double found = surprise(logits[s][static_cast<std::size_t>(position)], static_cast<std::size_t>(token));
        // A NaN is as far off as can be.
        distance = std::max(distance, std::isnan(found) ? 1e9 : std::abs(found - expected));
      }
    }
  }
  return distance;
}

// A logit is a sum of 20 products near 1, behind 4 blocks of some 6 products of 20 to 28 terms each. Their float32
// roundings (6e-8 relative a term) lie behind one another: 25 x 28 x 6e-8 = 4e-5 if all had one sign.
constexpr double generation_tolerance = 4e-5;

std::vector<std::vector<std::int64_t>> ways_to_feed() {
  return {{length}, std::vector<std::int64_t>(length, 1), {5, 1, 1, 1, 1, 1, 1, 1}, {4, 3, 5}};
}

TEST(Generation, EveryPositionHasTheLogitsOfTheWholeModelInDouble) {
  for (const char* layers : {"d*2", "d e d e", "M A E M D"}) {
    for (bool qk_norm : {true, false}) {
      Config config = tiny_config(layers);
      config.model.qk_norm = qk_norm;
      config.model.sliding_window = qk_norm ? 0 : 4;
      config.model.num_key_value_heads = 2;
      for (const auto& lengths : ways_to_feed()) {
        InitialWeights weights;
        const Logits logits = fed(config, lengths, weights.collect());
        EXPECT_LT(distance_from_reference(config, weights.values(), logits), generation_tolerance)
            << layers << " in " << lengths.size() << " passes";
      }
    }
  }
}

// 16 bits: 8 or 11 bits of every stored activation, some 30 of them behind one another, at random signs.
TEST(Generation, ComputesInSixteenBits) {
  for (DType dtype : {DType::bfloat16, DType::float16}) {
    Config config = tiny_config("d e");
    config.precision.compute = dtype;
    InitialWeights weights;
    const Logits logits = fed(config, {5, 1, 1, 1, 1, 3}, weights.collect());
    const double distance = distance_from_reference(config, weights.values(), logits);
    EXPECT_LT(distance, 6 * 8 * (dtype == DType::bfloat16 ? 0x1.0p-8 : 0x1.0p-11));
    EXPECT_GT(distance, generation_tolerance) << "16 bits cannot be so exact";
  }
}

// 8 bits: factors with 4 bits, in all products of blocks. A pass of two rows is padded to what products in blocks take.
TEST(Generation, ComputesInEightBits) {
  for (const ProductFormat format : {ProductFormat::float8, ProductFormat::float8_blocks}) {
    const Config config = config_of({.layers = "d e", .precision = {.compute = format}, .wide = true});
    InitialWeights weights;
    const Logits logits = fed(config, {5, 1, 1, 1, 1, 3}, weights.collect());
    const double distance = distance_from_reference(config, weights.values(), logits);
    EXPECT_LT(distance, 8 * 0x1.0p-4) << name_of(format);
    EXPECT_GT(distance, 0x1.0p-8) << "8 bits cannot be so exact";
  }
}

class GenerationLayout : public testing::TestWithParam<TinyLayout> {};

// Three tokens of two sequences do not split over four tensor ranks: passes are padded.
TEST_P(GenerationLayout, HasTheLogitsOfTheWholeModelInDouble) {
  const Config config = config_of(GetParam());
  for (const auto& lengths : {std::vector<std::int64_t>{5, 1, 1, 1, 1, 3}, {length}}) {
    InitialWeights weights;
    const Logits logits = fed(config, lengths, weights.collect());
    EXPECT_EQ(weights.calls(), config.parallelism.world());
    EXPECT_LT(distance_from_reference(config, weights.values(), logits), generation_tolerance) << lengths.size();
  }
}

Config byte_config(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.model.vocab_size = 256;
  return config;
}

TEST_P(GenerationLayout, MakesTheTextOfOneRank) {
  const Config config = byte_config(GetParam());
  GenerationRequest request{.prompt = "warp and", .max_tokens = 9, .samples = 3};
  for (double temperature : {0.0, 0.8}) {
    request.sampling = {.temperature = temperature, .top_k = 40, .top_p = 0.9};
    const GenerationResult found = generate(config, request);
    const GenerationResult alone =
        generate(byte_config({.layers = GetParam().layers, .tied = GetParam().tied}), request);
    for (std::size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(found.samples[s].text, alone.samples[s].text) << "temperature " << temperature;
    }
    // At temperature 0 samples are alike, otherwise each draws for itself.
    EXPECT_EQ(found.samples[0].text == found.samples[1].text, temperature == 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GenerationLayout, testing::ValuesIn(used_layouts()),
                         [](const auto& layout) { return layout.param.name; });

// A CPU whose kernels are not what they should be.
BackendFactory faulty(const std::function<void(LayerKernels&)>& spoil) {
  return [spoil](int) {
    std::unique_ptr<Backend> backend = make_cpu_backend();
    spoil(backend->layer_kernels);
    return backend;
  };
}

double distance_with(const std::function<void(LayerKernels&)>& spoil) {
  const Config config = tiny_config("d*2");
  InitialWeights weights;
  const Logits logits = fed(config, {5, 1, 1, 1, 1, 1, 1, 1}, weights.collect(), faulty(spoil));
  return distance_from_reference(config, weights.values(), logits);
}

TEST(Generation, FaultsOfPositionsAndCachesAreSeen) {
  EXPECT_LT(distance_with([](LayerKernels&) {}), generation_tolerance);
  using RotaryForward = decltype(LayerKernels::rotary_forward);
  // Every pass begins at angle 0 again, or a token behind the prompt stands one further than it should.
  const RotaryForward begins_anew = [](KernelContext& context, const RotaryOptions& options, ConstTensorView qkv,
                                       ConstTensorView q_norm, ConstTensorView k_norm, TensorView rotated) {
    RotaryOptions first = options;
    const std::vector<float> angles = rotary_table(options, std::vector<Range>{{0, options.heads.sequence_length}});
    first.table = ConstTensorView(angles.data(), DType::float32, options.heads.sequence_length, options.heads.head_dim);
    cpu_layer_kernels().rotary_forward(context, first, qkv, q_norm, k_norm, rotated);
  };
  const RotaryForward one_further = [](KernelContext& context, const RotaryOptions& options, ConstTensorView qkv,
                                       ConstTensorView q_norm, ConstTensorView k_norm, TensorView rotated) {
    RotaryOptions next = options;
    if (options.heads.sequence_length == 1) {
      next.table = ConstTensorView(options.table.as<float>().data() + options.table.columns(), DType::float32, 1,
                                   options.table.columns());
    }
    cpu_layer_kernels().rotary_forward(context, next, qkv, q_norm, k_norm, rotated);
  };
  for (const RotaryForward fault : {begins_anew, one_further}) {
    EXPECT_GT(distance_with([&](LayerKernels& kernels) { kernels.rotary_forward = fault; }), 10 * generation_tolerance);
  }
  // A query that does not see the token before it, and one that sees another sequence's cache.
  const auto blind_to_the_last = [](LayerKernels& kernels) {
    kernels.attention.cached = [](KernelContext& context, const HeadShape& heads, std::int64_t position,
                                  ConstTensorView q, ConstTensorView cache, TensorView out) {
      cpu_layer_kernels().attention.cached(context, heads, std::max<std::int64_t>(position - 1, 0), q, cache, out);
    };
  };
  const auto crossed_sequences = [](LayerKernels& kernels) {
    kernels.attention.cached = [](KernelContext& context, const HeadShape& heads, std::int64_t position,
                                  ConstTensorView q, ConstTensorView cache, TensorView out) {
      const std::int64_t half = q.rows() / 2;
      const ConstTensorView second = cache.rows_from(heads.sequence_length, heads.sequence_length);
      for (std::int64_t s = 0; s < 2; ++s) {
        cpu_layer_kernels().attention.cached(context, heads, position, q.rows_from(s * half, half), second,
                                             out.rows_from(s * half, half));
      }
    };
  };
  EXPECT_GT(distance_with(blind_to_the_last), 10 * generation_tolerance);
  EXPECT_GT(distance_with(crossed_sequences), 10 * generation_tolerance);
}

// A token a pass from the cache, or the whole text anew for every token. Of 2048 tokens, bytes and padding alike at the
// beginning, the most probable is one of the 256 bytes in one of eight cases.
class GreedyText : public testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Generation, GreedyText, testing::Values(256, 2048));

TEST_P(GreedyText, IsThatOfTheModelWithoutACacheAndOfBytesAlone) {
  Config tiny = byte_config({.layers = "d e"});
  tiny.model.vocab_size = GetParam();
  const Config config = for_generation(tiny);
  const GenerationRequest request{.prompt = "shuttle", .max_tokens = 12, .sampling = {.temperature = 0.0}};
  const std::string text = generate(config, request).samples[0].text;
  ASSERT_EQ(text.size(), 12u);
  const Mesh mesh(config.parallelism);
  std::string expected = request.prompt;
  for (int i = 0; i < 12; ++i) {
    run_ranks(config, backend_of(config), [&](const RankContext& context) {
      GenerationRun run(config, mesh, 1, static_cast<std::int64_t>(expected.size()), {}, context);
      std::vector<std::int32_t> tokens;
      for (const char byte : expected) tokens.push_back(static_cast<std::uint8_t>(byte));
      const std::vector<float> logits = run.feed(tokens, 1);
      expected += static_cast<char>(std::max_element(logits.begin(), logits.begin() + 256) - logits.begin());
    });
  }
  EXPECT_EQ(request.prompt + text, expected);
}

// Experts that drop half of all choices in training take every one, and those that are dealt in turn are chosen. A
// sample's text is that without either, whatever samples are beside it, and however a pass is padded.
TEST(Generation, TakesEveryChoiceOfTheRouter) {
  GenerationRequest request{.prompt = "warp and", .max_tokens = 24};
  const std::string expected = generate(byte_config({.layers = "d e d e"}), request).samples[0].text;
  for (const Degrees& degrees : {Degrees{}, Degrees{.tensor = 2}, Degrees{.data_shard = 2, .tensor = 2, .expert = 4}}) {
    for (const bool deals : {false, true}) {
      Config config = byte_config({.layers = "d e d e", .degrees = degrees});
      config.model.moe.capacity_factor = deals ? 0.0 : 0.5;
      config.model.moe.force_balance = deals;
      for (request.samples = 1; request.samples <= 3; ++request.samples) {
        EXPECT_EQ(generate(config, request).samples[0].text, expected)
            << request.samples << " samples, tensor " << degrees.tensor << (deals ? ", dealt" : "");
      }
    }
  }
}

TEST(Generation, TextStreamsAndEndsWhereAStopBegins) {
  const Config config = byte_config({.layers = "d"});
  GenerationRequest request{.prompt = "loom", .max_tokens = 16, .samples = 2, .sampling = {.seed = 3}};
  std::vector<std::string> streamed(2);
  const auto listen = [&](std::int64_t sample, std::string_view text) {
    streamed[static_cast<std::size_t>(sample)] += text;
  };
  const GenerationResult whole = generate(config, request, {}, listen);
  for (std::size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(streamed[s], whole.samples[s].text);
    EXPECT_EQ(whole.samples[s].finish, Finish::length);
    EXPECT_EQ(whole.samples[s].tokens, 16);
  }
  EXPECT_EQ(whole.tokens(), 32);
  // Of the first sample bytes 5 and 6: it ends before them, the other goes on if it has none such.
  request.stop = {whole.samples[0].text.substr(5, 2)};
  const GenerationResult cut = generate(config, request);
  const std::size_t at = whole.samples[0].text.find(request.stop[0]);
  EXPECT_EQ(cut.samples[0].text, whole.samples[0].text.substr(0, at));
  EXPECT_EQ(cut.samples[0].finish, Finish::stop);
  EXPECT_EQ(cut.samples[0].tokens, static_cast<std::int64_t>(at) + 2);
  const std::size_t in_other = whole.samples[1].text.find(request.stop[0]);
  EXPECT_EQ(cut.samples[1].text, whole.samples[1].text.substr(0, in_other));
}

// A decoder as Llama's leaves out the space with which a text begins: that of the prompt, not of what follows it. The
// only token is a space, since padding is never sampled.
TEST(Generation, KeepsTheSpaceBehindThePrompt) {
  const TemporaryFolder folder;
  const std::string space = "\u2581";
  write_file(folder / "tok.json",
             nlohmann::json{{"version", "1.0"},
                            {"added_tokens", nlohmann::json::array()},
                            {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}}},
                            {"pre_tokenizer", nullptr},
                            {"post_processor", nullptr},
                            {"decoder",
                             {{"type", "Sequence"},
                              {"decoders",
                               {{{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}},
                                {{"type", "Fuse"}},
                                {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
                            {"model",
                             {{"type", "BPE"},
                              {"vocab", {{space, 0}, {"x", 1}, {space + "x", 2}}},
                              {"merges", nlohmann::json::array({space + " x"})}}}}
                 .dump());
  Config config = byte_config({.layers = "d"});
  config.data.tokenizer = (folder / "tok.json").string();
  config.data.padded_vocab = true;
  const GenerationResult made = generate(config, {.prompt = "x", .max_tokens = 1, .samples = 64});
  std::set<std::string> texts;
  for (const GeneratedSample& sample : made.samples) texts.insert(sample.text);
  EXPECT_EQ(texts, (std::set<std::string>{" ", "x", " x"}));
}

// The last token is never read.
TEST(Generation, AsksForACacheOfTheLengthThatIsNeeded) {
  for (std::int64_t max_tokens : {1, 5, 15, 40}) {
    std::set<std::int64_t> lengths;
    const auto noted = [&lengths](LayerKernels& kernels) {
      kernels.attention.cached = [&lengths](KernelContext& context, const HeadShape& heads, std::int64_t position,
                                            ConstTensorView q, ConstTensorView cache, TensorView out) {
        lengths.insert(heads.sequence_length);
        cpu_layer_kernels().attention.cached(context, heads, position, q, cache, out);
      };
    };
    generate(byte_config({.layers = "d*3"}),
             {.prompt = "thread", .max_tokens = max_tokens, .samples = 2, .sampling = {.temperature = 0.0}}, {}, {},
             faulty(noted));
    EXPECT_EQ(lengths, std::set<std::int64_t>{6 + max_tokens - 1});
  }
}

// The caches are there. Beside them are one segment of one pass and the tensors that it takes and gives at its borders.
// These are at most three of the prompt's 6 tokens, 20 columns wide.
TEST(Generation, HoldsACacheOfTheLengthThatIsAsked) {
  const Config config = for_generation(byte_config({.layers = "d*3"}));
  const Mesh mesh(config.parallelism);
  std::set<std::int64_t> of_segments;
  for (std::int64_t capacity : {6, 10, 20, 45}) {
    run_ranks(config, backend_of(config), [&](const RankContext& context) {
      GenerationRun run(config, mesh, sequences, capacity, {}, context);
      run.run().ledger().reset_peak();
      std::int64_t planned = 0;
      const auto feed = [&](const std::vector<std::int32_t>& tokens, std::int64_t of) {
        run.feed(tokens, of);
        planned = std::max(planned, transient_peak(run.run().plan().program, 0).buckets[Bucket::activations]);
      };
      feed({'t', 'h', 'r', 'e', 'a', 'd'}, 1);
      run.share_first_sequence();
      while (run.position() < capacity) feed({'s', 'e'}, sequences);
      // 3 blocks, 2 samples, keys and values of 4 heads of 6 columns, 4 bytes.
      const std::int64_t caches = capacity * 3 * 2 * 2 * 4 * 6 * 4;
      const std::int64_t measured = run.run().ledger().at_peak()[Bucket::activations];
      EXPECT_GE(measured, caches) << capacity;
      EXPECT_LE(measured, caches + planned + 3 * 6 * 20 * 4) << capacity;
      of_segments.insert(planned);
    });
  }
  EXPECT_EQ(of_segments.size(), 1u);
  EXPECT_GT(*of_segments.begin(), 0);
}

std::string generation_refusal(const Config& config, const GenerationRequest& request) {
  try {
    generate(config, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(Generation, RefusesEverythingThatMakesNoSenseAtOnce) {
  Config config = byte_config({.layers = "d"});
  const std::string all = generation_refusal(config, {.prompt = "",
                                                      .max_tokens = 0,
                                                      .samples = 0,
                                                      .sampling = {.temperature = -1.0, .top_k = 0, .top_p = 0.0},
                                                      .stop = {""}});
  for (const char* part :
       {"the prompt is empty", "max-tokens 0", "samples 0", "temperature -1", "top-k 0", "top-p 0", "empty stop"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " in " << all;
  }
  const std::int64_t many = std::numeric_limits<std::int64_t>::max();
  const std::string most = generation_refusal(config, {.prompt = "a", .max_tokens = many, .samples = many});
  EXPECT_NE(most.find("max-tokens 9223372036854775807 is above 2147483647"), std::string::npos) << most;
  EXPECT_NE(most.find("samples 9223372036854775807 is above"), std::string::npos) << most;
  config.model.vocab_size = 259;
  config.data.padded_vocab = false;
  EXPECT_NE(generation_refusal(config, {.prompt = "a"}).find("vocab_size 259 does not match"), std::string::npos);
  config = byte_config({.layers = "d", .degrees = {.context = 2}});
  const std::string context = generation_refusal(config, {.prompt = "a"});
  EXPECT_NE(context.find("--parallelism.context=1"), std::string::npos) << context;
}

}  // namespace
}  // namespace weft
