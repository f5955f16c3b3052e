#include "layers/segment.h"

#include <fmt/format.h>

#include <tuple>

#include "layers/kernels/routing.h"
#include "layers/segments.h"
#include "parallel/runtime/elementwise.h"

namespace weft {

DType SegmentSetup::dtype_of(Family family) const {
  switch (family) {
    case Family::experts:
      return expert_compute;
    case Family::embedding:
      return embedding_compute;
    case Family::head:
      return head_compute;
    case Family::routing:
    case Family::helpers:
      return DType::float32;
    case Family::dense:
    case Family::root:
      return compute;
  }
  fail("family {} has no dtype", static_cast<int>(family));
}

Segment::Segment(const SegmentSetup& setup, ModelPart part, std::string scope)
    : setup_(setup), part_(part), scope_(std::move(scope)), name_(name_of(part.kind)) {
  if (part.block) scope_ = fmt::format("blocks.{}", *part.block);
  if (scope_.empty()) {
    scope_ = name_;
  } else {
    name_ = fmt::format("{}.{}", scope_, name_);
  }
}

Tensor Segment::take_input(Saved&) {
  fail("{} does not run forward again", name());
}

void Segment::exchange_rows(LayerContext&, Saved&) {
  fail("{} exchanges no rows", name());
}

std::unique_ptr<Saved> Segment::remembered(std::unique_ptr<Saved>) const {
  return nullptr;
}

void require_frozen(const SegmentSetup& setup, const std::vector<ParameterSpec>& parameters, Gradients gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!setup.trains(parameters[i].family) && !gradients[i].empty()) {
      fail("{} belongs to family {}, which is frozen, but has a gradient", parameters[i].name,
           name_of(parameters[i].family));
    }
  }
}

std::vector<Tensor*> allocated(std::initializer_list<Tensor*> tensors) {
  std::vector<Tensor*> found;
  for (Tensor* tensor : tensors) {
    if (tensor->allocated()) found.push_back(tensor);
  }
  return found;
}

Tensor reordered(KernelContext& kernels, Bucket bucket, const RowBlocks& blocks, bool sorted, ConstTensorView rows,
                 std::int64_t reserve_rows) {
  Tensor moved = kernels.ledger.allocate(bucket, rows.dtype(), rows.rows(), rows.columns(), reserve_rows);
  const auto& [from, to] = sorted ? std::tie(blocks.by_rank, blocks.sorted) : std::tie(blocks.sorted, blocks.by_rank);
  move_blocks(kernels, rows, from, to, blocks.rows, moved);
  return moved;
}

DType narrower(DType first, DType second) {
  return size_of(second) < size_of(first) ? second : first;
}

Tensor converted(KernelContext& kernels, Tensor tensor, DType dtype, Bucket bucket, std::int64_t reserve_rows) {
  if (tensor.dtype() == dtype) return tensor;
  const PhaseClock::Scope scope(kernels.clock, Phase::elementwise, kernels.stream);
  Tensor copy = kernels.ledger.allocate(bucket, dtype, tensor.rows(), tensor.columns(), reserve_rows);
  cast(kernels.stream, tensor, copy);
  return copy;
}

namespace {

class IdentitySegment final : public Segment {
 public:
  explicit IdentitySegment(int stage) : Segment({}, {PartKind::passage}, fmt::format("stage.{}", stage)) {}

  std::int64_t activation_bytes() const override { return 0; }
  std::int64_t pending_bytes() const override { return 0; }
  std::vector<SegmentTraffic> traffic() const override { return {}; }
  bool reads_weights_backward() const override { return false; }

  Tensor forward(LayerContext&, Weights, const MicrobatchInput&, Tensor x, std::unique_ptr<Saved>& saved) override {
    saved = std::make_unique<Saved>();
    return x;
  }
  Tensor backward_input(LayerContext&, Weights, Tensor dy, Saved&) override { return dy; }
  void backward_weight(LayerContext&, Gradients, Saved&) override {}
};

}  // namespace

std::unique_ptr<Segment> make_identity_segment(int stage) {
  return std::make_unique<IdentitySegment>(stage);
}

}  // namespace weft
