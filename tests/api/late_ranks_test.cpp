// SPDX-License-Identifier: Apache-2.0
// A collective that waits for a rank says so in the log before the deadline, and goes on when the rank comes.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>

#include "support/log_file.h"
#include "support/processes.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3;

// Lines in which a rank, the first of those that wait, names the late one.
size_t warnings(const LogFile& log, int speaker, int late, pid_t pid, const std::string& limit) {
  const std::string words[] = {
      " rank " + std::to_string(speaker) + " W: ", "operation 2 (allreduce of 1 x float, sum) has not moved for ",
      " s (" + limit + "): ", "rank " + std::to_string(late) + " (pid " + std::to_string(pid),
      " has not entered it (its last is operation 1). Rank " + std::to_string(speaker) + " waits for rank "};
  std::istringstream text(log.text());
  size_t count = 0;
  for (std::string line; std::getline(text, line);)
    count += std::all_of(std::begin(words), std::end(words),
                         [&](const std::string& each) { return line.find(each) != std::string::npos; });
  return count;
}

// The late rank comes when it is named so often.
void expect_warnings(size_t count, int speaker, int late, const std::string& limit) {
  setenv("TREERING_WARN_AFTER", "0.3", 1);
  const LogFile log;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    log.take();
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    float value = 1;
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == late && !soon([&] { return warnings(log, speaker, late, getpid(), limit) >= count; })) return 1;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    TR_CHECK(trCommDestroy(comm));
    return value == kRanks ? 0 : 2;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output << log.text();
  }
}

TEST(ALateRank, IsNamedInTheLog) { expect_warnings(1, 0, 2, "the deadline is 300 s"); }

TEST(ALateRank, IsNamedByTheFirstThatWaits) { expect_warnings(1, 1, 0, "the deadline is 300 s"); }

TEST(ALateRank, IsNamedAgain) {
  setenv("TREERING_TIMEOUT", "0", 1);
  expect_warnings(3, 0, 2, "there is no deadline");
  unsetenv("TREERING_TIMEOUT");
}

}  // namespace
}  // namespace treering::testing
