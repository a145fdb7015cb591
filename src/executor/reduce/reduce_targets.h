// SPDX-License-Identifier: Apache-2.0
// Instruction sets that the reduction kernels are compiled for; included before every Highway header.
//
// Kept: the portable scalar baseline, SSE4, AVX2, AVX-512 and NEON, which between them cover the
// machines that differ in speed. Every further target would cost compile time and library size. The scalable
// sets (SVE, RVV) are left out because their vectors cannot be held in arrays, which the kernels need for
// unrolling.
//
// Under a sanitizer only the baseline and the set that most machines use (AVX2, NEON) are compiled: the sets differ in
// their vectors' lengths, not in what the sanitizers look at, and an instrumented set takes a minute to compile.
#pragma once

#ifdef TREERING_SANITIZED
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
