// `weft data tokenize`: texts and JSON lines as a dataset of token ids.
#include <CLI/CLI.hpp>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "parallel/runtime/standard_error.h"
#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "trainer/data/tokenize.h"
#include "trainer/run/run_signals.h"

namespace weft {
namespace {

struct TokenizeArguments {
  std::vector<std::string> files;
  TokenizeRequest request{.threads = host_cores()};
  DocumentRules rules;
  std::string chat = {};
  bool no_begin = false, no_end = false, plain = false, json = false;
};

void tokenize_files(const CLI::App& command, const TokenizeArguments& arguments) {
  std::int64_t told = 0;
  TokenizeRequest request = arguments.request;
  DocumentRules rules = arguments.rules;
  std::optional<ChatTemplate> chat;
  if (!arguments.chat.empty()) {
    if (command.count("--key") == 0) rules.key = "messages";
    chat = open_chat_template(arguments.chat, request.tokenizer, std::time(nullptr));
    rules.chat = &*chat;
    request.marks = chat->marks();
  }
  DocumentReader documents(arguments.files, rules, [&](const std::string& why) {
    constexpr std::int64_t most_told = 10;
    if (++told <= most_told) say("weft: warning: left out: {}\n", why);
  });
  refuse_unread(command, documents);
  // A conversation has the begin of its template.
  request.begin_documents = !arguments.no_begin && rules.chat == nullptr;
  request.end_documents = !arguments.no_end;
  if (arguments.plain) request.special = SpecialTokens::plain_text;
  request.losses = rules.has_losses();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::int64_t empty = 0, text_bytes = 0, resumed_bytes = 0;  // text of this call, and before it
  RunSignals signals;
  request.stop = [&] { return signals.asked_to_stop(); };
  signals.begin();
  const std::optional<TokenFacts> whole = [&] {
    ProgressLine line;
    return tokenize(documents, request, [&](const TokenizeProgress& progress) {
      if (progress.resumed > 0 && resumed_bytes == 0) {
        resumed_bytes = progress.text_bytes;
        say("weft: goes on behind {} documents that an earlier call wrote\n", grouped_digits(progress.resumed));
      }
      text_bytes = progress.text_bytes - resumed_bytes;
      empty = progress.empty;
      line.part(progress.position, progress.bytes, [&] {
        return fmt::format("{} of {}, {} documents, {} tokens, {:.1f} MB/s", format_bytes(progress.position),
                           format_bytes(progress.bytes), grouped_digits(progress.documents),
                           grouped_digits(progress.tokens), static_cast<double>(text_bytes) / seconds() / 1e6);
      });
    });
  }();
  if (!whole) {
    say("weft: stopped by {}; the same command goes on from here\n", signals.stopped_by());
    throw CLI::RuntimeError(stopped_by_signal);
  }
  const TokenFacts& facts = *whole;
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"documents", facts.documents},
                                         {"tokens", facts.tokens},
                                         {"text_bytes", text_bytes + resumed_bytes},
                                         {"skipped_lines", documents.skipped()},
                                         {"empty_documents", empty},
                                         {"seconds", seconds()},
                                         {"tokenizer_hash", facts.tokenizer_hash},
                                         {"vocab_size", facts.vocab_size}};
    return fmt::print("{}\n", json.dump(2));
  }
  fmt::print("{0}.bin, {0}.idx: {1} tokens of {2} documents, {3:.2f} bytes a token, {4:.1f} MB/s\n", request.prefix,
             grouped_digits(facts.tokens), grouped_digits(facts.documents),
             static_cast<double>(text_bytes + resumed_bytes) / static_cast<double>(facts.tokens),
             static_cast<double>(text_bytes) / seconds() / 1e6);
  tell_skipped(documents);
  if (empty > 0) fmt::print("{} documents without a token were left out\n", grouped_digits(empty));
  fmt::print("train on it with data.train = [\"{}.bin\"], data.tokenizer = \"{}\", model.vocab_size = {}\n",
             request.prefix, request.tokenizer, facts.vocab_size);
}

}  // namespace

void add_data_tokenize_command(CLI::App& data) {
  const auto [command, arguments] = add_command<TokenizeArguments>(
      data, "tokenize", "texts and JSON lines as a dataset of token ids", tokenize_files);
  add_document_options(command, arguments.files, arguments.rules);
  command
      .add_option("--tokenizer", arguments.request.tokenizer,
                  "byte, a tokenizer.json or its folder, a SentencePiece FILE.model, or a rank file of tiktoken as "
                  "FILE#cl100k_base")
      ->required();
  command.add_option("--output", arguments.request.prefix, "prefix of the dataset: PREFIX.bin, .idx and .json")
      ->required();
  CLI::Option* chat = command.add_option(
      "--chat", arguments.chat,
      "chat template, of which --key names the list of messages: tokenizer, for that of --tokenizer; chatml, llama3 or "
      "gemma; or a file in Jinja. What the assistant says is learned");
  chat->check(not_empty());
  command
      .add_option("--prompt", arguments.rules.prompt,
                  "key of a text in front of it that is read and not learned: PREFIX.loss says which tokens count")
      ->check(not_empty())
      ->excludes(chat);
  command
      .add_flag("--plain", arguments.plain,
                "special tokens in the texts are characters like others: for texts that are not trusted")
      ->excludes(chat);
  command.add_flag("--no-begin", arguments.no_begin,
                   "no token at the begin of each document, where the file of the tokenizer puts one");
  command.add_flag("--no-end", arguments.no_end, "no token at the end of each document");
  command.add_option("--threads", arguments.request.threads, "threads that encode; the result does not depend on them")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--json", arguments.json, "print one JSON document");
  command.footer(
      "Writes the format of Megatron-LM, and PREFIX.json with the tokenizer's hash, by which training refuses tokens "
      "of\n"
      "another tokenizer. SIGTERM, SIGINT, SIGHUP and SIGUSR1 stop it; the same command goes on from there.");
}

}  // namespace weft
