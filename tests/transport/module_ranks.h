// SPDX-License-Identifier: Apache-2.0
// What ranks do through the C API over one transport alone, for the tests of transports that are modules. The variable
// TREERING_TRANSPORTS names it; the module is found as a program finds it.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "treering/treering.h"

namespace treering::testing {

#define EXPECT_SUCCESS(call) ASSERT_EQ(call, trSuccess) << trGetLastError(nullptr)

// rank(comm, number, ranks) in a thread for each.
template <typename Rank>
void run_ranks(int ranks, Rank rank) {
  trUniqueId id;
  EXPECT_SUCCESS(trGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int i = 0; i < ranks; ++i)
    threads.emplace_back([&, i] {
      trComm_t comm = nullptr;
      EXPECT_SUCCESS(trCommInitRank(&comm, ranks, id, i));
      rank(comm, i, ranks);
      EXPECT_EQ(trCommDestroy(comm), trSuccess);
    });
  for (std::thread& thread : threads) thread.join();
}

inline void run_collectives(trComm_t comm, int rank, int ranks, const std::string& transport) {
  trSelection_t selection{};
  EXPECT_SUCCESS(trGetSelection(comm, trCollAllReduce, nullptr, nullptr, 1 << 20, trFloat32, &selection));
  EXPECT_EQ(selection.transport, transport);
  for (const size_t count : {1u, 1000u, 300'000u}) {
    std::vector<float> values(count), sums(count), all(count * static_cast<size_t>(ranks));
    std::iota(values.begin(), values.end(), static_cast<float>(rank));
    for (int time = 0; time < 3; ++time) {
      EXPECT_SUCCESS(trAllReduce(values.data(), sums.data(), count, trFloat32, trSum, comm, nullptr));
      for (size_t i = 0; i < count; i += 97)
        ASSERT_EQ(sums[i],
                  static_cast<float>(ranks) * static_cast<float>(i) + static_cast<float>(ranks * (ranks - 1) / 2));
    }
    EXPECT_SUCCESS(trAllGather(values.data(), all.data(), count, trFloat32, comm, nullptr));
    for (int peer = 0; peer < ranks; ++peer)
      ASSERT_EQ(all[count * static_cast<size_t>(peer)], static_cast<float>(peer));
  }
  std::vector<int> to(static_cast<size_t>(ranks)), from(static_cast<size_t>(ranks));
  for (int peer = 0; peer < ranks; ++peer) to[static_cast<size_t>(peer)] = 100 * rank + peer;
  EXPECT_SUCCESS(trAllToAll(to.data(), from.data(), 1, trInt32, comm, nullptr));
  for (int peer = 0; peer < ranks; ++peer) ASSERT_EQ(from[static_cast<size_t>(peer)], 100 * peer + rank);
}

inline void split_and_leave() {
  run_ranks(4, [](trComm_t comm, int rank, int) {
    trComm_t half = nullptr;
    EXPECT_SUCCESS(trCommSplit(comm, rank % 2, rank, &half, nullptr));
    float one = 1;
    EXPECT_SUCCESS(trAllReduce(&one, &one, 1, trFloat32, trSum, half, nullptr));
    EXPECT_EQ(one, 2);
    EXPECT_SUCCESS(trCommDestroy(half));
  });
}

// A rank sends and leaves at once: what it sent arrives.
inline void send_last_messages() {
  for (int time = 0; time < 5; ++time)
    run_ranks(2, [](trComm_t comm, int rank, int) {
      std::vector<char> data(50'000, static_cast<char>(7));
      if (rank == 0) {
        EXPECT_SUCCESS(trSend(data.data(), data.size(), trInt8, 1, comm, nullptr));
      } else {
        std::vector<char> got(data.size());
        EXPECT_SUCCESS(trRecv(got.data(), got.size(), trInt8, 0, comm, nullptr));
        EXPECT_EQ(got, data);
      }
    });
}

// The transport that was named first cannot be had.
inline void expect_tcp() {
  run_ranks(2, [](trComm_t comm, int, int) {
    trSelection_t selection{};
    EXPECT_SUCCESS(trGetSelection(comm, trCollAllReduce, nullptr, nullptr, 1 << 20, trFloat32, &selection));
    EXPECT_STREQ(selection.transport, "tcp");
    float one = 1;
    EXPECT_SUCCESS(trAllReduce(&one, &one, 1, trFloat32, trSum, comm, nullptr));
    EXPECT_EQ(one, 2);
  });
}

}  // namespace treering::testing
