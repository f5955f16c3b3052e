// cuDNN takes our attention graphs. Its heuristics name engines for a device described by properties, so this needs no
// GPU. They only want libcuda.so.1 to be loaded, for which the toolkit's stub will do. That a graph is attention is
// proved by tests/layers/attention_graph_test.cpp; that the kernels compute it, by cudnn_attention_test.cpp on a GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <optional>

#include "layers/kernels/cuda/cudnn_attention.h"
#include "tests/cuda/described_device.h"
#include "tests/layers/attention_case.h"

namespace weft {
namespace {

class CudnnAcceptance : public ::testing::TestWithParam<DescribedDevice> {
 protected:
  void SetUp() override {
    // Loaded under its own name, the stub answers for libcuda.so.1 from then on.
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr && dlopen(WEFT_CUDA_DRIVER_STUB, RTLD_NOW) == nullptr) {
      GTEST_SKIP() << "neither libcuda.so.1 nor the toolkit's stub of it is here: " << dlerror();
    }
    if (cudnnGetVersion() < 90800) GTEST_SKIP() << "cuDNN " << cudnnGetVersion() << " knows no described devices";
    target.emplace(GetParam().json());
  }

  std::size_t engines(const AttentionGraph& graph) const {
    return CudnnOperationGraph(graph, *target).engine_configurations().size();
  }
  // Whether the graph finds an engine; a graph that cuDNN finds malformed does not.
  bool accepted(const AttentionGraph& graph) const {
    try {
      return engines(graph) > 0;
    } catch (const Error&) {
      return false;
    }
  }
  // The refusal says what the heuristics say: no more, no less.
  void expect_told(const AttentionShape& shape, const std::string& what) const {
    const bool forward = accepted(attention_forward_graph(shape)),
               backward = accepted(attention_backward_graph(shape, false)),
               deterministic = accepted(attention_backward_graph(shape, true));
    const auto refusal = cudnn_attention_refusal(shape, GetParam().compute_capability);
    EXPECT_EQ(forward && backward && deterministic, !refusal)
        << GetParam().name << ", " << what << ": forward " << forward << ", backward " << backward
        << ", deterministic backward " << deterministic << "; refusal: " << refusal.value_or("none");
  }

  std::optional<CudnnTarget> target;
};

AttentionShape fused(std::int64_t query_heads, std::int64_t key_value_heads, std::int64_t head_dim, std::int64_t length,
                     GraphType type = GraphType::bfloat16) {
  return fused_attention_shape({query_heads, key_value_heads, head_dim, length}, 2, type);
}

TEST_P(CudnnAcceptance, TakesTheShapesOfTraining) {
  const auto expect_taken = [&](const AttentionShape& shape) {
    SCOPED_TRACE(fmt::format("type {}, 32/{} heads of {}, length {}, causal {}", static_cast<int>(shape.type),
                             shape.heads.key_value_heads, shape.heads.head_dim, shape.heads.sequence_length,
                             shape.causal));
    EXPECT_GT(engines(attention_forward_graph(shape)), 0u);
    EXPECT_GT(engines(attention_backward_graph(shape, false)), 0u);
    EXPECT_GT(engines(attention_backward_graph(shape, true)), 0u);
    EXPECT_EQ(cudnn_attention_refusal(shape, GetParam().compute_capability), std::nullopt);
  };
  for (GraphType type : {GraphType::bfloat16, GraphType::float16}) {
    for (std::int64_t head_dim : {64, 128}) {
      for (std::int64_t key_value_heads : {32, 8, 1}) {
        for (std::int64_t length : {4096, 4095, 513}) {
          for (bool causal : {true, false}) {
            AttentionShape shape = fused(32, key_value_heads, head_dim, length, type);
            shape.causal = causal;
            expect_taken(shape);
          }
        }
      }
    }
  }
}

TEST_P(CudnnAcceptance, RefusalIsWhatTheHeuristicsSay) {
  for (std::int64_t head_dim : {4, 8, 12, 40, 80, 100, 128, 136, 192, 256, 264}) {
    expect_told(fused(4, 2, head_dim, 512), fmt::format("head_dim {}", head_dim));
    expect_told(fused(4, 2, head_dim, 512, GraphType::float16), fmt::format("float16, head_dim {}", head_dim));
  }
  for (std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (std::int64_t value_dim : {32, 60, 64, 96, 128, 192, 256}) {
      expect_told(fused_attention_shape({4, 2, head_dim, 512, value_dim}, 2, GraphType::bfloat16),
                  fmt::format("keys of {}, values of {}", head_dim, value_dim));
    }
  }
  for (std::int64_t length : {1, 2, 17, 131072})
    expect_told(fused(4, 2, 128, length), fmt::format("length {}", length));
  expect_told(fused_attention_shape({4, 2, 64, 512}, 2, GraphType::float32), "float32");
  expect_told(fused(6, 4, 64, 512), "6 query heads on 4 key heads");
  // Log-sum-exp by head instead of by token.
  AttentionShape shape = fused(4, 2, 128, 512);
  shape.log_sum_exp = {4 * 512, 512, 1};
  expect_told(shape, "packed log-sum-exp");
}

// Runs of a context-parallel rank: queries that begin at some position of the sequence.
TEST_P(CudnnAcceptance, TakesRunsOfQueries) {
  const HeadShape heads{32, 8, 128, 4096};
  for (const Range& run : {Range{512, 512}, {3072, 512}, {4000, 96}, {7, 13}, {1, 1}}) {
    for (GraphType type : {GraphType::bfloat16, GraphType::float16}) {
      const MatrixColumns columns{heads.columns(), 2 * 8 * 128, 2 * 8 * 128};
      expect_told(run_attention_shape(heads, 2, 1024, run, columns, columns, type),
                  fmt::format("run of {} at {}", run.count, run.begin));
    }
  }
}

TEST_P(CudnnAcceptance, TakesWindows) {
  for (const std::int64_t window : {1, 128, 1000, 4096}) {
    for (GraphType type : {GraphType::bfloat16, GraphType::float16}) {
      const HeadShape heads{32, 8, 128, 4096, 128, {window}};
      expect_told(fused_attention_shape(heads, 2, type), fmt::format("window {}", window));
      const MatrixColumns columns{heads.columns(), heads.key_value_columns(), heads.key_value_columns()};
      expect_told(run_attention_shape(heads, 2, 1024, {3072, 512}, columns, columns, type),
                  fmt::format("a run, window {}", window));
    }
  }
}

TEST_P(CudnnAcceptance, TakesDocuments) {
  for (GraphType type : {GraphType::bfloat16, GraphType::float16}) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const std::int64_t key_heads : {32, 8}) {
        AttentionShape shape = fused(32, key_heads, head_dim, 4096, type);
        shape.document_rows = 4096;
        expect_told(shape, fmt::format("documents, {} key heads of {}", key_heads, head_dim));
        shape.heads.first_key.window = 1000;
        expect_told(shape, "documents and a window");
        const MatrixColumns columns{shape.heads.columns(), 2 * key_heads * head_dim, 2 * key_heads * head_dim};
        shape = run_attention_shape(shape.heads, 2, 1024, {3072, 512}, columns, columns, type);
        shape.document_rows = 1024;
        expect_told(shape, "documents of a run");
      }
    }
  }
}

// With QK-norm: rotated queries and keys in one matrix, values and all gradients in a wider one.
TEST_P(CudnnAcceptance, TakesValuesFromAnotherMatrix) {
  const HeadShape heads{32, 8, 128, 4096};
  const MatrixColumns inputs{heads.value_column(), heads.value_column(), heads.columns()};
  const MatrixColumns gradients{heads.columns(), heads.columns(), heads.columns()};
  expect_told(run_attention_shape(heads, 2, 4096, {0, 4096}, inputs, gradients, GraphType::bfloat16),
              "values from another matrix");
}

// Beyond the heuristics: the kernels compile, and only loading them fails, for want of a device.
TEST_P(CudnnAcceptance, CompilesAKernelForEachGraph) {
  const MatrixColumns columns{12 * 128, 4 * 128, 4 * 128};
  AttentionShape shape =
      run_attention_shape({8, 2, 128, 1024}, 1, 512, {256, 256}, columns, columns, GraphType::bfloat16);
  AttentionShape masked = shape;
  masked.document_rows = 512;
  std::vector<AttentionGraph> graphs = {attention_forward_graph(shape), attention_backward_graph(shape, false)};
  if (!cudnn_attention_refusal(masked, GetParam().compute_capability)) {
    for (AttentionGraph graph : {attention_forward_graph(masked), attention_backward_graph(masked, false),
                                 attention_backward_graph(masked, true)}) {
      graphs.push_back(std::move(graph));
    }
  }
  for (const AttentionGraph& graph : graphs) {
    try {
      EXPECT_GE(CudnnPlan(graph, *target).workspace_bytes(), 0);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cuLibraryLoadData"), std::string::npos) << error.what();
    }
  }
}

// Stricter than the heuristics, which take such strides but know nothing of how the memory lies.
TEST_P(CudnnAcceptance, RefusesRowsThatNoWideLoadReaches) {
  AttentionShape shape = fused(4, 2, 128, 512);
  shape.q.row += 4;
  EXPECT_TRUE(cudnn_attention_refusal(shape, GetParam().compute_capability).has_value());
}

// A seeded fault: the skeleton of softmax and of its gradient is recognised, and nothing less is taken. (Not every
// operation may be dropped here: without the causal mask's comparison cuDNN 9.19 divides by zero.)
TEST_P(CudnnAcceptance, RefusesASkeletonWithAnOperationMissing) {
  const AttentionShape shape = fused(4, 2, 128, 512);
  const auto expect_refused = [&](const AttentionGraph& graph, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      AttentionGraph wrong = graph;
      const auto dropped = std::erase_if(wrong.operations, [&](const GraphOperation& operation) {
        return graph.tensor(operation.output).name == name;
      });
      EXPECT_EQ(dropped, 1u) << name;
      EXPECT_FALSE(accepted(wrong)) << GetParam().name << " without " << name;
    }
  };
  expect_refused(attention_forward_graph(shape),
                 {"products", "maximum", "shifted", "powers", "sum", "log_sum", "log_sum_exp", "probabilities", "out"});
  expect_refused(attention_backward_graph(shape, false),
                 {"dout_out", "products", "scores", "logarithms", "masked_scores", "probabilities",
                  "probabilities_transposed", "dv_per_query_head", "dprobabilities", "centred", "weighted", "dscores",
                  "dscores_transposed", "dk_per_query_head", "dq_accumulator"});
}

// What acceptance does not show: between the products cuDNN takes other pointwise operations too, a mask upside down
// for one. That the mask is the causal one is for the interpreter to say (AttentionGraph.EveryOperationMatters).
TEST_P(CudnnAcceptance, TakesAnotherMaskAsWell) {
  AttentionGraph graph = attention_forward_graph(fused(4, 2, 128, 512));
  for (GraphOperation& operation : graph.operations) {
    if (operation.op == GraphOperator::row_index) {
      operation.op = GraphOperator::column_index;
    } else if (operation.op == GraphOperator::column_index) {
      operation.op = GraphOperator::row_index;
    }
  }
  EXPECT_TRUE(accepted(graph));
}

INSTANTIATE_TEST_SUITE_P(Devices, CudnnAcceptance, ::testing::ValuesIn(described_devices),
                         [](const auto& made) { return fmt::format("sm_{}", made.param.compute_capability); });

}  // namespace
}  // namespace weft
