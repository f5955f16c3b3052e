#include "trainer/data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/data/indexed_writer.h"
#include "trainer/data/partial_file.h"

namespace weft {
namespace {

// Documents until their text has so many bytes; none at the end.
std::vector<Document> next_batch(DocumentReader& documents, std::int64_t most) {
  std::vector<Document> batch;
  for (std::int64_t bytes = 0; bytes < most;) {
    auto document = documents.next();
    if (!document) break;
    bytes += document->bytes();
    batch.push_back(std::move(*document));
  }
  return batch;
}

// A document as ids, and for each of them whether its loss counts.
struct EncodedDocument {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counts;
};

// The ids of the whole text. A token of two parts counts if one of them is learned.
EncodedDocument encoded_as_one(const Tokenizer& tokenizer, const Document& document, SpecialTokens special) {
  std::string text;
  for (const TextPart& part : document.parts) text += part.text;
  EncodedDocument result{tokenizer.encode(text, special), {}};
  result.counts.resize(result.ids.size());
  const std::span<const std::int32_t> all = result.ids;
  std::size_t first = 0, end = 0;    // of the part: its first token, its last byte
  std::size_t bytes = 0, known = 0;  // of a beginning of the text that ends with a token: its bytes and tokens
  for (const TextPart& part : document.parts) {
    end += part.text.size();
    // A beginning of the text has the tokens of the text, but for some at its end. What follows the known beginning is
    // encoded by itself, which takes less time, and holds where all its tokens are those of the text.
    std::vector<std::int32_t> own;
    std::size_t same = 0;
    for (bool alone = true; alone || (same < own.size() && bytes > 0); alone = false) {
      if (!alone) bytes = known = 0;
      own = tokenizer.encode(std::string_view(text).substr(bytes, end - bytes), special);
      same = static_cast<std::size_t>(std::ranges::mismatch(own, all.subspan(known)).in1 - own.begin());
    }
    // The others write the bytes up to the end of the part as tokens of the text do, the last of which may go on.
    const std::size_t left = tokenizer.decode(std::span(own).subspan(same)).size();
    std::size_t last = known + same, reached = 0;
    for (const auto others = all.subspan(last); reached < left && last < all.size(); ++last) {
      reached = tokenizer.decode(others.first(last + 1 - (known + same))).size();
    }
    if (part.learned)
      std::fill(result.counts.begin() + std::ptrdiff_t(first), result.counts.begin() + std::ptrdiff_t(last), 1);
    first = reached > left ? last - 1 : last;
    if (reached == left) {
      bytes = end;
      known = last;
    }
  }
  return result;
}

EncodedDocument encoded(const Tokenizer& tokenizer, const Document& document, SpecialTokens special) {
  if (document.joined) return encoded_as_one(tokenizer, document, special);
  EncodedDocument result;
  for (const TextPart& part : document.parts) {
    tokenizer.append(part.text, special, result.ids);
    result.counts.resize(result.ids.size(), part.learned ? 1 : 0);
  }
  return result;
}

// Whether the loss of any token but the first counts. Most data show one in the first piece.
bool has_counted(const ByteSource& losses) {
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  std::vector<std::uint8_t> bytes;
  for (std::int64_t first = 1; first < losses.size; first += piece) {
    bytes.resize(static_cast<std::size_t>(std::min(piece, losses.size - first)));
    losses.read(first, bytes);
    if (std::ranges::any_of(bytes, [](std::uint8_t loss) { return loss != 0; })) return true;
  }
  return false;
}

// A place to go on from: documents that were read, and what was written of them.
struct Resumption {
  std::int64_t read = 0, text_bytes = 0;
  IndexedCounts written;
};

std::string resumption_name(const std::string& prefix) {
  return prefix + ".resume.json";
}

// The place that an earlier call left for the same work; the beginning if there is none.
Resumption find_resumption(const std::string& prefix, const std::string& work) {
  const std::string name = resumption_name(prefix);
  std::error_code ignored;
  if (!std::filesystem::exists(name, ignored)) return {};
  const nlohmann::json json = nlohmann::json::parse(read_whole_file(name), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("work", nlohmann::json()) != work) return {};
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found == json.end() || !found->is_number_integer() ? std::int64_t{-1} : found->get<std::int64_t>();
  };
  const Resumption place{
      number("read"), number("text_bytes"), {number("tokens"), number("sequences"), number("documents")}};
  const bool whole = place.read >= 0 && place.text_bytes >= 0 && place.written.tokens >= 0 &&
                     place.written.sequences >= 0 && place.written.documents >= 0;
  return whole ? place : Resumption{};
}

void write_small_file(const std::string& name, const std::string& text) {
  PartialFile file(name);
  file.write({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  file.sync();
  file.put_in_place();
}

void keep_resumption(const std::string& prefix, const std::string& work, const Resumption& place) {
  const nlohmann::ordered_json json = {{"work", work},
                                       {"read", place.read},
                                       {"text_bytes", place.text_bytes},
                                       {"tokens", place.written.tokens},
                                       {"sequences", place.written.sequences},
                                       {"documents", place.written.documents}};
  write_small_file(resumption_name(prefix), json.dump(2) + "\n");
}

// Throws if a file of the dataset has the name of a file to read.
void require_other_names(const std::vector<std::string>& files, const std::string& prefix) {
  for (const char* ending : {".bin", ".idx", ".json", ".loss", ".resume.json"}) {
    for (const std::string& file : files) {
      std::error_code ignored;
      if (!std::filesystem::equivalent(file, prefix + ending, ignored)) continue;
      fail_request("--output {0} would write \"{0}{1}\", which is a file to read; choose another prefix", prefix,
                   ending);
    }
  }
}

// What is known of the dataset before its documents. Throws for a mark that is no token.
TokenFacts facts_before(const TokenizeRequest& request, const Tokenizer& tokenizer) {
  TokenFacts facts{request.tokenizer, tokenizer.content_hash(), tokenizer.vocab_size(), 0, 0, std::nullopt,
                   request.losses};
  for (const std::string& mark : request.marks) {
    if (tokenizer.token_id(mark)) continue;
    fail_request("the tokenizer \"{}\" has no token {}, with which these conversations are written", request.tokenizer,
                 mark);
  }
  if (request.end_documents) facts.document_end = tokenizer.end_of_text();
  return facts;
}

// Throws if a file stands where facts or losses would, unless an interrupted call left it.
void require_no_other_dataset(const TokenizeRequest& request) {
  const std::string facts = request.prefix + ".json", losses = request.prefix + ".loss";
  if (std::filesystem::exists(facts)) parse_token_facts(read_whole_file(facts), facts);
  if (!request.losses && std::filesystem::exists(losses)) {
    fail_request("\"{}\" exists, and would be taken for the losses of these documents; remove it", losses);
  }
}

// The hash of all that decides the bytes of the dataset.
std::string work_of(const DocumentReader& documents, const TokenizeRequest& request, const TokenFacts& facts) {
  return fmt::format("{:016x}",
                     checksum(fmt::format("{}, {}, {}, {}, {}, {}", facts.tokenizer_hash, request.begin_documents,
                                          facts.document_end.value_or(-1), request.losses,
                                          static_cast<int>(request.special), documents.identity())));
}

// The files of the dataset while they are written, from the beginning or from the place that an earlier call left.
class DatasetFiles {
 public:
  DatasetFiles(const TokenizeRequest& request, const Tokenizer& tokenizer, std::string work)
      : request_(request), work_(std::move(work)), place_(find_resumption(request.prefix, work_)) {
    const auto open = [&] {
      dataset_.emplace(request.prefix, tokenizer.vocab_size(), place_.written);
      if (request.losses) losses_.emplace(request.prefix + ".loss", place_.written.tokens);
    };
    try {
      open();
    } catch (const Error& error) {
      if (place_.read == 0 || error.kind() != ErrorKind::failure) throw;
      place_ = {};  // what an earlier call wrote is no longer there
      open();
    }
    kept_ = place_.text_bytes;
  }

  // Documents that were read, and what was written of them.
  const Resumption& place() const { return place_; }
  const IndexedCounts& counts() const { return dataset_->counts(); }

  void add(const EncodedDocument& document, std::int64_t text_bytes) {
    dataset_->add_document(document.ids);
    if (losses_) losses_->write(document.counts);
    place_.text_bytes += text_bytes;
  }
  void add_read(std::int64_t documents) { place_.read += documents; }
  // Keeps the place, if there is enough text since the last one.
  void keep_place() {
    if (place_.text_bytes - kept_ < request_.kept_bytes) return;
    kept_ = place_.text_bytes;
    place_.written = dataset_->flush();
    if (losses_) {
      losses_->flush();
      losses_->stay(true);
    }
    keep_resumption(request_.prefix, work_, place_);
  }
  // Puts all files in place.
  void finish(const TokenFacts& facts) {
    if (losses_ && !has_counted(losses_->written())) {
      fail_request("nothing to learn: losses count for none of the {} tokens", facts.tokens);
    }
    // The facts come first: where the index is, they are there too.
    write_small_file(request_.prefix + ".json", format_token_facts(facts));
    if (losses_) {
      losses_->sync();
      losses_->put_in_place();
    }
    dataset_->finish();
    std::error_code ignored;
    std::filesystem::remove(resumption_name(request_.prefix), ignored);
  }

 private:
  const TokenizeRequest& request_;
  std::string work_;
  Resumption place_;
  std::optional<IndexedWriter> dataset_;
  std::optional<PartialFile> losses_;
  std::int64_t kept_ = 0;  // text up to the place that was kept last, in bytes
};

}  // namespace

TokenFacts tokenize(DocumentReader& documents, const TokenizeRequest& request,
                    const std::function<void(const TokenizeProgress&)>& on_progress) {
  require_other_names(documents.files(), request.prefix);
  const auto tokenizer = open_text_tokenizer(request.tokenizer);
  TokenFacts facts = facts_before(request, *tokenizer);
  const auto begin = request.begin_documents ? tokenizer->frame().before : std::vector<std::int32_t>();
  require_no_other_dataset(request);
  DatasetFiles files(request, *tokenizer, work_of(documents, request, facts));
  for (std::int64_t d = 0; d < files.place().read; ++d) {
    if (!documents.next()) fail("\"{}\" has more documents than there are", resumption_name(request.prefix));
  }
  TokenizeProgress progress{.bytes = documents.bytes(), .resumed = files.place().written.documents};
  const auto tell = [&] {
    progress.position = documents.position();
    progress.text_bytes = files.place().text_bytes;
    progress.documents = files.counts().documents;
    progress.tokens = files.counts().tokens;
    progress.empty = files.place().read - progress.documents;
    if (on_progress) on_progress(progress);
  };
  if (files.place().read > 0) tell();
  const std::int64_t most = std::min(std::int64_t{8} << 20, request.kept_bytes);
  for (auto batch = next_batch(documents, most); !batch.empty(); batch = next_batch(documents, most)) {
    std::vector<EncodedDocument> all(batch.size());
    spread_work(batch.size(), request.threads,
                [&](std::size_t d) { all[d] = encoded(*tokenizer, batch[d], request.special); });
    for (std::size_t d = 0; d < batch.size(); ++d) {
      if (all[d].ids.empty()) continue;
      all[d].ids.insert(all[d].ids.begin(), begin.begin(), begin.end());
      all[d].counts.insert(all[d].counts.begin(), begin.size(), 0);
      if (facts.document_end) {
        all[d].ids.push_back(*facts.document_end);
        all[d].counts.push_back(1);
      }
      files.add(all[d], batch[d].bytes());
    }
    files.add_read(std::ssize(batch));
    tell();
    files.keep_place();
  }
  facts.documents = files.counts().documents;
  facts.tokens = files.counts().tokens;
  if (facts.tokens == 0) fail_request("the files have no document with a token in it");
  files.finish(facts);
  return facts;
}

}  // namespace weft
