#include <fmt/ranges.h>

#include "layers/kernels/attention_graph.h"

namespace weft {
namespace {

std::string_view name_of(GraphType type) {
  switch (type) {
    case GraphType::float32:
      return "float32";
    case GraphType::bfloat16:
      return "bfloat16";
    case GraphType::float16:
      return "float16";
    case GraphType::int32:
      return "int32";
    case GraphType::boolean:
      return "boolean";
  }
  return "unknown";
}

std::string_view name_of(GraphOperator op) {
  switch (op) {
    case GraphOperator::matmul:
      return "matmul";
    case GraphOperator::multiply:
      return "multiply";
    case GraphOperator::subtract:
      return "subtract";
    case GraphOperator::add:
      return "add";
    case GraphOperator::divide:
      return "divide";
    case GraphOperator::greater_equal:
      return "greater_equal";
    case GraphOperator::exponential:
      return "exponential";
    case GraphOperator::logarithm:
      return "logarithm";
    case GraphOperator::identity:
      return "identity";
    case GraphOperator::row_index:
      return "row_index";
    case GraphOperator::column_index:
      return "column_index";
    case GraphOperator::select:
      return "select";
    case GraphOperator::reduce_max:
      return "reduce_max";
    case GraphOperator::reduce_add:
      return "reduce_add";
    case GraphOperator::reshape:
      return "reshape";
  }
  return "unknown";
}

}  // namespace

std::string format(const AttentionGraph& graph) {
  std::string text;
  for (const GraphOperation& operation : graph.operations) {
    std::vector<std::string> inputs;
    for (std::int64_t id : operation.inputs) {
      const GraphTensor& input = graph.tensor(id);
      inputs.push_back(input.scalar ? fmt::format("{}={:g}", input.name, *input.scalar) : input.name);
    }
    const GraphTensor& output = graph.tensor(operation.output);
    text += fmt::format("{} = {}({}) {} {} by {}{}\n", output.name, name_of(operation.op), fmt::join(inputs, ", "),
                        name_of(output.type), output.dims, output.strides, output.is_virtual ? "" : " stored");
  }
  return text;
}

}  // namespace weft
