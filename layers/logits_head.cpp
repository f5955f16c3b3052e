
#include <algorithm>

#include "layers/generation.h"
#include "layers/kernels/multiply.h"
#include "layers/kernels/routing.h"
#include "layers/pre_norm.h"
#include "layers/segment.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"

namespace weft {
namespace {

class LogitsHead final : public ForwardSegment {
 public:
  LogitsHead(const SegmentSetup& setup, const GenerationShape& shape)
      : ForwardSegment(setup, {PartKind::head}), shape_(shape), norm_(setup, name(), Family::head) {
    parameters_ = head_parameters(setup);
    require(shape.wanted >= 1 && shape.wanted <= shape.tokens, "logits are wanted of tokens of the pass");
  }

  std::int64_t activation_bytes() const override {
    return norm_.activation_bytes() + wanted_rows() * setup_.model.hidden_size * size_of(setup_.head_compute);
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    const bool many = setup_.tensor > 1;
    return {gather_traffic(setup_, When::forward, setup_.head_compute),
            {When::forward, CollectiveOp::all_gather, Group::tp, many ? 1 : 0,
             many ? wanted_rows() * setup_.model.vocab_size * size_of(DType::float32) : 0, false}};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput&, Tensor x,
                 std::unique_ptr<Saved>&) override {
    KernelContext& kernels = context.kernels;
    require(context.generation != nullptr, "generation has a state");
    PreNorm::Kept norm;
    norm_.forward(context, weights[0], converted(kernels, std::move(x), setup_.head_compute, Bucket::activations),
                  norm);
    Tensor last = kernels.activation(setup_.head_compute, wanted_rows(), norm.normed.columns());
    {
      const GatheredTokens normed(context, norm.normed);
      std::vector<std::int64_t> from, to;
      for (std::int64_t sequence = 0; sequence < shape_.sequences; ++sequence) {
        from.push_back((sequence + 1) * shape_.tokens - shape_.wanted);
        to.push_back(sequence * shape_.wanted);
      }
      const std::vector<std::int64_t> counts(from.size(), shape_.wanted);
      move_blocks(kernels, normed.view(), from, to, counts, last);
    }
    std::vector<std::int64_t> elements;
    for (int rank = 0; rank < setup_.tensor; ++rank) {
      elements.push_back(wanted_rows() * balanced_part(setup_.model.vocab_size, setup_.tensor, rank).count);
    }
    Tensor& logits = context.generation->logits;
    logits = kernels.ledger.allocate(Bucket::workspace, DType::float32, wanted_rows() * setup_.model.vocab_size, 1);
    const Range own = part_of_rank(elements, logits.rows(), setup_.tensor, setup_.tensor_rank);
    const TensorView part = logits.view().rows_from(own.begin, own.count);
    multiply(kernels, last, Transpose::no, weights[1], Transpose::yes,
             TensorView(part.data(), DType::float32, wanted_rows(), own.count / wanted_rows()), false);
    if (setup_.tensor > 1) context.tensor.all_gather(part, logits, elements);
    return {};
  }

 private:
  std::int64_t wanted_rows() const { return shape_.sequences * shape_.wanted; }

  GenerationShape shape_;
  PreNorm norm_;
};

}  // namespace

std::unique_ptr<Segment> make_logits_head(const SegmentSetup& setup, const GenerationShape& shape) {
  return std::make_unique<LogitsHead>(setup, shape);
}

std::vector<float> whole_logits(std::span<const float> by_part, std::int64_t rows, std::int64_t vocabulary, int parts) {
  require(static_cast<std::int64_t>(by_part.size()) == rows * vocabulary, "every row has a logit an entry");
  std::vector<float> whole(by_part.size());
  auto next = by_part.begin();
  for (int part = 0; part < parts; ++part) {
    const Range columns = balanced_part(vocabulary, parts, part);
    for (std::int64_t row = 0; row < rows; ++row, next += columns.count) {
      std::copy_n(next, columns.count, whole.begin() + row * vocabulary + columns.begin);
    }
  }
  return whole;
}

}  // namespace weft
