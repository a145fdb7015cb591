// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry (clang): tests/fuzz/meson.build runs it for a bounded time over a copy of the corpus.
#include <sodium.h>

#include "fuzz/frames_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool ready = sodium_init() >= 0;
  if (ready) treering::check_bytes(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
