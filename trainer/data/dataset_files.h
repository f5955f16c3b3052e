// The files that weft data tokenize writes, while it writes them: tokens, losses, facts, and the place to go on from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/documents.h"
#include "trainer/data/indexed_writer.h"
#include "trainer/data/partial_file.h"
#include "trainer/data/tokenize.h"

namespace weft {

// A document as token ids.
struct EncodedDocument {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counts;  // for each: 1 if its loss counts
};

// A text of a batch: its document as it is written, or why it has none.
struct TokenizedText {
  EncodedDocument document = {};
  std::int64_t bytes = 0;
  std::string fault = {};
};

struct TokenizedBatch {
  std::vector<TokenizedText> texts = {};
  std::int64_t position = 0;  // of the files, behind it
};

// The place from which a call that was stopped is gone on with, "prefix.resume.json". It has the texts (RawText) that
// were read, those of them that were skipped, and what was written of the others.
struct Resumption {
  std::int64_t texts = 0, skipped = 0, text_bytes = 0;
  IndexedCounts written;
};

// Used by one thread at a time. Throws as IndexedWriter and PartialFile.
class DatasetFiles {
 public:
  // Goes on where an earlier call for the same `work` was stopped. All arguments outlive the object.
  DatasetFiles(const TokenizeRequest& request, std::int64_t vocab_size, std::string work, DocumentReader& documents,
               const std::function<void(const TokenizeProgress&)>& on_progress);

  // Behind the texts that were written.
  const Resumption& place() const { return place_; }
  const IndexedCounts& counts() const { return writer_->counts(); }

  // Writes the documents in their order, lets the reader take note of skipped lines, and tells the progress.
  void write(const TokenizedBatch& batch);
  void tell(std::int64_t position);
  // Returns when all that was written is on disk, and the same work can go on behind it.
  void keep_place();
  // Ends the dataset. Throws Error (request) for losses that count nowhere.
  void put_in_place(const TokenFacts& facts);

 private:
  void open(std::int64_t vocab_size);

  const TokenizeRequest& request_;
  std::string work_;
  DocumentReader& documents_;
  const std::function<void(const TokenizeProgress&)>& on_progress_;
  Resumption place_;
  TokenizeProgress progress_;
  std::int64_t kept_ = 0;  // text before the last place that was kept
  std::optional<IndexedWriter> writer_;
  std::optional<PartialFile> losses_;
};

}  // namespace weft
