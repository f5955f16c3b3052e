// The index of datatrove's tokens (nanotron's "Nanoset"): "name.ds.index" beside "name.ds" holds a little-endian u64
// for each document, the position behind its last token. The tokens are uint16 or uint32. The last position and the
// size of "name.ds" tell which, so no other file is needed (datatrove, pipeline/tokens/tokenizer.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/byte_source.h"
#include "trainer/data/stored_numbers.h"
#include "trainer/data/token_index.h"
#include "trainer/data/token_type.h"

namespace weft {

// Opening checks the size of the index and that the last document ends where the tokens end, whatever the size. Each
// answer lies in its range. check() checks that positions ascend. A document is one sequence.
class DatatroveIndex final : public TokenIndex {
 public:
  // `data_name` and `data_bytes` are of "name.ds". Throws Error (request), `"name": why`.
  DatatroveIndex(ByteSource index, const std::string& data_name, std::int64_t data_bytes);

  TokenType type() const { return type_; }
  std::int64_t tokens() const override { return tokens_; }
  std::int64_t documents() const override { return ends_.count(); }
  std::int64_t document_begin(std::int64_t document) const override;
  std::vector<std::int32_t> sequence_lengths() const override;
  void check() const override;

 private:
  const ByteSource* source() const override { return &source_; }

  ByteSource source_;
  StoredNumbers ends_;
  std::int64_t tokens_;
  TokenType type_ = TokenType::uint16;
};

}  // namespace weft
