#include "parallel/runtime/cuda/check.h"

#include "parallel/runtime/error.h"

namespace weft::cuda {

void check(cudaError_t status, std::string_view expression, std::source_location place) {
  if (status == cudaSuccess) return;
  fail("{} failed at {}:{}: {} ({})", expression, place.file_name(), place.line(), cudaGetErrorString(status),
       cudaGetErrorName(status));
}

}  // namespace weft::cuda
