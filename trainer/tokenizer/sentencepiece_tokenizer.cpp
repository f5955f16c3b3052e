// Models of SentencePiece (tokenizer.model), by its library.
#include <array>
#include <exception>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/tokenizer_file.h"
#include "trainer/tokenizer/unicode_text.h"
#ifdef WEFT_HAVE_SENTENCEPIECE
#include <sentencepiece_processor.h>
#endif

namespace weft {

#ifdef WEFT_HAVE_SENTENCEPIECE
namespace {

constexpr std::string_view space_mark = "\xe2\x96\x81";  // U+2581, in pieces in place of a space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const std::string& file) : file_(file), hash_(checksum(model)) {
    std::string fault;
    try {
      const auto status = processor_.LoadFromSerializedProto(model);
      fault = status.ok() ? "" : status.message();
    } catch (const std::exception& error) {  // of its trie, for a piece that begins with a zero byte
      fault = error.what();
    }
    if (fault.empty() && processor_.GetPieceSize() < 1) fault = "it has no pieces";
    if (!fault.empty()) fail_request("\"{}\": no model of SentencePiece: {}", file, fault);
  }

  std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  // The model normalises by itself, malformed UTF-8 too, and knows no spelling of control pieces.
  void append(std::string_view text, SpecialTokens, std::vector<std::int32_t>& ids) const override {
    std::vector<int> found;
    const auto status = processor_.Encode(text, &found);
    if (!status.ok()) fail_request("\"{}\": a text cannot be encoded: {}", file_, status.message());
    ids.insert(ids.end(), found.begin(), found.end());
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= processor_.GetPieceSize()) {
        fail_request("\"{}\" has no token with the id {}; it has {}", file_, id, processor_.GetPieceSize());
      }
      append_piece(id, text);
    }
    return text;
  }

  std::string description() const override {
    return fmt::format("SentencePiece, {} tokens, {}", processor_.GetPieceSize(), file_);
  }
  std::string content_hash() const override { return checksum_text(hash_); }
  std::optional<std::int32_t> end_of_text() const override {
    return processor_.eos_id() >= 0 ? std::optional(processor_.eos_id()) : std::nullopt;
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    return id >= 0 && processor_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }

  SentencePieceMarks marks() const {
    const auto piece = [&](int id) { return id < 0 ? std::string() : processor_.IdToPiece(id); };
    return {piece(processor_.unk_id()), piece(processor_.bos_id()), piece(processor_.eos_id()),
            piece(processor_.pad_id())};
  }

 private:
  void append_piece(int id, std::string& text) const {
    const std::string& piece = processor_.IdToPiece(id);
    if (const auto byte = processor_.IsByte(id) ? fallback_byte(piece) : std::nullopt) return text.push_back(*byte);
    text += with_replaced(piece, space_mark, " ");
  }

  std::string file_;
  std::uint64_t hash_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string& model, const std::string& file) {
  return std::make_shared<SentencePieceTokenizer>(model, file);
}

SentencePieceMarks sentencepiece_marks(const std::string& file) {
  return SentencePieceTokenizer(InputFile(file).text(), file).marks();
}
#else
SentencePieceMarks sentencepiece_marks(const std::string& file) {
  parse_sentencepiece("", file);
  return {};
}
std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string&, const std::string& file) {
  fail_request(
      "\"{}\": this build has no SentencePiece, which reads such models: install libsentencepiece-dev and build anew, "
      "or "
      "give the tokenizer.json of the model",
      file);
}
#endif

}  // namespace weft
