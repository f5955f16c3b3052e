#include "trainer/inference/generation.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "layers/kernels/float8.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/phase_clock.h"
#include "parallel/runtime/staging.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/configured_schedule.h"

namespace weft {
namespace {

// The plan of a pass of this shape, on the rank with these coordinates. `config` is from for_generation().
ForwardPlan plan_generation(const Config& config, const Mesh& mesh, const Coordinates& at,
                            const GenerationShape& shape) {
  SegmentSetup setup = segment_setup(config, at);
  // Rows are padded to what the tensor group divides, and to what products in float8_blocks take.
  const bool in_blocks = setup.format_of(Family::dense) == ProductFormat::float8_blocks;
  const std::int64_t unit = std::lcm<std::int64_t>(setup.tensor, in_blocks ? float8_row_multiple : 1);
  setup.microbatch_tokens = (shape.rows() + unit - 1) / unit * unit;
  // Only mixers depend on sequences, and they take them from `shape`.
  setup.sequence_length = setup.microbatch_tokens;

  PlannedInputs inputs = plan_inputs(config, at);
  inputs.rotary.heads.sequence_length = shape.capacity;
  inputs.positions = {{0, shape.capacity}};
  inputs.microbatch_tokens = setup.microbatch_tokens;
  inputs.boundary.rows = setup.slice_tokens();

  SegmentMakers makers;
  makers.attention = [&shape](const SegmentSetup& of, int block) { return make_cached_attention(of, shape, block); };
  makers.state_space = [&shape](const SegmentSetup& of, int block) {
    return make_continued_state_space(of, shape, block);
  };
  makers.head = [&shape](const SegmentSetup& of) { return make_logits_head(of, shape); };
  return assemble_forward(config, std::move(inputs), at.pp, 1, [&, layout = stage_layout(config)](int stage) {
    const StageBlocks& blocks = layout[stage];
    return plan_stage(config, mesh, stage, layout, make_segments(config, setup, stage, blocks, makers));
  });
}

// A sample during generation. Every rank keeps its own copy; all ranks get the same tokens, so all end it alike.
class GrowingSample {
 public:
  GrowingSample(const GenerationRequest& request, const Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt)
      : request_(request),
        tokenizer_(tokenizer),
        stop_(request.stop),
        ids_(prompt),
        decoded_(tokenizer.decode(prompt).size()) {}

  bool ended() const { return made_.finish == Finish::stop || made_.tokens == request_.max_tokens; }
  const GeneratedSample& made() const { return made_; }

  // Adds the next token, unless the sample has ended. Returns the text that is certain since then.
  std::string add(std::int32_t token) {
    if (ended()) return {};
    ++made_.tokens;
    const bool is_end = token == tokenizer_.end_of_text();
    std::string text = is_end ? "" : stop_.feed(next_text(token));
    if (is_end || stop_.stopped()) made_.finish = Finish::stop;
    if (ended() && !stop_.stopped()) text += stop_.finish();
    made_.text += text;
    return text;
  }

 private:
  // The bytes that a token adds to the text: what a token stands for can depend on those before it.
  std::string next_text(std::int32_t token) {
    ids_.push_back(token);
    const std::string text = tokenizer_.decode(ids_);
    return text.substr(std::min(text.size(), std::exchange(decoded_, text.size())));
  }

  const GenerationRequest& request_;
  const Tokenizer& tokenizer_;
  StopText stop_;
  std::vector<std::int32_t> ids_;  // with the prompt's: some decoders drop a text's first space
  std::size_t decoded_;            // bytes of the text of ids_
  GeneratedSample made_;
};

// The part of one rank. Returns its copy of the samples, with times measured on this rank.
GenerationResult generate_on_rank(GenerationRun& run, const Config& config, const GenerationRequest& request,
                                  const TextVocabulary& text, std::vector<std::int32_t> tokens, const OnText& on_text) {
  const auto sequences = static_cast<std::size_t>(request.samples);
  const auto vocabulary = static_cast<std::size_t>(config.model.vocab_size);
  const int rank = run.run().world().rank();
  std::vector<GrowingSample> samples(sequences, GrowingSample(request, *text.tokenizer, tokens));
  GenerationResult result;
  result.prompt_tokens = std::ssize(tokens);
  auto begin = std::chrono::steady_clock::now();
  // All samples begin with the prompt: it is computed for one sequence and copied.
  std::vector<float> logits = run.feed(tokens, 1);
  run.share_first_sequence();
  tokens.assign(sequences, 0);
  for (bool first = true;; first = false) {
    if (rank == run.sampler()) {
      for (std::size_t s = 0; s < sequences; ++s) {
        // Tokens that pad the vocabulary have no text and are never sampled.
        const std::span row(logits.data() + (first ? 0 : s * vocabulary), static_cast<std::size_t>(text.text_tokens()));
        tokens[s] = sample_token(row, request.sampling, static_cast<std::int64_t>(s), run.position());
      }
    }
    run.broadcast(tokens);
    if (first) {
      result.prompt_seconds = seconds_since(begin);
      begin = std::chrono::steady_clock::now();
    }
    for (std::size_t s = 0; s < sequences; ++s) {
      const std::string added = samples[s].add(tokens[s]);
      if (on_text && !added.empty()) on_text(static_cast<std::int64_t>(s), added);
    }
    if (std::ranges::all_of(samples, &GrowingSample::ended)) break;
    logits = run.feed(tokens, request.samples);
  }
  result.seconds = seconds_since(begin);
  for (const GrowingSample& sample : samples) result.samples.push_back(sample.made());
  return result;
}

}  // namespace

Config for_generation(Config config) {
  if (config.parallelism.context > 1) {
    fail_request(
        "parallelism.context {} cuts every sequence, but text is generated from whole ones: give "
        "--parallelism.context=1, and the ranks to another axis, as with --parallelism.data_shard={}",
        config.parallelism.context, config.parallelism.data_shard * config.parallelism.context);
  }
  config = for_inference(std::move(config));
  // The choices that an expert drops, or is dealt, depend on the tokens beside: other samples, and the prompt or a
  // single position.
  config.model.moe.capacity_factor = 0.0;
  config.model.moe.force_balance = false;
  config.training.global_batch_size = config.training.microbatch_size * config.parallelism.data();
  return config;
}

GenerationRun::GenerationRun(const Config& config, const Mesh& mesh, std::int64_t sequences, std::int64_t capacity,
                             const FillWeights& fill_weights, const RankContext& context)
    : config_(config),
      mesh_(mesh),
      at_(mesh.coordinates(context.world.rank())),
      sequences_(sequences),
      capacity_(capacity),
      sampler_(mesh.rank_at(stage_ranks(config).back(), 0, 0, 0, 0)) {
  require(sequences >= 1 && capacity >= 1, "there is something to generate");
  shape_ = {.capacity = capacity};
  run_ = std::make_unique<ForwardRun>(config, mesh, plan_generation(config, mesh, at_, shape_), fill_weights, context);
  const std::int64_t experts = config.model.moe.num_experts;
  report_ =
      run_->ledger().allocate(Bucket::workspace, DType::float64,
                              StepReport::size(static_cast<std::int64_t>(config.model.blocks.size()), experts), 1);
  fill(run_->kernels().stream, report_, 0.0f);
  const SegmentSetup setup = segment_setup(config, at_);
  const std::vector<StageBlocks> layout = stage_layout(config);
  for (const int stage : stages_of_rank(config, at_.pp)) {
    const StageBlocks& blocks = layout[stage];
    for (int block = blocks.first; block < blocks.first + blocks.count; ++block) {
      for (const auto& [dtype, rows, columns] : cache_sizes(setup, block, sequences, capacity)) {
        state_.caches[block].push_back(run_->ledger().allocate(Bucket::activations, dtype, rows, columns));
      }
    }
  }
}

void GenerationRun::take_shape(const GenerationShape& shape) {
  if (shape == shape_) return;
  shape_ = shape;
  run_->replace(plan_generation(config_, mesh_, at_, shape));
}

std::vector<float> GenerationRun::feed(std::span<const std::int32_t> tokens, std::int64_t sequences,
                                       std::int64_t wanted) {
  require(sequences == sequences_ || sequences == 1, "all sequences go on, or the first alone");
  const auto count = static_cast<std::int64_t>(tokens.size()) / sequences;
  require(count >= 1 && count * sequences == static_cast<std::int64_t>(tokens.size()),
          "every sequence has equally many new tokens");
  take_shape({sequences, count, capacity_, wanted});
  Stream& stream = run_->kernels().stream;
  const std::int64_t padded = run_->plan().inputs.microbatch_tokens;
  Staging staging(stream.device(), DType::int32, padded);
  const std::span<std::int32_t> ids = staging.as<std::int32_t>();
  std::ranges::fill(ids, 0);
  std::ranges::copy(tokens, ids.begin());
  Tensor on_device = run_->ledger().allocate(Bucket::workspace, DType::int32, padded, 1);
  staging.upload(stream, on_device);
  // A head that returns logits reads no targets, so the tokens stand in for them.
  run_->pass({on_device, on_device}, StepReport(report_, config_.model.moe.num_experts), &state_);
  state_.position += count;
  if (!state_.logits.allocated()) return {};
  const std::vector<float> parts = read<float>(stream, state_.logits);
  state_.logits.reset();
  return whole_logits(parts, sequences * wanted, config_.model.vocab_size, config_.parallelism.tensor);
}

void GenerationRun::share_first_sequence() {
  for (auto& [block, caches] : state_.caches) {
    const bool grows = config_.model.blocks[block].mixer == Mixer::attention;
    for (Tensor& cache : caches) {
      // Of attention the rows behind the position are not written yet.
      const std::int64_t rows = cache.rows() / sequences_, written = grows ? state_.position : rows;
      const ConstTensorView first = cache.view().rows_from(0, written);
      for (std::int64_t sequence = 1; sequence < sequences_; ++sequence) {
        cast(run_->kernels().stream, first, cache.view().rows_from(sequence * rows, written));
      }
    }
  }
}

void GenerationRun::broadcast(std::span<std::int32_t> tokens) {
  Stream& stream = run_->kernels().stream;
  const auto count = static_cast<std::int64_t>(tokens.size());
  Tensor on_device = run_->ledger().allocate(Bucket::workspace, DType::int32, count, 1);
  write<std::int32_t>(stream, tokens, on_device);
  run_->world().broadcast(on_device, sampler_);
  std::ranges::copy(read<std::int32_t>(stream, on_device), tokens.begin());
}

std::vector<std::int32_t> prompt_tokens(const TextVocabulary& vocabulary, std::string_view prompt) {
  if (vocabulary.tokenizer == nullptr) {
    fail_request("data.tokenizer is \"none\": a prompt needs a tokenizer; give --data.tokenizer=FILE");
  }
  std::vector<std::int32_t> ids = vocabulary.tokenizer->frame().before;
  vocabulary.tokenizer->append(prompt, SpecialTokens::recognised, ids);
  return ids;
}

std::int64_t GenerationResult::tokens() const {
  std::int64_t sum = 0;
  for (const GeneratedSample& sample : samples) sum += sample.tokens;
  return sum;
}

double GenerationResult::tokens_per_second() const {
  // The prompt's pass produced the first token of every sample.
  const std::int64_t behind = tokens() - static_cast<std::int64_t>(samples.size());
  return seconds > 0.0 ? static_cast<double>(behind) / seconds : 0.0;
}

// Of tokens, and of samples.
constexpr std::int64_t most_of_a_request = std::numeric_limits<std::int32_t>::max();

void require_sound(const GenerationRequest& request, const Config& config) {
  std::string faults;
  const auto add = [&faults](const std::string& fault) { faults += (faults.empty() ? "" : "\n") + fault; };
  if (request.prompt.empty()) add("the prompt is empty: the first token follows at least one other");
  for (const auto& [name, number] : {std::pair("max-tokens", request.max_tokens), {"samples", request.samples}}) {
    if (number < 1) add(fmt::format("{} {} makes no text; it is at least 1", name, number));
    if (number > most_of_a_request) add(fmt::format("{} {} is above {}", name, number, most_of_a_request));
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) add("an empty stop text would end every text before it begins");
  }
  const auto add_refusal = [&add](const auto& check) {
    if (const auto refused = refusal_of(check)) add(*refused);
  };
  add_refusal([&] {
    const TextVocabulary vocabulary = open_vocabulary(config);
    require_fit(config, vocabulary);
    if (!request.prompt.empty() && prompt_tokens(vocabulary, request.prompt).empty()) {
      fail_request("the prompt has no token: the tokenizer leaves out all of \"{}\"", request.prompt);
    }
  });
  add_refusal([&] { require_sound(request.sampling); });
  add_refusal([&] { for_generation(config); });
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

GenerationResult generate(const Config& trained, const GenerationRequest& request, const FillWeights& fill_weights,
                          const OnText& on_text, const BackendFactory& make_backend) {
  require_sound(request, trained);
  const Config config = for_generation(trained);
  const Mesh mesh(config.parallelism);
  const int first_rank = first_rank_of_process(config);
  const TextVocabulary text = open_vocabulary(trained);
  const std::vector<std::int32_t> prompt = prompt_tokens(text, request.prompt);
  // The last generated token is not fed to the model.
  const std::int64_t capacity = std::ssize(prompt) + request.max_tokens - 1;
  GenerationResult result;
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankContext& context) {
    GenerationRun run(config, mesh, request.samples, capacity, fill_weights, context);
    const bool tells = context.world.rank() == first_rank;
    GenerationResult own = generate_on_rank(run, config, request, text, prompt, tells ? on_text : OnText());
    if (tells) result = std::move(own);
  });
  return result;
}

}  // namespace weft
