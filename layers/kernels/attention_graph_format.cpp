#include <fmt/ranges.h>

#include "layers/kernels/attention_graph.h"

namespace weft {
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
