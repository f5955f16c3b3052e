// Lowering to cuDNN: each tensor and each operation of the graph becomes a descriptor.
#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>

#include "layers/kernels/cuda/cudnn_plan.h"

namespace weft {
namespace {

// As in GraphType.
constexpr cudnnDataType_t data_types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF, CUDNN_DATA_INT32,
                                          CUDNN_DATA_BOOLEAN};

CudnnDescriptor lower_tensor(const GraphTensor& tensor) {
  CudnnDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const std::int64_t alignment = 16;
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, tensor.id);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, data_types[static_cast<std::size_t>(tensor.type)]);
  descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::ssize(tensor.dims), tensor.dims.data());
  descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::ssize(tensor.strides), tensor.strides.data());
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, tensor.is_virtual);
  descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, tensor.scalar.has_value());
  descriptor.finalize();
  return descriptor;
}

struct Pointwise {
  GraphOperator op;
  cudnnPointwiseMode_t mode;
  std::optional<std::int64_t> axis = {};
};
constexpr Pointwise pointwise_operators[] = {
    {GraphOperator::multiply, CUDNN_POINTWISE_MUL},
    {GraphOperator::subtract, CUDNN_POINTWISE_SUB},
    {GraphOperator::add, CUDNN_POINTWISE_ADD},
    {GraphOperator::divide, CUDNN_POINTWISE_DIV},
    {GraphOperator::greater_equal, CUDNN_POINTWISE_CMP_GE},
    {GraphOperator::exponential, CUDNN_POINTWISE_EXP},
    {GraphOperator::logarithm, CUDNN_POINTWISE_LOG},
    {GraphOperator::identity, CUDNN_POINTWISE_IDENTITY},
    {GraphOperator::row_index, CUDNN_POINTWISE_GEN_INDEX, 2},
    {GraphOperator::column_index, CUDNN_POINTWISE_GEN_INDEX, 3},
    {GraphOperator::select, CUDNN_POINTWISE_BINARY_SELECT},
};

// Comparisons are computed in booleans and sums of positions in integers, everything else, including indices, in
// float32.
cudnnDataType_t precision(GraphOperator op, GraphType output) {
  if (op == GraphOperator::greater_equal) return CUDNN_DATA_BOOLEAN;
  if (op == GraphOperator::add && output == GraphType::int32) return CUDNN_DATA_INT32;
  return CUDNN_DATA_FLOAT;
}

// The constructor appends the descriptors of all tensors. `lower` appends the other descriptors that an operation
// refers to, and returns the operation's.
class Lowering {
 public:
  Lowering(const AttentionGraph& graph, std::vector<CudnnDescriptor>& descriptors)
      : graph_(graph), descriptors_(descriptors) {
    for (const GraphTensor& tensor : graph.tensors) {
      index_[tensor.id] = descriptors_.size();
      descriptors_.push_back(lower_tensor(tensor));
    }
  }

  CudnnDescriptor lower(const GraphOperation& operation) {
    const auto* mode = std::ranges::find(pointwise_operators, operation.op, &Pointwise::op);
    if (mode != std::end(pointwise_operators)) return lower_pointwise(operation, *mode);
    if (operation.op == GraphOperator::matmul) return lower_matmul(operation);
    if (operation.op == GraphOperator::reshape) {
      return with_tensors(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, operation, {CUDNN_ATTR_OPERATION_RESHAPE_XDESC},
                          CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    }
    return lower_reduction(operation);
  }

 private:
  const CudnnDescriptor& tensor(std::int64_t id) const { return descriptors_.at(index_.at(id)); }
  const CudnnDescriptor& keep(CudnnDescriptor descriptor) {
    descriptor.finalize();
    descriptors_.push_back(std::move(descriptor));
    return descriptors_.back();
  }

  // A descriptor that refers to the operation's tensors.
  CudnnDescriptor with_tensors(cudnnBackendDescriptorType_t type, const GraphOperation& operation,
                               std::initializer_list<cudnnBackendAttributeName_t> inputs,
                               cudnnBackendAttributeName_t output) {
    CudnnDescriptor lowered(type);
    for (std::size_t i = 0; i < operation.inputs.size(); ++i) {
      lowered.set(inputs.begin()[i], tensor(operation.inputs[i]));
    }
    lowered.set(output, tensor(operation.output));
    return lowered;
  }

  CudnnDescriptor lower_pointwise(const GraphOperation& operation, const Pointwise& mode) {
    CudnnDescriptor kind(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode.mode);
    kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
             precision(operation.op, graph_.tensor(operation.output).type));
    if (mode.axis) kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *mode.axis);
    CudnnDescriptor lowered = with_tensors(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, operation,
                                           {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                            CUDNN_ATTR_OPERATION_POINTWISE_TDESC},
                                           CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    lowered.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(std::move(kind)));
    return lowered;
  }

  CudnnDescriptor lower_matmul(const GraphOperation& operation) {
    CudnnDescriptor kind(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    CudnnDescriptor lowered = with_tensors(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, operation,
                                           {CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC},
                                           CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    lowered.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, keep(std::move(kind)));
    return lowered;
  }

  CudnnDescriptor lower_reduction(const GraphOperation& operation) {
    CudnnDescriptor kind(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
             operation.op == GraphOperator::reduce_max ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_ADD);
    kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    CudnnDescriptor lowered =
        with_tensors(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, operation, {CUDNN_ATTR_OPERATION_REDUCTION_XDESC},
                     CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    lowered.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, keep(std::move(kind)));
    return lowered;
  }

  const AttentionGraph& graph_;
  std::vector<CudnnDescriptor>& descriptors_;
  std::map<std::int64_t, std::size_t> index_;
};

}  // namespace

CudnnOperationGraph::CudnnOperationGraph(const AttentionGraph& graph, const CudnnTarget& target) : target_(target) {
  Lowering lowering(graph, descriptors_);
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const GraphOperation& operation : graph.operations) {
    CudnnDescriptor lowered = lowering.lower(operation);
    lowered.finalize();
    operations.push_back(lowered.get());
    descriptors_.push_back(std::move(lowered));
  }
  operation_graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(operations),
                       operations.data());
  if (const auto* handle = std::get_if<cudnnHandle_t>(&target.device_)) {
    operation_graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, *handle);
  }
  operation_graph_.finalize();
}

}  // namespace weft
