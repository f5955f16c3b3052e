// Attention of few queries against many cached keys. A block computes one query of one head and reads the cache once;
// with elements of s bytes that is s (head_dim + value_dim) bytes per key. Query heads that share keys find them in the
// L2 cache. Made for one new token per pass; a long prompt is computed correctly, but not at full speed.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/reduce.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

constexpr int block_threads = 128;
// Columns of a head that a thread sums up.
constexpr int columns_of_thread = 2;
constexpr int most_head_dim = block_threads * columns_of_thread;

struct CacheShape {
  int query_heads, key_value_heads, head_dim, value_dim, tokens;
  std::int64_t capacity, position, q_columns, cache_columns;
  float scale;
  FirstKey first_key;
};

// blockIdx.x is the query's row, blockIdx.y its head. Online softmax over blocks of keys (Milakov and Gimelshein 2018).
// First each thread computes the score of one key, then it sums its columns over the keys.
template <typename T>
__global__ void __launch_bounds__(block_threads) cached_kernel(CacheShape shape, const T* q, const T* cache, T* out) {
  __shared__ float query[most_head_dim];
  __shared__ float weights[block_threads];
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const std::int64_t row = blockIdx.x, sequence = row / shape.tokens;
  const std::int64_t keys = shape.position + row % shape.tokens + 1;  // ends those that the query sees
  const int key_head = head / (shape.query_heads / shape.key_value_heads);
  const T* key_rows = cache + sequence * shape.capacity * shape.cache_columns + key_head * shape.head_dim;
  const T* value_rows = cache + sequence * shape.capacity * shape.cache_columns +
                        shape.key_value_heads * shape.head_dim + key_head * shape.value_dim;
  for (int i = thread; i < shape.head_dim; i += block_threads) {
    query[i] = to_float(q[row * shape.q_columns + head * shape.head_dim + i]);
  }
  __syncthreads();

  float maximum = -INFINITY, sum = 0.0f, result[columns_of_thread] = {};
  for (std::int64_t first = shape.first_key(keys - 1); first < keys; first += block_threads) {
    const std::int64_t key = first + thread;
    float score = -INFINITY;
    if (key < keys) {
      score = 0.0f;
      for (int i = 0; i < shape.head_dim; ++i) {
        score = fmaf(query[i], to_float(key_rows[key * shape.cache_columns + i]), score);
      }
      score *= shape.scale;
    }
    const float so_far = maximum;
    maximum = reduce_block(fmaxf(score, so_far), LargerOf(), -INFINITY);
    const float weight = key < keys ? expf(score - maximum) : 0.0f;
    const float rescale = expf(so_far - maximum);  // zero at first
    weights[thread] = weight;
    // After this all weights are in shared memory.
    sum = sum * rescale + sum_of_block(weight);
    const int here = static_cast<int>(keys - first < block_threads ? keys - first : block_threads);
#pragma unroll
    for (int c = 0; c < columns_of_thread; ++c) {
      const int column = thread + c * block_threads;
      if (column >= shape.value_dim) continue;
      float added = 0.0f;
      for (int k = 0; k < here; ++k) {
        added = fmaf(weights[k], to_float(value_rows[(first + k) * shape.cache_columns + column]), added);
      }
      result[c] = result[c] * rescale + added;
    }
    __syncthreads();  // before the weights of the next keys
  }
#pragma unroll
  for (int c = 0; c < columns_of_thread; ++c) {
    const int column = thread + c * block_threads;
    if (column >= shape.value_dim) continue;
    out[(row * shape.query_heads + head) * shape.value_dim + column] = from_float<T>(result[c] / sum);
  }
}

}  // namespace

void cached_attention(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                      ConstTensorView cache, TensorView out) {
  if (q.rows() == 0) return;
  require(std::max(heads.head_dim, heads.value_dim) <= most_head_dim,
          "heads of attention on a GPU have at most 256 columns");
  CacheShape shape{};
  shape.query_heads = static_cast<int>(heads.query_heads);
  shape.key_value_heads = static_cast<int>(heads.key_value_heads);
  shape.head_dim = static_cast<int>(heads.head_dim);
  shape.value_dim = static_cast<int>(heads.value_dim);
  shape.tokens = static_cast<int>(q.rows() / (cache.rows() / heads.sequence_length));
  shape.capacity = heads.sequence_length;
  shape.position = position;
  shape.q_columns = q.columns();
  shape.cache_columns = cache.columns();
  shape.scale = static_cast<float>(heads.score_scale());
  shape.first_key = heads.first_key;
  with_elements(q.dtype(), [&]<typename E, typename T>() {
    launch(native(context.stream), dim3(static_cast<unsigned>(q.rows()), static_cast<unsigned>(heads.query_heads)),
           dim3(block_threads), 0, cached_kernel<T>, shape, elements<E>(q), elements<E>(cache), elements<E>(out));
  });
}

}  // namespace weft::cuda
