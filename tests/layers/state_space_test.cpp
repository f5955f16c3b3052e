// The kernels of a state space against a recurrence in double that goes token by token, and its finite differences.
#include "layers/kernels/state_space.h"

#include <initializer_list>
#include <limits>
#include <span>

#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

using Numbers = std::vector<double>;
constexpr double norm_eps = 0.01;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}
double silu_of(double x) {
  return x / (1.0 + std::exp(-x));
}

// Everything that the kernels read, as the double reference sees it.
struct SpaceCase {
  StateSpaceShape shape;
  std::int64_t sequences = 1;
  std::vector<std::int32_t> begins = {};  // by token

  std::int64_t tokens() const { return sequences * shape.sequence_length; }
  // Whether token `row` reads token `other`.
  bool reads(std::int64_t row, std::int64_t other) const {
    const std::int64_t first = row - row % shape.sequence_length;
    return other >= first + (begins.empty() ? 0 : begins[at(row)]) && other <= row;
  }
};

// Documents of about `tokens`. They begin everywhere: at the ends of a sequence and of a chunk, too.
std::vector<std::int32_t> some_documents(const StateSpaceShape& shape, std::int64_t sequences, std::int64_t tokens) {
  std::vector<std::int32_t> begins;
  for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
    std::int32_t begin = 0;
    for (std::int64_t position = 0; position < shape.sequence_length; ++position) {
      const bool is_new = position % shortest_scan_chunk == 0 || position % (tokens + sequence % 3) == tokens - 1;
      if (is_new && position % 3 != 1) begin = static_cast<std::int32_t>(position);
      begins.push_back(begin);
    }
  }
  return begins;
}

Numbers convolved(const SpaceCase& of, const Numbers& projected, const Numbers& weight, const Numbers& bias) {
  const StateSpaceShape& shape = of.shape;
  Numbers mixed;
  for (std::int64_t row = 0; row < of.tokens(); ++row) {
    for (std::int64_t channel = 0; channel < shape.channels(); ++channel) {
      double sum = bias[at(channel)];
      for (std::int64_t k = 0; k < shape.filter; ++k) {
        const std::int64_t other = row - (shape.filter - 1) + k;
        if (!of.reads(row, other)) continue;
        sum +=
            weight[at(channel * shape.filter + k)] * projected[at(other * shape.columns() + shape.inner() + channel)];
      }
      mixed.push_back(silu_of(sum));
    }
  }
  return mixed;
}

struct Rates {
  Numbers a_log, d, dt_bias;
};

// `magnitudes`: every term with its absolute value, which bounds the sums of roundings.
Numbers scanned(const SpaceCase& of, const Numbers& mixed, const Numbers& projected, const Rates& rates,
                bool magnitudes = false) {
  const StateSpaceShape& shape = of.shape;
  const auto value = [&](double x) { return magnitudes ? std::abs(x) : x; };
  Numbers y(at(of.tokens() * shape.inner())), state(at(shape.inner() * shape.state_size));
  for (std::int64_t row = 0; row < of.tokens(); ++row) {
    if (!of.reads(row, row - 1)) std::ranges::fill(state, 0.0);
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const double raw = projected[at(row * shape.columns() + shape.step_column() + head)];
      const double step = std::log1p(std::exp(raw + rates.dt_bias[at(head)]));
      const double keep = std::exp(-std::exp(rates.a_log[at(head)]) * step);
      const std::int64_t group = head / shape.heads_of_group(), columns = row * shape.channels();
      for (std::int64_t p = 0; p < shape.head_dim; ++p) {
        const std::int64_t column = head * shape.head_dim + p;
        const double x = value(mixed[at(columns + column)]);
        double& out = y[at(row * shape.inner() + column)] = value(rates.d[at(head)]) * x;
        for (std::int64_t n = 0; n < shape.state_size; ++n) {
          const std::int64_t b = columns + shape.inner() + group * shape.state_size + n;
          double& element = state[at(column * shape.state_size + n)];
          element = keep * element + step * x * value(mixed[at(b)]);
          out += element * value(mixed[at(b + shape.group_columns())]);
        }
      }
    }
  }
  return y;
}

Numbers normed(const SpaceCase& of, const Numbers& y, const Numbers& projected, const Numbers& weight) {
  const StateSpaceShape& shape = of.shape;
  const std::int64_t width = shape.inner() / shape.groups;
  Numbers out;
  for (std::int64_t row = 0; row < of.tokens(); ++row) {
    for (std::int64_t group = 0; group < shape.groups; ++group) {
      Numbers gated;
      double squares = 0.0;
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t column = group * width + i;
        gated.push_back(y[at(row * shape.inner() + column)] * silu_of(projected[at(row * shape.columns() + column)]));
        squares += gated.back() * gated.back();
      }
      const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(width) + norm_eps);
      for (std::int64_t i = 0; i < width; ++i) out.push_back(gated[at(i)] * inverse * weight[at(group * width + i)]);
    }
  }
  return out;
}

double weighted_sum(const Numbers& a, const Numbers& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class StateSpace : public KernelTest {
 protected:
  StateSpace() : KernelTest(Products::library) {}

  // Sizes of odd numbers, one and several groups, chunks that end in part, documents. Of a GPU: heads and states of
  // more than one tile, all pairs of tiles of a chunk, a chunk behind them, heads in slices.
  void for_each_case(const std::function<void(DType, const SpaceCase&)>& check) {
    const SpaceCase wide = {
        {.heads = 4, .head_dim = 67, .groups = 2, .state_size = 70, .filter = 5, .sequence_length = 66}, 1};
    const SpaceCase cases[] = {
        {{.heads = 1, .head_dim = 1, .groups = 1, .state_size = 1, .filter = 1, .sequence_length = 1}, 3},
        {{.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .filter = 4, .sequence_length = 7}, 2},
        {{.heads = 2, .head_dim = 2, .groups = 1, .state_size = 3, .filter = 4, .sequence_length = 64}, 1},
        {{.heads = 2, .head_dim = 2, .groups = 2, .state_size = 3, .filter = 2, .sequence_length = 131}, 2},
        {{.heads = 2, .head_dim = 3, .groups = 1, .state_size = 5, .filter = 2, .sequence_length = 300}, 1},
        {{.heads = 35, .head_dim = 2, .groups = 1, .state_size = 3, .filter = 2, .sequence_length = 70}, 1},
        wide};
    for_cases(cases, {0, 37}, [&](DType dtype, const SpaceCase& of) {
      if (of.shape.head_dim != wide.shape.head_dim || dtype != DType::float16) check(dtype, of);
    });
  }
  // Of a GPU: all filters in vectors and one not in registers, strips of channels, more runs than there are at once.
  // Documents begin beside the ends of runs.
  void for_each_convolution(const std::function<void(DType, const SpaceCase&)>& check) {
    for_each_case(check);
    std::vector<SpaceCase> cases = {
        {{.heads = 4, .head_dim = 40, .groups = 2, .state_size = 4, .filter = 3, .sequence_length = 67}, 1},
        {{.heads = 2, .head_dim = 2, .groups = 2, .state_size = 3, .filter = 3, .sequence_length = 66}, 2},
        {{.heads = 2, .head_dim = 2, .groups = 2, .state_size = 3, .filter = 16, .sequence_length = 40}, 2},
        {{.heads = 1, .head_dim = 1, .groups = 1, .state_size = 1, .filter = 4, .sequence_length = 2}, 1100}};
    for (std::int64_t filter = 1; filter <= 4; ++filter) {
      cases.push_back(
          {{.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .filter = filter, .sequence_length = 70}, 3});
    }
    for_cases(cases, {0, 4}, check);
  }
  // Of a GPU: vectors, groups of a warp and of a block, groups wider than a block keeps, more tokens than blocks.
  void for_each_norm(const std::function<void(DType, const SpaceCase&)>& check) {
    for_each_case(check);
    const SpaceCase cases[] = {
        {{.heads = 8, .head_dim = 8, .groups = 2, .state_size = 4, .sequence_length = 1100}, 1},
        {{.heads = 8, .head_dim = 72, .groups = 1, .state_size = 4, .sequence_length = 5}, 1},
        {{.heads = 8, .head_dim = 1025, .groups = 1, .state_size = 4, .sequence_length = 2}, 1},
        {{.heads = 1, .head_dim = 1030, .groups = 1, .state_size = 4, .sequence_length = 515}, 1}};
    for_cases(cases, {0}, check);
  }
  // With documents of so many tokens; 0: without documents.
  void for_cases(std::span<const SpaceCase> cases, std::initializer_list<std::int64_t> tokens_of_documents,
                 const std::function<void(DType, const SpaceCase&)>& check) {
    for (const DType dtype : float_types) {
      for (SpaceCase the_case : cases) {
        for (const std::int64_t tokens : tokens_of_documents) {
          if (tokens > 0) the_case.begins = some_documents(the_case.shape, the_case.sequences, tokens);
          SCOPED_TRACE(fmt::format("{}, {} heads, {} tokens, filter {}, documents of {}", name_of(dtype),
                                   the_case.shape.heads, the_case.tokens(), the_case.shape.filter, tokens));
          check(dtype, the_case);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  struct ScanTensors {
    Tensor mixed, projected, begins, a_log, d, dt_bias;
    StateSpaceRates rates() const { return {a_log, d, dt_bias}; }
  };
  ScanTensors scan_tensors(DType dtype, const SpaceCase& of) {
    const std::int64_t heads = of.shape.heads;
    return {random("mixed", dtype, of.tokens(), of.shape.channels()),
            random("projected", dtype, of.tokens(), of.shape.columns()),
            begins_of(of),
            rates_tensor("a_log", dtype, heads),
            rates_tensor("d", dtype, heads),
            rates_tensor("dt_bias", dtype, heads)};
  }
  Rates numbers_of(const ScanTensors& in) { return {doubles(in.a_log), doubles(in.d), doubles(in.dt_bias)}; }
  Tensor begins_of(const SpaceCase& of) { return of.begins.empty() ? Tensor() : tensor_of(of.begins); }
  Numbers scaled(std::string_view name, std::int64_t count, double scale) {
    const RandomStream stream_of_name(7, name);
    Numbers values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(scale * stream_of_name.normal(at(i)));
    return values;
  }
  Tensor rates_tensor(std::string_view name, DType dtype, std::int64_t heads) {
    return tensor_of(dtype, heads, 1, scaled(name, heads, 0.5));
  }
  // Each element within `roundings` of float32 of the largest expected element, and one rounding of the dtype.
  void expect_near(ConstTensorView actual, const Numbers& expected, double roundings) {
    double largest = 1.0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    expect_close(actual, expected, Numbers(expected.size(), roundings * float_roundoff * largest));
  }
  // The same for the derivatives of weighted_sum(forward(values), dy) by some of the values, up to a hundred, and by
  // all of them together. `terms`: the size of what an element sums over, if that is larger than any element.
  // `factors`: their error.
  void expect_gradient(ConstTensorView actual, const Numbers& values, const Numbers& dy,
                       const std::function<Numbers(const Numbers&)>& forward, double roundings, double terms = 1.0,
                       double factors = 0.0) {
    const Numbers found = doubles(actual);
    ASSERT_EQ(found.size(), values.size());
    double largest = terms;
    for (const double value : found) largest = std::max(largest, std::abs(value));
    const auto tolerance = [&](double expected) {
      return (roundings * float_roundoff + factors) * largest + roundoff(actual.dtype()) * std::abs(expected);
    };
    const std::size_t stride = 1 + values.size() / (dy.size() > 10'000 ? 4 : dy.size() > 1'000 ? 20 : 100);
    for (std::size_t i = 0; i < values.size(); i += stride) {
      const double expected =
          derivative([&](const Numbers& moved) { return weighted_sum(forward(moved), dy); }, values, i);
      ASSERT_LE(std::abs(found[i] - expected), tolerance(expected))
          << "element " << i << " of " << values.size() << ": " << found[i] << ", expected " << expected;
    }
    // Along a unit vector of random signs. Errors of the elements have signs of their own: their sum is above six times
    // their root mean square once in 10^7 (Hoeffding).
    const RandomStream signs(11, "signs");
    const double length = 1.0 / std::sqrt(static_cast<double>(values.size()));
    Numbers along;
    double squares = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      along.push_back(signs.normal(i) < 0.0 ? -length : length);
      squares += std::pow(tolerance(found[i]) * length, 2.0);
    }
    const auto moved_along = [&](const Numbers& distance) {
      Numbers moved = values;
      for (std::size_t i = 0; i < values.size(); ++i) moved[i] += distance[0] * along[i];
      return weighted_sum(forward(moved), dy);
    };
    EXPECT_NEAR(weighted_sum(found, along), derivative(moved_along, {0.0}, 0), 6.0 * std::sqrt(squares));
  }
  // The share of a sum's terms by which a scan's factors may be off, each of two or three rounded to the dtype.
  double factor_error(DType dtype) const {
    return dtype == DType::float32 || !backend->scans_in_dtype() ? 0.0 : 4.0 * roundoff(dtype);
  }
  // A state sums over the tokens of its document, an output over the state, and a gradient over both again.
  static double roundings_of(const StateSpaceShape& shape) {
    return 64.0 + 4.0 * static_cast<double>(shape.sequence_length + shape.state_size + shape.head_dim + shape.heads);
  }
};

TEST_F(StateSpace, ConvolvesTheTokensOfADocument) {
  for_each_convolution([&](DType dtype, const SpaceCase& of) {
    const StateSpaceShape& shape = of.shape;
    const Tensor projected = random("projected", dtype, of.tokens(), shape.columns());
    const Tensor weight = random("weight", dtype, shape.channels() * shape.filter, 1);
    const Tensor bias = random("bias", dtype, shape.channels(), 1), begins = begins_of(of);
    Tensor mixed = poisoned(dtype, of.tokens(), shape.channels());
    mix_tokens_forward(context, shape, projected, weight, bias, begins, {}, mixed);
    expect_near(mixed, convolved(of, doubles(projected), doubles(weight), doubles(bias)), 32.0);
  });
}

TEST_F(StateSpace, ConvolutionHasTheGradientsOfTheReference) {
  for_each_convolution([&](DType dtype, const SpaceCase& of) {
    const StateSpaceShape& shape = of.shape;
    const Tensor projected = random("projected", dtype, of.tokens(), shape.columns());
    const Tensor weight = random("weight", dtype, shape.channels() * shape.filter, 1);
    const Tensor bias = random("bias", dtype, shape.channels(), 1), begins = begins_of(of);
    const Tensor dmixed = random("dmixed", dtype, of.tokens(), shape.channels());
    Tensor dprojected = zeros(dtype, of.tokens(), shape.columns());
    Tensor dweight = poisoned(DType::float32, weight.rows(), 1), dbias = poisoned(DType::float32, bias.rows(), 1);
    mix_tokens_backward(context, shape, dmixed, projected, weight, bias, begins, dprojected, dweight, dbias);

    const Numbers inputs = doubles(projected), weights = doubles(weight), biases = doubles(bias), dy = doubles(dmixed);
    expect_gradient(
        dprojected, inputs, dy, [&](const Numbers& x) { return convolved(of, x, weights, biases); }, 64.0);
    const double sums = 64.0 + static_cast<double>(of.tokens());
    expect_gradient(
        dweight, weights, dy, [&](const Numbers& w) { return convolved(of, inputs, w, biases); }, sums);
    expect_gradient(
        dbias, biases, dy, [&](const Numbers& b) { return convolved(of, inputs, weights, b); }, sums);
  });
}

// What is not a number there shows whom a token reaches, also by taps and places that count as zero.
TEST_F(StateSpace, InfinityReachesNoTokenThatDoesNotSeeIt) {
  const std::int64_t token = 20;
  for (const std::int64_t filter : {1, 2, 3, 4, 6}) {
    SCOPED_TRACE(fmt::format("filter {}", filter));
    const StateSpaceShape shape = {
        .heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .filter = filter, .sequence_length = 70};
    const std::int64_t tokens = shape.sequence_length;
    const auto numbers_of_a_token = [&](Tensor& tensor) {
      Numbers values = doubles(tensor);
      const auto first = values.begin() + token * tensor.columns();
      std::fill(first, first + tensor.columns(), std::numeric_limits<double>::infinity());
      return tensor_of(DType::float32, tokens, tensor.columns(), values);
    };
    const auto finite = [&](const Numbers& values, std::int64_t row) {
      const std::int64_t columns = std::ssize(values) / tokens, first = row * columns + columns - shape.heads - 1;
      return std::isfinite(values[at(first)]);
    };
    Tensor projected = random("projected", DType::float32, tokens, shape.columns());
    Tensor dmixed = random("dmixed", DType::float32, tokens, shape.channels());
    const Tensor weight = random("weight", DType::float32, shape.channels() * filter, 1);
    const Tensor bias = random("bias", DType::float32, shape.channels(), 1);
    Tensor mixed = poisoned(DType::float32, tokens, shape.channels());
    Tensor dprojected = zeros(DType::float32, tokens, shape.columns());
    Tensor dweight = poisoned(DType::float32, weight.rows(), 1), dbias = poisoned(DType::float32, bias.rows(), 1);
    mix_tokens_forward(context, shape, numbers_of_a_token(projected), weight, bias, {}, {}, mixed);
    mix_tokens_backward(context, shape, numbers_of_a_token(dmixed), projected, weight, bias, {}, dprojected, dweight,
                        dbias);
    for (std::int64_t row = 0; row < tokens; ++row) {
      SCOPED_TRACE(fmt::format("token {}", row));
      EXPECT_TRUE(finite(doubles(mixed), row) || (row >= token && row < token + filter));
      EXPECT_EQ(finite(doubles(dprojected), row), row <= token - filter || row > token);
    }
  }
}

TEST_F(StateSpace, ScansAsTheRecurrenceSays) {
  for_each_case([&](DType dtype, const SpaceCase& of) {
    const ScanTensors in = scan_tensors(dtype, of);
    Tensor y = poisoned(dtype, of.tokens(), of.shape.inner());
    scan_tokens_forward(context, of.shape, in.mixed, in.projected, in.rates(), in.begins, {}, y);
    const Numbers mixed = doubles(in.mixed), projected = doubles(in.projected);
    const Rates rates = numbers_of(in);
    Numbers error = scanned(of, mixed, projected, rates, /*magnitudes=*/true);
    for (double& magnitude : error) magnitude *= roundings_of(of.shape) * float_roundoff + factor_error(dtype);
    expect_close(y, scanned(of, mixed, projected, rates), error);
  });
}

TEST_F(StateSpace, ScanHasTheGradientsOfTheReference) {
  for_each_case([&](DType dtype, const SpaceCase& of) {
    const StateSpaceShape& shape = of.shape;
    const ScanTensors in = scan_tensors(dtype, of);
    Tensor y = poisoned(dtype, of.tokens(), shape.inner());
    scan_tokens_forward(context, shape, in.mixed, in.projected, in.rates(), in.begins, {}, y);
    const Tensor dy = random("dy", dtype, of.tokens(), shape.inner());
    Tensor dmixed = poisoned(dtype, of.tokens(), shape.channels());
    Tensor dprojected = zeros(dtype, of.tokens(), shape.columns());
    Tensor da_log = poisoned(DType::float32, shape.heads, 1), dd = poisoned(DType::float32, shape.heads, 1);
    Tensor dbias = poisoned(DType::float32, shape.heads, 1);
    scan_tokens_backward(context, shape, dy, in.mixed, in.projected, in.rates(), in.begins, dmixed, dprojected,
                         {da_log, dd, dbias});

    const Numbers mixed = doubles(in.mixed), projected = doubles(in.projected), gradient = doubles(dy);
    const Rates rates = numbers_of(in);
    const double some = roundings_of(shape), all = some + 4.0 * static_cast<double>(of.tokens());
    const double factors = factor_error(dtype);
    // Gradients of rates are sums over all tokens, and cancel.
    Numbers sizes = gradient;
    for (double& size : sizes) size = std::abs(size);
    const double terms = weighted_sum(scanned(of, mixed, projected, rates, /*magnitudes=*/true), sizes);
    expect_gradient(
        dmixed, mixed, gradient, [&](const Numbers& x) { return scanned(of, x, projected, rates); }, some, 1.0,
        factors);
    expect_gradient(
        dprojected, projected, gradient, [&](const Numbers& x) { return scanned(of, mixed, x, rates); }, some, 1.0,
        factors);
    const auto by = [&](Numbers Rates::*which) {
      return [&, which](const Numbers& values) {
        Rates moved = rates;
        moved.*which = values;
        return scanned(of, mixed, projected, moved);
      };
    };
    expect_gradient(da_log, rates.a_log, gradient, by(&Rates::a_log), all, terms, factors);
    expect_gradient(dd, rates.d, gradient, by(&Rates::d), all, terms, factors);
    expect_gradient(dbias, rates.dt_bias, gradient, by(&Rates::dt_bias), all, terms, factors);
  });
}

TEST_F(StateSpace, GatedNormMatchesTheReferenceAndItsGradients) {
  for_each_norm([&](DType dtype, const SpaceCase& of) {
    const StateSpaceShape& shape = of.shape;
    const Tensor y = random("y", dtype, of.tokens(), shape.inner());
    const Tensor projected = random("projected", dtype, of.tokens(), shape.columns());
    const Tensor weight = random("weight", dtype, shape.inner(), 1);
    const Tensor dout = random("dout", dtype, of.tokens(), shape.inner());
    Tensor out = poisoned(dtype, of.tokens(), shape.inner()), dy = poisoned(dtype, of.tokens(), shape.inner());
    Tensor inverse_rms = poisoned(DType::float32, of.tokens(), shape.groups);
    Tensor dprojected = zeros(dtype, of.tokens(), shape.columns());
    Tensor dweight = poisoned(DType::float32, shape.inner(), 1);
    gated_norm_forward(context, shape, y, projected, weight, norm_eps, out, inverse_rms);
    const Numbers ys = doubles(y), gates = doubles(projected), weights = doubles(weight), gradient = doubles(dout);
    const double some = 64.0 + 4.0 * static_cast<double>(shape.inner());
    expect_near(out, normed(of, ys, gates, weights), some);
    gated_norm_backward(context, shape, dout, y, projected, weight, inverse_rms, dy, dprojected, dweight);
    expect_gradient(
        dy, ys, gradient, [&](const Numbers& x) { return normed(of, x, gates, weights); }, some);
    expect_gradient(
        dprojected, gates, gradient, [&](const Numbers& x) { return normed(of, ys, x, weights); }, some);
    expect_gradient(
        dweight, weights, gradient, [&](const Numbers& x) { return normed(of, ys, gates, x); },
        some + static_cast<double>(of.tokens()));
    // In place.
    Tensor again = random("dout", dtype, of.tokens(), shape.inner());
    gated_norm_backward(context, shape, again, y, projected, weight, inverse_rms, again, dprojected, dweight);
    EXPECT_EQ(doubles(again), doubles(dy));
  });
}

// A text in passes of any length, each going on from what the last one left, gives what it gives as a whole.
TEST_F(StateSpace, GoesOnFromTheStateAndTheTokensBefore) {
  const std::int64_t sequences = 2, lengths[] = {1, 2, 70, 1, 64, 5};
  std::int64_t length = 0;
  for (const std::int64_t pass : lengths) length += pass;
  for (const std::int64_t filter : {4, 3, 6}) {
    SCOPED_TRACE(fmt::format("filter {}", filter));
    StateSpaceShape shape = {
        .heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .filter = filter, .sequence_length = length};
    const SpaceCase whole = {shape, sequences};
    const ScanTensors in = scan_tensors(DType::float32, whole);
    const Tensor weight = random("weight", DType::float32, shape.channels() * shape.filter, 1);
    const Tensor bias = random("bias", DType::float32, shape.channels(), 1);
    const Numbers projected = doubles(in.projected);
    const Numbers expected_mixed = convolved(whole, projected, doubles(weight), doubles(bias));
    const Numbers expected = scanned(whole, expected_mixed, projected, numbers_of(in));

    Tensor carried = zeros(DType::float32, sequences * shape.inner(), shape.state_size);
    Tensor history = zeros(DType::float32, sequences * (shape.filter - 1), shape.channels());
    std::int64_t position = 0;
    for (const std::int64_t pass : lengths) {
      shape.sequence_length = pass;
      const auto rows_of_pass = [&](const Numbers& values, std::int64_t columns) {
        Numbers rows;
        for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
          const auto first = values.begin() + (sequence * length + position) * columns;
          rows.insert(rows.end(), first, first + pass * columns);
        }
        return rows;
      };
      const std::int64_t tokens = sequences * pass;
      const Tensor part = tensor_of(DType::float32, tokens, shape.columns(), rows_of_pass(projected, shape.columns()));
      Tensor mixed = poisoned(DType::float32, tokens, shape.channels());
      Tensor y = poisoned(DType::float32, tokens, shape.inner());
      mix_tokens_forward(context, shape, part, weight, bias, {}, history, mixed);
      scan_tokens_forward(context, shape, mixed, part, in.rates(), {}, carried, y);
      SCOPED_TRACE(fmt::format("position {}", position));
      expect_near(mixed, rows_of_pass(expected_mixed, shape.channels()), 64.0);
      expect_near(y, rows_of_pass(expected, shape.inner()), 4.0 * roundings_of(whole.shape));
      position += pass;
    }
  }
}

TEST_F(StateSpace, RefusesShapesThatDoNotFit) {
  const SpaceCase of = {{.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .filter = 4, .sequence_length = 7},
                        2};
  const ScanTensors in = scan_tensors(DType::float32, of);
  Tensor y = poisoned(DType::float32, of.tokens(), of.shape.inner());
  const auto scan = [&](StateSpaceShape shape) {
    scan_tokens_forward(context, shape, in.mixed, in.projected, in.rates(), {}, {}, y);
  };
  scan(of.shape);
  for (std::int64_t StateSpaceShape::*size :
       {&StateSpaceShape::heads, &StateSpaceShape::head_dim, &StateSpaceShape::groups, &StateSpaceShape::state_size,
        &StateSpaceShape::sequence_length}) {
    StateSpaceShape other = of.shape;
    ++(other.*size);
    EXPECT_THROW(scan(other), Error);
  }
}

}  // namespace
}  // namespace weft
