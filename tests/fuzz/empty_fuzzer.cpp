// SPDX-License-Identifier: Apache-2.0
// Whether this compiler can make a fuzzer at all.
#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }
