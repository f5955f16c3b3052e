#include "layers/kernels/cpu/kernels.h"

namespace weft {

LayerKernels cpu_layer_kernels() {
  return {cpu::attention_kernels,    cpu::cross_entropy_kernels, cpu::embedding_kernels,
          cpu::float8_kernels, cpu::load_balance_kernels, cpu::permutation_kernels,   cpu::rms_norm_kernels,
          cpu::rotary_kernels,       cpu::routing_kernels,       cpu::swiglu_kernels};
}

}  // namespace weft
