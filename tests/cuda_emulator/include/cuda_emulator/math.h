// Mathematical functions and conversions that CUDA adds to those of the C library. The fast ones (__expf) are computed
// exactly here: a test that compares with a reference leaves room for their error on the device.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace weft::cuda_emulator::device {

inline float fast_exp(float x) {
  return std::exp(x);
}
inline float fast_exp10(float x) {
  return std::pow(10.0f, x);
}
inline float fast_log(float x) {
  return std::log(x);
}
inline float fast_log2(float x) {
  return std::log2(x);
}
inline float fast_pow(float x, float y) {
  return std::pow(x, y);
}
inline float fast_sin(float x) {
  return std::sin(x);
}
inline float fast_cos(float x) {
  return std::cos(x);
}
inline float fast_tanh(float x) {
  return std::tanh(x);
}

}  // namespace weft::cuda_emulator::device

// The C library declares functions of these names (its own, internal), hence macros.
#define __expf weft::cuda_emulator::device::fast_exp
#define __exp10f weft::cuda_emulator::device::fast_exp10
#define __logf weft::cuda_emulator::device::fast_log
#define __log2f weft::cuda_emulator::device::fast_log2
#define __powf weft::cuda_emulator::device::fast_pow
#define __sinf weft::cuda_emulator::device::fast_sin
#define __cosf weft::cuda_emulator::device::fast_cos
#define __tanhf weft::cuda_emulator::device::fast_tanh

inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __frsqrt_rn(float x) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float __fmaf_rn(float x, float y, float z) {
  return std::fma(x, y, z);
}
inline double __fma_rn(double x, double y, double z) {
  return std::fma(x, y, z);
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}

// Never contracted into a fused multiply-add, which the barrier of a volatile makes sure of.
#define WEFT_EMULATED_ROUNDED(name, T, operation) \
  inline T name(T x, T y) {                       \
    volatile T result = x operation y;            \
    return result;                                \
  }
WEFT_EMULATED_ROUNDED(__fadd_rn, float, +)
WEFT_EMULATED_ROUNDED(__fsub_rn, float, -)
WEFT_EMULATED_ROUNDED(__fmul_rn, float, *)
WEFT_EMULATED_ROUNDED(__fdiv_rn, float, /)
WEFT_EMULATED_ROUNDED(__dadd_rn, double, +)
WEFT_EMULATED_ROUNDED(__dsub_rn, double, -)
WEFT_EMULATED_ROUNDED(__dmul_rn, double, *)
WEFT_EMULATED_ROUNDED(__ddiv_rn, double, /)
#undef WEFT_EMULATED_ROUNDED

inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline int __float2int_rz(float x) {
  return static_cast<int>(x);
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
  return static_cast<float>(x);
}

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= ((x >> bit) & 1u) << (31 - bit);
  return result;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(x) * y) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(x) * y) >> 64);
}

#define WEFT_EMULATED_EXTREMES(T) \
  inline T min(T x, T y) {        \
    return y < x ? y : x;         \
  }                               \
  inline T max(T x, T y) {        \
    return x < y ? y : x;         \
  }
WEFT_EMULATED_EXTREMES(int)
WEFT_EMULATED_EXTREMES(unsigned)
WEFT_EMULATED_EXTREMES(long)
WEFT_EMULATED_EXTREMES(unsigned long)
WEFT_EMULATED_EXTREMES(long long)
WEFT_EMULATED_EXTREMES(unsigned long long)
#undef WEFT_EMULATED_EXTREMES
// As fminf and fmaxf: a number wins over a NaN.
inline float min(float x, float y) {
  return std::fmin(x, y);
}
inline float max(float x, float y) {
  return std::fmax(x, y);
}
inline double min(double x, double y) {
  return std::fmin(x, y);
}
inline double max(double x, double y) {
  return std::fmax(x, y);
}
