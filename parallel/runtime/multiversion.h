// Kernels are compiled for AVX-512 and for the baseline x86-64-v3; the version is chosen when the program is loaded.
// The resolver of target_clones runs before ThreadSanitizer is set up and crashes there, so that build has the baseline
// only.
#pragma once

#if defined(__SANITIZE_THREAD__) || !defined(__GNUC__) || defined(__clang__)
#define WEFT_MULTIVERSION
#else
#define WEFT_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "default")))
#endif
// Helpers are inlined into each version; otherwise they would keep the instructions of the baseline.
#define WEFT_INLINE [[gnu::always_inline]] inline
