#include "trainer/data/indexed_writer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/data/megatron_index.h"

namespace weft {
namespace {

void refuse_finished(const std::string& prefix) {
  for (const char* ending : {".bin", ".idx"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(prefix + ending, ignored)) continue;
    fail_request("\"{}{}\" exists, and a dataset is not overwritten; remove it or choose another prefix", prefix,
                 ending);
  }
}

// A process that was killed while it put a dataset in place may leave "prefix.bin" beside "prefix.idx.partial". Gives
// the tokens their name of before, so that they are gone on with or replaced.
void take_back_half(const std::string& prefix) {
  namespace fs = std::filesystem;
  const auto is_half = [&] {
    std::error_code ignored;
    return fs::exists(prefix + ".bin", ignored) && !fs::exists(prefix + ".idx", ignored);
  };
  std::error_code ignored;
  if (!is_half() || !fs::exists(prefix + ".idx.partial", ignored)) return;
  const PartialFile index(prefix + ".idx");  // throws while the process that has it is alive
  if (is_half()) fs::rename(prefix + ".bin", prefix + ".bin.partial");
}

void write_numbers(PartialFile& file, TokenType type, std::span<const std::int64_t> numbers) {
  std::vector<std::uint8_t> bytes;
  encode(type, numbers, bytes);
  file.write(bytes);
}

}  // namespace

TokenType indexed_type(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::uint16 : TokenType::int32;
}

IndexedWriter::IndexedWriter(std::string prefix, std::int64_t vocab_size, const IndexedCounts& flushed)
    : prefix_((take_back_half(prefix), refuse_finished(prefix), std::move(prefix))),
      vocab_size_(vocab_size),
      type_(indexed_type(vocab_size)),
      data_(prefix_ + ".bin", flushed.tokens * bytes_of(type_)),
      lengths_(prefix_ + ".lengths", flushed.documents * bytes_of(TokenType::int32)),
      counts_(flushed) {
  require(vocab_size >= 1 && vocab_size <= std::int64_t{1} << 31, "ids of a vocabulary are int32");
}

void IndexedWriter::add_document(std::span<const std::int32_t> ids) {
  const auto outside = std::ranges::find_if(ids, [end = vocab_size_](std::int64_t id) { return id < 0 || id >= end; });
  if (outside != ids.end()) {
    fail_request("\"{}.bin\": token {} of document {} has the id {}, which is outside the vocabulary of {} tokens",
                 prefix_, outside - ids.begin(), counts_.documents, *outside, vocab_size_);
  }
  const std::array<std::int64_t, 1> tokens = {std::ssize(ids)};
  if (tokens[0] > std::numeric_limits<std::int32_t>::max()) {
    fail_request("\"{}.bin\": sequence {} has more than 2^31 - 1 tokens, the most that an index can say; split it",
                 prefix_, counts_.documents);
  }
  encoded_.clear();
  encode(type_, ids, encoded_);
  data_.write(encoded_);
  write_numbers(lengths_, TokenType::int32, tokens);
  counts_.tokens += tokens[0];
  ++counts_.documents;
}

IndexedCounts IndexedWriter::flush() {
  for (PartialFile* file : {&data_, &lengths_}) {
    file->flush();
    file->stay(true);
  }
  return counts_;
}

void IndexedWriter::write_index(PartialFile& index) {
  index.write(megatron_header({type_, counts_.documents, counts_.documents}));
  if (counts_.documents > 0) {
    const ByteSource written = lengths_.written();
    index.write_all(written);
    const StoredNumbers lengths(written, 0, counts_.documents, TokenType::int32);
    std::int64_t offset = 0;
    std::vector<std::int64_t> offsets;
    lengths.visit([&](std::int64_t, std::span<const std::int64_t> numbers) {
      offsets.clear();
      for (const std::int64_t length : numbers) {
        offsets.push_back(offset);
        offset += length * bytes_of(type_);
      }
      write_numbers(index, TokenType::int64, offsets);
    });
    require(offset == data_.bytes(), "the sequences are all the tokens");
  }
  // The sequence with which each document begins, then the number of sequences.
  for (std::int64_t sequence = 0; sequence <= counts_.documents; ++sequence) {
    write_numbers(index, TokenType::int64, std::array{sequence});
  }
}

void IndexedWriter::complete() {
  write_index(index_.emplace(prefix_ + ".idx"));
  data_.sync();
  index_->sync();
}

void IndexedWriter::put_in_place() {
  refuse_finished(prefix_);
  data_.put_in_place();
  index_->put_in_place();
  lengths_.stay(false);
}

}  // namespace weft
