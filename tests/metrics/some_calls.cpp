// SPDX-License-Identifier: Apache-2.0
// Calls of three ranks in this process, on two communicators, one of which has a name that needs care in a label.
//
//   some_calls            ends normally, without destroying its communicators
//   some_calls wait       says "ready" after its calls, and ends with its standard input
#include <cstdio>
#include <vector>

#include "treering/treering.h"

namespace {

constexpr int kRanks = 3;

bool call(const char* name) {
  trUniqueId id;
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.name = name;
  std::vector<trComm_t> comms(kRanks);
  bool good = trGetUniqueId(&id) == trSuccess && trGroupStart() == trSuccess;
  for (int rank = 0; rank < kRanks; ++rank)
    good = good && trCommInitRankConfig(&comms[static_cast<size_t>(rank)], kRanks, id, rank, &config) == trSuccess;
  good = good && trGroupEnd() == trSuccess;
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(20'000));
  for (const size_t count : {size_t{1}, size_t{100}, size_t{20'000}}) {
    for (int time = 0; time < 100; ++time) {
      good = good && trGroupStart() == trSuccess;
      for (size_t rank = 0; rank < comms.size(); ++rank)
        good = good && trAllReduce(values[rank].data(), values[rank].data(), count, trFloat32, trSum, comms[rank],
                                   nullptr) == trSuccess;
      good = good && trGroupEnd() == trSuccess;
    }
  }
  return good;
}

}  // namespace

int main(int argc, char**) {
  if (!call("a \"b\"\\\n\xC3\xA4\xFF") || !call("plain")) {
    std::fprintf(stderr, "%s\n", trGetLastError(nullptr));
    return 1;
  }
  if (argc > 1) {
    std::puts("ready");
    std::fflush(stdout);
    while (std::getchar() != EOF) continue;
  }
  return 0;
}
