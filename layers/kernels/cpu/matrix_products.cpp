// Matrix products by oneDNN. float32 uses dnnl_sgemm, which prepares nothing. float16 is widened to float32 as a whole
// and rounded again, because the library has float16 products on few processors: correct, but slower than float32.
// bfloat16 needs a primitive prepared for its exact shape, which costs 0.1 to 0.5 ms the first time. Routed experts
// have a different number of tokens at every call. That number is cut into a multiple of 64 and a rest, so that few
// shapes recur; two calls cost some 2 % more than one. Factors of 8 bits are widened to bfloat16, which holds their
// elements times their scales exactly.
#include "layers/kernels/matrix_products.h"

#include <omp.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "layers/kernels/cpu/kernels.h"
#include "parallel/runtime/element_type.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

constexpr std::int64_t token_block = 64;
// Elements of a result that are computed at once, if that leaves at least `fewest_tokens` rows. The written part then
// stays in the second-level cache (1024 x 2048 x 256 in bfloat16: 209 GFLOP/s, in four parts 223).
constexpr std::int64_t result_block = 512 * 1024;
constexpr std::int64_t fewest_tokens = 256;
// A prepared product has some 80 KiB of code; ranks of one process share it through oneDNN's own cache.
constexpr std::size_t most_prepared = 1024;

struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::float32, output = DType::float32;
  bool accumulate = false;

  auto operator<=>(const ProductShape&) const = default;
};

dnnl::memory::data_type library_type(DType dtype) {
  return dtype == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc describe(std::int64_t rows, std::int64_t columns, DType dtype, bool transposed) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1};
  return dnnl::memory::desc({rows, columns}, library_type(dtype), strides);
}

class PreparedProduct {
 public:
  PreparedProduct(const dnnl::engine& engine, const ProductShape& product) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (product.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::memory::desc a = describe(product.m, product.k, product.input, product.transpose_a);
    const dnnl::memory::desc b = describe(product.k, product.n, product.input, product.transpose_b);
    const dnnl::memory::desc c = describe(product.m, product.n, product.output, false);
#if DNNL_VERSION_MAJOR >= 3  // Debian 13's
    const dnnl::matmul::primitive_desc primitive(engine, a, b, c, attributes);
#else
    const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(a, b, c), attributes, engine);
#endif
    primitive_ = dnnl::matmul(primitive);
    a_ = dnnl::memory(primitive.src_desc(), engine, DNNL_MEMORY_NONE);
    b_ = dnnl::memory(primitive.weights_desc(), engine, DNNL_MEMORY_NONE);
    c_ = dnnl::memory(primitive.dst_desc(), engine, DNNL_MEMORY_NONE);
    scratchpad_ = dnnl::memory(primitive.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    scratchpad_bytes_ = primitive.scratchpad_desc().get_size();
    arguments_ = {{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}, {DNNL_ARG_SCRATCHPAD, scratchpad_}};
  }

  std::size_t scratchpad_bytes() const {
    return scratchpad_bytes_;
  }
  void execute(const dnnl::stream& stream, const void* a, const void* b, void* c, void* scratchpad) {
    a_.set_data_handle(const_cast<void*>(a));
    b_.set_data_handle(const_cast<void*>(b));
    c_.set_data_handle(c);
    scratchpad_.set_data_handle(scratchpad);
    primitive_.execute(stream, arguments_);
  }
  std::uint64_t last_use = 0;

 private:
  dnnl::matmul primitive_;
  dnnl::memory a_, b_, c_, scratchpad_;
  std::size_t scratchpad_bytes_ = 0;
  std::unordered_map<int, dnnl::memory> arguments_;
};

class LibraryProducts final : public MatrixProducts {
 public:
  explicit LibraryProducts(bool bfloat16_products) : bfloat16_products_(bfloat16_products) {}

  void run(const Product& product) override {
    if (size_of(product.a.dtype()) == 1) return run_scaled(product);
    multiply_plain(product.a, product.transpose_a, product.b, product.transpose_b, product.c, product.accumulate);
    if (!product.addend.empty()) cpu::add(product.addend, product.c);
  }

 private:
  void run_scaled(const Product& product) {
    require(product.transpose_a == Transpose::no && product.transpose_b == Transpose::yes,
            "factors of 8 bits have the inner size as their columns");
    Product wide = product;
    wide.a = cpu::from_float8(product.a, product.scales_a, scaled_a_);
    wide.b = cpu::from_float8(product.b, product.scales_b, scaled_b_);
    run(wide);
  }

  void multiply_plain(ConstTensorView a, Transpose transpose_a, ConstTensorView b, Transpose transpose_b, TensorView c,
                      bool accumulate) {
    const bool turned_a = transpose_a == Transpose::yes, turned_b = transpose_b == Transpose::yes;
    const std::int64_t k = turned_a ? a.rows() : a.columns();
    require((turned_a ? a.columns() : a.rows()) == c.rows(), "op(a) has as many rows as c");
    require((turned_b ? b.rows() : b.columns()) == c.columns(), "op(b) has as many columns as c");
    require((turned_b ? b.columns() : b.rows()) == k, "op(a) has as many columns as op(b) has rows");
    require(a.dtype() == b.dtype(), "both factors have one dtype");
    require(is_compute_type(a.dtype()), "factors are float32, bfloat16 or float16");
    require(c.dtype() == DType::float32 || c.dtype() == a.dtype(), "the result has the factors' dtype or float32");
    if (c.empty()) return;
    if (k == 0) {
      if (!accumulate) std::memset(c.data(), 0, static_cast<std::size_t>(c.bytes()));
      return;
    }
    const ProductShape product{c.rows(), c.columns(), k, turned_a, turned_b, a.dtype(), c.dtype(), accumulate};
    if (product.input == DType::float16 || (product.input == DType::bfloat16 && !bfloat16_products_)) {
      multiply_widened(product, a, b, c);
    } else if (product.input == DType::bfloat16 || suits_primitive(product)) {
      multiply_in_blocks(product, a.data(), b.data(), c.data());
    } else {
      strided_product(product.m, product.n, k, {a.as<float>().data(), a.columns()}, transpose_a,
                      {b.as<float>().data(), b.columns()}, transpose_b, c.as<float>().data(), accumulate);
    }
  }

  // dnnl_sgemm loses a third of its speed on weight gradients much taller than wide; elsewhere it is as fast or faster.
  static bool suits_primitive(const ProductShape& product) {
    return product.transpose_a && !product.transpose_b && product.m >= 4 * product.n && product.k >= token_block;
  }

  // Tokens are the rows of c if a is not transposed, and the terms of the sum in a weight gradient.
  void multiply_in_blocks(const ProductShape& product, const std::byte* a, const std::byte* b, std::byte* c) {
    ProductShape head = product, rest = product;
    if (!product.transpose_a) {
      const std::int64_t most = std::max(fewest_tokens, result_block / product.n / token_block * token_block);
      for (std::int64_t done = 0; done < product.m; done += head.m) {
        const std::int64_t left = std::min(most, product.m - done);
        head.m = left > token_block ? left / token_block * token_block : left;
        execute(head, a + done * product.k * size_of(product.input), b, c + done * product.n * size_of(product.output));
      }
    } else if (product.transpose_a && !product.transpose_b && product.output == DType::float32 &&
               product.k > token_block && product.k % token_block != 0) {
      rest.k = product.k % token_block;
      head.k = product.k - rest.k;
      rest.accumulate = true;
      execute(head, a, b, c);
      execute(rest, a + head.k * product.m * size_of(product.input), b + head.k * product.n * size_of(product.input),
              c);
    } else {
      execute(product, a, b, c);
    }
  }

  void execute(const ProductShape& product, const void* a, const void* b, void* c) {
    PreparedProduct& prepared = prepare(product);
    if (scratchpad_.size() < prepared.scratchpad_bytes()) scratchpad_.resize(prepared.scratchpad_bytes());
    prepared.execute(stream_, a, b, c, scratchpad_.data());
    stream_.wait();
  }

  PreparedProduct& prepare(const ProductShape& product) {
    auto found = prepared_.find(product);
    if (found == prepared_.end()) {
      if (prepared_.size() == most_prepared) {
        prepared_.erase(std::min_element(prepared_.begin(), prepared_.end(), [](const auto& left, const auto& right) {
          return left.second.last_use < right.second.last_use;
        }));
      }
      try {
        found = prepared_.try_emplace(product, engine_, product).first;
      } catch (const dnnl::error& error) {
        fail("oneDNN cannot prepare a {} x {} x {} product of {}: {}", product.m, product.n, product.k,
             name_of(product.input), error.what());
      }
    }
    found->second.last_use = ++uses_;
    return found->second;
  }

  void multiply_widened(const ProductShape& product, ConstTensorView a, ConstTensorView b, TensorView c) {
    const auto widen = [](ConstTensorView narrow, std::vector<float>& wide) {
      wide.resize(static_cast<std::size_t>(narrow.size()));
      cpu::cast(narrow, view_of(std::span<float>(wide), narrow.rows(), narrow.columns()));
      return StridedMatrix<float>{wide.data(), narrow.columns()};
    };
    const StridedMatrix<float> wide_a = widen(a, wide_a_), wide_b = widen(b, wide_b_);
    const auto transpose = [](bool turned) { return turned ? Transpose::yes : Transpose::no; };
    const auto run = [&](float* result, bool accumulate) {
      strided_product(product.m, product.n, product.k, wide_a, transpose(product.transpose_a), wide_b,
                      transpose(product.transpose_b), result, accumulate);
    };
    if (c.dtype() == DType::float32) return run(c.as<float>().data(), product.accumulate);
    const StridedMatrix<float> wide_c = widen(c, wide_c_);
    run(wide_c_.data(), product.accumulate);
    cpu::cast(ConstTensorView(wide_c.data, DType::float32, c.rows(), c.columns()), c);
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  bool bfloat16_products_;
  std::map<ProductShape, PreparedProduct> prepared_;
  std::uint64_t uses_ = 0;
  std::vector<std::byte> scratchpad_;
  std::vector<float> wide_a_, wide_b_, wide_c_;
  std::vector<bfloat16> scaled_a_, scaled_b_;
};

}  // namespace

void strided_product(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix<float> a, Transpose transpose_a,
                     StridedMatrix<float> b, Transpose transpose_b, float* c, bool accumulate) {
  const char letter_a = transpose_a == Transpose::yes ? 'T' : 'N', letter_b = transpose_b == Transpose::yes ? 'T' : 'N';
  const dnnl_status_t status =
      dnnl_sgemm(letter_a, letter_b, m, n, k, 1.0f, a.data, a.stride, b.data, b.stride, accumulate ? 1.0f : 0.0f, c, n);
  require(status == dnnl_success, "dnnl_sgemm accepts the sizes of the product");
}

bool has_bfloat16_products() {
  return __builtin_cpu_supports("avx512bf16") != 0;
}

std::unique_ptr<MatrixProducts> make_library_products(bool bfloat16_products) {
  return std::make_unique<LibraryProducts>(bfloat16_products);
}

std::unique_ptr<MatrixProducts> make_cpu_matrix_products() {
  return make_library_products(has_bfloat16_products());
}

void use_one_library_thread() {
  omp_set_num_threads(1);
}

}  // namespace weft
