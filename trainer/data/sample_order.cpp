#include "trainer/data/sample_order.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "trainer/data/megatron_order.h"

namespace weft {
namespace {

// Four rounds make a Feistel network look random on large domains; the small domain of a test file needs more.
constexpr int feistel_rounds = 8;

// A permutation of the numbers of 2 * half_bits bits: each round can be inverted, so outputs are distinct.
std::uint64_t feistel(const RandomStream& random, int half_bits, std::uint64_t value) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint64_t round = 0; round < feistel_rounds; ++round) {
    left ^= random.bits(round << half_bits | right) & mask;
    std::swap(left, right);
  }
  return left << half_bits | right;
}

// floor(a * b / 2^63), for a below 2^63 and b up to 2^63.
std::uint64_t part_of(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 63);
}

class WindowPool final : public SamplePool {
 public:
  WindowPool(std::span<const Range> ranges, std::int64_t first_file, std::int64_t sequence_length)
      : ranges_(ranges.begin(), ranges.end()), first_file_(first_file), sequence_length_(sequence_length) {
    for (const Range& range : ranges) {
      first_window_.push_back(first_window_.back() + std::max<std::int64_t>(0, range.count - 1) / sequence_length);
    }
  }

  std::int64_t samples() const override { return first_window_.back(); }
  std::vector<TokenPiece> pieces(std::int64_t window) const override {
    require(window >= 0 && window < samples(), "a window lies inside the files");
    // Files without a window begin where the next one does; the search passes over them.
    const auto next = std::ranges::upper_bound(first_window_, window);
    const std::int64_t file = next - first_window_.begin() - 1;
    const std::int64_t offset = (window - *std::prev(next)) * sequence_length_;
    return {{first_file_ + file, ranges_[static_cast<std::size_t>(file)].begin + offset, sequence_length_ + 1}};
  }

 private:
  std::vector<Range> ranges_;
  std::int64_t first_file_, sequence_length_;
  std::vector<std::int64_t> first_window_ = {0};  // first window of each file, then the number of all windows
};

// Pools drawn by weight, each endlessly, each epoch of a pool in an order of its own.
class ShuffledOrder final : public SampleOrder {
 public:
  // `make`: the pool of so many files from one on. Without weights there is one pool.
  ShuffledOrder(std::size_t files, const std::vector<double>& weights, std::uint64_t seed,
                const std::function<std::unique_ptr<SamplePool>(std::size_t first, std::size_t count)>& make)
      : seed_(seed), parts_(weights.empty() ? std::vector<double>{1.0} : weights), draw_(parts_) {
    const double sum = std::accumulate(parts_.begin(), parts_.end(), 0.0);
    for (double& part : parts_) part /= sum;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      pools_.push_back(weights.empty() ? make(0, files) : make(p, 1));
      names_.push_back(weights.empty() ? "data.order." : fmt::format("data.order.{}.", p));
    }
  }

  std::vector<TokenPiece> pieces(std::int64_t sample) const override {
    const auto [p, index] = draw_.draw(sample);
    const std::int64_t count = pools_[p]->samples();
    const std::string epoch = fmt::format("{}{}", names_[p], index / count);
    return pools_[p]->pieces(shuffled_position(seed_, epoch, index % count, count));
  }
  std::vector<double> passes(std::int64_t samples) const override {
    std::vector<double> passes;
    for (std::size_t p = 0; p < pools_.size(); ++p) {
      passes.push_back(static_cast<double>(samples) * parts_[p] / static_cast<double>(pools_[p]->samples()));
    }
    return passes;
  }
  std::string identity() const override { return pools_.front()->filled() ? "whole documents" : ""; }
  std::string remark() const override {
    std::string text;
    for (const auto& pool : pools_) {
      if (const auto filled = pool->filled()) {
        text += fmt::format("{}{:.1f} %", text.empty() ? "whole documents fill sequences to " : ", ", 100.0 * *filled);
      }
    }
    return text;
  }

 private:
  std::uint64_t seed_;
  std::vector<double> parts_;  // of sum 1, by pool
  WeightedDraw draw_;
  std::vector<std::unique_ptr<SamplePool>> pools_;
  std::vector<std::string> names_;  // keep the orders of several pools apart
};

class BlendedOrder final : public SampleOrder {
 public:
  BlendedOrder(const std::vector<TokenFile>& files, const std::string& split, const std::vector<double>& weights,
               const OrderRequest& request)
      : samples_(request.samples) {
    require(request.seed <= std::numeric_limits<std::uint32_t>::max(), "seeds of Megatron's order are uint32");
    if (files.size() > 1 && weights.empty()) {
      fail_request(
          "data.order is \"megatron\", which blends several datasets by weights: give each file of data.train one, as "
          "{{path = \"a.bin\", weight = 0.7}}");
    }
    OrderRequest of_file = request;
    std::vector<std::int64_t> requests = {samples_};
    if (files.size() > 1) {
      const BlendPlan plan = plan_blend(weights, samples_);
      requests = plan.requests;
      blend_ = blend_tables(plan, request.cache);
    }
    for (std::size_t f = 0; f < files.size(); ++f) {
      try {
        const SequenceRange part = split_sequences(split.empty() ? "1" : split, files[f].sequences()).front();
        of_file.samples = requests[f];
        orders_.emplace_back(files[f].index(), part, of_file);
      } catch (const Error& error) {
        fail_request("\"{}\": {}", files[f].name(), error.what());
      }
    }
  }

  std::vector<TokenPiece> pieces(std::int64_t sample) const override {
    require(sample >= 0 && sample < samples_, "a sample is one of the run");
    std::int64_t file = 0;
    if (!blend_.empty()) {
      blend_[0].read(sample, {&file, 1});
      blend_[1].read(sample, {&sample, 1});
      if (file < 0 || file >= std::ssize(orders_)) refuse_blend();
    }
    const MegatronOrder& order = orders_[static_cast<std::size_t>(file)];
    if (sample < 0 || sample >= order.samples()) refuse_blend();
    std::vector<TokenPiece> pieces;
    for (const SequencePiece& piece : order.pieces(sample)) {
      if (piece.count > 0) pieces.push_back({file, piece.first, piece.count, /*one_document=*/true});
    }
    return pieces;
  }
  std::vector<double> passes(std::int64_t samples) const override {
    std::vector<double> read(orders_.size());
    if (blend_.empty()) {
      read[0] = static_cast<double>(samples);
    } else {
      blend_[0].visit([&](std::int64_t first, std::span<const std::int64_t> numbers) {
        for (const std::int64_t file : numbers) {
          if (file < 0 || file >= std::ssize(orders_)) refuse_blend();
          if (first++ < samples) read[static_cast<std::size_t>(file)] += 1.0;
        }
      });
    }
    for (std::size_t f = 0; f < orders_.size(); ++f) {
      read[f] *= static_cast<double>(orders_[f].epochs().epochs) / static_cast<double>(orders_[f].samples());
    }
    return read;
  }
  std::string identity() const override {
    std::string text;
    for (const MegatronOrder& order : orders_) {
      const MegatronEpochs& epochs = order.epochs();
      text += fmt::format("{}{} epochs, {} samples, {} of them first", text.empty() ? "" : "; ", epochs.epochs,
                          epochs.samples, epochs.first_samples);
    }
    return text;
  }

 private:
  // By sample of the blend: its dataset, and its sample of that.
  static NumberTables blend_tables(const BlendPlan& plan, const OrderCache& cache) {
    const std::string key =
        fmt::format("Megatron's blend of {} samples by weights {:a}", plan.samples, fmt::join(plan.weights, " "));
    NumberTables tables = cache.tables(key, [&]() -> std::vector<NumberColumn> {
      MegatronBlend blend = blend_samples(plan.weights, plan.samples);
      return {number_column(TokenType::int16, std::move(blend.dataset)),
              number_column(TokenType::int64, std::move(blend.sample))};
    });
    if (tables.size() != 2 || tables[0].count() != plan.samples || tables[1].count() != plan.samples) refuse_blend();
    return tables;
  }
  [[noreturn]] static void refuse_blend() {
    fail_request("the tables of Megatron's blend in data.index_cache are damaged; delete them");
  }

  std::int64_t samples_;
  NumberTables blend_;  // empty for one file
  std::vector<MegatronOrder> orders_;
};

}  // namespace

std::int64_t shuffled_position(std::uint64_t seed, std::string_view epoch, std::int64_t index, std::int64_t count) {
  require(0 <= index && index < count && count <= std::int64_t{1} << 62, "a shuffled index lies inside its epoch");
  const RandomStream random(seed, epoch);
  const int half_bits = (std::bit_width(static_cast<std::uint64_t>(count - 1)) + 1) / 2;
  // The network permutes the numbers below a power of four, which is less than 4 * count. Following its cycle to the
  // next number below count permutes 0 .. count-1, in less than four steps on average. The cycle passes through `index`
  // itself, so this ends.
  auto position = static_cast<std::uint64_t>(index);
  do {
    position = feistel(random, half_bits, position);
  } while (position >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(position);
}

WeightedDraw::WeightedDraw(std::span<const double> weights) {
  constexpr double one = 0x1p63;
  double sum = 0.0;
  for (const double weight : weights) {
    const double all = sum + weight;
    before_.push_back(all > 0.0 ? static_cast<std::uint64_t>(sum / all * one) : 0);
    sum = all;
  }
  require(sum > 0.0, "one of the weights is above 0");
}

// Among the first n samples of sources 0 .. s, floor(n * before_[s] / 2^63) are of sources 0 .. s - 1, the rest of s.
DrawnSample WeightedDraw::draw(std::int64_t sample) const {
  auto index = static_cast<std::uint64_t>(sample);
  for (std::size_t source = before_.size() - 1; source > 0; --source) {
    const std::uint64_t others = part_of(index, before_[source]);
    if (part_of(index + 1, before_[source]) == others) return {source, static_cast<std::int64_t>(index - others)};
    index = others;
  }
  return {0, static_cast<std::int64_t>(index)};
}

std::vector<Range> split_files(const std::vector<TokenFile>& files, const std::string& split, std::size_t use,
                               std::int64_t sequence_length) {
  std::vector<Range> ranges;
  for (const TokenFile& file : files) {
    Range range{0, file.tokens()};
    if (!split.empty()) {
      const SequenceRange part = split_sequences(split, file.sequences())[use];
      range.begin = file.sequence_begin(part.begin);
      range.count = file.sequence_begin(part.end) - range.begin;
    }
    if (range.count <= sequence_length) {
      constexpr std::array uses = {"training", "validation", "test"};
      const char* const one = file.sequences() == 1
                                  ? ". A split goes between documents, and this file is one: weft data tokenize makes "
                                    "documents of lines, or name other files in validation.data"
                                  : "";
      fail_request("\"{}\": data.split \"{}\" leaves {} of its {} tokens for {}, fewer than one window of {}{}",
                   file.name(), split, range.count, file.tokens(), uses[use], sequence_length + 1, one);
    }
    ranges.push_back(range);
  }
  return ranges;
}

std::unique_ptr<SamplePool> make_window_pool(std::span<const Range> ranges, std::int64_t first_file,
                                             std::int64_t sequence_length) {
  return std::make_unique<WindowPool>(ranges, first_file, sequence_length);
}

std::unique_ptr<SampleOrder> make_shuffled_order(const std::vector<TokenFile>& files, const std::vector<Range>& ranges,
                                                 bool packed, const std::vector<double>& weights,
                                                 const OrderRequest& request) {
  const auto pool = [&](std::size_t f, std::size_t count) {
    const std::span parts = std::span(ranges).subspan(f, count);
    const auto first = static_cast<std::int64_t>(f);
    if (!packed) return make_window_pool(parts, first, request.sequence_length);
    return make_packed_pool(std::span(files).subspan(f, count), parts, first, request.sequence_length, request.cache);
  };
  return std::make_unique<ShuffledOrder>(files.size(), weights, request.seed, pool);
}

std::unique_ptr<SampleOrder> make_megatron_order(const std::vector<TokenFile>& files, const std::string& split,
                                                 const std::vector<double>& weights, const OrderRequest& request) {
  return std::make_unique<BlendedOrder>(files, split, weights, request);
}

}  // namespace weft
