// SPDX-License-Identifier: Apache-2.0
// A rank that gets no memory in the middle of a call: all ranks are told which.
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/lacking_memory.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

constexpr int kRanks = 3, kVictim = 1;
constexpr size_t kCount = 1 << 20;

enum class Way { kBlocking, kStream, kGroup };
using Case = std::tuple<const char*, Way>;

enum class Lack { kNone, kOne, kAll };

void set_lack(Lack lack) {
  memory().fails_next = lack == Lack::kOne;
  memory().fails_always = lack == Lack::kAll;
}

// Runs on the thread of the streams, as what follows on its stream does.
void lack_from_here(trResult_t /*result*/, void* lack) { set_lack(*static_cast<const Lack*>(lack)); }

// An allreduce for which this thread, or that of the streams, may lack memory: a schedule of which there is none yet.
// Returns 0, or the exit code.
int reduce(Way way, trComm_t comm, Lack lack, trResult_t* result) {
  std::vector<float> values(kCount, 1.0f);
  const auto call = [&](trStream_t stream) {
    return trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, stream);
  };
  if (way == Way::kStream) {
    trStream_t stream = nullptr;
    TR_CHECK(trStreamCreate(&stream));
    TR_CHECK(trStreamAddCallback(stream, lack_from_here, &lack));
    *result = call(stream);  // another rank may have told of its lack already
    if (*result == trSuccess) *result = trStreamSynchronize(stream);
    (void)trStreamDestroy(stream);
    return 0;
  }
  if (way == Way::kGroup) {
    TR_CHECK(trGroupStart());
    TR_CHECK(call(nullptr));
    TR_CHECK(call(nullptr));
  }
  set_lack(lack);
  *result = way == Way::kGroup ? trGroupEnd() : call(nullptr);
  const bool unused = memory().fails_next;
  set_lack(Lack::kNone);
  return unused ? 2 : 0;
}

class OutOfMemory : public ::testing::TestWithParam<Case> {};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  constexpr const char* kWays[] = {"Blocking", "OnAStream", "InAGroup"};
  const std::string over = std::get<0>(info.param)[0] == 't' ? "Tcp" : "SharedMemory";
  return over + kWays[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(Over, OutOfMemory,
                         ::testing::Combine(::testing::Values("shared-memory", "tcp"),
                                            ::testing::Values(Way::kBlocking, Way::kStream, Way::kGroup)),
                         name_of);

int run(int rank, const trUniqueId& id, const Case& which, Lack lack, const SharedNumber& there) {
  setenv("TREERING_TRANSPORTS", std::get<0>(which), 1);
  trConfig_t config = config_with_timeout(20'000);
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
  float value = 1.0f;
  TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
  ++*there;  // a rank that is still in the first call may hear of the lack there
  if (!soon([&] { return *there == kRanks; })) return 1;
  trResult_t result = trSuccess;
  if (const int code = reduce(std::get<1>(which), comm, rank == kVictim ? lack : Lack::kNone, &result); code != 0)
    return code;
  say(trGetLastError(comm));
  const trResult_t again = trBarrier(comm, nullptr);
  say(trGetLastError(comm));
  trCommDestroy(comm);
  if (lack == Lack::kOne) return again == result ? 10 + result : 1;
  return result != trSuccess && again != trSuccess ? 10 + result : 1;
}

TEST_P(OutOfMemory, IsToldToAllRanks) {
  SharedNumber there;
  RankProcesses processes(kRanks,
                          [&](int rank, const trUniqueId& id) { return run(rank, id, GetParam(), Lack::kOne, there); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << "rank " << rank << ": " << result.output;
    const std::string name = "rank 1 (pid " + std::to_string(processes.pid(kVictim));
    EXPECT_NE(result.output.find(name), std::string::npos) << result.output;
    const Way way = std::get<1>(GetParam());
    const char* const where =
        way == Way::kGroup ? " ran out of memory in trGroupEnd" : " ran out of memory in operation 2";
    // The streams' thread may look after the connections before the operation is there.
    const char* const before = " ran out of memory in the work on its connections between calls";
    EXPECT_TRUE(result.output.find(where) != std::string::npos ||
                (way == Way::kStream && result.output.find(before) != std::string::npos))
        << result.output;
  }
}

// There is not even memory for the words. The others hear that the rank has left, or what it does next.
TEST_P(OutOfMemory, EndsNoProcessWhereNothingIsLeft) {
  SharedNumber there;
  RankProcesses processes(kRanks,
                          [&](int rank, const trUniqueId& id) { return run(rank, id, GetParam(), Lack::kAll, there); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const RankResult result = processes.wait(rank);
    const bool has_error = result.exit_code > 10 && result.exit_code < 100;
    EXPECT_TRUE(has_error) << "rank " << rank << ": " << result.exit_code << ' ' << result.output;
    if (rank != kVictim) continue;
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << result.output;
  }
}

// Ranks make a communicator twice; the victim lacks memory for one allocation of the second, at this part of all that
// its thread makes.
int create_without(int rank, const trUniqueId& id, double part) {
  trConfig_t config = config_with_timeout(5'000);
  trComm_t comm = nullptr;
  const long before = memory().allocations;
  TR_CHECK(trCommInitRankConfig(&comm, kRanks, id, rank, &config));
  const long needed = memory().allocations - before;
  trUniqueId second{};
  if (rank == 0) TR_CHECK(trGetUniqueId(&second));
  TR_CHECK(trBroadcast(&second, &second, sizeof second, trUint8, 0, comm, nullptr));
  trComm_t made = nullptr;
  if (rank == kVictim) memory().fails_at = memory().allocations + static_cast<long>(part * static_cast<double>(needed));
  const trResult_t result = trCommInitRankConfig(&made, kRanks, second, rank, &config);
  memory().fails_at = -1;  // it needed fewer
  say(result == trSuccess ? "success" : trGetLastError(nullptr));
  return result == trSuccess ? trCommDestroy(made) : 10 + result;
}

TEST(OutOfMemoryInACreation, IsToldToThoseWhoHaveMetTheRank) {
  int told = 0;
  for (const char* transports : {"shared-memory", "tcp"})
    for (const double part : {0.3, 0.4, 0.45, 0.47, 0.48, 0.49, 0.5, 0.52, 0.55, 0.6, 0.75, 0.85, 0.9, 0.95}) {
      setenv("TREERING_TRANSPORTS", transports, 1);
      RankProcesses processes(kRanks,
                              [part](int rank, const trUniqueId& id) { return create_without(rank, id, part); });
      for (int rank = 0; rank < kRanks; ++rank) {
        const RankResult result = processes.wait(rank);
        const std::string what = std::string(transports) + ", part " + std::to_string(part) + ", rank " +
                                 std::to_string(rank) + ", signal " + std::to_string(result.signal) + ": " +
                                 result.output;
        // A creation that it fails before the ranks have met fails at the deadline, as it has not arrived. One may succeed
        // elsewhere before this rank fails at its very end.
        EXPECT_TRUE(result.exit_code == 0 || result.exit_code > 10) << what;
        if (rank == kVictim || result.exit_code == 0 || result.output.find("missing: rank 1 ") != std::string::npos)
          continue;
        const std::string name = "rank 1 (pid " + std::to_string(processes.pid(kVictim));
        const std::string words = " ran out of memory while the communicator was being created";
        const size_t at = result.output.find(name);
        ASSERT_NE(at, std::string::npos) << what;
        EXPECT_EQ(result.output.find(words, at), result.output.find(')', at) + 1) << what;
        ++told;
      }
      unsetenv("TREERING_TRANSPORTS");
    }
  EXPECT_GT(told, 0);
}

}  // namespace
}  // namespace treering::testing
