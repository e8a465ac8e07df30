// Which of Highway's targets are compiled. Included before any Highway header by every file that uses them, the tests
// included, so that all agree on the list.
#pragma once

// Vectors without a fixed size cannot be elements of an array, and the register blocks of the kernels are arrays.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// AVX-512 with VNNI and VBMI, which Highway leaves out unless asked.
#define HWY_WANT_AVX3_DL
