#include "parallel/runtime/elementwise.h"

#include <iterator>
#include <limits>

#include "tests/cuda/two_devices.h"

namespace weft {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
// Less than a vector, vectors and a rest, several blocks and a rest.
constexpr std::int64_t elementwise_sizes[] = {0, 1, 3, 8, 37, 256, 4097, 20011};
// Elements behind an aligned address.
constexpr std::int64_t elementwise_offsets[] = {0, 1, 2, 4};
constexpr DType all_types[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32};

struct DTypes {
  DType source, destination;
};

class CudaElementwise : public TwoDevices {
 protected:
  // Calls check(size, offset of a source, offset of a destination).
  template <typename Check>
  void for_each_place(Check check) {
    for (std::int64_t size : elementwise_sizes) {
      for (std::int64_t source : elementwise_offsets) {
        for (std::int64_t destination : elementwise_offsets) {
          SCOPED_TRACE(fmt::format("{} elements from offset {} to {}", size, source, destination));
          check(size, source, destination);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

TEST_F(CudaElementwise, CastsAsTheCpu) {
  for (const DTypes& dtypes : {DTypes{DType::float32, DType::bfloat16}, DTypes{DType::bfloat16, DType::float32},
                               DTypes{DType::float32, DType::float16}, DTypes{DType::float16, DType::float32},
                               DTypes{DType::bfloat16, DType::float16}, DTypes{DType::float16, DType::bfloat16},
                               DTypes{DType::int32, DType::int32}}) {
    for_each_place([&](std::int64_t size, std::int64_t from, std::int64_t to) {
      const Both source = random(dtypes.source, 1, size, from), result = poisoned(dtypes.destination, 1, size, to);
      cast(*cpu_stream, source.cpu, result.cpu);
      cast(*gpu_stream, source.gpu, result.gpu);
      expect_equal(result);
    });
  }
}

TEST_F(CudaElementwise, RoundsSpecialNumbersAsTheCpu) {
  // The last row: ties between numbers of float16, at its largest and among its subnormal ones.
  const std::vector<double> numbers = {0.0,     -0.0,    infinity, -infinity, 1.00390625, 1.01171875,
                                       3.4e38,  1e-40,   -1e-45,   65519.9,   65520.0,    -65520.0,
                                       65504.0, 0x1p-24, 0x1p-25,  0x3p-25,   0x5p-26};
  const std::int64_t count = std::ssize(numbers);
  for (DType narrow : {DType::bfloat16, DType::float16}) {
    const Both source = values(DType::float32, 1, count, numbers), result = poisoned(narrow, 1, count);
    cast(*cpu_stream, source.cpu, result.cpu);
    cast(*gpu_stream, source.gpu, result.gpu);
    expect_equal(result);
    const Both not_a_number = values(DType::float32, 1, 1, {nan}), rounded = values(narrow, 1, 1, {0.0});
    cast(*gpu_stream, not_a_number.gpu, rounded.gpu);
    EXPECT_TRUE(std::isnan(at(gpu_bytes(rounded.gpu).data(), narrow, 0)));
  }
}

TEST_F(CudaElementwise, AddsAsTheCpu) {
  for (const DTypes& dtypes : {DTypes{DType::float32, DType::float32}, DTypes{DType::bfloat16, DType::bfloat16},
                               DTypes{DType::bfloat16, DType::float32}, DTypes{DType::float16, DType::float16},
                               DTypes{DType::float16, DType::float32}}) {
    for_each_place([&](std::int64_t size, std::int64_t from, std::int64_t to) {
      const Both source = random(dtypes.source, 1, size, from), sum = random(dtypes.destination, 1, size, to);
      add(*cpu_stream, source.cpu, sum.cpu);
      add(*gpu_stream, source.gpu, sum.gpu);
      expect_equal(sum);
    });
  }
}

TEST_F(CudaElementwise, CombinesAsTheCpu) {
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for_each_place([&](std::int64_t size, std::int64_t from, std::int64_t to) {
      const Both source = random(dtype, 1, size, from), result = random(dtype, 1, size, to);
      combine(*cpu_stream, 0.37f, source.cpu, -1.3f, result.cpu);
      combine(*gpu_stream, 0.37f, source.gpu, -1.3f, result.gpu);
      expect_equal(result);
    });
  }
}

TEST_F(CudaElementwise, DividesByARootAsTheCpu) {
  for_each_place([&](std::int64_t size, std::int64_t, std::int64_t offset) {
    for (double number : {0.0, 1e-70, 7.3, 1e70}) {
      const Both data = random(DType::float32, 1, size, offset), square_sum = values(DType::float64, 1, 1, {number});
      divide_by_root(*cpu_stream, square_sum.cpu, data.cpu);
      divide_by_root(*gpu_stream, square_sum.gpu, data.gpu);
      expect_equal(data);
    }
  });
}

TEST_F(CudaElementwise, FillsAsTheCpu) {
  for (DType dtype : all_types) {
    for_each_place([&](std::int64_t size, std::int64_t, std::int64_t offset) {
      const Both data = poisoned(dtype, 1, size, offset);
      fill(*cpu_stream, data.cpu, -2.7f);
      fill(*gpu_stream, data.gpu, -2.7f);
      expect_equal(data);
    });
  }
}

// Every term is rounded in the same way; n additions in double are off by n 2^-53 of the sum at most.
TEST_F(CudaElementwise, SumsSquares) {
  for (std::int64_t size : {0, 1, 3, 5, 2049, 65536, 65537, 300001}) {
    const Both sum = values(DType::float64, 1, 1, {0.25});
    const Both again = values(DType::float64, 1, 1, {0.25});
    const Both source = random(DType::float32, 1, size),
               moved = both(DType::float32, 1, size, gpu_bytes(source.gpu), 3);
    square_sum(*cpu_stream, source.cpu, sum.cpu);
    square_sum(*gpu_stream, source.gpu, sum.gpu);
    square_sum(*gpu_stream, moved.gpu, again.gpu);
    expect_close(sum, static_cast<double>(size) * static_cast<double>(size) * 0x1.0p-53 * 2);
    EXPECT_EQ(gpu_bytes(sum.gpu), gpu_bytes(again.gpu)) << "the order depends on the address, for size " << size;
  }
}

TEST_F(CudaElementwise, CountsWhatIsNotFinite) {
  for_each_place([&](std::int64_t size, std::int64_t, std::int64_t offset) {
    std::vector<double> numbers(size, 3.4e38);
    for (std::int64_t i = 0; i < size; i += 5) numbers[i] = i % 2 == 0 ? nan : -infinity;
    const Both source = values(DType::float32, 1, size, numbers, offset), count = values(DType::int32, 1, 1, {7});
    count_nonfinite(*cpu_stream, source.cpu, count.cpu);
    count_nonfinite(*gpu_stream, source.gpu, count.gpu);
    expect_equal(count);
  });
}

TEST_F(CudaElementwise, CopiesColumns) {
  struct Case {
    std::int64_t rows, source_columns, source_column, destination_columns, destination_column, columns;
  };
  for (DType dtype : all_types) {
    for (const Case& c :
         {Case{5, 40, 8, 24, 16, 8}, Case{3, 33, 1, 7, 2, 5}, Case{700, 12, 4, 4, 0, 4},
          Case{2, 2050, 2, 3000, 6, 2048}, Case{1, 1, 0, 1, 0, 1}, Case{0, 4, 0, 4, 0, 4}, Case{4, 8, 0, 8, 0, 0}}) {
      for (std::int64_t offset : elementwise_offsets) {
        SCOPED_TRACE(fmt::format("{} {} x {} of {}", name_of(dtype), c.rows, c.columns, c.source_columns));
        const Both source = random(dtype, c.rows, c.source_columns, offset);
        const Both destination = random(dtype, c.rows, c.destination_columns);
        copy_columns(*cpu_stream, source.cpu, c.source_column, destination.cpu, c.destination_column, c.columns);
        copy_columns(*gpu_stream, source.gpu, c.source_column, destination.gpu, c.destination_column, c.columns);
        expect_equal(destination);
      }
    }
  }
}

class CudaReduction : public CudaElementwise {
 protected:
  void compare(DType dtype, Reduce reduce, int input_count, std::int64_t size, std::int64_t begin, bool in_place) {
    const std::int64_t count = size - begin;
    std::vector<Both> inputs, outputs;
    for (int i = 0; i < input_count; ++i) inputs.push_back(random(dtype, 1, size, i == 1 ? begin % 3 : 0));
    outputs.push_back(poisoned(dtype, 1, count));
    std::vector<const std::byte*> cpu_inputs, gpu_inputs;
    for (const Both& input : inputs) {
      cpu_inputs.push_back(input.cpu.data());
      gpu_inputs.push_back(input.gpu.data());
    }
    if (in_place) {
      const std::int64_t skipped = begin * size_of(dtype);
      for (const Both& input : inputs) {
        outputs.push_back({TensorView(input.cpu.data() + skipped, dtype, 1, count),
                           TensorView(input.gpu.data() + skipped, dtype, 1, count)});
      }
    }
    std::vector<std::byte*> cpu_outputs, gpu_outputs;
    for (const Both& output : outputs) {
      cpu_outputs.push_back(output.cpu.data());
      gpu_outputs.push_back(output.gpu.data());
    }
    reduce_elements(*cpu_stream, dtype, reduce, cpu_inputs, begin, count, cpu_outputs);
    reduce_elements(*gpu_stream, dtype, reduce, gpu_inputs, begin, count, gpu_outputs);
    for (const Both& output : outputs) expect_equal(output);
    for (const Both& input : inputs) expect_equal(input);
  }
};

TEST_F(CudaReduction, ReducesAsTheCpu) {
  for (DType dtype : all_types) {
    for (Reduce reduce : {Reduce::sum, Reduce::max}) {
      for (int inputs : {2, 3, 8}) {
        for (std::int64_t size : {1, 9, 64, 2500}) {
          for (std::int64_t begin : {0, 1, 8}) {
            if (begin >= size) continue;
            for (bool in_place : {false, true}) {
              SCOPED_TRACE(fmt::format("{} inputs of {} {} from {}, {}", inputs, size, name_of(dtype), begin,
                                       in_place ? "in place" : "apart"));
              compare(dtype, reduce, inputs, size, begin, in_place);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaReduction, TakesSixtyFourInputs) {
  compare(DType::bfloat16, Reduce::sum, 64, 300, 4, false);
  EXPECT_THROW(compare(DType::bfloat16, Reduce::sum, 65, 300, 4, false), Error);
}

TEST_F(CudaReduction, MaximumOfNanIsNan) {
  const Both first = values(DType::float32, 1, 3, {nan, 1.0, 2.0}),
             second = values(DType::float32, 1, 3, {0.0, nan, 1.0});
  const Both result = values(DType::float32, 1, 3, {0.0, 0.0, 0.0});
  const std::byte* inputs[] = {first.gpu.data(), second.gpu.data()};
  std::byte* outputs[] = {result.gpu.data()};
  reduce_elements(*gpu_stream, DType::float32, Reduce::max, inputs, 0, 3, outputs);
  const std::vector<std::byte> bytes = gpu_bytes(result.gpu);
  EXPECT_TRUE(std::isnan(at(bytes.data(), DType::float32, 0)));
  EXPECT_TRUE(std::isnan(at(bytes.data(), DType::float32, 1)));
  EXPECT_EQ(at(bytes.data(), DType::float32, 2), 2.0);
}

}  // namespace
}  // namespace weft
