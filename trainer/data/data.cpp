#include "trainer/data/data.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/random.h"
#include "trainer/data/token_facts.h"

namespace weft {
namespace {

// Why the ids of a file are not those of the run's tokenizer; empty if they may be.
std::string tokenizer_fault(const TokenFile& file, const TextVocabulary& vocabulary) {
  const bool bytes = vocabulary.name == "byte";
  if (file.format() == TokenFormat::text && vocabulary.name == "none") {
    return "text, and data.tokenizer \"none\" trains on ids alone; name a tokenizer, and write tokens with weft data "
           "tokenize";
  }
  if (file.format() == TokenFormat::text && !bytes) {
    return fmt::format(
        "text, but the tokens of this run are those of data.tokenizer \"{}\"; write them to a file first: weft data "
        "tokenize {} --tokenizer {} --output PREFIX",
        vocabulary.name, shell_text({file.name()}), shell_text({vocabulary.name}));
  }
  if (vocabulary.tokenizer == nullptr || file.format() == TokenFormat::text) return {};
  if (const auto facts = find_token_facts(file.name())) {
    if (facts->tokenizer_hash == vocabulary.tokenizer->content_hash()) return {};
    return fmt::format("its tokens are those of \"{}\" ({} tokens), not of data.tokenizer \"{}\" ({} tokens)",
                       facts->tokenizer, facts->vocab_size, vocabulary.name, vocabulary.tokenizer->vocab_size());
  }
  if (bytes && file.type() != TokenType::uint8) {
    return fmt::format(
        "{} ids, which are no bytes; name their tokenizer in data.tokenizer, or \"none\" to train on ids alone",
        name_of(file.type()));
  }
  return {};
}

// Whether any target of a part of a file counts. Most files show one in the first piece.
bool has_target(const TokenFile& file, const Range& range, Documents documents) {
  const bool masked = documents != Documents::join;
  if (!file.has_losses() && !masked) return true;
  constexpr std::int64_t piece = std::int64_t{1} << 16;
  for (std::int64_t first = 0; first + 1 < range.count; first += piece) {
    // Pieces share a token, which is no target as the first.
    const std::int64_t count = std::min(piece + 1, range.count - first);
    if (counted_targets(file, range.begin + first, count, masked) > 0) return true;
  }
  return false;
}

// Throws if a run has nothing to learn from: no target in the parts for training of the files that have a weight.
void require_target(const DataRequest& request, const std::vector<TokenFile>& files) {
  const std::vector<Range> ranges = split_files(files, request.split, 0, /*sequence_length=*/0);
  for (std::size_t f = 0; f < files.size(); ++f) {
    if (request.sources[f].weight != 0.0 && has_target(files[f], ranges[f], request.documents)) return;
  }
  fail_request("data.train: no token of \"{}\"{}{} counts: {}", files.front().name(),
               files.size() == 1 ? "" : fmt::format(" and {} other files", files.size() - 1),
               request.split.empty() ? "" : fmt::format(" that data.split \"{}\" leaves for training", request.split),
               files.front().has_losses() ? "their losses count for nothing that follows another token of its document"
                                          : "no document has two tokens");
}

// Throws the faults of all files at once.
std::vector<TokenFile> opened(const DataRequest& request, const TextVocabulary& vocabulary) {
  const std::vector<DataSource>& sources = request.sources;
  const std::int64_t sequence_length = request.sequence_length;
  require(sequence_length >= 1 && vocabulary.size >= 1, "a dataset has windows and a vocabulary");
  if (sources.empty()) fail_request("data.train names no file; give at least one");
  std::string faults;
  for (const DataSource& source : sources) {
    const std::string fault =
        token_file_fault(source.path, vocabulary, least_length(request.documents, sequence_length),
                         request.documents != Documents::join || !request.split.empty());
    if (!fault.empty()) faults += fmt::format("{}data.train: {}", faults.empty() ? "" : "\n", fault);
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
  std::vector<TokenFile> files;
  for (const DataSource& source : sources) files.emplace_back(source.path, vocabulary.size);
  return files;
}

std::unique_ptr<const SampleOrder> make_order(const DataRequest& request, const std::vector<TokenFile>& files) {
  const OrderRequest order{request.sequence_length, request.samples, request.seed, OrderCache(request.index_cache)};
  std::vector<double> weights;
  const auto has_weight = [](const DataSource& source) { return source.weight.has_value(); };
  if (std::ranges::any_of(request.sources, has_weight)) {
    for (const DataSource& source : request.sources) weights.push_back(source.weight.value_or(1.0));
  }
  if (request.order == DataOrder::megatron) return make_megatron_order(files, request.split, weights, order);
  const std::vector<Range> ranges =
      split_files(files, request.split, 0, least_length(request.documents, request.sequence_length));
  return make_shuffled_order(files, ranges, request.documents == Documents::pack, weights, order);
}

}  // namespace

std::int64_t least_length(Documents documents, std::int64_t sequence_length) {
  return documents == Documents::pack ? 1 : sequence_length;
}

std::string token_file_fault(const std::string& name, const TextVocabulary& vocabulary, std::int64_t sequence_length,
                             bool boundaries_count) {
  try {
    const TokenFile file(name, vocabulary.size);
    if (const std::string fault = tokenizer_fault(file, vocabulary); !fault.empty()) {
      return fmt::format("\"{}\": {}", name, fault);
    }
    if (boundaries_count) file.index()->check();
    // Facts say that all ids lie below the size of their tokenizer.
    const auto facts = file.format() == TokenFormat::text ? std::nullopt : find_token_facts(name);
    if (!facts || facts->vocab_size > vocabulary.size) file.check_sample();
    if (file.tokens() < 2) {
      return fmt::format("\"{}\": a single token leaves nothing to predict: only what follows another is", name);
    }
    if (file.tokens() > sequence_length) return {};
    return fmt::format("\"{}\": {} {} are fewer than one window of sequence_length + 1 = {}", name, file.tokens(),
                       file.format() == TokenFormat::text ? "bytes" : "tokens", sequence_length + 1);
  } catch (const Error& error) {
    return error.what();
  }
}

std::string unmarked_documents(const DataConfig& data) {
  if (data.documents == Documents::join) return {};
  std::vector<std::string> names;
  for (const DataSource& source : data.train) {
    refusal_of([&] {
      const TokenFormat format = TokenFile(source.path).format();
      if (format == TokenFormat::megatron || format == TokenFormat::datatrove) return;
      names.push_back(fmt::format("\"{}\" ({})", source.path, name_of(format)));
    });
  }
  if (names.empty()) return {};
  return fmt::format("data.documents is \"{}\", but {} {} no ends of documents, and count{} as one document",
                     name_of(data.documents), fmt::join(names, ", "), names.size() == 1 ? "has" : "have",
                     names.size() == 1 ? "s" : "");
}

std::string untold_tokenizer(const DataConfig& data) {
  if (data.tokenizer == "none") return {};
  std::vector<std::string> names;
  for (const DataSource& source : data.train) {
    refusal_of([&] {
      const bool told = TokenFile(source.path).format() == TokenFormat::text || find_token_facts(source.path);
      if (!told) names.push_back(fmt::format("\"{}\"", source.path));
    });
  }
  if (names.empty()) return {};
  return fmt::format("{} {} not say which tokenizer made {} tokens; data.tokenizer is taken to be the one",
                     fmt::join(names, ", "), names.size() == 1 ? "does" : "do", names.size() == 1 ? "its" : "their");
}

std::string content_of(const DataSource& source, const TokenFile& file) {
  return file.content() + (source.weight ? fmt::format(", weight {}", *source.weight) : "");
}

TokenDataset::TokenDataset(const DataRequest& request, const TextVocabulary& vocabulary)
    : vocabulary_(vocabulary),
      files_(opened(request, vocabulary)),
      sources_(request.sources),
      order_(make_order(request, files_)),
      sequence_length_(request.sequence_length) {
  require_target(request, files_);
}

std::int64_t TokenDataset::tokens() const {
  std::int64_t tokens = 0;
  for (const TokenFile& file : files_) tokens += file.tokens();
  return tokens;
}

std::vector<std::string> TokenDataset::contents() const {
  std::vector<std::string> all;
  for (std::size_t f = 0; f < files_.size(); ++f) all.push_back(content_of(sources_[f], files_[f]));
  return all;
}

TokenDataset training_data(const Config& config) {
  const DataConfig& data = config.data;
  return TokenDataset({.sources = data.train,
                       .order = data.order,
                       .documents = data.documents,
                       .split = data.split,
                       .sequence_length = config.training.sequence_length,
                       .seed = config.run.seed,
                       .samples = config.run.steps * config.training.global_batch_size,
                       .index_cache = data.index_cache},
                      open_vocabulary(config));
}

void write_noise_keys(std::uint64_t seed, std::int64_t sample, std::span<std::int32_t> keys) {
  const RandomStream noise(seed, "noise of tokens");
  const auto first = static_cast<std::uint64_t>(sample) * keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int32_t>(noise.bits(first + i) >> 32);
}

std::string reading_text(const Config& config, const TokenDataset& data) {
  const std::int64_t steps = config.run.steps, sequences = config.training.global_batch_size;
  const std::int64_t tokens = sequences * config.training.sequence_length;
  const std::string remark = data.order().remark();
  std::vector<std::string> passes;
  for (const double each : data.order().passes(steps * sequences)) passes.push_back(fmt::format("{:.3g}", each));
  const std::string_view part = config.data.split.empty() ? "" : " over the part to train on";
  return fmt::format("{} tokens in {} {}; {} steps x {} tokens = {} tokens: {} passes{}{}{}", data.tokens(),
                     data.files(), data.files() == 1 ? "file" : "files", steps, tokens,
                     static_cast<__int128>(steps) * tokens, fmt::join(passes, ", "), part, remark.empty() ? "" : "; ",
                     remark);
}

void TokenDataset::read(std::int64_t sample, const SequenceText& to) const {
  require(sample >= 0 && std::ssize(to.tokens) == sequence_length_, "a sample is read as one sequence");
  read_sequence(files_, order_->pieces(sample), to);
}

}  // namespace weft
