// SPDX-License-Identifier: Apache-2.0
// Machines as descriptions, with the bus bandwidths of rings and of allreduce trees that are known to be the best.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "topology/graph.h"
#include "topology/import/description.h"

namespace treering {

struct Machine {
  std::string name, text;
  double rings = 0, trees = 0;
};

inline LinkGraph graph_of(const std::string& text) {
  LinkGraph graph;
  const Status status = parse_description(text, "machine", &graph);
  EXPECT_TRUE(status.ok()) << status.message() << "\n" << text;
  return graph;
}

inline std::string full_mesh(int gpus) {
  std::string text = "gpu 0-" + std::to_string(gpus - 1) + "\n";
  for (int a = 0; a < gpus; ++a)
    for (int b = a + 1; b < gpus; ++b) text += "link " + std::to_string(a) + " " + std::to_string(b) + " at 1\n";
  return text;
}

inline const std::string kDgx1Pascal =
    "gpu 0-7\n"
    "link 0 1 at 1\nlink 0 2 at 1\nlink 0 3 at 1\nlink 1 2 at 1\nlink 1 3 at 1\nlink 2 3 at 1\n"
    "link 4 5 at 1\nlink 4 6 at 1\nlink 4 7 at 1\nlink 5 6 at 1\nlink 5 7 at 1\nlink 6 7 at 1\n"
    "link 0 4 at 1\nlink 1 5 at 1\nlink 2 6 at 1\nlink 3 7 at 1\n";

inline const std::string kDgx1Volta =
    "gpu 0-7\n"
    "link 0 1 at 1\nlink 0 2 at 1\nlink 0 3 at 2\nlink 1 2 at 2\nlink 1 3 at 1\nlink 2 3 at 2\n"
    "link 4 5 at 1\nlink 4 6 at 1\nlink 4 7 at 2\nlink 5 6 at 2\nlink 5 7 at 1\nlink 6 7 at 2\n"
    "link 0 4 at 2\nlink 1 5 at 2\nlink 2 6 at 1\nlink 3 7 at 1\n";

inline const std::string kSummit =
    "gpu 0-2 on cpu0 at nvlink2x2\ngpu 3-5 on cpu1 at nvlink2x2\nlink cpu0 cpu1 at 32\n"
    "nvlink 0 1 x2 gen2\nnvlink 0 2 x2 gen2\nnvlink 1 2 x2 gen2\n"
    "nvlink 3 4 x2 gen2\nnvlink 3 5 x2 gen2\nnvlink 4 5 x2 gen2\n";

inline std::string eight_on_pcie(int socket) {
  return "gpu 0-3 on cpu0 at 24\ngpu 4-7 on cpu1 at 24\nlink cpu0 cpu1 at " + std::to_string(socket) + "\n";
}

inline std::string nvswitch_hosts(int hosts) {
  return "hosts " + std::to_string(hosts) +
         "\n  nvswitch gpus 0-3 at 450\n  nic 0-3 on 0-3 at 50\n  network nics 0-3 at 50\nend\n";
}

inline std::vector<Machine> known_machines() {
  return {
      {"DGX-1 Pascal", kDgx1Pascal, 4, 4},
      {"DGX-1 Volta", kDgx1Volta, 6, 6},
      {"full mesh of 4", full_mesh(4), 3, 3},
      {"full mesh of 6", full_mesh(6), 5, 5},
      {"full mesh of 8", full_mesh(8), 7, 7},
      {"NVSwitch, 8 GPUs of 450", "nvswitch gpus 0-7 at 450\n", 450, 450},
      {"NVSwitch, 16 GPUs of 150", "nvswitch gpus 0-15 at 150\n", 150, 150},
      {"NVSwitch, 72 GPUs of 900", "nvswitch gpus 0-71 at nvlink5x18\n", 900, 900},
      {"Summit node", kSummit, 32, 160.0 / 3},
      {"two bridged pairs, one socket", "gpu 0-3 on cpu0 at 24\nlink 0 1 at 56\nlink 2 3 at 56\n", 48, 72},
      {"two bridged pairs, two sockets",
       "gpu 0-1 on cpu0 at 24\ngpu 2-3 on cpu1 at 24\nlink cpu0 cpu1 at 16\nlink 0 1 at 56\nlink 2 3 at 56\n", 16, 24},
      {"8 PCIe GPUs, socket link 10", eight_on_pcie(10), 10, 17.5},
      {"8 PCIe GPUs, socket link 16", eight_on_pcie(16), 16, 24},
      {"8 PCIe GPUs, socket link 22", eight_on_pcie(22), 22, 24},
      {"2 hosts of 4 GPUs", nvswitch_hosts(2), 200, 350},
      {"3 hosts of 4 GPUs", nvswitch_hosts(3), 200, 275},
  };
}

}  // namespace treering
