#include "trainer/data/megatron_order.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

[[noreturn]] void refuse_split(std::string_view split, std::string_view why) {
  fail_request("the split \"{}\": {}; write up to three parts like \"969,30,1\", one of them above 0", split, why);
}

// A number of digits with at most one point, as far as Megatron and Python read it too.
double split_part(std::string_view split, std::string_view part) {
  const std::size_t begin = part.find_first_not_of(' ');
  if (begin == std::string_view::npos) refuse_split(split, "a part is empty");
  part = part.substr(begin, part.find_last_not_of(' ') - begin + 1);
  const auto value = parsed_number<double>(part);
  if (!value || part.find_first_not_of(".0123456789") != std::string_view::npos) {
    refuse_split(split, fmt::format("\"{}\" is no number", part));
  }
  return *value;
}

std::vector<double> split_parts(std::string_view split) {
  std::vector<double> parts;
  for (const std::string_view part : parts_between(split, ',')) parts.push_back(split_part(split, part));
  if (parts.size() > 3) refuse_split(split, fmt::format("{} parts", parts.size()));
  return parts;
}

constexpr std::int64_t most_order_entries = std::numeric_limits<std::int32_t>::max();

std::int64_t tokens_of_split(const TokenIndex& dataset, SequenceRange split) {
  require(0 <= split.begin && split.begin <= split.end && split.end <= dataset.sequences(),
          "a split lies inside its dataset");
  return dataset.sequence_begin(split.end) - dataset.sequence_begin(split.begin);
}

constexpr std::size_t most_blended = 32766;
constexpr double blend_surplus = 0.005;  // mid_level_dataset_surplus of Megatron

std::vector<double> divide_by_sum(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> divided(weights.begin(), weights.end());
  for (double& weight : divided) weight /= sum;
  return divided;
}

// A product rounded to float64. Fused with the difference that follows it would be more exact, and where two datasets
// are equally far behind, the other would be drawn. The compiler may not look through a volatile object.
double rounded_product(double a, double b) {
  const volatile double product = a * b;
  return product;
}

}  // namespace

std::string canonical_split(std::string_view split) {
  std::vector<double> parts = split_parts(split);
  while (parts.size() > 1 && parts.back() == 0.0) parts.pop_back();
  return fmt::format("{}", fmt::join(parts, ","));
}

std::array<SequenceRange, 3> split_sequences(std::string_view split, std::int64_t sequences) {
  require(sequences >= 0, "a dataset has sequences");
  if (sequences >= std::int64_t{1} << 31) {
    fail_request("{} sequences; Megatron's order counts at most 2^31 - 1. Split the dataset or use Weft's own order",
                 sequences);
  }
  std::vector<double> parts = split_parts(split);
  parts.resize(3);
  const double sum = numpy_sum(parts);
  if (!std::isfinite(sum) || sum <= 0) refuse_split(split, fmt::format("its sum is {}", sum));
  std::array<SequenceRange, 3> ranges;
  double bound = 0;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    bound += parts[i] / sum;
    const auto end = static_cast<std::int64_t>(std::nearbyint(bound * static_cast<double>(sequences)));
    ranges[i] = {before, end};
    before = end;
  }
  return ranges;
}

MegatronEpochs megatron_epochs(std::int64_t tokens_per_epoch, const OrderRequest& request) {
  const std::int64_t length = request.sequence_length, samples = request.samples;
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
  result.epochs = (samples * length + 1 + tokens_per_epoch - 1) / tokens_per_epoch;
  // A sample needs one token besides those that it shares with no other.
  const std::int64_t steps = result.epochs * tokens_per_epoch - 1;
  result.samples = steps / length;
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
                             const OrderRequest& request)
    : dataset_(std::move(dataset)),
      sequence_length_(request.sequence_length),
      epochs_(megatron_epochs(tokens_of_split(*dataset_, split), request)) {
  if (samples() > most_order_entries) {
    fail_request(
        "Megatron's order of this dataset needs {} samples, more than 2^31 - 1. Split the dataset, ask for fewer "
        "samples, or use Weft's own order",
        samples());
  }
  const std::string key = fmt::format(
      "Megatron's order of {}: sequences {} to {}, {} epochs, {} samples of {} tokens, {} of them first, "
      "seed {}",
      dataset_->identity(), split.begin, split.end, epochs_.epochs, epochs_.samples, sequence_length_,
      epochs_.first_samples, request.seed);
  tables_ = request.cache.tables(key, [&]() -> std::vector<NumberColumn> {
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
  if (tokens != sequence_length_ + 1) damaged();
  return pieces;
}

BlendPlan plan_blend(std::span<const double> weights, std::int64_t samples) {
  require(samples >= 0, "a blend has samples");
  if (weights.empty() || weights.size() > most_blended) {
    fail_request("a blend of {} datasets; Megatron blends 1 to {}", weights.size(), most_blended);
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (std::isfinite(weights[i]) && weights[i] >= 0) continue;
    fail_request("weight {} of the blend is {}; weights are 0 or more and finite", i, weights[i]);
  }
  const double sum = numpy_sum(weights);
  if (!std::isfinite(sum) || sum <= 0) {
    fail_request("the weights of the blend have the sum {}; give at least one dataset a weight above 0", sum);
  }
  if (samples > most_order_entries) {
    fail_request("the blend has {} samples, more than 2^31 - 1. Ask for fewer samples, or use Weft's own order",
                 samples);
  }
  BlendPlan plan;
  const std::vector<double> parts = divide_by_sum(weights);
  for (const double part : parts) {
    const double share = std::ceil(static_cast<double>(samples) * part);
    plan.requests.push_back(static_cast<std::int64_t>(std::ceil(share * (1 + blend_surplus))));
    plan.samples += static_cast<std::int64_t>(share);
  }
  plan.weights = divide_by_sum(parts);
  return plan;
}

MegatronBlend blend_samples(std::span<const double> weights, std::int64_t samples) {
  require(!weights.empty() && weights.size() <= most_blended && samples >= 0, "a blend has datasets and samples");
  MegatronBlend blend;
  blend.dataset.reserve(static_cast<std::size_t>(samples));
  blend.sample.reserve(static_cast<std::size_t>(samples));
  std::vector<std::int64_t> drawn(weights.size());
  for (std::int64_t k = 0; k < samples; ++k) {
    const auto behind = [&, step = static_cast<double>(std::max<std::int64_t>(k, 1))](std::size_t dataset) {
      return rounded_product(weights[dataset], step) - static_cast<double>(drawn[dataset]);
    };
    std::size_t furthest = 0;
    double most = behind(0);
    for (std::size_t dataset = 1; dataset < weights.size(); ++dataset) {
      const double distance = behind(dataset);
      if (distance <= most) continue;
      most = distance;
      furthest = dataset;
    }
    blend.dataset.push_back(static_cast<std::int16_t>(furthest));
    blend.sample.push_back(drawn[furthest]++);
  }
  return blend;
}

std::uint64_t numpy_interval(std::mt19937& generator, std::uint64_t most) {
  if (most == 0) return 0;
  const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(most);
  const bool wide = most > 0xffffffffu;
  while (true) {
    std::uint64_t value = generator();
    if (wide) value = value << 32 | generator();
    value &= mask;
    if (value <= most) return value;
  }
}

double numpy_sum(std::span<const double> numbers) {
  constexpr std::size_t lanes = 8, block = 128;
  const std::size_t count = numbers.size();
  if (count > block) {
    std::size_t half = count / 2;
    half -= half % lanes;
    return numpy_sum(numbers.first(half)) + numpy_sum(numbers.subspan(half));
  }
  double sum = 0;
  std::size_t next = 0;
  if (count >= lanes) {
    std::array<double, lanes> partial{};
    for (; next + lanes <= count; next += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) partial[lane] += numbers[next + lane];
    }
    sum = ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
          ((partial[4] + partial[5]) + (partial[6] + partial[7]));
  }
  for (; next < count; ++next) sum += numbers[next];
  return sum;
}

}  // namespace weft
