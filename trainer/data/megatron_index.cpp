#include "trainer/data/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr std::string_view megatron_magic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t megatron_version = 1;
constexpr std::int64_t megatron_header_bytes = 34;

// By code; 6 and 7 are floating-point numbers.
constexpr std::array<std::pair<std::uint8_t, TokenType>, 6> megatron_types = {{{1, TokenType::uint8},
                                                                               {2, TokenType::int8},
                                                                               {3, TokenType::int16},
                                                                               {4, TokenType::int32},
                                                                               {5, TokenType::int64},
                                                                               {8, TokenType::uint16}}};

TokenType megatron_type(std::uint8_t code, const std::string& name) {
  for (const auto& [known, type] : megatron_types) {
    if (known == code) return type;
  }
  if (code == 6 || code == 7) {
    fail_request("\"{}\": its elements are {} (type code {}); token ids are integers. Write the dataset with integers",
                 name, code == 6 ? "float64" : "float32", code);
  }
  fail_request("\"{}\": the type code {} at byte 17 is none of Megatron's (1 to 8); the index is damaged", name, code);
}

std::uint64_t u64_at(std::span<const std::uint8_t> bytes, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename Number>
void append_bytes(std::vector<std::uint8_t>& to, Number number) {
  to.resize(to.size() + sizeof(number));
  std::memcpy(to.data() + to.size() - sizeof(number), &number, sizeof(number));
}

// Reads and checks the first 34 bytes: magic, version, type, and that both counts agree with the size of the file.
// Types of floating-point numbers and multimodal datasets are refused by name.
MegatronHeader read_megatron_header(const ByteSource& index) {
  std::array<std::uint8_t, megatron_header_bytes> bytes{};
  if (index.size < megatron_header_bytes) {
    fail_request("\"{}\": {} bytes are fewer than the 34 of a Megatron index's header; the file was cut short",
                 index.name, index.size);
  }
  index.read(0, bytes);
  if (std::memcmp(bytes.data(), megatron_magic.data(), megatron_magic.size()) != 0) {
    fail_request("\"{}\": the file does not begin with \"MMIDIDX\", so it is no index of a Megatron dataset",
                 index.name);
  }
  if (u64_at(bytes, 9) != megatron_version) {
    fail_request("\"{}\": version {} of Megatron's index; Weft reads version 1", index.name, u64_at(bytes, 9));
  }
  const TokenType type = megatron_type(bytes[17], index.name);
  const std::uint64_t sequences = u64_at(bytes, 18), begins = u64_at(bytes, 26);
  const auto size = static_cast<std::uint64_t>(index.size);
  // Counts above the size would overflow the sum below.
  const bool countable = sequences <= size && begins <= size;
  const std::uint64_t expected = countable ? megatron_header_bytes + 12 * sequences + 8 * begins : 0;
  if (countable && sequences > 0 && size == expected + sequences) {
    fail_request("\"{}\": a multimodal dataset, with a mode for each of its {} sequences; Weft reads text only",
                 index.name, sequences);
  }
  if (!countable || size != expected) {
    fail_request(
        "\"{}\": {} sequences and {} document boundaries take 34 + 12 * {} + 8 * {} bytes, but the file has {}. It was "
        "cut short or is damaged",
        index.name, sequences, begins, sequences, begins, size);
  }
  if (begins == 0) {
    fail_request("\"{}\": no document boundary, not even the first; the index is damaged", index.name);
  }
  return {type, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(begins) - 1};
}

}  // namespace

std::vector<std::uint8_t> megatron_header(const MegatronHeader& header) {
  std::vector<std::uint8_t> bytes(megatron_magic.begin(), megatron_magic.end());
  append_bytes(bytes, megatron_version);
  const auto code = std::ranges::find(megatron_types, header.type, &std::pair<std::uint8_t, TokenType>::second);
  require(code != megatron_types.end(), "Megatron has a code for the type of the tokens");
  bytes.push_back(code->first);
  append_bytes(bytes, static_cast<std::uint64_t>(header.sequences));
  append_bytes(bytes, static_cast<std::uint64_t>(header.documents + 1));
  return bytes;
}

MegatronIndex::MegatronIndex(ByteSource index, const std::string& data_name, std::int64_t data_bytes)
    : TokenIndex(index.name),
      source_(std::move(index)),
      header_(read_megatron_header(source_)),
      data_bytes_(data_bytes),
      lengths_(source_, megatron_header_bytes, header_.sequences, TokenType::int32),
      offsets_(source_, megatron_header_bytes + 4 * header_.sequences, header_.sequences, TokenType::int64),
      documents_(source_, megatron_header_bytes + 12 * header_.sequences, header_.documents + 1, TokenType::int64) {
  check_ends(data_name);
}

void MegatronIndex::check_ends(const std::string& data_name) const {
  if (documents_.at(0) != 0 || documents_.at(header_.documents) != header_.sequences) {
    fail_request("\"{}\": documents go from sequence {} to {} instead of from 0 to {}; the index is damaged", name(),
                 documents_.at(0), documents_.at(header_.documents), header_.sequences);
  }
  const std::int64_t last = header_.sequences - 1;
  if (last >= 0 && offsets_.at(0) != 0) {
    fail_request("\"{}\": the first sequence begins at byte {} of \"{}\" instead of 0; the index is damaged", name(),
                 offsets_.at(0), data_name);
  }
  const std::int64_t bytes = last < 0 ? 0 : lengths_.at(last) * bytes_of(header_.type);
  const std::int64_t begin = last < 0 ? 0 : offsets_.at(last);
  if (bytes < 0 || begin < 0 || begin > data_bytes_ || bytes != data_bytes_ - begin ||
      data_bytes_ % bytes_of(header_.type) != 0) {
    fail_request(
        "\"{}\": {} bytes, but by its index \"{}\" the last sequence begins at byte {} and has {} bytes. One of them "
        "was cut short or belongs to another dataset; copy both again",
        data_name, data_bytes_, name(), begin, bytes);
  }
}

std::int64_t MegatronIndex::sequence_begin(std::int64_t sequence) const {
  require(sequence >= 0 && sequence <= header_.sequences, "a sequence lies inside its dataset");
  if (sequence == header_.sequences) return tokens();
  return position_of(sequence, offsets_.at(sequence));
}

std::array<std::int64_t, 2> MegatronIndex::sequence_ends(std::int64_t sequence) const {
  require(sequence >= 0 && sequence < header_.sequences, "a sequence lies inside its dataset");
  if (sequence + 1 == header_.sequences) return {sequence_begin(sequence), tokens()};
  std::array<std::int64_t, 2> offsets{};
  offsets_.read(sequence, offsets);
  return {position_of(sequence, offsets[0]), position_of(sequence + 1, offsets[1])};
}

std::int64_t MegatronIndex::position_of(std::int64_t sequence, std::int64_t offset) const {
  if (offset < 0 || offset > data_bytes_ || offset % bytes_of(header_.type) != 0) {
    fail_request("\"{}\": sequence {} begins at byte {} of {}, where no {} begins; the index is damaged", name(),
                 sequence, offset, data_bytes_, name_of(header_.type));
  }
  return offset / bytes_of(header_.type);
}

std::int64_t MegatronIndex::document_begin(std::int64_t document) const {
  const std::int64_t sequence = documents_.at(document);
  if (sequence < 0 || sequence > header_.sequences) {
    fail_request("\"{}\": document {} begins at sequence {} of {}; the index is damaged", name(), document, sequence,
                 header_.sequences);
  }
  return sequence_begin(sequence);
}

std::vector<std::int32_t> MegatronIndex::sequence_lengths() const {
  std::vector<std::int32_t> lengths;
  lengths.reserve(static_cast<std::size_t>(header_.sequences));
  std::int64_t sum = 0;
  lengths_.visit([&](std::int64_t first, std::span<const std::int64_t> numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0) {
        fail_request("\"{}\": sequence {} has {} tokens; the index is damaged", name(),
                     first + static_cast<std::int64_t>(i), numbers[i]);
      }
      sum += numbers[i];  // fits: each is below 2^31, and a file holds fewer than 2^61 of them
      lengths.push_back(static_cast<std::int32_t>(numbers[i]));
    }
  });
  if (sum != tokens()) {
    fail_request("\"{}\": its sequences have {} tokens together, but the dataset has {}; the index is damaged", name(),
                 sum, tokens());
  }
  return lengths;
}

std::vector<std::int64_t> MegatronIndex::document_lengths() const {
  const std::vector<std::int32_t> of_sequences = sequence_lengths();
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(header_.documents));
  visit_documents([&](std::int64_t document, std::int64_t before, std::int64_t begin) {
    if (document == 0) return;
    lengths.push_back(std::accumulate(of_sequences.begin() + before, of_sequences.begin() + begin, std::int64_t{0}));
  });
  return lengths;
}

void MegatronIndex::visit_documents(
    const std::function<void(std::int64_t document, std::int64_t before, std::int64_t begin)>& use) const {
  std::int64_t document = 0, before = 0;
  documents_.visit([&](std::int64_t, std::span<const std::int64_t> begins) {
    for (const std::int64_t begin : begins) {
      if (begin < before || begin > header_.sequences) {
        fail_request("\"{}\": document {} begins at sequence {}, the one before it at {}, of {}; the index is damaged",
                     name(), document, begin, before, header_.sequences);
      }
      use(document++, std::exchange(before, begin), begin);
    }
  });
}

void MegatronIndex::check() const {
  std::int64_t expected = 0;  // bytes before the sequence
  std::vector<std::int64_t> offsets;
  lengths_.visit([&](std::int64_t first, std::span<const std::int64_t> lengths) {
    offsets.resize(lengths.size());
    offsets_.read(first, offsets);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      // The last condition keeps the sum below from overflowing.
      if (lengths[i] < 0 || offsets[i] != expected || expected > data_bytes_) {
        fail_request(
            "\"{}\": sequence {} has {} tokens from byte {} on; those before it end at byte {}. The index is damaged",
            name(), first + static_cast<std::int64_t>(i), lengths[i], offsets[i], expected);
      }
      expected += lengths[i] * bytes_of(header_.type);
    }
  });
  if (expected != data_bytes_) {
    fail_request("\"{}\": its sequences end at byte {}, but the tokens end at byte {}; the index is damaged", name(),
                 expected, data_bytes_);
  }
  visit_documents([](std::int64_t, std::int64_t, std::int64_t) {});
}

}  // namespace weft
