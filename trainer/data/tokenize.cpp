#include "trainer/data/tokenize.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/data/dataset_files.h"

namespace weft {
namespace {

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

// Parts that are joined have the ids of the whole text; there a token of two parts counts if one of them is learned.
// Throws as Tokenizer::append.
EncodedDocument encoded(const Tokenizer& tokenizer, const Document& document, SpecialTokens special) {
  if (document.joined) return encoded_as_one(tokenizer, document, special);
  EncodedDocument result;
  for (const TextPart& part : document.parts) {
    tokenizer.append(part.text, special, result.ids);
    result.counts.resize(result.ids.size(), part.learned ? 1 : 0);
  }
  return result;
}

// How a document becomes tokens. Several threads use it at the same time.
struct TextEncoder {
  const DocumentReader& reader;
  std::shared_ptr<const Tokenizer> tokenizer;
  SpecialTokens special = SpecialTokens::recognised;
  std::vector<std::int32_t> begin = {};
  std::optional<std::int32_t> end = std::nullopt;

  // `parser` belongs to the thread.
  TokenizedText encode(RawText& raw, DocumentParser& parser) const {
    TokenizedText text;
    const auto document = reader.parse(raw, parser, text.fault);
    if (!document) return text;
    const auto refusal = refusal_of([&] { text.document = encoded(*tokenizer, *document, special); });
    if (refusal) {
      text.fault = reader.refused(raw, " " + *refusal);
      return text;
    }
    text.bytes = document->bytes();
    auto& [ids, counts] = text.document;
    if (ids.empty()) return text;
    ids.insert(ids.begin(), begin.begin(), begin.end());
    counts.insert(counts.begin(), begin.size(), 0);
    if (end) {
      ids.push_back(*end);
      counts.push_back(0);
      // The white space of a template between an answer and the end counts, or a model would not reach the end.
      const auto answer = std::ranges::find(counts.rbegin(), counts.rend(), 1);
      if (document->ends_learned) std::fill(counts.rbegin(), answer == counts.rend() ? counts.rbegin() + 1 : answer, 1);
    }
    return text;
  }
};

// Parts of a batch for a thread each, of about `bytes` bytes: the first text of each, and their number.
std::vector<std::size_t> parts_of(const RawBatch& batch, std::size_t bytes) {
  std::vector<std::size_t> begins;
  std::size_t held = bytes;
  for (std::size_t t = 0; t < batch.texts.size(); ++t) {
    if (held >= bytes) {
      begins.push_back(t);
      held = 0;
    }
    held += batch.texts[t].text.size() + batch.texts[t].whole.size();
  }
  begins.push_back(batch.texts.size());
  return begins;
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

// Throws unless the tokenizer has the marks, and no file stands where those of the dataset go.
void require_room(const TokenizeRequest& request, const DocumentReader& documents, const Tokenizer& tokenizer) {
  if (std::filesystem::path(request.prefix).filename().empty()) {
    fail_request("--output \"{}\" names a folder; add the beginning of the files' names", request.prefix);
  }
  require_other_names(documents.files(), request.prefix);
  for (const std::string& mark : request.marks) {
    if (tokenizer.token_id(mark)) continue;
    fail_request(
        "the tokenizer \"{0}\" has no token {1}, with which these conversations are written; weft data "
        "train-tokenizer learns one with it by --special '{1}'",
        request.tokenizer, mark);
  }
  const std::string facts_name = request.prefix + ".json", losses_name = request.prefix + ".loss";
  // One that an interrupted call left may be replaced; any other file may not.
  if (std::filesystem::exists(facts_name)) parse_token_facts(read_whole_file(facts_name), facts_name);
  if (!request.losses && std::filesystem::exists(losses_name)) {
    fail_request("\"{}\" exists, and would be taken for the losses of these documents; remove it", losses_name);
  }
}

// All texts behind the place of `files`; false if the request stopped it before their end. Batches go through three
// stages at the same time: one is read, one is encoded, and one is written. A fault of an earlier batch comes before
// those of later ones.
bool write_texts(DocumentReader& documents, const TextEncoder& encoder, const TokenizeRequest& request,
                 DatasetFiles& files) {
  constexpr std::size_t part_bytes = std::size_t{1} << 17;
  const std::int64_t most = std::min(std::int64_t{8} << 20, request.kept_bytes);
  RawBatch next = documents.pass_over(files.place().texts, files.place().skipped, most);
  if (files.place().texts > 0) files.tell(next.position);
  TokenizedBatch last;
  while (!next.texts.empty() || !last.texts.empty()) {
    RawBatch batch = std::exchange(next, {});
    TokenizedBatch tokenized{std::vector<TokenizedText>(batch.texts.size()), batch.position};
    const std::vector<std::size_t> begins = parts_of(batch, part_bytes);
    std::exception_ptr fault;
    spread_work(2 + begins.size() - 1, request.threads, [&](std::size_t work) {
      if (work == 0) {
        if (!last.texts.empty()) files.write(last);
      } else if (work == 1) {
        try {
          if (!batch.texts.empty()) next = documents.read(most);
        } catch (...) {
          fault = std::current_exception();
        }
      } else {
        DocumentParser parser = documents.parser();
        for (std::size_t t = begins[work - 2]; t < begins[work - 1]; ++t) {
          tokenized.texts[t] = encoder.encode(batch.texts[t], parser);
        }
      }
    });
    if (fault) std::rethrow_exception(fault);
    last = std::move(tokenized);
    if (!request.stop || !request.stop() || (next.texts.empty() && last.texts.empty())) continue;
    files.write(last);
    files.keep_place();
    return false;
  }
  return true;
}

}  // namespace

std::optional<TokenFacts> tokenize(DocumentReader& documents, const TokenizeRequest& request,
                                   const std::function<void(const TokenizeProgress&)>& on_progress) {
  const auto tokenizer = open_text_tokenizer(request.tokenizer);
  require_room(request, documents, *tokenizer);
  TokenFacts facts{request.tokenizer, tokenizer->content_hash(), tokenizer->vocab_size(), 0, 0, std::nullopt,
                   request.losses};
  if (request.end_documents) facts.document_end = tokenizer->end_of_text();
  TextEncoder encoder{documents, tokenizer, request.special, {}, facts.document_end};
  if (request.begin_documents) encoder.begin = tokenizer->frame().before;
  const std::string work = checksum_text(checksum(fmt::format(
      "{}, {}, {}, {}, {}, {}", facts.tokenizer_hash, request.begin_documents, facts.document_end.value_or(-1),
      request.losses, static_cast<int>(request.special), documents.identity())));
  DatasetFiles files(request, facts.vocab_size, work, documents, on_progress);
  if (!write_texts(documents, encoder, request, files)) return std::nullopt;
  facts.documents = files.counts().documents;
  facts.tokens = files.counts().tokens;
  if (facts.tokens == 0) fail_request("the files have no document with a token in it");
  files.put_in_place(facts);
  return facts;
}

}  // namespace weft
