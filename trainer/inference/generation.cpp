#include "trainer/inference/generation.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/phase_clock.h"

namespace weft {
namespace {

// The samples during generation. Every rank keeps its own copy; all ranks get the same tokens, so all end samples
// alike.
class Samples {
 public:
  Samples(const GenerationRequest& request, const Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt)
      : request_(request),
        tokenizer_(tokenizer),
        stops_(static_cast<std::size_t>(request.samples), StopText(request.stop)),
        ids_(stops_.size(), prompt),
        decoded_(stops_.size(), tokenizer.decode(prompt).size()),
        made_(stops_.size()) {}

  // Adds the next token of every sample; tokens of ended samples are ignored. Calls `on_text` with the new text.
  void add(std::span<const std::int32_t> tokens, const OnText& on_text) {
    for (std::size_t s = 0; s < made_.size(); ++s) {
      GeneratedSample& sample = made_[s];
      if (ended(s)) continue;
      ++sample.tokens;
      const bool is_end = tokens[s] == tokenizer_.end_of_text();
      std::string text = is_end ? "" : stops_[s].feed(next_text(s, tokens[s]));
      if (is_end || stops_[s].stopped()) {
        sample.finish = Finish::stop;
      }
      if (is_end || (!stops_[s].stopped() && sample.tokens == request_.max_tokens)) text += stops_[s].finish();
      sample.text += text;
      if (on_text && !text.empty()) on_text(static_cast<std::int64_t>(s), text);
    }
  }

  bool all_ended() const {
    for (std::size_t s = 0; s < made_.size(); ++s) {
      if (!ended(s)) return false;
    }
    return true;
  }
  const std::vector<GeneratedSample>& made() const { return made_; }

 private:
  bool ended(std::size_t s) const { return made_[s].finish == Finish::stop || made_[s].tokens == request_.max_tokens; }
  // The bytes that a token adds to the text of its sample: what a token stands for can depend on those before it.
  std::string next_text(std::size_t s, std::int32_t token) {
    ids_[s].push_back(token);
    std::string text = tokenizer_.decode(ids_[s]);
    std::string added = text.substr(std::min(text.size(), decoded_[s]));
    decoded_[s] = text.size();
    return added;
  }

  const GenerationRequest& request_;
  const Tokenizer& tokenizer_;
  std::vector<StopText> stops_;
  std::vector<std::vector<std::int32_t>> ids_;  // with the prompt's: some decoders drop a text's first space
  std::vector<std::size_t> decoded_;            // bytes of the text of ids_
  std::vector<GeneratedSample> made_;
};

// The part of one rank. Returns its copy of the samples, with times measured on this rank.
GenerationResult generate_on_rank(GenerationRun& run, const Config& config, const GenerationRequest& request,
                                  const TextVocabulary& text, std::vector<std::int32_t> tokens, const OnText& on_text) {
  const auto sequences = static_cast<std::size_t>(request.samples);
  const auto vocabulary = static_cast<std::size_t>(config.model.vocab_size);
  const int rank = run.run().world().rank();
  Samples samples(request, *text.tokenizer, tokens);
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
    samples.add(tokens, on_text);
    if (samples.all_ended()) break;
    logits = run.feed(tokens, request.samples);
  }
  result.seconds = seconds_since(begin);
  result.samples = samples.made();
  return result;
}

}  // namespace

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
  const auto ranks = static_cast<std::size_t>(mesh.world());
  GenerationResult result;
  std::vector<BucketBytes> predicted(ranks), measured(ranks);
  run_ranks(config, make_backend ? make_backend : backend_of(config), [&](const RankContext& context) {
    const auto rank = static_cast<std::size_t>(context.world.rank());
    GenerationRun run(config, mesh, request.samples, capacity, fill_weights, context);
    run.run().ledger().reset_peak();
    const bool tells = context.world.rank() == first_rank;
    GenerationResult own = generate_on_rank(run, config, request, text, prompt, tells ? on_text : OnText());
    predicted[rank] = run.predicted();
    measured[rank] = run.run().ledger().at_peak();
    if (tells) result = std::move(own);
  });
  result.predicted = std::move(predicted);
  result.measured = std::move(measured);
  return result;
}

}  // namespace weft
