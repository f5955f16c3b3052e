// Forward gathers rows: 2 s bytes per element of y, with elements of s bytes. Backward sorts the tokens by row, then
// adds the gradients row by row. It moves s bytes per element of dy, 8 per element of the rows that occur, and some 50
// per token for the sort. One thread adds all terms of an element, so no atomics are needed. The sort is stable, so
// terms are added in token order and give the same bits as the CPU. A row that most tokens share is added by few
// blocks, term by term.
#include <cuda_runtime.h>

#include <bit>

#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/launch.cuh"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/cuda/vector.cuh"

namespace weft::cuda {
namespace {

// Rows are copied as words of any type.
template <typename Word>
__global__ void gather_kernel(const std::int32_t* ids, const Word* table, std::int64_t row_begin,
                              std::int64_t table_rows, std::int64_t tokens, std::int64_t words, Word* y) {
  for_row_items(tokens, words, [=](std::int64_t token, std::int64_t word) {
    const std::int64_t row = ids[token] - row_begin;
    y[token * words + word] = row >= 0 && row < table_rows ? table[row * words + word] : Word{};
  });
}

// keys[token] = the token's row, or table_rows, which sorts last, if that row is not in this shard.
__global__ void number_tokens_kernel(const std::int32_t* ids, std::int64_t tokens, std::int64_t row_begin,
                                     std::int64_t table_rows, std::int32_t* keys, std::int32_t* numbers) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= tokens) return;
  const std::int64_t row = ids[token] - row_begin;
  keys[token] = static_cast<std::int32_t>(row >= 0 && row < table_rows ? row : table_rows);
  numbers[token] = static_cast<std::int32_t>(token);
}

// Tokens sorted by row, and the gradients to add.
template <typename T>
struct SortedRows {
  const std::int32_t* keys;     // row of each token
  const std::int32_t* numbers;  // original token indices
  std::int64_t tokens;
  const T* dy;
  std::int64_t hidden;
};

// Adds N columns of the rows of dy from `place` on, `Rows` at a time while that many rows have the key. All rows of a
// group are loaded before the first is added.
template <int Rows, int N, typename T>
__device__ void add_groups(const SortedRows<T>& rows, std::int32_t key, std::int64_t column, std::int64_t& place,
                           Vector<float, N>& sum) {
  for (; place + Rows <= rows.tokens && rows.keys[place + Rows - 1] == key; place += Rows) {
    Vector<T, N> terms[Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      terms[i] = load_vector<N>(rows.dy + rows.numbers[place + i] * rows.hidden + column);
    }
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += to_float(terms[i][j]);
    }
  }
}

// The thread at the first place of a key adds all places of that key. An item is N columns. Two blocks per
// multiprocessor leave enough registers for all terms of a group; without the bound the compiler loads a few at a time.
template <typename T, int N>
__global__ void __launch_bounds__(256, 2)
    add_rows_kernel(const SortedRows<T> rows, std::int64_t table_rows, float* dtable) {
  for_row_items(rows.tokens, rows.hidden / N, [=](std::int64_t place, std::int64_t item) {
    const std::int32_t key = rows.keys[place];
    if (key == table_rows || (place > 0 && rows.keys[place - 1] == key)) return;
    const std::int64_t column = item * N;
    float* to = dtable + key * rows.hidden + column;
    Vector<float, N> sum = load_vector<N>(to);
    add_groups<16>(rows, key, column, place, sum);
    add_groups<4>(rows, key, column, place, sum);
    add_groups<1>(rows, key, column, place, sum);
    store_vector(to, sum);
  });
}

}  // namespace

void embedding_forward(KernelContext& context, ConstTensorView ids, ConstTensorView table, std::int64_t row_begin,
                       TensorView y) {
  const std::int64_t row_bytes = y.columns() * size_of(y.dtype());
  with_units(row_bytes, table.data(), y.data(), [&](auto word) {
    using Word = decltype(word);
    const std::int64_t words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
    const RowGrid grid = row_grid(y.rows(), words);
    launch(native(context.stream), grid.blocks, grid.threads, 0, gather_kernel<Word>, elements<std::int32_t>(ids),
           reinterpret_cast<const Word*>(table.data()), row_begin, table.rows(), y.rows(), words,
           reinterpret_cast<Word*>(y.data()));
  });
}

void embedding_backward(KernelContext& context, ConstTensorView ids, ConstTensorView dy, std::int64_t row_begin,
                        TensorView dtable) {
  const cudaStream_t stream = native(context.stream);
  const std::int64_t tokens = dy.rows(), hidden = dy.columns();
  const int key_bits = std::bit_width(static_cast<std::uint64_t>(dtable.rows()));
  require(key_bits < 32, "rows of an embedding are numbered in 32 bits");
  const std::size_t scratch_bytes = sort_scratch_bytes(tokens, key_bits);
  Tensor pairs = context.workspace(DType::int32, 4, tokens);
  Tensor scratch = context.workspace(DType::float64, static_cast<std::int64_t>((scratch_bytes + 7) / 8), 1);
  std::int32_t* keys = elements<std::int32_t>(pairs.view());
  std::int32_t *numbers = keys + tokens, *sorted_keys = numbers + tokens, *sorted = sorted_keys + tokens;
  constexpr std::int64_t block_threads = 256;
  launch(stream, blocks_for(tokens, block_threads), block_threads, 0, number_tokens_kernel, elements<std::int32_t>(ids),
         tokens, row_begin, dtable.rows(), keys, numbers);
  sort_pairs(stream, keys, sorted_keys, numbers, sorted, tokens, key_bits, scratch.view().data(), scratch_bytes);
  with_elements(dy.dtype(), [&]<typename E, typename T>() {
    // As many columns as make 16 bytes of dtable.
    constexpr int width = Vector<float>::size;
    const bool vectors = vectorise(DType::float32, hidden, {dtable}) &&
                         reinterpret_cast<std::uintptr_t>(dy.data()) % (width * sizeof(T)) == 0;
    const RowGrid grid = row_grid(tokens, hidden / (vectors ? width : 1));
    const SortedRows<T> rows{sorted_keys, sorted, tokens, elements<E>(dy), hidden};
    launch(stream, grid.blocks, grid.threads, 0, vectors ? add_rows_kernel<T, width> : add_rows_kernel<T, 1>, rows,
           dtable.rows(), elements<float>(dtable));
  });
}

}  // namespace weft::cuda
