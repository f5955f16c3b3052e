#include "layers/kernels/cuda/product_measure.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "layers/kernels/float8.h"
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/elementwise.h"
#include "parallel/runtime/random.h"
#include "parallel/runtime/staging.h"

namespace weft::cuda {
namespace {

constexpr int listed_algorithms = 8, rounds = 6;  // the first round warms up
constexpr std::int64_t random_elements = std::int64_t{1} << 20;

std::string machine_text() {
  int device = 0;
  WEFT_CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  WEFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return fmt::format("{} with cuBLASLt {}", properties.name, cublasLtGetVersion());
}

// Repeats one million random numbers. No tile sees a repetition, and constants would draw less power than real
// operands.
class RandomOperands {
 public:
  explicit RandomOperands(Stream& stream) : stream_(stream) {}
  // Queued on the stream; this object must outlive the copies.
  void fill(TensorView matrix) {
    const void* const drawn = drawn_in(matrix.dtype());
    const std::int64_t all = matrix.size(), size = size_of(matrix.dtype());
    for (std::int64_t done = 0; done < all; done += random_elements) {
      const std::int64_t count = std::min(random_elements, all - done);
      stream_.device().copy(stream_, drawn, matrix.data() + done * size, count * size);
    }
  }

 private:
  const void* drawn_in(DType dtype) {
    if (dtype == DType::bfloat16) return drawn<bfloat16>();
    if (dtype == DType::float16) return drawn<float16>();
    if (dtype == DType::float8_e4m3) return drawn<e4m3>();
    if (dtype == DType::float8_e5m2) return drawn<e5m2>();
    return drawn<float>();
  }
  template <typename T>
  const void* drawn() {
    const auto [staging, is_new] = staging_.try_emplace(dtype_of<T>, stream_.device(), dtype_of<T>, 1, random_elements);
    const std::span<T> values = staging->second.template as<T>();
    const RandomStream random(1, "products");
    for (std::size_t i = 0; is_new && i < values.size(); ++i) values[i] = T(static_cast<float>(random.normal(i)));
    return values.data();
  }

  Stream& stream_;
  std::map<DType, Staging> staging_;
};

std::set<ProductCall> shapes_of(std::span<const ProductCall> products) {
  std::set<ProductCall> shapes;
  for (const ProductCall& call : products) {
    if (call.rows == 0 || call.columns == 0 || call.inner == 0) continue;
    shapes.insert(rounded_tokens(call));
  }
  return shapes;
}

// A product of this shape with operands of its own.
struct OwnProduct {
  OwnProduct(const ProductCall& s, Stream& stream, MemoryLedger& ledger) {
    const auto matrix = [&](DType dtype, std::int64_t rows, std::int64_t columns) {
      return ledger.allocate_on(stream, Bucket::workspace, dtype, rows, columns);
    };
    a = s.transpose_a ? matrix(s.input_a, s.inner, s.rows) : matrix(s.input_a, s.rows, s.inner);
    b = s.transpose_b ? matrix(s.input_b, s.columns, s.inner) : matrix(s.input_b, s.inner, s.columns);
    c = matrix(s.output, s.rows, s.columns);
    const auto transpose = [](bool turned) { return turned ? Transpose::yes : Transpose::no; };
    product = {a, transpose(s.transpose_a), b, transpose(s.transpose_b), c, s.adds};
    if (size_of(s.input_a) > 1) return;
    const auto scales = [&](ScaledBlock each, std::int64_t rows) {
      const auto [scale_rows, scale_columns] = scale_shape(each, rows, s.inner);
      Tensor ones = matrix(DType::float32, scale_rows, scale_columns);
      weft::fill(stream, ones, 1.0f);
      return ones;
    };
    scales_a = scales(s.scaled_a, s.rows);
    scales_b = scales(s.scaled_b, s.columns);
    product.scales_a = {scales_a, s.scaled_a};
    product.scales_b = {scales_b, s.scaled_b};
  }

  Tensor a, b, c, scales_a, scales_b;
  Product product;
};

// Returns nullopt if none of the listed algorithms can be run.
std::optional<cublasLtMatmulAlgo_t> fastest_of(const ProductCall& s, ProductPlans& plans, Stream& stream,
                                               MemoryLedger& ledger, void* workspace, RandomOperands& random) {
  const std::vector<cublasLtMatmulAlgo_t> listed = plans.listed(s, listed_algorithms);
  if (listed.size() == 1) return listed.front();
  OwnProduct own(s, stream, ledger);
  for (const TensorView matrix : {own.a.view(), own.b.view(), own.c.view()}) random.fill(matrix);
  std::vector<std::vector<std::pair<Fence, Fence>>> times(listed.size());
  std::vector<bool> refused(listed.size(), false);
  // The algorithms take turns, so that changes of the clock rate affect all of them.
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < listed.size(); ++i) {
      if (refused[i]) continue;
      const Fence begin = stream.record_time();
      refused[i] = plans.multiply(native(stream), s, own.product, workspace, listed[i]) != CUBLAS_STATUS_SUCCESS;
      if (round > 0) times[i].emplace_back(begin, stream.record_time());
    }
  }
  stream.synchronize();
  std::vector<std::vector<double>> seconds(listed.size());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    if (refused[i]) continue;
    for (const auto& [begin, end] : times[i]) seconds[i].push_back(end->seconds_since(*begin));
  }
  const std::optional<std::size_t> best = fastest(seconds);
  return best ? std::optional(listed[*best]) : std::nullopt;
}

constexpr std::string_view title = "weft products 3";

}  // namespace

std::optional<std::size_t> fastest(std::span<const std::vector<double>> seconds) {
  constexpr double worth = 0.99;
  std::optional<std::size_t> best;
  double least = 0.0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (seconds[i].empty()) continue;
    std::vector<double> sorted = seconds[i];
    std::ranges::nth_element(sorted, sorted.begin() + std::ssize(sorted) / 2);
    const double median = sorted[sorted.size() / 2];
    if (best && median >= worth * least) continue;
    best = i;
    least = median;
  }
  return best;
}

const cublasLtMatmulAlgo_t* ProductTable::find(const ProductCall& shape) const {
  const auto found = algorithms_.find(shape);
  return found == algorithms_.end() ? nullptr : &found->second;
}

std::string ProductTable::text() const {
  std::string text = fmt::format("{}\n{}\n", title, machine_);
  for (const auto& [s, algorithm] : algorithms_) {
    text += fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", s.rows, s.columns, s.inner,
                        static_cast<int>(s.transpose_a), static_cast<int>(s.transpose_b), static_cast<int>(s.input_a),
                        static_cast<int>(s.input_b), static_cast<int>(s.output), static_cast<int>(s.adds), s.alignment,
                        static_cast<int>(s.scaled_a), static_cast<int>(s.scaled_b));
    for (const std::uint64_t word : algorithm.data) text += fmt::format(" {}", word);
    text += '\n';
  }
  return text;
}

void ProductTable::read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  // The last line is the checksum of the lines before it, because the library trusts the bits of an algorithm.
  if (text.empty() || text.back() != '\n') return;
  text.pop_back();
  const std::size_t last = text.rfind('\n');
  if (last == std::string::npos) return;
  const std::string sum = text.substr(last + 1);
  text.resize(last + 1);
  if (sum != checksum_text(checksum(text))) return;
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != title || !std::getline(lines, line) || line != machine_) return;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    ProductCall s;
    int input_a = 0, input_b = 0, output = 0, scaled_a = 0, scaled_b = 0;
    words >> s.rows >> s.columns >> s.inner >> s.transpose_a >> s.transpose_b >> input_a >> input_b >> output >>
        s.adds >> s.alignment >> scaled_a >> scaled_b;
    s.input_a = static_cast<DType>(input_a);
    s.input_b = static_cast<DType>(input_b);
    s.output = static_cast<DType>(output);
    s.scaled_a = static_cast<ScaledBlock>(scaled_a);
    s.scaled_b = static_cast<ScaledBlock>(scaled_b);
    cublasLtMatmulAlgo_t algorithm{};
    for (std::uint64_t& word : algorithm.data) words >> word;
    if (words) algorithms_.insert_or_assign(s, algorithm);
  }
}

bool ProductTable::write(const std::string& file) const {
  ProductTable all(machine_);
  all.read(file);
  for (const auto& [shape, algorithm] : algorithms_) all.add(shape, algorithm);
  std::string text = all.text();
  text += checksum_text(checksum(text)) + "\n";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  // Ranks write at the same time, so each writes a file of its own and renames it to `file`.
  const std::string own = fmt::format("{}.{}.{}", file, getpid(), static_cast<const void*>(this));
  if (!(std::ofstream(own, std::ios::binary) << text).flush()) {
    std::filesystem::remove(own, error);
    return false;
  }
  std::filesystem::rename(own, file, error);
  return !error;
}

std::string product_table_file() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return fmt::format("{}/weft/products.txt", cache);
  return home == nullptr ? "" : fmt::format("{}/.cache/weft/products.txt", home);
}

void load_products(ProductPlans& plans, Stream& stream, MemoryLedger& ledger, void* workspace,
                   std::span<const ProductCall> products) {
  for (const ProductCall& shape : shapes_of(products)) {
    const OwnProduct own(shape, stream, ledger);
    plans.run(native(stream), shape, own.product, workspace);
  }
}

std::string measure_products(ProductPlans& plans, Stream& stream, MemoryLedger& ledger, void* workspace,
                             std::span<const ProductCall> products, const std::string& file) {
  const auto begin = std::chrono::steady_clock::now();
  const std::set<ProductCall> shapes = shapes_of(products);
  ProductTable table(machine_text());
  if (!file.empty()) table.read(file);
  RandomOperands random(stream);
  std::size_t timed = 0;
  for (const ProductCall& shape : shapes) {
    if (table.find(shape) == nullptr) {
      const auto algorithm = fastest_of(shape, plans, stream, ledger, workspace, random);
      if (!algorithm) continue;
      table.add(shape, *algorithm);
      ++timed;
    }
    plans.keep(shape, *table.find(shape));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::string text = fmt::format("{} shapes: {} timed in {:.1f} s", shapes.size(), timed, seconds.count());
  if (timed < shapes.size()) text += fmt::format(", {} known", shapes.size() - timed);
  if (file.empty()) return text;
  if (timed > 0 && !table.write(file)) return text + fmt::format("; {} cannot be written", file);
  return text + fmt::format(" ({})", file);
}

}  // namespace weft::cuda
