// SPDX-License-Identifier: Apache-2.0
// A collective that waits for a rank says so in the log before the deadline, and goes on when the rank comes.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/log_file.h"
#include "support/processes.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3, kLate = 2;

constexpr const char* kWarning = "operation 2 (allreduce of 1 x float, sum) has not moved for ";

// Lines of rank 0, which speaks for those that wait.
std::vector<std::string> warnings_of_rank_0(const LogFile& log) {
  std::vector<std::string> lines;
  std::istringstream text(log.text());
  for (std::string line; std::getline(text, line);)
    if (line.find(kWarning) != std::string::npos && line.find(". Rank 0 waits for rank ") != std::string::npos)
      lines.push_back(line);
  return lines;
}

// Rank kLate comes when rank 0 has warned so often.
void expect_warnings(size_t count, const std::string& limit) {
  setenv("TREERING_WARN_AFTER", "0.3", 1);
  const LogFile log;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    log.take();
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    float value = 1;
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == kLate && !soon([&] { return warnings_of_rank_0(log).size() >= count; })) return 1;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    TR_CHECK(trCommDestroy(comm));
    return value == kRanks ? 0 : 2;
  });
  const std::string late = "rank 2 (pid " + std::to_string(processes.pid(kLate));
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << result.output << log.text();
  }
  for (const std::string& line : warnings_of_rank_0(log))
    for (const std::string& words : {late, std::string(" has not entered it (its last is operation 1)"), limit})
      EXPECT_NE(line.find(words), std::string::npos) << line;
}

TEST(ALateRank, IsNamedInTheLog) { expect_warnings(1, "(the deadline is 300000 ms)"); }

TEST(ALateRank, IsNamedAgain) {
  setenv("TREERING_TIMEOUT", "0", 1);
  expect_warnings(3, "(there is no deadline)");
  unsetenv("TREERING_TIMEOUT");
}

}  // namespace
}  // namespace treering::testing
