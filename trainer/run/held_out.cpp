#include "trainer/run/held_out.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "layers/context_parallel.h"
#include "trainer/rank/forward_plan.h"

namespace weft {
namespace {

// Bytes that tokens add to a text. Tokens that stand around a text, as its end, are none of it.
class TokenBytes {
 public:
  explicit TokenBytes(const Tokenizer& tokenizer) : tokenizer_(tokenizer), marks_(tokenizer.frame().before) {
    const std::vector<std::int32_t> after = tokenizer.frame().after;
    marks_.insert(marks_.end(), after.begin(), after.end());
    if (const auto end = tokenizer.end_of_text()) marks_.push_back(*end);
  }

  std::int64_t of(std::int32_t token, std::int32_t before) {
    if (is_mark(token)) return 0;
    const auto [known, is_new] = known_.try_emplace(token);
    if (is_new) {
      // Some decoders leave out the space with which a text begins: what a token adds behind others is what a second
      // one adds.
      const std::int32_t twice[] = {token, token};
      known->second.first = std::ssize(tokenizer_.decode({&token, 1}));
      known->second.behind = std::ssize(tokenizer_.decode(twice)) - known->second.first;
    }
    return is_mark(before) ? known->second.first : known->second.behind;
  }

 private:
  struct Bytes {
    std::int64_t first = 0, behind = 0;  // of a text, and behind other tokens
  };
  bool is_mark(std::int32_t token) const { return std::ranges::find(marks_, token) != marks_.end(); }

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> marks_;
  std::map<std::int32_t, Bytes> known_;
};

// Of the text of all predicted tokens.
std::int64_t text_bytes(const TextWindows& windows, std::int64_t length, const TextParts& parts,
                        const TextVocabulary& vocabulary) {
  if (vocabulary.tokenizer == nullptr) return 0;
  if (vocabulary.name == "byte") return windows.tokens();
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(parts.count() * length));
  const SequenceText text = parts_of(numbers, parts);
  TokenBytes bytes_of_token(*vocabulary.tokenizer);
  std::int64_t bytes = 0;
  for (std::int64_t window = 0; window < windows.count(); ++window) {
    windows.read(window, text);
    for (std::size_t i = 0; i < text.targets.size(); ++i) {
      if (text.targets[i] < 0 || text.targets[i] >= vocabulary.text_tokens()) continue;
      bytes += bytes_of_token.of(text.targets[i], text.tokens[i]);
    }
  }
  return bytes;
}

TextVocabulary fitting_vocabulary(const Config& config) {
  TextVocabulary vocabulary = open_vocabulary(config);
  require_fit(config, vocabulary);
  return vocabulary;
}

}  // namespace

HeldOutWindows::HeldOutWindows(const Config& config, const std::vector<std::string>& files, std::int64_t most,
                               std::string_view asked)
    : HeldOutWindows(config, most, fitting_vocabulary(config), [&](const TextVocabulary& vocabulary) {
        return TextWindows(files, config.training.sequence_length, vocabulary, config.data.documents, asked);
      }) {}

HeldOutWindows::HeldOutWindows(const Config& config, std::int64_t most)
    : HeldOutWindows(config, most, fitting_vocabulary(config), [&](const TextVocabulary& vocabulary) {
        return TextWindows(config.data, config.training.sequence_length, vocabulary);
      }) {}

HeldOutWindows::HeldOutWindows(const Config& config, std::int64_t most, const TextVocabulary& vocabulary,
                               const std::function<TextWindows(const TextVocabulary&)>& open)
    : windows_(open(vocabulary)), config_(config) {
  windows_.keep(most);
  targets_ = windows_.tokens();
  bytes_ = text_bytes(windows_, config.training.sequence_length, config.held_out_parts(), vocabulary);
  const std::int64_t of_microbatch = config.training.microbatch_size * config.parallelism.data();
  const std::int64_t needed = (windows_.count() + of_microbatch - 1) / of_microbatch;
  config_.training.global_batch_size = std::min(config.microbatches(), needed) * of_microbatch;
}

std::int64_t HeldOutWindows::passes() const {
  const std::int64_t batch = config_.training.global_batch_size;
  return (windows_.count() + batch - 1) / batch;
}

HeldOutLoss HeldOutWindows::loss(double loss_sum, double seconds) const {
  return {.loss = loss_sum / static_cast<double>(targets_),
          .tokens = targets_,
          .windows = windows_.count(),
          .bytes = bytes_,
          .seconds = seconds};
}

std::optional<HeldOutWindows> validation_windows(const Config& config) {
  const ValidationConfig& validation = config.validation;
  const std::int64_t most = validation.batches * config.training.global_batch_size;
  if (validation.split) return HeldOutWindows(without_training(config), most);
  if (validation.data.empty()) return std::nullopt;
  return HeldOutWindows(without_training(config), validation.data, most, "validation.data");
}

bool validates_after(const Config& config, std::int64_t step) {
  const std::int64_t interval = config.validation.interval;
  return step == config.run.steps || (interval > 0 && step % interval == 0);
}

std::int64_t HeldOutReader::numbers(const Config& config) {
  return config.held_out_parts().count() * config.rank_tokens();
}

HeldOutReader::HeldOutReader(const HeldOutWindows& text, const Mesh& mesh, int rank, TensorView on_device,
                             Stream& compute)
    : text_(text),
      data_index_(mesh.data_index(rank)),
      runs_(context_runs(text.config().training.sequence_length, text.config().parallelism.context,
                         mesh.coordinates(rank).cp)),
      compute_(compute),
      on_device_(on_device.rows_from(0, numbers(text.config()))),
      staging_(compute.device(), DType::int32, on_device_.rows()) {}

StepBatch HeldOutReader::read(std::int64_t pass) {
  const Config& config = text_.config();
  const BatchPlan plan{config.microbatches(), config.parallelism.data(), config.training.microbatch_size};
  staging_.finish();
  plan.read(text_.windows(), pass * plan.sequences(), data_index_, config.training.sequence_length, runs_,
            config.held_out_parts(), staging_.as<std::int32_t>());
  staging_.upload(compute_, on_device_);
  StepBatch batch = parts_of(ConstTensorView(on_device_), config.held_out_parts());
  batch.number = pass * plan.microbatches * plan.data_ranks;
  return batch;
}

}  // namespace weft
