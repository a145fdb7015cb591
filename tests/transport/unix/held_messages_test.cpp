// SPDX-License-Identifier: Apache-2.0
// Every wait of a rank sends on what waits in its process (SendQueue): over a transport that sends in flush() alone, each
// call ends. Two hosts of two ranks: what goes between them is held, and what a rank waits for may come by shared memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "transport/table.h"
#include "transport/unix/unix_transport.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 4;
constexpr size_t kMost = 300'000;  // elements of a rank: more than are under way at once

trResult_t run_collectives(size_t count, trComm_t comm, trStream_t stream) {
  std::vector<float> own(kRanks * count, 1), all(kRanks * count);
  const std::vector<size_t> counts(kRanks, count);
  const void* const in = own.data();
  void* const out = all.data();
  const trResult_t results[] = {
      trAllReduce(in, out, count, trFloat32, trSum, comm, stream),
      trReduce(in, out, count, trFloat32, trSum, 1, comm, stream),
      trBroadcast(in, out, count, trFloat32, 2, comm, stream),
      trAllGather(in, out, count, trFloat32, comm, stream),
      trReduceScatter(in, out, count, trFloat32, trSum, comm, stream),
      trAllToAll(in, out, count, trFloat32, comm, stream),
      trGather(in, out, count, trFloat32, 3, comm, stream),
      trScatter(in, out, count, trFloat32, 0, comm, stream),
      trBarrier(comm, stream),
      trAllToAllV(in, counts.data(), nullptr, out, counts.data(), nullptr, trFloat32, comm, stream),
      trAllReduce(in, out, count, trFloat32, trSum, comm, stream),
  };
  for (const trResult_t result : results)
    if (result != trSuccess) return result;
  if (stream != nullptr)
    if (const trResult_t result = trStreamSynchronize(stream); result != trSuccess) return result;
  return all[0] == kRanks && all[count - 1] == kRanks ? trSuccess : trInternalError;
}

// Around the ring, and a rank of the other host by a group.
trResult_t run_transfers(int rank, size_t count, trComm_t comm) {
  std::vector<float> out(count, static_cast<float>(rank)), in(count), across(count);
  const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks, opposite = (rank + 2) % kRanks;
  if (const trResult_t result =
          trSendRecv(out.data(), count, next, in.data(), count, previous, trFloat32, comm, nullptr);
      result != trSuccess)
    return result;
  if (const trResult_t begun = trGroupStart(); begun != trSuccess) return begun;
  const trResult_t results[] = {trSend(out.data(), count, trFloat32, opposite, comm, nullptr),
                                trRecv(across.data(), count, trFloat32, opposite, comm, nullptr), trGroupEnd()};
  for (const trResult_t result : results)
    if (result != trSuccess) return result;
  const bool right = in.back() == static_cast<float>(previous) && across.back() == static_cast<float>(opposite);
  return right ? trSuccess : trInternalError;
}

int run_all(int rank, const trUniqueId& id) {
  setenv("TREERING_HOSTID", ("host" + std::to_string(rank / 2)).c_str(), 1);
  trConfig_t config = config_with_timeout(20'000);
  trComm_t comm = nullptr, other = nullptr;
  TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
  trStream_t stream = nullptr;
  TR_CHECK(trStreamCreate(&stream));
  for (const size_t count : {size_t{1}, size_t{2'000}, kMost}) {
    TR_CHECK(run_collectives(count, comm, nullptr));
    TR_CHECK(run_collectives(count, comm, stream));
    TR_CHECK(run_transfers(rank, count, comm));
  }
  TR_CHECK(trStreamDestroy(stream));

  TR_CHECK(trCommDup(comm, &other));
  TR_CHECK(run_collectives(kMost, other, nullptr));
  TR_CHECK(trCommFinalize(other));
  TR_CHECK(trCommDestroy(other));
  const int none = 0;
  TR_CHECK(trCommSplit(comm, 0, kRanks - rank, &other, nullptr));
  TR_CHECK(run_collectives(2'000, other, nullptr));
  TR_CHECK(trCommDestroy(other));
  TR_CHECK(trCommShrink(comm, &none, 0, &other, nullptr, 0));
  TR_CHECK(run_collectives(2'000, other, nullptr));
  TR_CHECK(trCommDestroy(other));
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(HeldMessages, AreSentByEveryWait) {
  add_transport(held_unix_row());
  setenv("TREERING_TRANSPORTS", "unix,shm", 1);
  expect_all_succeed(kRanks, run_all);
}

}  // namespace
}  // namespace treering::testing
