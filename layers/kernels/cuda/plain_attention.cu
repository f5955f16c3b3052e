// Causal grouped-query attention in float32 arithmetic, for shapes and dtypes that the library does not take. Softmax
// is computed online over tiles of keys; the backward recomputes probabilities from the log-sum-exp (Dao et al. 2022,
// FlashAttention). One kernel computes dq, another dk and dv: every result has one owner, so sums are deterministic.
//
// Operations per head of D columns, for n queries that see m keys on average: 4 n m D forward, 14 n m D backward. The
// backward has 5 products, two of them twice. Keys and values are read once for each tile of 64 queries (32 for heads
// wider than 128). Queries and dout are read once for each tile of keys. Nearly all bytes come from the second-level
// cache; the kernels are bound by arithmetic.
#include "layers/kernels/cuda/attention_tiles.cuh"

#include <algorithm>
#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/element_type.h"

namespace weft::cuda {
namespace {

// Parameters of a call for all kernels. Query row r of a sequence has position positions[r], or r if the runs cover the
// sequence and `positions` is null. Without documents `document_begins` is null; otherwise it has a position for each
// query row of each sequence.
struct AttentionCall {
  int query_heads, key_value_heads, head_dim, value_dim;
  int length;   // key rows per sequence
  int queries;  // query rows per sequence
  int sequences;
  float scale;
  FirstKey first;  // keys that a query sees
  const std::int32_t *positions, *document_begins;

  __device__ int position(int row) const { return positions == nullptr ? row : positions[row]; }
  __device__ int first_key(int sequence, int row) const {
    const int key = static_cast<int>(first(position(row)));
    if (document_begins == nullptr) return key;
    return max(key, document_begins[static_cast<std::int64_t>(sequence) * queries + row]);
  }
  // The first row with a query at or behind `key`; `queries` if there is none.
  __device__ int first_row_at(int key) const {
    return first_row([&](int row) { return position(row) >= key; });
  }
  // The first row whose query sees neither `key` nor a key before it.
  __device__ int first_row_behind(int sequence, int key) const {
    return first_row([&](int row) { return first_key(sequence, row) > key; });
  }
  // `holds` is false for some rows, and true for all behind them.
  template <typename Holds>
  __device__ int first_row(Holds holds) const {
    int begin = 0, end = queries;
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (holds(middle)) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  }
};

// The tile of queries or keys that a block computes. Heads that share keys are adjacent, so that they find the keys in
// a cache.
struct Place {
  int head, sequence, first_row;
};
__device__ Place place_of_block(int heads, int sequences, int edge) {
  const int head = static_cast<int>(blockIdx.x % heads), rest = static_cast<int>(blockIdx.x / heads);
  return {head, rest % sequences, rest / sequences * edge};
}

// The tile of queries of a block, late ones first because they see many keys, and the head of keys that they share.
template <typename T>
struct QueryTile {
  __device__ QueryTile(const AttentionCall& shape, int edge, HeadRows<const T> k, HeadRows<const T> v) {
    const Place place = place_of_block(shape.query_heads, shape.sequences, edge);
    head = place.head;
    sequence = place.sequence;
    row = static_cast<int>(gridDim.x / (shape.query_heads * shape.sequences) - 1) * edge - place.first_row;
    rows = min(edge, shape.queries - row);
    first_row = static_cast<std::int64_t>(place.sequence) * shape.queries + row;
    query_column = static_cast<std::int64_t>(head) * shape.head_dim;
    out_column = static_cast<std::int64_t>(head) * shape.value_dim;
    const std::int64_t first_key = static_cast<std::int64_t>(place.sequence) * shape.length;
    const std::int64_t key_head = head / (shape.query_heads / shape.key_value_heads);
    keys = k.from(first_key, key_head * shape.head_dim);
    values = v.from(first_key, key_head * shape.value_dim);
  }

  int head, sequence, row, rows;                     // `row` counts within the sequence
  std::int64_t first_row, query_column, out_column;  // of the tile in the matrices of queries and outputs
  HeadRows<const T> keys, values;                    // of the sequence
};

// Runs of one launch of number_rows.
constexpr int runs_of_launch = 64;
struct RunList {
  std::int32_t begin[runs_of_launch], first_row[runs_of_launch];
  int count;
};
__global__ void number_rows(const RunList runs, int first_row, int end_row, std::int32_t* positions) {
  const int row = first_row + static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= end_row) return;
  int run = 0;
  while (run + 1 < runs.count && runs.first_row[run + 1] <= row) ++run;
  positions[row] = runs.begin[run] + row - runs.first_row[run];
}

// Shared memory in bytes of a kernel with `tiles` tiles and one block of scores.
template <typename Tiles>
constexpr std::size_t shared_bytes(int tiles) {
  return (tiles * Tiles::tile_floats + Tiles::score_floats) * sizeof(float);
}
// Blocks per multiprocessor: two if the shared memory of an H100 allows it. This bounds the registers of a thread; a
// higher bound would spill registers.
template <typename Tiles>
constexpr int resident_blocks(int tiles) {
  return 2 * shared_bytes<Tiles>(tiles) <= std::size_t{224} << 10 ? 2 : 1;
}
constexpr int forward_tiles = 2, query_gradient_tiles = 3, key_value_gradient_tiles = 4;

// Scores of a row with the keys from `key` on become their exponentials, relative to the largest score of the row so
// far. Returns the factor that makes earlier exponentials relative to it, and applies it to the row's `sum`.
template <int count>
__device__ float exponentiate(float (&scores)[count], int key, int first_key, int position, float scale, float& maximum,
                              float& sum) {
  float largest = maximum;
#pragma unroll
  for (int j = 0; j < count; ++j) {
    const int column = key + thread_x() + j * threads_of_edge;
    const bool visible = column >= first_key && column <= position;
    if (!visible) scores[j] = __int_as_float(0xff800000);
    largest = fmaxf(largest, scores[j]);
  }
  largest = reduce_lanes(largest, threads_of_edge, LargerNumber());
  // Minus infinity while the row has seen no key.
  const float top = largest > __int_as_float(0xff800000) ? largest : 0.0f;
  const float factor = __expf(scale * (maximum - top)), shift = scale * top;
  maximum = largest;
  sum *= factor;
#pragma unroll
  for (int j = 0; j < count; ++j) {
    scores[j] = __expf(scale * scores[j] - shift);
    sum += scores[j];
  }
  return factor;
}

template <typename Tiles, typename T>
__global__ void __launch_bounds__(threads_of_tile, resident_blocks<Tiles>(forward_tiles))
    forward_kernel(AttentionCall shape, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v, HeadRows<T> out,
                   float* log_sum_exp) {
  constexpr int edge = Tiles::edge, count = Tiles::rows_of_thread;
  const QueryTile<T> at(shape, edge, k, v);

  float* const q_tile = dynamic_shared<float>();
  float* const kv_tile = q_tile + Tiles::tile_floats;
  float* const scores = kv_tile + Tiles::tile_floats;
  load_tile<Tiles>(q.from(at.first_row, at.query_column), at.rows, q_tile);

  // Rows after the last repeat its position and are not stored.
  int position[count], first_key[count];
  float maximum[count], sum[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int row = at.row + min(thread_y() + i * threads_of_edge, at.rows - 1);
    position[i] = shape.position(row);
    first_key[i] = shape.first_key(at.sequence, row);
    maximum[i] = __int_as_float(0xff800000);
    sum[i] = 0.0f;
  }
  HeadPart<Tiles> result;
  const int end_key = shape.position(at.row + at.rows - 1) + 1;
  for (int key = shape.first_key(at.sequence, at.row); key < end_key; key += edge) {
    const int keys_here = min(edge, end_key - key);
    __syncthreads();
    load_tile<Tiles>(at.keys.from(key, 0), keys_here, kv_tile);
    __syncthreads();
    ScorePart<Tiles> score = row_products<Tiles>(q_tile, kv_tile, shape.head_dim);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float factor = exponentiate(score.at[i], key, first_key[i], position[i], shape.scale, maximum[i], sum[i]);
#pragma unroll
      for (int quad = 0; quad < Tiles::quads_of_thread; ++quad) {
#pragma unroll
        for (int j = 0; j < 4; ++j) result.at[i][quad][j] *= factor;
      }
    }
    store_scores(score, scores);
    __syncthreads();
    load_tile<Tiles>(at.values.from(key, 0), keys_here, kv_tile);
    __syncthreads();
    add_product(scores, kv_tile, result);
  }

  float inverse[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float total = reduce_lanes(sum[i], threads_of_edge, AddTo());
    inverse[i] = 1.0f / total;
    const int row = thread_y() + i * threads_of_edge;
    if (row < at.rows && thread_x() == 0) {
      log_sum_exp[(at.first_row + row) * shape.query_heads + at.head] = shape.scale * maximum[i] + logf(total);
    }
  }
  store_head(result, inverse, at.rows, out.from(at.first_row, at.out_column));
}

// products[i] = sum of dout * out over head i of all rows and heads. One warp per head.
template <typename T>
__global__ void row_products_kernel(const T* dout, const T* out, std::int64_t heads, int width, float* products) {
  const std::int64_t head = (static_cast<std::int64_t>(blockIdx.x) * threads_of_tile + threadIdx.x) / warp_size;
  if (head >= heads) return;
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) % warp_size; i < width; i += warp_size) {
    sum = fmaf(to_float(dout[head * width + i]), to_float(out[head * width + i]), sum);
  }
  sum = sum_of_warp(sum);
  if (threadIdx.x % warp_size == 0) products[head] = sum;
}

template <typename Tiles, typename T>
__global__ void __launch_bounds__(threads_of_tile, resident_blocks<Tiles>(query_gradient_tiles))
    query_gradient_kernel(AttentionCall shape, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                          HeadRows<const T> dout, const float* log_sum_exp, const float* products, HeadRows<T> dq) {
  constexpr int edge = Tiles::edge, count = Tiles::rows_of_thread;
  const QueryTile<T> at(shape, edge, k, v);

  float* const q_tile = dynamic_shared<float>();
  float* const dout_tile = q_tile + Tiles::tile_floats;
  float* const kv_tile = dout_tile + Tiles::tile_floats;
  float* const scores = kv_tile + Tiles::tile_floats;
  load_tile<Tiles>(q.from(at.first_row, at.query_column), at.rows, q_tile);
  load_tile<Tiles>(dout.from(at.first_row, at.out_column), at.rows, dout_tile);

  int position[count], first_key[count];
  float log_sum[count], product[count], ones[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const int row = min(thread_y() + i * threads_of_edge, at.rows - 1);
    const std::int64_t statistic = (at.first_row + row) * shape.query_heads + at.head;
    position[i] = shape.position(at.row + row);
    first_key[i] = shape.first_key(at.sequence, at.row + row);
    log_sum[i] = log_sum_exp[statistic];
    product[i] = products[statistic];
    ones[i] = 1.0f;
  }
  HeadPart<Tiles> result;
  const int end_key = shape.position(at.row + at.rows - 1) + 1;
  for (int key = shape.first_key(at.sequence, at.row); key < end_key; key += edge) {
    const int keys_here = min(edge, end_key - key);
    __syncthreads();
    load_tile<Tiles>(at.values.from(key, 0), keys_here, kv_tile);
    __syncthreads();
    ScorePart<Tiles> dscore = row_products<Tiles>(dout_tile, kv_tile, shape.value_dim);
    __syncthreads();
    load_tile<Tiles>(at.keys.from(key, 0), keys_here, kv_tile);
    __syncthreads();
    const ScorePart<Tiles> score = row_products<Tiles>(q_tile, kv_tile, shape.head_dim);
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        const int column = key + thread_x() + j * threads_of_edge;
        const bool visible = column >= first_key[i] && column <= position[i];
        const float probability = visible ? __expf(shape.scale * score.at[i][j] - log_sum[i]) : 0.0f;
        dscore.at[i][j] = visible ? shape.scale * probability * (dscore.at[i][j] - product[i]) : 0.0f;
      }
    }
    store_scores(dscore, scores);
    __syncthreads();
    add_product(scores, kv_tile, result);
  }
  store_head(result, ones, at.rows, dq.from(at.first_row, at.query_column));
}

// A block owns a tile of keys and values and loops over the queries of every head that shares them. Scores are
// transposed: one row per key.
template <typename Tiles, typename T>
__global__ void __launch_bounds__(threads_of_tile, resident_blocks<Tiles>(key_value_gradient_tiles))
    key_value_gradient_kernel(AttentionCall shape, HeadRows<const T> q, HeadRows<const T> k, HeadRows<const T> v,
                              HeadRows<const T> dout, const float* log_sum_exp, const float* products, HeadRows<T> dk,
                              HeadRows<T> dv) {
  constexpr int edge = Tiles::edge, count = Tiles::rows_of_thread;
  const Place place = place_of_block(shape.key_value_heads, shape.sequences, edge);
  const int keys = min(edge, shape.length - place.first_row);
  const std::int64_t first_key = static_cast<std::int64_t>(place.sequence) * shape.length + place.first_row;
  const std::int64_t first_query = static_cast<std::int64_t>(place.sequence) * shape.queries;
  const std::int64_t key_column = static_cast<std::int64_t>(place.head) * shape.head_dim;
  const std::int64_t value_column = static_cast<std::int64_t>(place.head) * shape.value_dim;

  float* const k_tile = dynamic_shared<float>();
  float* const v_tile = k_tile + Tiles::tile_floats;
  float* const q_tile = v_tile + Tiles::tile_floats;
  float* const dout_tile = q_tile + Tiles::tile_floats;
  float* const scores = dout_tile + Tiles::tile_floats;
  load_tile<Tiles>(k.from(first_key, key_column), keys, k_tile);
  load_tile<Tiles>(v.from(first_key, value_column), keys, v_tile);

  HeadPart<Tiles> dk_part, dv_part;
  const int group = shape.query_heads / shape.key_value_heads;
  const int begin_row = shape.first_row_at(place.first_row);
  const int end_row = shape.first_row_behind(place.sequence, place.first_row + keys - 1);
  for (int head = place.head * group; head < (place.head + 1) * group; ++head) {
    const std::int64_t query_column = static_cast<std::int64_t>(head) * shape.head_dim;
    const std::int64_t out_column = static_cast<std::int64_t>(head) * shape.value_dim;
    for (int row = begin_row; row < end_row; row += edge) {
      const int rows = min(edge, end_row - row);
      __syncthreads();
      load_tile<Tiles>(q.from(first_query + row, query_column), rows, q_tile);
      load_tile<Tiles>(dout.from(first_query + row, out_column), rows, dout_tile);
      __syncthreads();
      ScorePart<Tiles> score = row_products<Tiles>(k_tile, q_tile, shape.head_dim);
      ScorePart<Tiles> dscore = row_products<Tiles>(v_tile, dout_tile, shape.value_dim);
#pragma unroll
      for (int j = 0; j < count; ++j) {
        const int query = thread_x() + j * threads_of_edge;
        int position = -1, oldest = 0;  // sees nothing
        float log_sum = 0.0f, product = 0.0f;
        if (query < rows) {
          const std::int64_t at = (first_query + row + query) * shape.query_heads + head;
          position = shape.position(row + query);
          oldest = shape.first_key(place.sequence, row + query);
          log_sum = log_sum_exp[at];
          product = products[at];
        }
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const int key = place.first_row + thread_y() + i * threads_of_edge;
          const bool visible = key >= oldest && key <= position;
          const float probability = visible ? __expf(shape.scale * score.at[i][j] - log_sum) : 0.0f;
          score.at[i][j] = probability;
          dscore.at[i][j] = visible ? shape.scale * probability * (dscore.at[i][j] - product) : 0.0f;
        }
      }
      store_scores(score, scores);
      __syncthreads();
      add_product(scores, dout_tile, dv_part);
      __syncthreads();
      store_scores(dscore, scores);
      __syncthreads();
      add_product(scores, q_tile, dk_part);
    }
  }
  float ones[count];
#pragma unroll
  for (int i = 0; i < count; ++i) ones[i] = 1.0f;
  store_head(dk_part, ones, keys, dk.from(first_key, key_column));
  store_head(dv_part, ones, keys, dv.from(first_key, value_column));
}

// The positions of query rows, or no tensor if rows and positions are the same.
Tensor number_positions(KernelContext& context, const HeadShape& heads, QueryRuns runs) {
  const std::int64_t queries = query_rows(runs);
  if (queries == 0 || queries == heads.sequence_length) return {};
  Tensor positions = context.workspace(DType::int32, queries, 1);
  std::int64_t row = 0;
  for (std::size_t next = 0; next < runs.size();) {
    RunList list;
    list.count = 0;
    const std::int64_t first_row = row;
    for (; next < runs.size() && list.count < runs_of_launch; ++next) {
      if (runs[next].count == 0) continue;
      list.begin[list.count] = static_cast<std::int32_t>(runs[next].begin);
      list.first_row[list.count] = static_cast<std::int32_t>(row);
      ++list.count;
      row += runs[next].count;
    }
    const std::int64_t blocks = (row - first_row + threads_of_tile - 1) / threads_of_tile;
    launch(native(context.stream), dim3(static_cast<unsigned>(blocks)), dim3(threads_of_tile), 0, number_rows, list,
           static_cast<int>(first_row), static_cast<int>(row), elements<std::int32_t>(positions.view()));
  }
  return positions;
}

AttentionCall shape_of(const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs, Tensor& positions) {
  AttentionCall shape{};
  shape.query_heads = static_cast<int>(heads.query_heads);
  shape.key_value_heads = static_cast<int>(heads.key_value_heads);
  shape.head_dim = static_cast<int>(heads.head_dim);
  shape.value_dim = static_cast<int>(heads.value_dim);
  shape.length = static_cast<int>(heads.sequence_length);
  shape.queries = static_cast<int>(query_rows(runs));
  shape.sequences = static_cast<int>(inputs.k.rows.rows() / heads.sequence_length);
  shape.scale = static_cast<float>(heads.score_scale());
  shape.first = heads.first_key;
  shape.positions = positions.allocated() ? elements<std::int32_t>(positions.view()) : nullptr;
  shape.document_begins = inputs.document_begins.empty() ? nullptr : elements<std::int32_t>(inputs.document_begins);
  return shape;
}

// Number of blocks: one for each tile of `edge` rows in every sequence and head.
dim3 blocks_for(std::int64_t rows, std::int64_t edge, std::int64_t heads, std::int64_t sequences) {
  return dim3(static_cast<unsigned>((rows + edge - 1) / edge * heads * sequences));
}

// The columns from `column` on, as kernels take them. Elements are const if the view is.
template <typename T, typename View>
auto head_rows(View tensor, std::int64_t column, std::int64_t width) {
  auto* data = elements<T>(tensor) + column;
  const bool vectors = reinterpret_cast<std::uintptr_t>(data) % 16 == 0 &&
                       vectorise(tensor.dtype(), tensor.columns(), {}) && vectorise(tensor.dtype(), width, {});
  return HeadRows<std::remove_pointer_t<decltype(data)>>{data, tensor.columns(), static_cast<int>(width), vectors};
}
template <typename T, typename View>
auto head_rows(const HeadColumns<View>& of, std::int64_t width) {
  return head_rows<T>(of.rows, of.column, width);
}

// Calls body<T, Tiles>.
template <typename Body>
void with_tiles(DType dtype, const HeadShape& heads, Body body) {
  const std::int64_t widest = std::max(heads.head_dim, heads.value_dim);
  const auto with_dtype = [&]<typename Tiles>() {
    with_element_type(dtype, [&](auto element) { body.template operator()<decltype(element), Tiles>(); });
  };
  if (widest <= 64) {
    with_dtype.template operator()<TileShape<64>>();
  } else if (widest <= 128) {
    with_dtype.template operator()<TileShape<128>>();
  } else {
    require(widest <= 256, "heads of attention on a GPU have at most 256 columns");
    with_dtype.template operator()<TileShape<256>>();
  }
}

void plain_attention_forward(KernelContext& context, const HeadShape& heads, QueryRuns runs,
                             const AttentionInputs& inputs, TensorView out, TensorView log_sum_exp) {
  if (inputs.k.rows.rows() == 0) return;
  Tensor positions = number_positions(context, heads, runs);
  const AttentionCall shape = shape_of(heads, runs, inputs, positions);
  with_tiles(out.dtype(), heads, [&]<typename T, typename Tiles>() {
    const std::int64_t head_dim = heads.head_dim, value_dim = heads.value_dim;
    launch(native(context.stream), blocks_for(shape.queries, Tiles::edge, heads.query_heads, shape.sequences),
           dim3(threads_of_tile), shared_bytes<Tiles>(forward_tiles),
           forward_kernel<Tiles, typename DeviceElement<T>::type>, shape, head_rows<T>(inputs.q, head_dim),
           head_rows<T>(inputs.k, head_dim), head_rows<T>(inputs.v, value_dim), head_rows<T>(out, 0, value_dim),
           elements<float>(log_sum_exp));
  });
}

void plain_attention_backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                              const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
                              const AttentionGradients& gradients) {
  if (inputs.k.rows.rows() == 0) return;
  Tensor positions = number_positions(context, heads, runs);
  Tensor products = context.workspace(DType::float32, log_sum_exp.rows(), log_sum_exp.columns());
  const AttentionCall shape = shape_of(heads, runs, inputs, positions);
  const cudaStream_t stream = native(context.stream);
  with_tiles(dout.dtype(), heads, [&]<typename T, typename Tiles>() {
    using Element = typename DeviceElement<T>::type;
    const std::int64_t head_dim = heads.head_dim, value_dim = heads.value_dim, warps = threads_of_tile / warp_size;
    const auto queries = head_rows<T>(inputs.q, head_dim), douts = head_rows<T>(dout, 0, value_dim);
    const auto keys = head_rows<T>(inputs.k, head_dim), values = head_rows<T>(inputs.v, value_dim);
    launch(stream, dim3(static_cast<unsigned>((log_sum_exp.size() + warps - 1) / warps)), dim3(threads_of_tile), 0,
           row_products_kernel<Element>, elements<T>(dout), elements<T>(out), log_sum_exp.size(), shape.value_dim,
           elements<float>(products.view()));
    launch(stream, blocks_for(shape.queries, Tiles::edge, heads.query_heads, shape.sequences), dim3(threads_of_tile),
           shared_bytes<Tiles>(query_gradient_tiles), query_gradient_kernel<Tiles, Element>, shape, queries, keys,
           values, douts, elements<float>(log_sum_exp), elements<float>(products.view()),
           head_rows<T>(gradients.q, head_dim));
    launch(stream, blocks_for(shape.length, Tiles::edge, heads.key_value_heads, shape.sequences), dim3(threads_of_tile),
           shared_bytes<Tiles>(key_value_gradient_tiles), key_value_gradient_kernel<Tiles, Element>, shape, queries,
           keys, values, douts, elements<float>(log_sum_exp), elements<float>(products.view()),
           head_rows<T>(gradients.k, head_dim), head_rows<T>(gradients.v, value_dim));
  });
}

}  // namespace

// No description: make_attention_kernels (cudnn_kernels.cpp) describes the chosen kernel.
const AttentionKernels plain_attention_kernels = {
    plain_attention_forward, plain_attention_backward, cached_attention, {}};

}  // namespace weft::cuda
