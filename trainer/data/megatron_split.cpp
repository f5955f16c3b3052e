#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/data/megatron_order.h"
#include "trainer/data/numpy_random.h"

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
  double value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value, std::chars_format::fixed);
  if (part.find_first_not_of(".0123456789") != std::string_view::npos || error != std::errc() ||
      end != part.data() + part.size()) {
    refuse_split(split, fmt::format("\"{}\" is no number", part));
  }
  return value;
}

std::vector<double> split_parts(std::string_view split) {
  std::vector<double> parts;
  for (const std::string_view part : parts_between(split, ',')) parts.push_back(split_part(split, part));
  if (parts.size() > 3) refuse_split(split, fmt::format("{} parts", parts.size()));
  return parts;
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

}  // namespace weft
