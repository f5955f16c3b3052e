// The scan of a state-space mixer, chunk by chunk of a sequence (the "SSD" form of Dao and Gu 2024, section 6). Within
// a chunk let c_i be the sum of step times decay rate up to token i. Token i reads token j <= i of its document with
// the weight (C_i . B_j) exp(c_i - c_j) step_j, and the state in front of the chunk with exp(c_i). All exponents are
// negative or zero. Forward, a state goes from chunk to chunk. Backward makes those of a group again, and goes through
// its chunks from the last.
#include "layers/kernels/state_space.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "layers/kernels/cpu/kernels.h"
#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

// Longer chunks take longer: their pairs grow with the square.
constexpr std::int64_t chunk_size = shortest_scan_chunk;
using ChunkRow = std::array<float, static_cast<std::size_t>(chunk_size)>;

// Rows of `columns` elements, one every `stride` elements.
template <typename T>
WEFT_INLINE void widen(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* to) {
  for (std::int64_t row = 0; row < rows; ++row, from += stride, to += columns) {
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) to[i] = static_cast<float>(from[i]);
  }
}
template <typename T>
WEFT_INLINE void narrow(const float* from, std::int64_t rows, std::int64_t columns, T* to, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, from += columns, to += stride) {
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) assign(to[i], from[i]);
  }
}
// to = the rows of `from`, each times its scale.
WEFT_INLINE void scale_rows(const float* from, const ChunkRow& scales, std::int64_t rows, std::int64_t columns,
                            float* to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float scale = scales[static_cast<std::size_t>(row)];
#pragma omp simd
    for (std::int64_t i = 0; i < columns; ++i) to[row * columns + i] = scale * from[row * columns + i];
  }
}
WEFT_INLINE float dot_of(const float* a, const float* b, std::int64_t count) {
  return lane_sum(
      count, [ a, b ](std::int64_t i) __attribute__((always_inline)) { return a[i] * b[i]; });
}

// Consecutive tokens of a sequence.
struct Chunk {
  std::int64_t row = 0, count = 0;  // of the matrices
  std::int64_t position = 0;        // of the first token in its sequence
  bool is_last = false;             // of its sequence

  std::size_t last() const { return static_cast<std::size_t>(count - 1); }
};

// Of the tokens of a chunk: the position of their document's begin, less than any position if a state is carried.
struct Documents {
  const std::int32_t* begins = nullptr;
  bool carried = false;

  std::int64_t begin(const Chunk& chunk, std::int64_t i) const {
    if (begins == nullptr) return carried ? -1 : 0;
    return begins[chunk.row + i];
  }
  // The first token of the chunk that token i reads.
  std::int64_t first_read(const Chunk& chunk, std::int64_t i) const {
    return std::max<std::int64_t>(begin(chunk, i) - chunk.position, 0);
  }
  bool reads_state(const Chunk& chunk, std::int64_t i) const { return begin(chunk, i) < chunk.position; }
};

// What the steps of a head's tokens decide: sums of log decays, and the weights of tokens and of the state.
struct HeadSteps {
  float rate = 0.0f;  // A, negative
  ChunkRow raw, step, decay;
  ChunkRow of_state;    // exp(c_i), or 0 where the token does not read the state
  ChunkRow unstepped;   // exp(c_last - c_j), or 0 where the state behind the chunk does not hold token j
  ChunkRow onto_state;  // the same times step_j
  float keep = 0.0f;    // of the state in front of the chunk in the one behind it
};

template <typename T>
WEFT_INLINE void find_steps(const T* raw, std::int64_t stride, float a_log, float bias, const Chunk& chunk,
                            const Documents& documents, HeadSteps& steps) {
  steps.rate = -exponential(a_log);
  float sum = 0.0f;
  for (std::size_t i = 0; i <= chunk.last(); ++i) {
    steps.raw[i] = static_cast<float>(raw[static_cast<std::int64_t>(i) * stride]) + bias;
    steps.step[i] = softplus(steps.raw[i]);
    sum += steps.step[i] * steps.rate;
    steps.decay[i] = sum;
  }
  const std::int64_t held = documents.first_read(chunk, chunk.count - 1);
  for (std::size_t i = 0; i <= chunk.last(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    steps.of_state[i] = documents.reads_state(chunk, row) ? exponential(steps.decay[i]) : 0.0f;
    steps.unstepped[i] = row >= held ? exponential(sum - steps.decay[i]) : 0.0f;
    steps.onto_state[i] = steps.unstepped[i] * steps.step[i];
  }
  steps.keep = documents.reads_state(chunk, chunk.count - 1) ? exponential(sum) : 0.0f;
}

std::int64_t chunks_of(const StateSpaceShape& shape) {
  return (shape.sequence_length + chunk_size - 1) / chunk_size;
}

// Workspace of a scan: float32 matrices of one chunk, and states: forward that of each head, backward of each chunk and
// head of a group.
struct ScanRoom {
  Tensor memory;
  float *x, *b, *c, *scaled_c, *scaled_x, *y, *pairs, *factors, *weights, *states;
  float *dy, *db, *dc, *wide, *dpairs, *dgroup, *dstates;

  ScanRoom(KernelContext& context, const StateSpaceShape& shape, bool backward) {
    const std::int64_t of_head = chunk_size * shape.head_dim, of_group = chunk_size * shape.state_size;
    const std::int64_t square = chunk_size * chunk_size, state = shape.head_dim * shape.state_size;
    const std::int64_t states_there = backward ? chunks_of(shape) * shape.heads_of_group() : shape.heads;
    // `wide` holds rows of a head or of a group.
    using Places = std::vector<float**>;
    const std::pair<Places, std::int64_t> parts[] = {{{&x, &scaled_x, &y}, of_head},
                                                     {{&b, &c, &scaled_c}, of_group},
                                                     {{&pairs, &factors, &weights}, square},
                                                     {{&states}, states_there * state},
                                                     {{&dy}, of_head},
                                                     {{&db, &dc}, of_group},
                                                     {{&dpairs, &dgroup}, square},
                                                     {{&wide}, std::max(of_head, of_group)},
                                                     {{&dstates}, shape.heads_of_group() * state}};
    const std::span used = std::span(parts).first(backward ? std::size(parts) : 4);
    std::int64_t size = 0;
    for (const auto& [places, count] : used) size += std::ssize(places) * count;
    memory = context.ledger.allocate(Bucket::workspace, DType::float32, size, 1);
    float* at = memory.view().as<float>().data();
    for (const auto& [places, count] : used) {
      for (float** place : places) *place = std::exchange(at, at + count);
    }
  }
};

std::int64_t b_column(const StateSpaceShape& shape, std::int64_t group) {
  return shape.inner() + group * shape.state_size;
}
std::int64_t c_column(const StateSpaceShape& shape, std::int64_t group) {
  return b_column(shape, group) + shape.group_columns();
}
std::int64_t state_elements(const StateSpaceShape& shape) {
  return shape.head_dim * shape.state_size;
}
Chunk chunk_of(const StateSpaceShape& shape, std::int64_t sequence, std::int64_t number) {
  const std::int64_t position = number * chunk_size;
  return {sequence * shape.sequence_length + position, std::min(chunk_size, shape.sequence_length - position), position,
          number + 1 == chunks_of(shape)};
}

template <typename T>
struct ScanInputs {
  const T *mixed, *projected, *a_log, *d, *dt_bias;
  Documents documents;
};
template <typename T>
ScanInputs<T> scan_inputs(ConstTensorView mixed, ConstTensorView projected, const StateSpaceRates& rates,
                          ConstTensorView document_begins, bool carried) {
  return {mixed.as<T>().data(),
          projected.as<T>().data(),
          rates.a_log.as<T>().data(),
          rates.d.as<T>().data(),
          rates.dt_bias.as<T>().data(),
          {document_begins.empty() ? nullptr : document_begins.as<std::int32_t>().data(), carried}};
}

template <typename T>
WEFT_INLINE void load_b(const ScanInputs<T>& in, const StateSpaceShape& shape, const Chunk& chunk, std::int64_t group,
                        ScanRoom& room) {
  widen(in.mixed + chunk.row * shape.channels() + b_column(shape, group), shape.channels(), chunk.count,
        shape.state_size, room.b);
}
template <typename T>
WEFT_INLINE void load_group(const ScanInputs<T>& in, const StateSpaceShape& shape, const Chunk& chunk,
                            std::int64_t group, ScanRoom& room) {
  load_b(in, shape, chunk, group, room);
  const T* rows = in.mixed + chunk.row * shape.channels();
  widen(rows + c_column(shape, group), shape.channels(), chunk.count, shape.state_size, room.c);
  strided_product(chunk.count, chunk.count, shape.state_size, {room.c, shape.state_size}, Transpose::no,
                  {room.b, shape.state_size}, Transpose::yes, room.pairs, false);
}

// Functions without an element type are called, not inlined: one copy of each serves all types.
//
// factors[i][j] = exp(c_i - c_j) where token i reads token j, otherwise 0, and weights[i][j] = (C_i . B_j) times that
// and step_j.
WEFT_MULTIVERSION void find_weights(const Chunk& chunk, const Documents& documents, const HeadSteps& steps,
                                    ScanRoom& room) {
  const std::int64_t count = chunk.count;
  const float *decay = steps.decay.data(), *step = steps.step.data();
  for (std::int64_t i = 0; i < count; ++i) {
    float* factors = room.factors + i * count;
    const float own = decay[i];
    std::fill(factors, factors + count, 0.0f);
#pragma omp simd
    for (std::int64_t j = documents.first_read(chunk, i); j <= i; ++j) factors[j] = exponential(own - decay[j]);
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) {
      room.weights[i * count + j] = room.pairs[i * count + j] * factors[j] * step[j];
    }
  }
}

template <typename T>
WEFT_INLINE void load_head(const ScanInputs<T>& in, const StateSpaceShape& shape, const Chunk& chunk, std::int64_t head,
                           ScanRoom& room, HeadSteps& steps) {
  widen(in.mixed + chunk.row * shape.channels() + head * shape.head_dim, shape.channels(), chunk.count, shape.head_dim,
        room.x);
  find_steps(in.projected + chunk.row * shape.columns() + shape.step_column() + head, shape.columns(),
             static_cast<float>(in.a_log[head]), static_cast<float>(in.dt_bias[head]), chunk, in.documents, steps);
}

// next = keep * state + (weighted x)^T B; `next` may be the state.
WEFT_MULTIVERSION void pass_state(const StateSpaceShape& shape, const Chunk& chunk, const HeadSteps& steps,
                                  const float* state, ScanRoom& room, float* next) {
  const std::int64_t size = shape.head_dim * shape.state_size;
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) next[i] = steps.keep * state[i];
  scale_rows(room.x, steps.onto_state, chunk.count, shape.head_dim, room.scaled_x);
  strided_product(shape.head_dim, shape.state_size, chunk.count, {room.scaled_x, shape.head_dim}, Transpose::yes,
                  {room.b, shape.state_size}, Transpose::no, next, true);
}

// With `passes` the state becomes the one behind the chunk.
template <typename T>
WEFT_INLINE void scan_chunk_of_head(const ScanInputs<T>& in, const StateSpaceShape& shape, const Chunk& chunk,
                                    std::int64_t head, float* state, bool passes, ScanRoom& room, T* y) {
  const std::int64_t width = shape.head_dim, size = shape.state_size;
  HeadSteps steps;
  load_head(in, shape, chunk, head, room, steps);
  find_weights(chunk, in.documents, steps, room);
  strided_product(chunk.count, width, chunk.count, {room.weights, chunk.count}, Transpose::no, {room.x, width},
                  Transpose::no, room.y, false);
  scale_rows(room.c, steps.of_state, chunk.count, size, room.scaled_c);
  strided_product(chunk.count, width, size, {room.scaled_c, size}, Transpose::no, {state, size}, Transpose::yes, room.y,
                  true);
  const auto d = static_cast<float>(in.d[head]);
  const std::int64_t elements = chunk.count * width;
#pragma omp simd
  for (std::int64_t i = 0; i < elements; ++i) room.y[i] += d * room.x[i];
  narrow(room.y, chunk.count, width, y + chunk.row * shape.inner() + head * width, shape.inner());
  if (passes) pass_state(shape, chunk, steps, state, room, state);
}

// Gradients of a head's sums of log decays, steps and rates over one chunk.
struct StepGradients {
  ChunkRow decay = {}, step = {};
  float d = 0.0f;
};

// From dy and the products of pairs: the gradients of x inside the chunk, and of pairs, summed over the group's heads.
WEFT_MULTIVERSION void gradients_of_pairs(const StateSpaceShape& shape, const Chunk& chunk, const HeadSteps& steps,
                                          ScanRoom& room, StepGradients& gradients) {
  const std::int64_t count = chunk.count, width = shape.head_dim;
  strided_product(count, width, count, {room.weights, count}, Transpose::yes, {room.dy, width}, Transpose::no, room.y,
                  false);
  strided_product(count, count, width, {room.dy, width}, Transpose::no, {room.x, width}, Transpose::yes, room.dpairs,
                  false);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* step = steps.step.data();
    float *of_step = gradients.step.data(), row = 0.0f;
    const float *factors = room.factors + i * count, *pairs = room.pairs + i * count;
    float *dpairs = room.dpairs + i * count, *dgroup = room.dgroup + i * count;
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) {
      const float unstepped = dpairs[j] * factors[j];
      dgroup[j] += unstepped * step[j];
      dpairs[j] = unstepped * pairs[j];  // the gradient of the log of the weight, by the step
      of_step[j] += dpairs[j];
    }
    for (std::int64_t j = 0; j <= i; ++j) row += dpairs[j] * step[j];
    gradients.decay[static_cast<std::size_t>(i)] += row;
  }
  for (std::size_t j = 0; j <= chunk.last(); ++j) gradients.decay[j] -= gradients.step[j] * steps.step[j];
}

// Through the state behind the chunk, whose gradient is `dstate`: onto dx in room.y and onto room.db.
WEFT_MULTIVERSION void gradients_of_held(const StateSpaceShape& shape, const Chunk& chunk, const HeadSteps& steps,
                                         const float* state, const float* dstate, ScanRoom& room,
                                         StepGradients& gradients) {
  const std::int64_t count = chunk.count, width = shape.head_dim, size = shape.state_size;
  strided_product(count, width, size, {room.b, size}, Transpose::no, {dstate, size}, Transpose::yes, room.wide, false);
  float of_last = steps.keep * dot_of(dstate, state, width * size);
  for (std::size_t j = 0; j <= chunk.last(); ++j) {
    const std::int64_t row = static_cast<std::int64_t>(j) * width;
    const float along = dot_of(room.x + row, room.wide + row, width);
    const float weighted = steps.onto_state[j] * along;
    gradients.step[j] += steps.unstepped[j] * along;
    gradients.decay[j] -= weighted;
    of_last += weighted;
#pragma omp simd
    for (std::int64_t p = 0; p < width; ++p) room.y[row + p] += steps.onto_state[j] * room.wide[row + p];
  }
  gradients.decay[chunk.last()] += of_last;
  scale_rows(room.x, steps.onto_state, count, width, room.scaled_x);
  strided_product(count, size, width, {room.scaled_x, width}, Transpose::no, {dstate, size}, Transpose::no, room.db,
                  true);
}

// Through the state in front of the chunk: onto room.dc; `dstate` becomes the gradient of that state.
WEFT_MULTIVERSION void gradients_of_state(const StateSpaceShape& shape, const Chunk& chunk, const HeadSteps& steps,
                                          const float* state, float* dstate, ScanRoom& room, StepGradients& gradients) {
  const std::int64_t count = chunk.count, width = shape.head_dim, size = shape.state_size, elements = width * size;
  scale_rows(room.dy, steps.of_state, count, width, room.scaled_x);
  strided_product(count, size, width, {room.scaled_x, width}, Transpose::no, {state, size}, Transpose::no, room.wide,
                  false);
  for (std::size_t i = 0; i <= chunk.last(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) * size;
    gradients.decay[i] += dot_of(room.c + row, room.wide + row, size);
#pragma omp simd
    for (std::int64_t n = 0; n < size; ++n) room.dc[row + n] += room.wide[row + n];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < elements; ++i) dstate[i] *= steps.keep;
  strided_product(width, size, count, {room.scaled_x, width}, Transpose::yes, {room.c, size}, Transpose::no, dstate,
                  true);
}

template <typename T>
struct ScanOutputs {
  T *dmixed, *dprojected;
  float *da_log, *dd, *ddt_bias;
};

// The ends of a head's gradients: x, raw steps, rates.
template <typename T>
WEFT_INLINE void store_head(const ScanInputs<T>& in, const StateSpaceShape& shape, const Chunk& chunk,
                            std::int64_t head, const HeadSteps& steps, const StepGradients& gradients, ScanRoom& room,
                            const ScanOutputs<T>& out) {
  const std::int64_t width = shape.head_dim, elements = chunk.count * width;
  const auto d = static_cast<float>(in.d[head]);
#pragma omp simd
  for (std::int64_t i = 0; i < elements; ++i) room.y[i] += d * room.dy[i];
  narrow(room.y, chunk.count, width, out.dmixed + chunk.row * shape.channels() + head * width, shape.channels());
  out.dd[head] += dot_of(room.dy, room.x, elements);
  T* dsteps = out.dprojected + chunk.row * shape.columns() + shape.step_column() + head;
  float behind = 0.0f, drate = 0.0f, dbias = 0.0f;
  for (std::int64_t row = chunk.count - 1; row >= 0; --row) {
    const auto i = static_cast<std::size_t>(row);
    behind += gradients.decay[i];
    drate += behind * steps.step[i];
    const float draw = (gradients.step[i] + behind * steps.rate) * logistic(steps.raw[i]);
    dbias += draw;
    assign(dsteps[row * shape.columns()], draw);
  }
  out.da_log[head] += drate * steps.rate;
  out.ddt_bias[head] += dbias;
}

// Adds the gradients of the group's pairs to those of B and C, and stores them.
template <typename T>
WEFT_INLINE void store_group(const StateSpaceShape& shape, const Chunk& chunk, std::int64_t group, ScanRoom& room,
                             const ScanOutputs<T>& out) {
  const std::int64_t count = chunk.count, size = shape.state_size;
  strided_product(count, size, count, {room.dgroup, count}, Transpose::no, {room.b, size}, Transpose::no, room.dc,
                  true);
  strided_product(count, size, count, {room.dgroup, count}, Transpose::yes, {room.c, size}, Transpose::no, room.db,
                  true);
  T* rows = out.dmixed + chunk.row * shape.channels();
  narrow(room.db, count, size, rows + b_column(shape, group), shape.channels());
  narrow(room.dc, count, size, rows + c_column(shape, group), shape.channels());
}

template <typename T>
WEFT_INLINE void backward_chunk(const ScanInputs<T>& in, const StateSpaceShape& shape, std::int64_t sequence,
                                std::int64_t number, std::int64_t group, const T* dy, ScanRoom& room,
                                const ScanOutputs<T>& out) {
  const Chunk chunk = chunk_of(shape, sequence, number);
  load_group(in, shape, chunk, group, room);
  std::fill(room.db, room.db + chunk.count * shape.state_size, 0.0f);
  std::fill(room.dc, room.dc + chunk.count * shape.state_size, 0.0f);
  std::fill(room.dgroup, room.dgroup + chunk.count * chunk.count, 0.0f);
  for (std::int64_t i = 0; i < shape.heads_of_group(); ++i) {
    const std::int64_t head = group * shape.heads_of_group() + i;
    const float* state = room.states + (number * shape.heads_of_group() + i) * state_elements(shape);
    float* dstate = room.dstates + i * state_elements(shape);
    HeadSteps steps;
    StepGradients gradients;
    load_head(in, shape, chunk, head, room, steps);
    find_weights(chunk, in.documents, steps, room);
    widen(dy + chunk.row * shape.inner() + head * shape.head_dim, shape.inner(), chunk.count, shape.head_dim, room.dy);
    gradients_of_pairs(shape, chunk, steps, room, gradients);
    gradients_of_held(shape, chunk, steps, state, dstate, room, gradients);
    gradients_of_state(shape, chunk, steps, state, dstate, room, gradients);
    store_head(in, shape, chunk, head, steps, gradients, room, out);
  }
  store_group(shape, chunk, group, room, out);
}

// The states in front of the chunks of a group's heads.
template <typename T>
WEFT_INLINE void pass_states(const ScanInputs<T>& in, const StateSpaceShape& shape, std::int64_t sequence,
                             std::int64_t group, ScanRoom& room) {
  const std::int64_t elements = state_elements(shape), of_chunk = shape.heads_of_group() * elements;
  std::fill(room.states, room.states + of_chunk, 0.0f);
  for (std::int64_t number = 0; number + 1 < chunks_of(shape); ++number) {
    const Chunk chunk = chunk_of(shape, sequence, number);
    load_b(in, shape, chunk, group, room);
    for (std::int64_t i = 0; i < shape.heads_of_group(); ++i) {
      HeadSteps steps;
      load_head(in, shape, chunk, group * shape.heads_of_group() + i, room, steps);
      float* state = room.states + number * of_chunk + i * elements;
      pass_state(shape, chunk, steps, state, room, state + of_chunk);
    }
  }
}

}  // namespace

Tensor scan_workspace(KernelContext& context, const StateSpaceShape& shape, bool backward) {
  return ScanRoom(context, shape, backward).memory;
}

WEFT_MULTIVERSION void scan_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView mixed,
                                           ConstTensorView projected, const StateSpaceRates& rates,
                                           ConstTensorView document_begins, TensorView carried, TensorView y) {
  const bool carries = !carried.empty();
  const std::int64_t elements = state_elements(shape), of_sequence = shape.heads * elements;
  ScanRoom room(context, shape, false);
  with_element_type(
      y.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const ScanInputs<T> in = scan_inputs<T>(mixed, projected, rates, document_begins, carries);
        for (std::int64_t sequence = 0; sequence * shape.sequence_length < y.rows(); ++sequence) {
          float* states = carries ? carried.as<float>().data() + sequence * of_sequence : room.states;
          if (!carries) std::fill(states, states + of_sequence, 0.0f);
          for (std::int64_t number = 0; number < chunks_of(shape); ++number) {
            const Chunk chunk = chunk_of(shape, sequence, number);
            const bool passes = carries || !chunk.is_last;
            for (std::int64_t head = 0; head < shape.heads; ++head) {
              if (head % shape.heads_of_group() == 0) load_group(in, shape, chunk, head / shape.heads_of_group(), room);
              scan_chunk_of_head(in, shape, chunk, head, states + head * elements, passes, room, y.as<T>().data());
            }
          }
        }
      });
}

WEFT_MULTIVERSION void scan_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dy,
                                            ConstTensorView mixed, ConstTensorView projected,
                                            const StateSpaceRates& rates, ConstTensorView document_begins,
                                            TensorView dmixed, TensorView dprojected,
                                            const StateSpaceRateGradients& drates) {
  ScanRoom room(context, shape, true);
  for (const TensorView gradient : {drates.a_log, drates.d, drates.dt_bias}) {
    std::ranges::fill(gradient.as<float>(), 0.0f);
  }
  with_element_type(
      dy.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        const ScanOutputs<T> out = {dmixed.as<T>().data(), dprojected.as<T>().data(), drates.a_log.as<float>().data(),
                                    drates.d.as<float>().data(), drates.dt_bias.as<float>().data()};
        const ScanInputs<T> in = scan_inputs<T>(mixed, projected, rates, document_begins, false);
        for (std::int64_t sequence = 0; sequence * shape.sequence_length < dy.rows(); ++sequence) {
          for (std::int64_t group = 0; group < shape.groups; ++group) {
            pass_states(in, shape, sequence, group, room);
            std::fill(room.dstates, room.dstates + shape.heads_of_group() * state_elements(shape), 0.0f);
            for (std::int64_t number = chunks_of(shape) - 1; number >= 0; --number) {
              backward_chunk(in, shape, sequence, number, group, dy.as<T>().data(), room, out);
            }
          }
        }
      });
}

}  // namespace weft::cpu
