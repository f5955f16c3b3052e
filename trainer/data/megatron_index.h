// The index of Megatron's datasets, "prefix.idx" beside "prefix.bin" (megatron/core/datasets/indexed_dataset.py). All
// numbers are little-endian, and from byte 34 on unaligned:
//
//    0  9 bytes  magic "MMIDIDX\0\0"     34               i32[N]  tokens of each sequence
//    9  u64      version, 1              34 + 4 N         i64[N]  byte in prefix.bin where each sequence begins
//   17  u8       type of a token         34 + 12 N        i64[D]  sequence where each document begins, then N
//   18  u64      N sequences             34 + 12 N + 8 D  i8[N]   modes, only in multimodal datasets
//   26  u64      D = documents + 1
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trainer/data/byte_source.h"
#include "trainer/data/stored_numbers.h"
#include "trainer/data/token_index.h"

namespace weft {

struct MegatronHeader {
  TokenType type = TokenType::uint16;
  std::int64_t sequences = 0;
  std::int64_t documents = 0;
};

// The first 34 bytes of an index. Requires a type that has a code: uint32 has none.
std::vector<std::uint8_t> megatron_header(const MegatronHeader& header);

// Checks happen at three times.
//   Opening, in a time that does not depend on the size: the header; that documents begin at sequence 0 and end at N;
//   that
//     sequences begin at byte 0 and the last one ends where prefix.bin ends.
//   Each answer: that it lies in its range.
//   check(): that each length is not negative, each offset is the sum of the lengths before it, and documents ascend.
class MegatronIndex final : public TokenIndex {
 public:
  // `data_name` and `data_bytes` are of prefix.bin. An index of no sequences belongs to an empty prefix.bin. Throws
  // Error (request), `"name": why`.
  MegatronIndex(ByteSource index, const std::string& data_name, std::int64_t data_bytes);

  TokenType type() const { return header_.type; }
  std::int64_t tokens() const override { return data_bytes_ / bytes_of(header_.type); }
  std::int64_t documents() const override { return header_.documents; }
  std::int64_t sequences() const override { return header_.sequences; }
  std::int64_t document_begin(std::int64_t document) const override;
  std::int64_t sequence_begin(std::int64_t sequence) const override;
  // Past the pages of single numbers: orders ask for sequences all over the file.
  std::array<std::int64_t, 2> sequence_ends(std::int64_t sequence) const override;
  std::vector<std::int32_t> sequence_lengths() const override;
  std::vector<std::int64_t> document_lengths() const override;
  void check() const override;

 private:
  const ByteSource* source() const override { return &source_; }

  std::int64_t position_of(std::int64_t sequence, std::int64_t offset) const;
  void check_ends(const std::string& data_name) const;
  // The sequence with which each document begins, and that of the document before. One more than the last document has
  // sequences().
  void visit_documents(
      const std::function<void(std::int64_t document, std::int64_t before, std::int64_t begin)>& use) const;

  ByteSource source_;
  MegatronHeader header_;
  std::int64_t data_bytes_;
  StoredNumbers lengths_, offsets_, documents_;
};

}  // namespace weft
