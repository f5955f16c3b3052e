// The kernels that the tests start; each queues one on `stream`.
#pragma once

#include <cuda_runtime_api.h>

namespace weft::cuda {

// y = scale * x + offset over n floats.
void affine(cudaStream_t stream, const float* x, float* y, int n, float scale, float offset);
// sums[row] of a rows x columns matrix, by shuffles and shared memory.
void row_sum(cudaStream_t stream, const float* x, float* sums, int rows, int columns);
// Turns n <= 1024 floats round through dynamic shared memory. Wrong without the barrier.
void reverse(cudaStream_t stream, float* x, int n, bool with_barrier);
// Copies dynamic shared memory that nobody wrote.
void unwritten_shared(cudaStream_t stream, float* x, int n);
void shared_overflow(cudaStream_t stream);
// Two blocks of 64 threads, of which the first `returning` never come to the barrier.
void early_return(cudaStream_t stream, int returning);
// Half a warp shuffles in the name of all of it.
void half_shuffle(cudaStream_t stream, float* x);
// 32 x 8 results of collectives, by lane.
void collectives(cudaStream_t stream, int* results);
// Every thread adds 1 to counter and 0.5 to sum.
void count(cudaStream_t stream, int blocks, int threads, int* counter, float* sum);
// x[index] = 0.
void write_behind(cudaStream_t stream, float* x, int index);
// Blocks of 256 threads that meet `number` times.
void barriers(cudaStream_t stream, int blocks, int number);

}  // namespace weft::cuda
