// A segment to be tested: its sizes, the world it runs in and the values it computes from. The same case gives the same
// global values whatever the layout.
//
// Global microbatch g = data index * microbatches + m. Its activations are [tokens, hidden] of the context group, each
// of whose tensor groups holds some rows.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "layers/segment.h"
#include "tests/layers/model_reference.h"

namespace weft {

inline std::size_t to_size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// merge and predict: the first of two predictors.
enum class SegmentKind : std::uint8_t { embedding, attention, state_space, mlp, moe, merge, predict, head };

struct SegmentCase {
  SegmentKind kind = SegmentKind::attention;
  ModelConfig model;
  int data = 1, tensor = 1, expert = 1, context = 1;
  int microbatches = 1;  // of each data-parallel rank
  DType compute = DType::float32;
  // Of the families that may differ; `compute` where none is given.
  std::optional<DType> embedding_compute = {}, expert_compute = {}, head_compute = {};
  std::int64_t sequence_length = 4, sequences = 2;
  double loss_factor = 1.0 / 16.0, loss_scale = 1.0;

  std::set<Family> frozen = {};
  bool recompute_cheap = false, recompute_experts = false, keep_dispatch = false;
  bool weights_at_experts = false;
  bool masks_documents = false;
  ExpertDispatch expert_dispatch = ExpertDispatch::all_to_all;
  int expert_nodes = 1;

  std::int64_t tokens() const { return sequence_length * sequences; }
  int ranks() const { return data * context * tensor; }
  int all_microbatches() const { return data * microbatches; }
  Mesh mesh() const;
  SegmentSetup setup(int rank) const;
  // The rows of a microbatch that a rank's tensor group holds.
  std::vector<std::int64_t> rows_of(int rank) const;
  // The dtype that rounds most on the way through the segment, and whether there is another beside it.
  DType coarsest() const;
  bool mixed() const;
};
// `compute` and a dtype for every family that may have one of its own.
struct MixedDtypes {
  DType compute, family;
};
inline constexpr MixedDtypes mixed_dtypes[] = {{DType::float32, DType::bfloat16}, {DType::bfloat16, DType::float32},
                                               {DType::float32, DType::float16},  {DType::float16, DType::float32},
                                               {DType::bfloat16, DType::float16}, {DType::float16, DType::bfloat16}};
SegmentCase with_dtypes(SegmentCase the_case, MixedDtypes dtypes);

// Hidden 12, 4 query and 2 key heads of 6, intermediate 8, vocabulary 13, experts 4, top 2. Sums are short enough for
// tight tolerances, and sizes differ so that no two can be mistaken for each other. Two predictors behind two blocks.
ModelConfig small_model();
// All that a model may have: QK-norm, a shared expert, both auxiliary losses; heads for four ranks.
SegmentCase full_case(SegmentKind kind, int data = 1, int tensor = 1, int expert = 1);
std::unique_ptr<Segment> make_segment(SegmentKind kind, const SegmentSetup& setup);

// Everything a case computes from, exact in its compute dtype, parameters in that of their family.
struct SegmentInputs {
  NamedValues parameters;
  // By global microbatch. dy is the gradient of the segment's output.
  std::vector<std::vector<std::int32_t>> tokens, targets;
  std::vector<Values> x, dy;
};
// The ids `distance` places behind those of a text of sequences, `none` where a sequence has no such place.
std::vector<std::int32_t> shifted(std::span<const std::int32_t> ids, std::int64_t sequence_length,
                                  std::int64_t distance, std::int32_t none);
SegmentInputs draw_inputs(const SegmentCase& the_case);
// The key of a token's noise, by its row of the microbatch. The noise of an element of block 0 follows the formula of
// layers/kernels/router_arithmetic.h in wider integers.
std::uint32_t noise_key(std::int64_t row);
long double noise_factor(std::uint64_t key, std::uint64_t column, float noise);
// Standard normal numbers times `scale`, rounded to the dtype.
Values draw(std::string_view name, std::int64_t count, DType dtype, double scale = 1.0);
// Global values for the parameters of the given segments.
void draw_parameters(const std::vector<ParameterSpec>& specs, const SegmentSetup& setup, NamedValues& parameters);

}  // namespace weft
