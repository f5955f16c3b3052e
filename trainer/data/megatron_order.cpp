#include "trainer/data/megatron_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/data/numpy_random.h"

namespace weft {
namespace {

constexpr std::int64_t most_order_entries = std::numeric_limits<std::int32_t>::max();

std::int64_t tokens_of_split(const TokenIndex& dataset, SequenceRange split) {
  require(0 <= split.begin && split.begin <= split.end && split.end <= dataset.sequences(),
          "a split lies inside its dataset");
  return dataset.sequence_begin(split.end) - dataset.sequence_begin(split.begin);
}

void refuse_large_table(const char* what, std::int64_t entries) {
  if (entries <= most_order_entries) return;
  fail_request(
      "Megatron's order of this dataset needs {} {}, more than 2^31 - 1. Split the dataset, ask for fewer samples, or "
      "use "
      "Weft's own order",
      entries, what);
}

}  // namespace

MegatronEpochs megatron_epochs(std::int64_t tokens_per_epoch, const MegatronRequest& request) {
  const std::int64_t length = request.sequence_length, samples = request.samples.value_or(0);
  require(length >= 1 && samples >= 0, "samples have tokens, and there are none or more");
  if (samples > (std::numeric_limits<std::int64_t>::max() / 2 - tokens_per_epoch) / length) {
    fail_request("{} samples of {} tokens are more than 2^62 tokens; ask for fewer", samples, length);
  }
  if (tokens_per_epoch < 2) {
    fail_request(
        "Megatron's order of a split with {} tokens: a sample has at least two. Give the split a larger part or more "
        "data",
        tokens_per_epoch);
  }
  MegatronEpochs result;
  if (request.samples) {
    result.epochs = std::max<std::int64_t>(1, (samples * length + 1 + tokens_per_epoch - 1) / tokens_per_epoch);
  }
  // A sample needs one token besides those that it shares with no other.
  const std::int64_t steps = result.epochs * tokens_per_epoch - 1;
  result.samples = request.drop_last_partial ? steps / length : (steps + length - 1) / length;
  if (result.samples == 0) {
    fail_request(
        "Megatron's order of a split with {} tokens has no sample of {} + 1; shorten the sequences or give it more "
        "data",
        tokens_per_epoch, length);
  }
  result.first_samples = result.samples;
  if (result.epochs == 1) return result;
  const std::int64_t without_last = ((result.epochs - 1) * tokens_per_epoch - 1) / length;
  const std::int64_t of_an_epoch = (tokens_per_epoch - 1) / length;
  // In float64 and cut off, as int(0.80 * n) in Python.
  const auto threshold = static_cast<std::int64_t>(0.80 * static_cast<double>(of_an_epoch));
  result.separate_last = samples - without_last < threshold;
  if (result.separate_last) result.first_samples = without_last;
  return result;
}

std::vector<std::int32_t> megatron_documents(SequenceRange split, const MegatronEpochs& epochs,
                                             std::mt19937& generator) {
  const std::int64_t count = split.end - split.begin;
  require(split.begin >= 0 && split.end - 1 <= most_order_entries && count >= 0 && epochs.epochs >= 1,
          "a split has numbers of int32");
  if (count > 0 && epochs.epochs > most_order_entries / count) {
    fail_request(
        "Megatron's order reads {} sequences in each of {} epochs, more than 2^31 - 1 together; ask for fewer samples",
        count, epochs.epochs);
  }
  std::vector<std::int32_t> documents(static_cast<std::size_t>(count * epochs.epochs));
  for (std::size_t i = 0; i < documents.size(); ++i) {
    documents[i] = static_cast<std::int32_t>(split.begin + static_cast<std::int64_t>(i) % count);
  }
  const std::span<std::int32_t> all = documents;
  const std::size_t last = epochs.separate_last ? static_cast<std::size_t>(count) : 0;
  numpy_shuffle(all.first(all.size() - last), generator);
  numpy_shuffle(all.last(last), generator);
  return documents;
}

std::vector<SampleStart> megatron_starts(std::span<const std::int32_t> lengths, std::span<const std::int32_t> documents,
                                         std::int64_t sequence_length, std::int64_t samples) {
  refuse_large_table("samples", samples);
  std::vector<SampleStart> starts;
  starts.reserve(static_cast<std::size_t>(samples) + 1);
  SampleStart at;
  starts.push_back(at);
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    // The next sample begins with the last token of this one.
    std::int64_t remaining = sequence_length + 1;
    while (true) {
      require(at.position < std::ssize(documents), "samples end before the documents do");
      const std::int64_t length = lengths[static_cast<std::size_t>(documents[static_cast<std::size_t>(at.position)])];
      const std::int64_t left = length - at.offset;
      if (left >= remaining) {
        at.offset += static_cast<std::int32_t>(remaining - 1);
        break;
      }
      if (at.position + 1 == std::ssize(documents)) {
        // The last sample is a partial one.
        at.offset = static_cast<std::int32_t>(length - 1);
        break;
      }
      remaining -= left;
      ++at.position;
      at.offset = 0;
    }
    starts.push_back(at);
  }
  return starts;
}

std::vector<std::uint32_t> megatron_shuffle(const MegatronEpochs& epochs, std::mt19937& generator) {
  std::vector<std::uint32_t> shuffle(static_cast<std::size_t>(epochs.samples));
  std::iota(shuffle.begin(), shuffle.end(), 0u);
  const std::span<std::uint32_t> all = shuffle;
  const auto first = static_cast<std::size_t>(epochs.first_samples);
  numpy_shuffle(all.first(first), generator);
  numpy_shuffle(all.subspan(first), generator);
  return shuffle;
}

MegatronOrder::MegatronOrder(std::shared_ptr<const TokenIndex> dataset, SequenceRange split,
                             const MegatronRequest& request, const OrderCache& cache)
    : dataset_(std::move(dataset)),
      sequence_length_(request.sequence_length),
      epochs_(megatron_epochs(tokens_of_split(*dataset_, split), request)) {
  refuse_large_table("samples", epochs_.samples);
  const std::string key = fmt::format(
      "Megatron's order of {}: sequences {} to {}, {} epochs, {} samples of {} tokens, {} of them first, "
      "seed {}",
      dataset_->identity(), split.begin, split.end, epochs_.epochs, epochs_.samples, sequence_length_,
      epochs_.first_samples, request.seed);
  tables_ = cache.tables(key, [&]() -> std::vector<NumberColumn> {
    dataset_->check();
    // One generator for both: the shuffle of samples continues where that of documents ended.
    std::mt19937 generator(request.seed);
    std::vector<std::int32_t> documents = megatron_documents(split, epochs_, generator);
    std::vector<SampleStart> starts =
        megatron_starts(dataset_->sequence_lengths(), documents, sequence_length_, epochs_.samples);
    return {number_column(TokenType::int32, std::move(documents)), number_column(TokenType::int32, std::move(starts)),
            number_column(TokenType::uint32, megatron_shuffle(epochs_, generator))};
  });
}

std::vector<SequencePiece> MegatronOrder::pieces(std::int64_t sample) const {
  require(sample >= 0 && sample < samples(), "a sample lies inside its order");
  const auto damaged = [&] {
    fail_request(
        "\"{}\": sample {} of Megatron's order is none of this index; it has changed since the run began, or "
        "the tables in data.index_cache are damaged: delete them",
        dataset_->name(), sample);
  };
  const auto read = [&](std::size_t table, std::int64_t first, std::span<std::int64_t> to) {
    if (table >= tables_.size() || first < 0 || first > tables_[table].count() - std::ssize(to)) damaged();
    tables_[table].read(first, to);
  };
  std::int64_t row = 0;
  read(2, sample, {&row, 1});
  std::array<std::int64_t, 4> starts{};  // position and offset of the first token, and of the last
  if (row >= samples()) damaged();
  read(1, 2 * row, starts);
  const auto [begin, begin_offset, last, last_offset] = starts;
  if (begin < 0 || last < begin || last >= tables_[0].count()) damaged();
  std::vector<std::int64_t> sequences(static_cast<std::size_t>(last - begin + 1));
  read(0, begin, sequences);
  std::vector<SequencePiece> pieces;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t sequence = sequences[i];
    if (sequence < 0 || sequence >= dataset_->sequences()) damaged();
    const auto [first, end] = dataset_->sequence_ends(sequence);
    const std::int64_t from = i == 0 ? first + begin_offset : first;
    const std::int64_t to = i + 1 == sequences.size() ? first + last_offset + 1 : end;
    if (from < first || from > to || to > end) damaged();
    pieces.push_back({sequence, from, to - from});
    tokens += to - from;
  }
  // A last partial sample has fewer.
  if (tokens > sequence_length_ + 1 || (tokens <= sequence_length_ && row + 1 < samples())) damaged();
  return pieces;
}

}  // namespace weft
