// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/fatbins.h"

#include "device/kernels.h"

// A row of TR_DEVICE_TYPES that the build does not compile has no file here, and one that only the build has is
// counted.
#define TR_EMBED(type, name, ...)                                                            \
  asm(".section .rodata." #name                                                              \
      ", \"a\", @progbits\n"                                                                 \
      ".balign 64\n"                                                                         \
      "treering_fatbin_" #name                                                               \
      ":\n"                                                                                  \
      ".incbin \"" TREERING_FATBIN_DIR "/" #name                                             \
      ".fatbin\"\n"                                                                          \
      "treering_fatbin_end_" #name                                                           \
      ":\n"                                                                                  \
      ".previous\n");                                                                        \
  extern "C" __attribute__((visibility("hidden"))) const std::byte treering_fatbin_##name[], \
      treering_fatbin_end_##name[];
TR_DEVICE_TYPES(TR_EMBED)
#undef TR_EMBED

namespace treering::cuda {

std::span<const Fatbin> fatbins() {
#define TR_FATBIN(type, name, ...) \
  {type, #name, treering_fatbin_##name, static_cast<size_t>(treering_fatbin_end_##name - treering_fatbin_##name)},
  static const Fatbin all[] = {TR_DEVICE_TYPES(TR_FATBIN)};
#undef TR_FATBIN
  static_assert(std::size(all) == TREERING_FATBINS, "kernel_types in meson.build has names that TR_DEVICE_TYPES lacks");
  return all;
}

}  // namespace treering::cuda
