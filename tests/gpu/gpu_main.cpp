// SPDX-License-Identifier: Apache-2.0
// main() of the GPU suite. `PROGRAM --device` says which GPU it would use, or why none.
#include <cstdio>
#include <cstring>

#include "gpu/gpu_test.h"

using namespace treering::cuda;

__attribute__((weak)) int run_as_other_process(int, char**) { return 1; }

int main(int argc, char** argv) {
  std::string why_not;
  GpuMachine* machine = gpu_machine(&why_not);
  if (machine == nullptr) {
    std::printf("GPU suite not run: %s\n", why_not.c_str());
    return 77;
  }
  const treering::DeviceInfo& info = machine->device().info();
  if (argc > 2 && std::strcmp(argv[1], "--other-process") == 0) return run_as_other_process(argc, argv);
  std::printf("GPU %d: %s, %s\n", info.ordinal, info.name.c_str(), info.bus_id.c_str());
  if (argc > 1 && std::strcmp(argv[1], "--device") == 0) return 0;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
