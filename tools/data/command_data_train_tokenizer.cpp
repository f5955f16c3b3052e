// `weft data train-tokenizer`: a byte-level BPE of one's own texts.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "trainer/checkpoint/output_file.h"
#include "trainer/data/documents.h"
#include "trainer/tokenizer/bpe_tokenizer.h"
#include "trainer/tokenizer/bpe_training.h"
#include "trainer/tokenizer/pattern.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {
namespace {

struct LearnArguments {
  std::vector<std::string> files;
  std::string output;
  std::int64_t vocab_size = 0;
  std::string pattern = std::string(llama3_word_pattern);
  std::vector<std::string> special = {"<|endoftext|>"};
  DocumentRules rules;
};

void learn_tokenizer(const CLI::App& command, const LearnArguments& arguments) {
  if (std::filesystem::exists(arguments.output))
    fail_request("\"{}\" exists; choose another --output", arguments.output);
  // All that can be told before the texts are read, which may take an hour.
  const std::filesystem::path folder = std::filesystem::absolute(arguments.output).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    fail_request("--output: \"{}\" is no folder; make it first", folder.string());
  }
  // The name of the file while it is written, which may be another file of the user.
  const std::string partial = partial_path(arguments.output);
  const int descriptor = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_request("--output: \"{}\" cannot be written: {}", partial, std::strerror(errno));
  close(descriptor);
  unlink(partial.c_str());
  const auto in_name = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  if (std::ranges::all_of(arguments.pattern, in_name)) {
    fail_request("--pattern: \"{}\" is none of gpt2, llama3, o200k, and as a regular expression only that word",
                 arguments.pattern);
  }
  BpeTraining::check(arguments.vocab_size, arguments.special);
  const auto ends = [](const std::string& token) { return std::ranges::find(usual_ends, token) != usual_ends.end(); };
  if (std::ranges::none_of(arguments.special, ends)) {
    fail_request("--special: none of {} would end a text: add one of {}", fmt::join(arguments.special, ", "),
                 fmt::join(usual_ends, ", "));
  }
  DocumentReader documents(arguments.files, arguments.rules);
  refuse_unread(command, documents);
  BpeTraining training(arguments.pattern);
  std::int64_t count = 0, bytes = 0;
  {
    ProgressLine line;
    while (const auto document = documents.next()) {
      training.add(document->parts.front().text);
      ++count;
      bytes += document->bytes();
      line.bytes(documents.position(), documents.bytes(), "read");
    }
  }
  if (count == 0) {
    fail_request("the files have no document{}",
                 documents.skipped() == 0 ? "" : fmt::format(": all {} lines were left out", documents.skipped()));
  }
  const std::string text = training.train(arguments.vocab_size, arguments.special);
  replace_file(arguments.output, text);
  const auto tokenizer = open_tokenizer(arguments.output);
  fmt::print("{}: {} of {} documents, {}\n", arguments.output, tokenizer->description(), grouped_digits(count),
             format_bytes(bytes));
  tell_skipped(documents);
  if (tokenizer->vocab_size() < arguments.vocab_size) {
    fmt::print("the texts have no further pairs: {} tokens in place of {}\n", tokenizer->vocab_size(),
               arguments.vocab_size);
  }
}

}  // namespace

void add_data_train_tokenizer_command(CLI::App& data) {
  const auto [command, arguments] = add_command<LearnArguments>(
      data, "train-tokenizer", "a byte-level BPE of one's own texts, as a tokenizer.json", learn_tokenizer);
  add_document_options(command, arguments.files, arguments.rules);
  command.add_option("--vocab-size", arguments.vocab_size, "tokens, special ones and 256 bytes among them")->required();
  command.add_option("--output", arguments.output, "the tokenizer.json")->required();
  command
      .add_option("--pattern", arguments.pattern,
                  "how texts are cut into words: gpt2, llama3, o200k, or a regular expression; llama3 unless given")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"gpt2", std::string(gpt2_word_pattern)},
                                                                      {"llama3", std::string(llama3_word_pattern)},
                                                                      {"o200k", std::string(o200k_word_pattern)}}))
      ->option_text("NAME|REGEX");
  command
      .add_option("--special", arguments.special,
                  "special tokens; one of a usual name, such as <|endoftext|> or </s>, ends a text")
      ->capture_default_str();
}

}  // namespace weft
