// The kernels of layers on a GPU against the CPU's, at the places where the GPU's take another path. Those are rows
// that are no whole vectors, rows wider than a thread keeps, and more rows than one block adds up. What the numbers
// should be is argued in tests/layers.
#include <limits>

#include "layers/kernels/cpu/kernels.h"
#include "layers/kernels/cuda/kernels.h"
#include "layers/kernels/matrix_products.h"
#include "tests/cuda/two_devices.h"

namespace weft {
namespace {

constexpr double unit = 0x1.0p-24;
constexpr DType kernels_float_types[] = {DType::float32, DType::bfloat16, DType::float16};

class NoProducts : public MatrixProducts {
 public:
  void run(const Product&) override { fail("these kernels multiply no matrices"); }
};

class CudaKernels : public TwoDevices {
 protected:
  void SetUp() override {
    TwoDevices::SetUp();
    if (gpu_ledger) gpu.emplace(*gpu_ledger, clock, *gpu_stream, products, kernels);
  }

  PhaseClock clock;
  NoProducts products;
  // Tables are named below: no function of theirs calls another through its context.
  const LayerKernels kernels{};
  KernelContext cpu{cpu_ledger, clock, *cpu_stream, products, kernels};
  std::optional<KernelContext> gpu;
};

struct Shape {
  std::int64_t rows, columns;
};
std::string text_of(DType dtype, const Shape& shape) {
  return fmt::format("{} {} x {}", name_of(dtype), shape.rows, shape.columns);
}

class CudaRmsNorm : public CudaKernels {
 protected:
  // Warps, blocks, rows wider than a block keeps, and the same in single elements.
  static constexpr Shape shapes[] = {{0, 8},    {1, 1},     {3, 7},     {5, 8},     {9, 100},  {130, 64},
                                     {2, 1024}, {3, 1032},  {2, 4096},  {2, 16392}, {2, 3001}, {700, 40},
                                     {1, 333},  {2, 20480}, {300, 520}, {5000, 3}};
  // The difference of two sums of `terms` products in another order, each sum at most `magnitude`.
  static double sum_error(double terms, double magnitude) { return (terms / 16 + 8) * unit * magnitude; }
};

TEST_F(CudaRmsNorm, ForwardMatchesTheCpu) {
  for (DType dtype : kernels_float_types) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(text_of(dtype, shape));
      const Both x = random(dtype, shape.rows, shape.columns), weight = random(dtype, shape.columns, 1);
      const Both y = poisoned(dtype, shape.rows, shape.columns), inverse = poisoned(DType::float32, shape.rows, 1);
      cpu::rms_norm_forward(cpu, x.cpu, weight.cpu, 1e-6f, y.cpu, inverse.cpu);
      cuda::rms_norm_forward(*gpu, x.gpu, weight.gpu, 1e-6f, y.gpu, inverse.gpu);
      // A root mean square is about 1 (less at the smallest widths); so are the values, up to 5 * 5 of them.
      const double relative = sum_error(static_cast<double>(shape.columns), 1.0);
      const double largest = shape.columns < 10 ? 100.0 : 2.0;
      expect_close(inverse, relative * largest);
      expect_close(y, relative * 25.0);
    }
  }
}

TEST_F(CudaRmsNorm, BackwardMatchesTheCpu) {
  for (DType dtype : kernels_float_types) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(text_of(dtype, shape));
      const Both x = random(dtype, shape.rows, shape.columns), weight = random(dtype, shape.columns, 1);
      const Both dy = random(dtype, shape.rows, shape.columns), dx = random(dtype, shape.rows, shape.columns);
      const Both inverse = random(DType::float32, shape.rows, 1), dweight = random(DType::float32, shape.columns, 1);
      const Both onto_other = random(dtype, shape.rows, shape.columns),
                 onto_none = random(dtype, shape.rows, shape.columns);
      // g x is 25 at most on average, the inverse 4; the gradient is their product up to the fourth power of the
      // latter.
      const double error = sum_error(static_cast<double>(shape.columns), 1.0) * 400.0;
      const auto expect_alike = [&](const Both& result, ConstTensorView cpu_residual, ConstTensorView gpu_residual,
                                    TensorView cpu_weights, TensorView gpu_weights) {
        cpu::rms_norm_backward(cpu, dy.cpu, x.cpu, weight.cpu, inverse.cpu, cpu_residual, result.cpu, cpu_weights);
        cuda::rms_norm_backward(*gpu, dy.gpu, x.gpu, weight.gpu, inverse.gpu, gpu_residual, result.gpu, gpu_weights);
        expect_close(result, error);
      };
      expect_alike(onto_other, dx.cpu, dx.gpu, dweight.cpu, dweight.gpu);
      expect_alike(onto_none, {}, {}, {}, {});
      expect_alike(dx, dx.cpu, dx.gpu, {}, {});
      // Products average to 1 in magnitude, and partial sums of n stay below 5 sqrt(n).
      const double rows = static_cast<double>(shape.rows);
      expect_close(dweight, (rows / 8 + 16) * unit * (5.0 * std::sqrt(rows) + 10.0));
    }
  }
}

class CudaSwiglu : public CudaKernels {
 protected:
  static constexpr Shape shapes[] = {{0, 8}, {1, 1}, {3, 7}, {5, 8}, {9, 100}, {300, 24}, {2, 4096}, {3, 2049}};
};

TEST_F(CudaSwiglu, MatchesTheCpu) {
  for (DType dtype : kernels_float_types) {
    for (const Shape& shape : shapes) {
      for (const auto& [in_place, weighted] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
        SCOPED_TRACE(text_of(dtype, shape) + (in_place ? " in place" : "") + (weighted ? " weighted" : ""));
        const Both gate_up = random(dtype, shape.rows, 2 * shape.columns, 0, 3.0);
        const Both y = poisoned(dtype, shape.rows, shape.columns), dy = random(dtype, shape.rows, shape.columns);
        const Both weights = random(DType::float32, weighted ? shape.rows : 0, 1);
        const Both dweights = poisoned(DType::float32, weighted ? shape.rows : 0, 1);
        cpu::swiglu_forward(cpu, gate_up.cpu, weights.cpu, y.cpu);
        cuda::swiglu_forward(*gpu, gate_up.gpu, weights.gpu, y.gpu);
        expect_close(y, 64 * unit * 15.0);
        const Both dgate_up = in_place ? gate_up : poisoned(dtype, shape.rows, 2 * shape.columns);
        cpu::swiglu_backward(cpu, dy.cpu, gate_up.cpu, weights.cpu, dgate_up.cpu, dweights.cpu);
        cuda::swiglu_backward(*gpu, dy.gpu, gate_up.gpu, weights.gpu, dgate_up.gpu, dweights.gpu);
        expect_close(dgate_up, 64 * unit * 60.0);
        expect_close(dweights, unit * 60.0 * (16.0 + 16.0 * std::sqrt(static_cast<double>(shape.columns))));
      }
    }
  }
}

TEST_F(CudaSwiglu, TakesGatesOfAnySize) {
  const std::vector<double> numbers = {-1e30, -100.0, -89.0, -88.0, -60.0, 0.0, 60.0, 88.0, 100.0, 1e30,
                                       1.0,   1.0,    1.0,   1.0,   1.0,   1.0, 1.0,  1.0,  1.0,   1.0};
  const Both gate_up = values(DType::float32, 1, 20, numbers), y = poisoned(DType::float32, 1, 10);
  const Both dy = values(DType::float32, 1, 10, std::vector<double>(10, 1.0)), dx = poisoned(DType::float32, 1, 20);
  cpu::swiglu_forward(cpu, gate_up.cpu, {}, y.cpu);
  cuda::swiglu_forward(*gpu, gate_up.gpu, {}, y.gpu);
  cpu::swiglu_backward(cpu, dy.cpu, gate_up.cpu, {}, dx.cpu, {});
  cuda::swiglu_backward(*gpu, dy.gpu, gate_up.gpu, {}, dx.gpu, {});
  expect_close(y, 1e-6);
  expect_close(dx, 1e-6);
}

struct RotaryCase {
  std::int64_t query_heads, key_value_heads, head_dim, sequence_length, tokens, value_dim = head_dim;
};

class CudaRotary : public CudaKernels {
 protected:
  // Every lane count, heads of more than a round of lanes, blocks of several tokens and tokens of several blocks.
  static constexpr RotaryCase cases[] = {
      {2, 1, 2, 3, 7},   {1, 1, 6, 4, 9},   {4, 2, 16, 5, 11},     {8, 2, 64, 7, 20},   {32, 8, 128, 6, 9},
      {3, 3, 100, 2, 5}, {2, 1, 256, 3, 4}, {1, 1, 576, 3, 3},     {2, 2, 30, 9, 2200}, {5, 1, 128, 4, 3},
      {40, 4, 8, 4, 3},  {2, 1, 64, 5, 0},  {4, 2, 64, 5, 11, 16}, {4, 2, 64, 5, 11, 3}};
  static std::string text_of(DType dtype, const RotaryCase& c, bool normed, bool in_place) {
    return fmt::format("{} {}+2*{} heads of {}, {} tokens{}{}", name_of(dtype), c.query_heads, c.key_value_heads,
                       c.head_dim, c.tokens, normed ? ", normed" : "", in_place ? ", in place" : "");
  }
  template <typename Check>
  void for_each_case(Check check) {
    for (DType dtype : kernels_float_types) {
      for (const RotaryCase& c : cases) {
        for (bool normed : {false, true}) {
          for (bool in_place : {false, true}) {
            SCOPED_TRACE(text_of(dtype, c, normed, in_place));
            RotaryOptions options;
            options.heads = {c.query_heads, c.key_value_heads, c.head_dim, c.sequence_length, c.value_dim};
            options.eps = 1e-5f;
            const Range run{0, c.sequence_length};
            options.table = ConstTensorView(nullptr, DType::float32, c.sequence_length, c.head_dim);
            const std::vector<float> angles = rotary_table(options, {&run, 1});
            const Both table = values(DType::float32, c.sequence_length, c.head_dim, {angles.begin(), angles.end()});
            RotaryOptions gpu_options = options;
            options.table = table.cpu;
            gpu_options.table = table.gpu;
            check(dtype, options, gpu_options, c.tokens, normed ? c.head_dim : 0, in_place);
          }
        }
      }
    }
  }
};

TEST_F(CudaRotary, ForwardMatchesTheCpu) {
  for_each_case([&](DType dtype, const RotaryOptions& on_cpu, const RotaryOptions& on_gpu, std::int64_t tokens,
                    std::int64_t weights, bool in_place) {
    const Both qkv = random(dtype, tokens, on_cpu.heads.columns());
    const Both rotated = in_place ? qkv : poisoned(dtype, tokens, on_cpu.heads.value_column());
    const Both q_norm = random(dtype, weights, 1), k_norm = random(dtype, weights, 1);
    cpu::rotary_forward(cpu, on_cpu, qkv.cpu, q_norm.cpu, k_norm.cpu, rotated.cpu);
    cuda::rotary_forward(*gpu, on_gpu, qkv.gpu, q_norm.gpu, k_norm.gpu, rotated.gpu);
    // Two products of at most 5 * 5; with a norm of small heads, 5 * 5 after a root of few squares.
    expect_close(rotated, (static_cast<double>(on_cpu.heads.head_dim) / 16 + 16) * unit * 25.0);
  });
}

TEST_F(CudaRotary, BackwardMatchesTheCpu) {
  for_each_case([&](DType dtype, const RotaryOptions& on_cpu, const RotaryOptions& on_gpu, std::int64_t tokens,
                    std::int64_t weights, bool in_place) {
    if (!in_place) return;
    const std::int64_t columns = on_cpu.heads.columns(), head_dim = on_cpu.heads.head_dim;
    const Both dqkv = random(dtype, tokens, columns), qkv = random(dtype, weights == 0 ? 0 : tokens, columns);
    const Both q_norm = random(dtype, weights, 1), k_norm = random(dtype, weights, 1);
    const Both dq_norm = random(DType::float32, weights, 1), dk_norm = random(DType::float32, weights, 1);
    cpu::rotary_backward(cpu, on_cpu, qkv.cpu, q_norm.cpu, k_norm.cpu, dqkv.cpu, dq_norm.cpu, dk_norm.cpu);
    cuda::rotary_backward(*gpu, on_gpu, qkv.gpu, q_norm.gpu, k_norm.gpu, dqkv.gpu, dq_norm.gpu, dk_norm.gpu);
    // A head of few small elements has a large inverse: 1 / sqrt(eps) at most, about 10 where there are 6 elements.
    const double inverse = head_dim <= 2 ? 300.0 : head_dim <= 8 ? 30.0 : 4.0;
    expect_close(dqkv, (static_cast<double>(head_dim) / 16 + 16) * unit * 50.0 * (weights == 0 ? 1.0 : inverse));
    // The CPU adds one head after the other.
    const double terms = static_cast<double>(tokens * on_cpu.heads.query_heads);
    expect_close(dq_norm, (terms + 16) * unit * (10.0 * std::sqrt(terms) + 10.0));
    expect_close(dk_norm, (terms + 16) * unit * (10.0 * std::sqrt(terms) + 10.0));
  });
}

class CudaEmbedding : public CudaKernels {
 protected:
  static constexpr Shape shapes[] = {{1, 1}, {7, 3}, {40, 8}, {300, 24}, {9, 1030}, {700, 4}, {33, 2048}};
  static constexpr std::int64_t table_rows = 11, row_begin = 5;
};

TEST_F(CudaEmbedding, ForwardGivesTheSameRows) {
  for (DType dtype : kernels_float_types) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(text_of(dtype, shape));
      const Both ids = integers(shape.rows, 0, 20), table = random(dtype, table_rows, shape.columns);
      const Both y = poisoned(dtype, shape.rows, shape.columns);
      cpu::embedding_forward(cpu, ids.cpu, table.cpu, row_begin, y.cpu);
      cuda::embedding_forward(*gpu, ids.gpu, table.gpu, row_begin, y.gpu);
      expect_equal(y);
    }
  }
}

TEST_F(CudaEmbedding, BackwardAddsInTokenOrder) {
  for (DType dtype : kernels_float_types) {
    for (const Shape& shape : shapes) {
      // All tokens of one id, of few, and hardly two alike; some outside the shard.
      for (std::int32_t last : {0, 20, 100000}) {
        SCOPED_TRACE(text_of(dtype, shape) + fmt::format(", ids up to {}", last));
        const std::int64_t rows = last == 100000 ? 70000 / shape.columns : table_rows;
        const Both ids = last == 0 ? integers(shape.rows, 9, 9) : integers(shape.rows, 0, last);
        const Both dy = random(dtype, shape.rows, shape.columns);
        const Both dtable = random(DType::float32, rows, shape.columns);
        cpu::embedding_backward(cpu, ids.cpu, dy.cpu, row_begin, dtable.cpu);
        cuda::embedding_backward(*gpu, ids.gpu, dy.gpu, row_begin, dtable.gpu);
        expect_equal(dtable);
      }
    }
  }
}

class CudaCrossEntropy : public CudaKernels {
 protected:
  static constexpr Shape shapes[] = {{1, 1}, {3, 2}, {5, 7}, {4, 64}, {300, 33}, {2, 5000}, {3, 20001}, {4, 0}};
  static constexpr std::int64_t begin = 3;
};

TEST_F(CudaCrossEntropy, MatchesTheCpu) {
  for (DType dtype : kernels_float_types) {
    for (const Shape& shape : shapes) {
      for (bool in_place : {false, true}) {
        if (in_place && dtype != DType::float32) continue;
        SCOPED_TRACE(text_of(dtype, shape) + (in_place ? " in place" : ""));
        const Both logits = random(DType::float32, shape.rows, shape.columns, 0, 3.0);
        const Both targets = integers(shape.rows, 0, static_cast<std::int32_t>(shape.columns + 6));
        const Both maximum = poisoned(DType::float32, shape.rows, 1), sums = poisoned(DType::float32, shape.rows, 2);
        cpu::vocabulary_sums(cpu, logits.cpu, targets.cpu, begin, maximum.cpu, sums.cpu);
        cuda::vocabulary_sums(*gpu, logits.gpu, targets.gpu, begin, maximum.gpu, sums.gpu);
        expect_equal(maximum);
        // Each exponential is off by 2 units, and the CPU's blocks of 1024 by some more, of sums of up to 300.
        const double sum_error = 80 * unit * (1.0 + static_cast<double>(shape.columns) / 20);
        expect_close(sums, sum_error);

        const Both dlogits = in_place ? logits : poisoned(dtype, shape.rows, shape.columns);
        const Both loss = values(DType::float64, 1, 1, {2.5});
        const Both no_loss = values(DType::float64, 0, 1, {});
        cpu::cross_entropy_gradient(cpu, logits.cpu, maximum.cpu, sums.cpu, targets.cpu, begin, 0.125f, dlogits.cpu,
                                    in_place ? no_loss.cpu : loss.cpu);
        cuda::cross_entropy_gradient(*gpu, logits.gpu, maximum.gpu, sums.gpu, targets.gpu, begin, 0.125f, dlogits.gpu,
                                     in_place ? no_loss.gpu : loss.gpu);
        expect_close(dlogits, 0.125 * 100 * unit);
        if (shape.columns > 0) expect_close(loss, static_cast<double>(shape.rows) * 100 * unit);
      }
    }
  }
}

// Misaligned tensors, infinities and NaN.
TEST_F(CudaCrossEntropy, TakesOddPlacesAndNumbers) {
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> numbers(4 * 37, 0.5);
  numbers[3] = infinity;
  numbers[37 + 5] = -infinity;
  numbers[2 * 37 + 30] = nan;
  for (int i = 0; i < 37; ++i) numbers[3 * 37 + i] = -infinity;
  for (std::int64_t offset : {1, 2}) {
    const Both logits = values(DType::float32, 4, 37, numbers, offset), targets = integers(4, 3, 3 + 36);
    const Both maximum = poisoned(DType::float32, 4, 1), sums = poisoned(DType::float32, 4, 2);
    const Both dlogits = poisoned(DType::bfloat16, 4, 37, 2 * offset + 1), loss = values(DType::float64, 0, 1, {});
    cpu::vocabulary_sums(cpu, logits.cpu, targets.cpu, begin, maximum.cpu, sums.cpu);
    cuda::vocabulary_sums(*gpu, logits.gpu, targets.gpu, begin, maximum.gpu, sums.gpu);
    cpu::cross_entropy_gradient(cpu, logits.cpu, maximum.cpu, sums.cpu, targets.cpu, begin, 1.0f, dlogits.cpu,
                                loss.cpu);
    cuda::cross_entropy_gradient(*gpu, logits.gpu, maximum.gpu, sums.gpu, targets.gpu, begin, 1.0f, dlogits.gpu,
                                 loss.gpu);
    expect_equal(maximum);
    expect_close(sums, 1e-5);
    expect_close(dlogits, 1e-6);
  }
}

}  // namespace
}  // namespace weft
