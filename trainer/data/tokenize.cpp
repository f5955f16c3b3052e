#include "trainer/data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/data/indexed_writer.h"
#include "trainer/data/partial_file.h"

namespace weft {
namespace {

constexpr std::size_t batch_bytes = std::size_t{8} << 20;

// Documents until their text has batch_bytes; none at the end.
std::vector<Document> next_batch(DocumentReader& documents) {
  std::vector<Document> batch;
  for (std::size_t bytes = 0; bytes < batch_bytes;) {
    auto document = documents.next();
    if (!document) break;
    bytes += document->prompt.size() + document->text.size();
    batch.push_back(std::move(*document));
  }
  return batch;
}

}  // namespace

TokenFacts tokenize(DocumentReader& documents, const TokenizeRequest& request,
                    const std::function<void(const TokenizeProgress&)>& on_progress) {
  const auto tokenizer = open_tokenizer(request.tokenizer);
  TokenFacts facts{request.tokenizer, tokenizer->content_hash(), tokenizer->vocab_size(), 0, 0, std::nullopt};
  if (request.end_documents) facts.document_end = tokenizer->end_of_text();
  const std::string facts_name = request.prefix + ".json";
  // One that an interrupted call left may be replaced; any other file may not.
  if (std::filesystem::exists(facts_name)) parse_token_facts(read_whole_file(facts_name), facts_name);
  const std::string losses_name = request.prefix + ".loss";
  if (!request.prompts && std::filesystem::exists(losses_name)) {
    fail_request("\"{}\" exists, and would be taken for the losses of these documents; remove it", losses_name);
  }
  std::optional<PartialFile> losses;
  if (request.prompts) losses.emplace(losses_name);
  IndexedWriter writer(request.prefix, tokenizer->vocab_size());
  TokenizeProgress progress{.bytes = documents.bytes()};
  for (auto batch = next_batch(documents); !batch.empty(); batch = next_batch(documents)) {
    std::vector<std::vector<std::int32_t>> ids(batch.size());
    std::vector<std::size_t> of_prompt(batch.size());
    spread_work(batch.size(), request.threads, [&](std::size_t d) {
      if (request.prompts) ids[d] = tokenizer->encode(batch[d].prompt);
      of_prompt[d] = ids[d].size();
      const std::vector<std::int32_t> text = tokenizer->encode(batch[d].text);
      ids[d].insert(ids[d].end(), text.begin(), text.end());
    });
    for (std::size_t d = 0; d < batch.size(); ++d) {
      if (ids[d].empty()) continue;
      if (facts.document_end) ids[d].push_back(*facts.document_end);
      writer.add_document(ids[d]);
      if (losses) {
        std::vector<std::uint8_t> counts(ids[d].size(), 1);
        std::fill_n(counts.begin(), of_prompt[d], std::uint8_t{0});
        losses->write(counts);
      }
      progress.text_bytes += std::ssize(batch[d].prompt) + std::ssize(batch[d].text);
    }
    progress.position = documents.position();
    progress.documents = writer.documents();
    progress.tokens = writer.tokens();
    if (on_progress) on_progress(progress);
  }
  facts.documents = writer.documents();
  facts.tokens = writer.tokens();
  if (facts.tokens == 0) fail_request("the files have no document with a token in it");
  // The facts come first: where the index is, they are there too.
  PartialFile file(facts_name);
  const std::string text = format_token_facts(facts);
  file.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  file.sync();
  file.put_in_place();
  if (losses) {
    losses->sync();
    losses->put_in_place();
  }
  writer.finish();
  return facts;
}

}  // namespace weft
