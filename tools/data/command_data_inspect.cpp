// `weft data inspect`: what a file of tokens holds. `weft data samples`: file and positions of the tokens that samples
// of a run read, to find the documents of a step or to compare an order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "trainer/data/data.h"
#include "trainer/data/token_facts.h"
#include "trainer/data/token_file.h"

namespace weft {
namespace {

struct InspectArguments {
  std::string file, tokenizer;
  std::optional<std::int64_t> document;  // to show
  std::int64_t tokens = 64;              // of it
  bool check = false, json = false;
};

struct DocumentSample {
  std::int64_t begin = 0, length = 0;
  std::vector<std::int32_t> ids = {};  // the first of them
};

DocumentSample sample_of(const TokenFile& file, std::int64_t document, std::int64_t tokens) {
  if (document < 0 || document >= file.documents()) {
    fail_request("document {} is none of 0 to {}", document, file.documents() - 1);
  }
  DocumentSample sample{.begin = file.document_begin(document)};
  sample.length = file.document_begin(document + 1) - sample.begin;
  if (sample.length < 0) {
    fail_request("\"{}\": document {} begins at token {} and ends at {}; the index is damaged", file.name(), document,
                 sample.begin, sample.begin + sample.length);
  }
  sample.ids.resize(static_cast<std::size_t>(std::min(sample.length, tokens)));
  file.read(sample.begin, sample.ids);
  return sample;
}

// Those whose loss counts: a pass over the file's losses.
std::int64_t counted_tokens(const TokenFile& file) {
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  std::vector<std::uint8_t> losses;
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < file.tokens(); first += piece) {
    losses.resize(static_cast<std::size_t>(std::min(piece, file.tokens() - first)));
    file.read_losses(first, losses);
    counted += std::ranges::count_if(losses, [](std::uint8_t loss) { return loss != 0; });
  }
  return counted;
}

// The tokenizer that was asked for, otherwise that of the dataset; it must have made the ids.
std::shared_ptr<const Tokenizer> tokenizer_of(const InspectArguments& arguments, const TokenFile& file,
                                              const std::optional<TokenFacts>& facts) {
  std::string name = arguments.tokenizer;
  if (name.empty() && facts) name = facts->tokenizer;
  if (name.empty() && file.format() == TokenFormat::text) name = "byte";
  if (name.empty()) return nullptr;
  auto tokenizer = open_text_tokenizer(name);
  if (facts && facts->tokenizer_hash != tokenizer->content_hash()) {
    fail_request("\"{}\" is not the tokenizer of {}, which was \"{}\" of {} tokens; name it with --tokenizer", name,
                 arguments.file, facts->tokenizer, facts->vocab_size);
  }
  return tokenizer;
}

void inspect_tokens(const InspectArguments& arguments) {
  const std::optional<TokenFacts> facts = find_token_facts(arguments.file);
  const TokenFile file(arguments.file, facts ? std::optional(facts->vocab_size) : std::nullopt);
  nlohmann::ordered_json json = {{"file", arguments.file},        {"format", name_of(file.format())},
                                 {"type", name_of(file.type())},  {"tokens", file.tokens()},
                                 {"documents", file.documents()}, {"contents", file.content()}};
  std::string text = fmt::format("{}: {}, {} tokens of {}, {} documents\ncontents   {}\n", arguments.file,
                                 name_of(file.format()), grouped_digits(file.tokens()), name_of(file.type()),
                                 grouped_digits(file.documents()), file.content());
  if (facts) {
    json["tokenizer"] = {
        {"name", facts->tokenizer}, {"hash", facts->tokenizer_hash}, {"vocab_size", facts->vocab_size}};
    text +=
        fmt::format("tokenizer  {}, {} tokens, hash {}\n", facts->tokenizer, facts->vocab_size, facts->tokenizer_hash);
  }
  if (file.has_losses()) {
    const std::int64_t counted = counted_tokens(file);
    json["counted_tokens"] = counted;
    text += fmt::format("losses     count for {} tokens, {:.1f} %\n", grouped_digits(counted),
                        100.0 * static_cast<double>(counted) / static_cast<double>(file.tokens()));
  }
  if (arguments.check) {
    const std::int32_t largest = file.check();
    json["largest_id"] = largest;
    text += fmt::format("checked    index and ids are sound; the largest id is {}\n", largest);
  }
  if (arguments.document) {
    const DocumentSample sample = sample_of(file, *arguments.document, arguments.tokens);
    json["sample"] = {
        {"document", *arguments.document}, {"begin", sample.begin}, {"tokens", sample.length}, {"ids", sample.ids}};
    text += fmt::format("document   {}: {} tokens from {} on, the first {}:\n", *arguments.document,
                        grouped_digits(sample.length), grouped_digits(sample.begin), sample.ids.size());
    if (const auto tokenizer = tokenizer_of(arguments, file, facts)) {
      const std::string decoded = tokenizer->decode(sample.ids);
      json["sample"]["text"] = decoded;
      text += decoded + "\n";
    } else {
      text += fmt::format("{}\n", fmt::join(sample.ids, " "));
    }
  }
  if (arguments.json) {
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{}", text);
  }
}

struct SamplesArguments {
  std::string config;
  std::int64_t first = 0;
  std::optional<std::int64_t> count;
  bool json = false;
};

void print_samples(const CLI::App& command, const SamplesArguments& arguments) {
  const Config config = read_config_given_to(command, arguments.config).config;
  if (config.data.train.empty()) fail_request("data.train names no file; give at least one");
  const std::int64_t batch = config.training.global_batch_size, all = config.run.steps * batch;
  if (arguments.first >= all) {
    fail_request("the run has the samples 0 to {}; --first {} is none of them", all - 1, arguments.first);
  }
  const std::int64_t count = arguments.count.value_or(std::min(batch, all - arguments.first));
  if (count > all - arguments.first) {
    fail_request("the run has the samples 0 to {}; --first {} --count {} asks for others", all - 1, arguments.first,
                 count);
  }
  const TokenDataset data = training_data(config);
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (std::int64_t sample = arguments.first; sample < arguments.first + count; ++sample) {
    nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
    for (const TokenPiece& piece : data.order().pieces(sample)) {
      const std::string& path = config.data.train[static_cast<std::size_t>(piece.file)].path;
      pieces.push_back({{"file", path}, {"first", piece.first}, {"count", piece.count}});
      if (arguments.json) continue;
      fmt::print("sample {}: tokens {} to {} of {}\n", sample, piece.first, piece.first + piece.count - 1, path);
    }
    samples.push_back({{"sample", sample}, {"pieces", std::move(pieces)}});
  }
  if (arguments.json) fmt::print("{}\n", samples.dump(2));
}

}  // namespace

void add_data_inspect_command(CLI::App& data) {
  const auto [command, arguments] =
      add_command<InspectArguments>(data, "inspect", "what a file of tokens holds", inspect_tokens);
  command.add_option("FILE", arguments.file, "any file that data.train takes")->required();
  command.add_option("--sample", arguments.document, "show the beginning of document N as text");
  command.add_option("--length", arguments.tokens, "tokens to show")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command.add_option("--tokenizer", arguments.tokenizer, "to show texts with; that of the dataset unless given");
  command.add_flag("--check", arguments.check, "read the whole index and all ids, and refuse the first fault");
  command.add_flag("--json", arguments.json, "print one JSON document");
}

void add_data_samples_command(CLI::App& data) {
  const auto [command, arguments] = add_command<SamplesArguments>(
      data, "samples", "the tokens of data.train that samples of a run read", print_samples);
  add_config_arguments(command, arguments.config)->required();
  command.add_option("--first", arguments.first, "the first sample; a step reads training.global_batch_size of them")
      ->capture_default_str()
      ->check(not_negative());
  command.add_option("--count", arguments.count, "samples to show; a batch unless given")->check(positive());
  command.add_flag("--json", arguments.json, "print one JSON document");
}

}  // namespace weft
