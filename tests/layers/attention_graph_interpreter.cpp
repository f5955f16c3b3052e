#include "tests/layers/attention_graph_interpreter.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <list>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Index = GraphDims;

// Calls `visit` for every index below `dims`.
void for_each_index(const GraphDims& dims, const std::function<void(const Index&)>& visit) {
  Index at{};
  for (at[0] = 0; at[0] < dims[0]; ++at[0]) {
    for (at[1] = 0; at[1] < dims[1]; ++at[1]) {
      for (at[2] = 0; at[2] < dims[2]; ++at[2]) {
        for (at[3] = 0; at[3] < dims[3]; ++at[3]) visit(at);
      }
    }
  }
}

// The element of a tensor of size `small` that stands for `at` in one of size `large`. Dimensions of equal size
// correspond, one of size 1 is broadcast (or reduced), and heads are shared by consecutive groups.
Index shared_index(const Index& at, const GraphDims& large, const GraphDims& small) {
  Index result{};
  for (std::size_t i = 0; i < at.size(); ++i) {
    require(large[i] % small[i] == 0 && (small[i] == large[i] || small[i] == 1 || i == 1), "shapes fit");
    result[i] = at[i] / (large[i] / small[i]);
  }
  return result;
}

class Interpreter {
 public:
  Interpreter(const AttentionGraph& graph, const AttentionPlaces& places) : graph_(graph) {
    for (const GraphTensor& tensor : graph.tensors) {
      if (tensor.scalar) {
        memory_[tensor.id] = own(1, *tensor.scalar);
      } else if (!tensor.is_virtual) {
        memory_[tensor.id] = places.at(static_cast<AttentionTensor>(tensor.id));
      }
    }
  }

  void run(const GraphOperation& operation) {
    const GraphTensor& output = graph_.tensor(operation.output);
    if (operation.op == GraphOperator::reshape) {
      memory_[output.id] = memory_.at(operation.inputs.at(0));
      return;
    }
    if (output.is_virtual) {
      require(!memory_.contains(output.id), "an intermediate is computed once");
      memory_[output.id] = own(elements(output), std::numeric_limits<double>::quiet_NaN());
    }
    switch (operation.op) {
      case GraphOperator::matmul:
        return matmul(operation, output);
      case GraphOperator::reduce_max:
      case GraphOperator::reduce_add:
        return reduce(operation, output);
      default:
        return pointwise(operation, output);
    }
  }

 private:
  static std::int64_t elements(const GraphTensor& tensor) {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < tensor.dims.size(); ++i) last += (tensor.dims[i] - 1) * tensor.strides[i];
    return last + 1;
  }
  MatrixPlace own(std::int64_t count, double value) {
    return {&owned_.emplace_back(static_cast<std::size_t>(count), value), 0};
  }
  double& at(const GraphTensor& tensor, const Index& index) {
    std::int64_t element = 0;
    for (std::size_t i = 0; i < index.size(); ++i) element += index[i] * tensor.strides[i];
    return memory_.at(tensor.id).at(element);
  }
  double read(const GraphTensor& tensor, const Index& index) {
    const double value = at(tensor, index);
    if (std::isnan(value)) fail("{} is read before it is written", tensor.name);
    return value;
  }

  void matmul(const GraphOperation& operation, const GraphTensor& output) {
    const GraphTensor &left = graph_.tensor(operation.inputs.at(0)), &right = graph_.tensor(operation.inputs.at(1));
    const std::int64_t depth = left.dims[3];
    require(right.dims[2] == depth, "factors share their inner dimension");
    for_each_index(output.dims, [&](const Index& index) {
      double sum = 0;
      for (std::int64_t i = 0; i < depth; ++i) {
        Index row = shared_index({index[0], index[1], index[2], 0}, {output.dims[0], output.dims[1], output.dims[2], 1},
                                 {left.dims[0], left.dims[1], left.dims[2], 1});
        Index column =
            shared_index({index[0], index[1], 0, index[3]}, {output.dims[0], output.dims[1], 1, output.dims[3]},
                         {right.dims[0], right.dims[1], 1, right.dims[3]});
        row[3] = column[2] = i;
        sum += read(left, row) * read(right, column);
      }
      at(output, index) = sum;
    });
  }

  void reduce(const GraphOperation& operation, const GraphTensor& output) {
    const GraphTensor& input = graph_.tensor(operation.inputs.at(0));
    const bool maximum = operation.op == GraphOperator::reduce_max;
    for_each_index(output.dims, [&](const Index& index) {
      at(output, index) = maximum ? -std::numeric_limits<double>::infinity() : 0.0;
    });
    for_each_index(input.dims, [&](const Index& index) {
      double& result = at(output, shared_index(index, input.dims, output.dims));
      const double value = read(input, index);
      result = maximum ? std::max(result, value) : result + value;
    });
  }

  void pointwise(const GraphOperation& operation, const GraphTensor& output) {
    for_each_index(output.dims, [&](const Index& index) {
      const auto input = [&](std::size_t i) {
        const GraphTensor& tensor = graph_.tensor(operation.inputs.at(i));
        return read(tensor, shared_index(index, output.dims, tensor.dims));
      };
      at(output, index) = value_of(operation.op, index, input);
    });
  }

  static double value_of(GraphOperator op, const Index& index, const std::function<double(std::size_t)>& input) {
    switch (op) {
      case GraphOperator::multiply:
        return input(0) * input(1);
      case GraphOperator::subtract:
        return input(0) - input(1);
      case GraphOperator::add:
        return input(0) + input(1);
      case GraphOperator::divide:
        return input(0) / input(1);
      case GraphOperator::greater_equal:
        return input(0) >= input(1) ? 1.0 : 0.0;
      case GraphOperator::exponential:
        return std::exp(input(0));
      case GraphOperator::logarithm:
        return std::log(input(0));
      case GraphOperator::identity:
        return input(0);
      case GraphOperator::row_index:
        return static_cast<double>(index[2]);
      case GraphOperator::column_index:
        return static_cast<double>(index[3]);
      case GraphOperator::select:
        return input(2) != 0.0 ? input(0) : input(1);
      default:
        fail("not a pointwise operation");
    }
  }

  const AttentionGraph& graph_;
  std::list<std::vector<double>> owned_;
  std::map<std::int64_t, MatrixPlace> memory_;
};

}  // namespace

void interpret(const AttentionGraph& graph, const AttentionPlaces& places) {
  Interpreter interpreter(graph, places);
  for (const GraphOperation& operation : graph.operations) interpreter.run(operation);
}

}  // namespace weft
