// What cuBLASLt's descriptors hold. The contents of cuBLASLt's descriptors.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace weft::cuda_emulator {

struct MatrixLayout {
  std::int32_t type, order, batch_count;
  std::int32_t known;  // tells a descriptor from uninitialised memory
  std::uint64_t rows, columns;
  std::int64_t leading, batch_stride;
};

struct MatmulDescription {
  std::int32_t compute_type, scale_type, pointer_mode;
  std::int32_t known;
  std::int32_t transpose_a, transpose_b, transpose_c, epilogue;
  std::int8_t fast_accumulation, aligned[3];
  const float *scale_a, *scale_b;  // device memory; null: 1
  std::int32_t scale_mode_a, scale_mode_b;
  std::int32_t unsupported;  // an attribute was set that the emulator does not know
};

struct MatmulPreference {
  std::int32_t known;
  std::uint64_t workspace_bytes;
  std::uint32_t alignment[4];  // of A, B, C, D
};

constexpr std::int32_t known_descriptor = 0x5745F7;

template <typename Inner, typename Opaque>
Inner* inside(Opaque* opaque) {
  static_assert(sizeof(Inner) <= sizeof(Opaque));
  auto* inner = reinterpret_cast<Inner*>(opaque);
  return inner != nullptr && inner->known == known_descriptor ? inner : nullptr;
}
inline MatrixLayout* inside(cublasLtMatrixLayout_t layout) {
  return inside<MatrixLayout>(layout);
}
inline MatmulDescription* inside(cublasLtMatmulDesc_t description) {
  return inside<MatmulDescription>(description);
}
inline MatmulPreference* inside(cublasLtMatmulPreference_t preference) {
  return inside<MatmulPreference>(preference);
}

}  // namespace weft::cuda_emulator
