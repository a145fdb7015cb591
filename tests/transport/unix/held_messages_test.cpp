// SPDX-License-Identifier: Apache-2.0
// Every wait of a rank sends on what waits in its process (SendQueue), and no call leaves anything there: over a transport
// that sends in flush() alone, each call ends. Two hosts of two ranks: what goes between them is held, and what a rank
// waits for may come by shared memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"
#include "transport/table.h"
#include "transport/unix/unix_transport.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 4;
constexpr size_t kMost = 300'000;  // elements of a rank: more than are under way at once

// A barrier outside of the library: a rank that waits here sends nothing on.
class OuterBarrier {
 public:
  bool arrive_and_wait() {
    ++*arrived_;
    ++phase_;
    return soon([this] { return *arrived_ >= phase_ * kRanks; }, std::chrono::seconds(30));
  }

 private:
  SharedNumber arrived_;
  int phase_ = 0;  // of this rank
};

using Calls = std::vector<std::function<trResult_t()>>;

trResult_t run(const Calls& calls, OuterBarrier* barrier) {
  for (const auto& call : calls) {
    if (const trResult_t result = call(); result != trSuccess) return result;
    if (!barrier->arrive_and_wait()) return trTimeout;
  }
  return trSuccess;
}

trResult_t run_collectives(size_t count, trComm_t comm, trStream_t stream, OuterBarrier* barrier) {
  std::vector<float> own(kRanks * count, 1), all(kRanks * count);
  const std::vector<size_t> counts(kRanks, count);
  const void* const in = own.data();
  void* const out = all.data();
  const auto waited = [stream](trResult_t begun) {
    return begun == trSuccess && stream != nullptr ? trStreamSynchronize(stream) : begun;
  };
  const Calls calls = {
      [&] { return waited(trReduce(in, out, count, trFloat32, trSum, 1, comm, stream)); },
      [&] { return waited(trBroadcast(in, out, count, trFloat32, 2, comm, stream)); },
      [&] { return waited(trAllGather(in, out, count, trFloat32, comm, stream)); },
      [&] { return waited(trReduceScatter(in, out, count, trFloat32, trSum, comm, stream)); },
      [&] { return waited(trAllToAll(in, out, count, trFloat32, comm, stream)); },
      [&] { return waited(trGather(in, out, count, trFloat32, 3, comm, stream)); },
      [&] { return waited(trScatter(in, out, count, trFloat32, 0, comm, stream)); },
      [&] { return waited(trBarrier(comm, stream)); },
      [&] {
        return waited(trAllToAllV(in, counts.data(), nullptr, out, counts.data(), nullptr, trFloat32, comm, stream));
      },
      [&] { return waited(trAllReduce(in, out, count, trFloat32, trSum, comm, stream)); },
  };
  if (const trResult_t result = run(calls, barrier); result != trSuccess) return result;
  return all[0] == kRanks && all[count - 1] == kRanks ? trSuccess : trInternalError;
}

// Around the ring, and a rank of the other host by a group.
trResult_t run_transfers(int rank, size_t count, trComm_t comm, OuterBarrier* barrier) {
  std::vector<float> out(count, static_cast<float>(rank)), in(count), across(count);
  const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks, opposite = (rank + 2) % kRanks;
  const Calls calls = {
      [&] { return trSendRecv(out.data(), count, next, in.data(), count, previous, trFloat32, comm, nullptr); },
      [&] {
        for (const trResult_t result : {trGroupStart(), trSend(out.data(), count, trFloat32, opposite, comm, nullptr),
                                        trRecv(across.data(), count, trFloat32, opposite, comm, nullptr)})
          if (result != trSuccess) return result;
        return trGroupEnd();
      },
  };
  if (const trResult_t result = run(calls, barrier); result != trSuccess) return result;
  const bool right = in.back() == static_cast<float>(previous) && across.back() == static_cast<float>(opposite);
  return right ? trSuccess : trInternalError;
}

int run_all(int rank, const trUniqueId& id, OuterBarrier* barrier) {
  setenv("TREERING_HOSTID", ("host" + std::to_string(rank / 2)).c_str(), 1);
  trConfig_t config = config_with_timeout(20'000);
  trComm_t comm = nullptr, other = nullptr;
  TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
  if (!barrier->arrive_and_wait()) return say("the others do not end their creation"), 101;
  trStream_t stream = nullptr;
  TR_CHECK(trStreamCreate(&stream));
  for (const size_t count : {size_t{1}, size_t{2'000}, kMost}) {
    TR_CHECK(run_collectives(count, comm, nullptr, barrier));
    TR_CHECK(run_collectives(count, comm, stream, barrier));
    TR_CHECK(run_transfers(rank, count, comm, barrier));
  }
  TR_CHECK(trStreamDestroy(stream));

  const int none = 0;
  const Calls makers = {
      [&] { return trCommDup(comm, &other); },
      [&] { return trCommSplit(comm, 0, kRanks - rank, &other, nullptr); },
      [&] { return trCommShrink(comm, &none, 0, &other, nullptr, 0); },
  };
  for (const auto& make : makers) {
    TR_CHECK(run({make}, barrier));
    TR_CHECK(run_collectives(2'000, other, nullptr, barrier));
    TR_CHECK(trCommFinalize(other));
    TR_CHECK(trCommDestroy(other));
  }
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(HeldMessages, AreSentByEveryWaitAndLeftByNoCall) {
  add_transport(held_unix_row());
  setenv("TREERING_TRANSPORTS", "unix,shm", 1);
  OuterBarrier barrier;
  expect_all_succeed(kRanks, [&](int rank, const trUniqueId& id) { return run_all(rank, id, &barrier); });
}

}  // namespace
}  // namespace treering::testing
