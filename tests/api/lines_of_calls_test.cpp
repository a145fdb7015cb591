// SPDX-License-Identifier: Apache-2.0
// What a call logs has the rank, whether the calling thread drives it, a group or the streams' engine.
#include <gtest/gtest.h>

#include <string>

#include "support/log_file.h"
#include "support/processes.h"

namespace treering::testing {
namespace {

TEST(LinesOfCalls, HaveTheRank) {
  const LogFile log;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) {
    log.take("INFO");
    trComm_t comm = nullptr;
    trStream_t stream = nullptr;
    float value = 1, values[2] = {};
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    TR_CHECK(trGroupStart());
    TR_CHECK(trAllGather(&value, values, 1, trFloat32, comm, nullptr));
    TR_CHECK(trGroupEnd());
    TR_CHECK(trStreamCreate(&stream));
    TR_CHECK(trBroadcast(&value, &value, 1, trFloat32, 0, comm, stream));
    TR_CHECK(trStreamSynchronize(stream));
    TR_CHECK(trStreamDestroy(stream));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  for (int rank = 0; rank < 2; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output << log.text();
  }
  for (const char* collective : {"allreduce", "allgather", "broadcast"})
    EXPECT_NE(log.text().find(std::string(" rank 0 I: ") + collective + " of up to"), std::string::npos)
        << collective << "\n"
        << log.text();
}

}  // namespace
}  // namespace treering::testing
