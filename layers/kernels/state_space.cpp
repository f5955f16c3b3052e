#include "layers/kernels/state_space.h"

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

void require_shape(ConstTensorView tensor, std::int64_t rows, std::int64_t columns, const char* what) {
  require(tensor.rows() == rows && tensor.columns() == columns, what);
}

void check(const StateSpaceShape& shape, ConstTensorView projected, ConstTensorView document_begins) {
  require(shape.groups > 0 && shape.heads % shape.groups == 0, "every group of a state space has as many heads");
  require(projected.columns() == shape.columns(), "a projected token has the columns of gate, x, B, C and steps");
  require(shape.sequence_length > 0 && projected.rows() % shape.sequence_length == 0, "tokens are whole sequences");
  require(document_begins.empty() || document_begins.size() == projected.rows(), "each token has one document");
}

void check_convolution(const StateSpaceShape& shape, ConstTensorView mixed, ConstTensorView projected,
                       ConstTensorView weight, ConstTensorView bias) {
  require_shape(mixed, projected.rows(), shape.channels(), "a convolution mixes x, B and C");
  require(shape.filter >= 1 && shape.filter <= most_filter_taps, "a filter has 1 to 16 taps");
  require(weight.size() == shape.channels() * shape.filter, "every channel has a tap for each token of its filter");
  require(bias.size() == shape.channels(), "every channel has a bias");
}

void check_scan(const StateSpaceShape& shape, ConstTensorView mixed, ConstTensorView y) {
  require_shape(mixed, y.rows(), shape.channels(), "a scan reads x, B and C");
  require_shape(y, mixed.rows(), shape.inner(), "a scan has a result a column of x");
}

}  // namespace

void mix_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView projected,
                        ConstTensorView weight, ConstTensorView bias, ConstTensorView document_begins,
                        TensorView history, TensorView mixed) {
  check(shape, projected, document_begins);
  check_convolution(shape, mixed, projected, weight, bias);
  require(history.empty() || document_begins.empty(), "a history is of one document");
  run_elementwise(context, context.kernels.mix_tokens_forward, shape, projected, weight, bias, document_begins, history,
                  mixed);
}

void mix_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dmixed,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView bias,
                         ConstTensorView document_begins, TensorView dprojected, TensorView dweight, TensorView dbias) {
  check(shape, projected, document_begins);
  check_convolution(shape, dmixed, projected, weight, bias);
  require_shape(dprojected, projected.rows(), projected.columns(), "a gradient has the shape of its tensor");
  require(dweight.size() == weight.size() && dbias.size() == bias.size(), "one gradient a tap and a bias");
  run_elementwise(context, context.kernels.mix_tokens_backward, shape, dmixed, projected, weight, bias, document_begins,
                  dprojected, dweight, dbias);
}

void scan_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView mixed,
                         ConstTensorView projected, const StateSpaceRates& rates, ConstTensorView document_begins,
                         TensorView carried, TensorView y) {
  check(shape, projected, document_begins);
  check_scan(shape, mixed, y);
  require(carried.empty() || document_begins.empty(), "a carried state is of one document");
  run_elementwise(context, context.kernels.scan_tokens_forward, shape, mixed, projected, rates, document_begins,
                  carried, y);
}

void scan_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dy,
                          ConstTensorView mixed, ConstTensorView projected, const StateSpaceRates& rates,
                          ConstTensorView document_begins, TensorView dmixed, TensorView dprojected,
                          const StateSpaceRateGradients& drates) {
  check(shape, projected, document_begins);
  check_scan(shape, mixed, dy);
  require_shape(dmixed, mixed.rows(), mixed.columns(), "a gradient has the shape of its tensor");
  require_shape(dprojected, projected.rows(), projected.columns(), "a gradient has the shape of its tensor");
  run_elementwise(context, context.kernels.scan_tokens_backward, shape, dy, mixed, projected, rates, document_begins,
                  dmixed, dprojected, drates);
}

void gated_norm_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView y,
                        ConstTensorView projected, ConstTensorView weight, float eps, TensorView out,
                        TensorView inverse_rms) {
  check(shape, projected, {});
  require_shape(y, projected.rows(), shape.inner(), "a gated norm has the columns of its gate");
  require_shape(out, y.rows(), y.columns(), "both sides of a norm have one shape");
  require_shape(inverse_rms, y.rows(), shape.groups, "a gated norm keeps a statistic a group");
  run_elementwise(context, context.kernels.gated_norm_forward, shape, y, projected, weight, eps, out, inverse_rms);
}

void gated_norm_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dout, ConstTensorView y,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView inverse_rms, TensorView dy,
                         TensorView dprojected, TensorView dweight) {
  check(shape, projected, {});
  require_shape(y, projected.rows(), shape.inner(), "a gated norm has the columns of its gate");
  require_shape(dy, y.rows(), y.columns(), "a gradient has the shape of its tensor");
  require_shape(dprojected, projected.rows(), projected.columns(), "a gradient has the shape of its tensor");
  require_shape(inverse_rms, y.rows(), shape.groups, "a gated norm keeps a statistic a group");
  run_elementwise(context, context.kernels.gated_norm_backward, shape, dout, y, projected, weight, inverse_rms, dy,
                  dprojected, dweight);
}

}  // namespace weft
