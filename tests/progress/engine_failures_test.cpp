// SPDX-License-Identifier: Apache-2.0
// One communicator's failure holds up no other one that the engine moves: it is proposed, then decided, and polled.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>

#include <atomic>
#include <memory>
#include <string>

#include "api/handles.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/seccomp.h"
#include "support/waiting.h"
#include "transport/table.h"
#include "transport/unix/unix_transport.h"

namespace treering::testing {
namespace {

constexpr int kNoFilter = 77;
constexpr int kSteps = 100;
// A busy machine takes seconds for as many, and meanwhile another process becomes the top, which decides. A wait in the
// thread that moves streams would leave none.
constexpr int kMinSteps = 3;

Communicator* communicator_of(trComm_t handle) {
  CommunicatorLease lease;
  EXPECT_TRUE(lease.acquire(handle).ok());
  return lease.get();
}

// A communicator of two ranks of this process. A step is an operation that the engine runs.
class Other {
 public:
  Other() {
    EXPECT_EQ(trCommInitAll(comms_, 2), trSuccess) << trGetLastError(nullptr);
    for (trStream_t& stream : streams_) EXPECT_EQ(trStreamCreate(&stream), trSuccess);
  }
  ~Other() {
    for (trStream_t stream : streams_) EXPECT_EQ(trStreamDestroy(stream), trSuccess);
    for (trComm_t comm : comms_) EXPECT_EQ(trCommDestroy(comm), trSuccess);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  void step() {
    float values[2] = {1, 2};
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_EQ(trAllReduce(&values[rank], &values[rank], 1, trFloat32, trSum, comms_[rank], streams_[rank]),
                trSuccess);
    for (trStream_t stream : streams_) ASSERT_EQ(trStreamSynchronize(stream), trSuccess);
    ASSERT_EQ(values[0] + values[1], 6);
  }

 private:
  trComm_t comms_[2] = {};
  trStream_t streams_[2] = {};
};

// No thread can be started: the call is refused, and the ranks that have begun theirs hear of it.
TEST(AStreamWithoutAThread, EndsTheCallOfTheOthers) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) -> int {
    trConfig_t config = config_with_timeout(60'000);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    TR_CHECK(trBarrier(comm, nullptr));
    float value = 1;
    trResult_t result = trSuccess;
    if (rank == 1) {
      trStream_t stream = nullptr;
      TR_CHECK(trStreamCreate(&stream));
      if (!deny_system_calls({SYS_clone, SYS_clone3})) return kNoFilter;
      result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream);
      say(trGetLastError(comm));
      TR_CHECK(trStreamDestroy(stream));
    } else {
      result = trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr);
      say(trGetLastError(comm));
    }
    TR_CHECK(trCommDestroy(comm));
    return 10 + result;
  });
  const std::string text = "rank 1 (pid " + std::to_string(processes.pid(1));
  const RankResult refused = processes.wait(1);
  if (refused.exit_code == kNoFilter) GTEST_SKIP() << "the kernel allows no filters of system calls";
  for (const RankResult& result : {refused, processes.wait(0)}) {
    EXPECT_EQ(result.exit_code, 10 + trSystemError) << result.output;
    EXPECT_EQ(result.output.find(text), 0u) << result.output;
    EXPECT_NE(result.output.find("the thread of the streams could not be started"), std::string::npos) << result.output;
  }
}

// Rank 1's proposal goes to the top of the tree, which is stopped: nothing decides it until the proposal's limit (13.5 s),
// or until rank 1's process has taken the top's place (3 s after the stop). Steps count while it is open.
TEST(ACommunicatorBesideOne, WhoseFailureIsNotDecidedGoesOn) {
  Gate stopped, done;
  RankProcesses processes(2, [&](int rank, const trUniqueId& id) -> int {
    for (Gate* gate : {&stopped, &done}) gate->inherit();
    trConfig_t config = config_with_timeout(60'000);
    config.transports = "tcp";
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    int numbers[2] = {};
    if (rank == 0) {  // it only sends, so it waits for no other rank
      TR_CHECK(trSend(numbers, 1, trInt32, 1, comm, nullptr));
      reached();
      done.wait();
      TR_CHECK(trCommDestroy(comm));
      return 0;
    }
    Other other;
    other.step();
    reached();
    stopped.wait();
    Communicator* const failing = communicator_of(comm);
    trStream_t stream = nullptr;
    TR_CHECK(trStreamCreate(&stream));
    TR_CHECK(trRecv(numbers, 2, trInt32, 0, comm, stream));  // not what rank 0 has sent, which is seen at once
    EXPECT_TRUE(soon([&] { return failing->is_failing(); }));
    int steps = 0;
    for (; steps < kSteps && !::testing::Test::HasFailure(); ++steps) {
      other.step();
      if (!failing->verdict().ok()) break;
    }
    EXPECT_GE(steps, kMinSteps) << "then it was decided: " << failing->verdict().message();
    reached();
    EXPECT_EQ(trStreamDestroy(stream), trInvalidUsage) << trGetLastError(nullptr);
    EXPECT_NE(failing->verdict().message().find("as many bytes as the k-th send"), std::string::npos)
        << failing->verdict().message();
    TR_CHECK(trCommDestroy(comm));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  for (int rank : {0, 1}) ASSERT_TRUE(processes.wait_until_reached(rank)) << rank;
  processes.stop(0);  // its process made the id: it is the top of the tree
  stopped.open();
  EXPECT_TRUE(processes.wait_until_reached(1));
  EXPECT_EQ(kill(processes.pid(0), SIGCONT), 0);
  done.open();
  for (const RankResult& result : processes.wait_all())
    EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
}

std::atomic<bool> links_stay{false};
std::atomic<int> looks{0};

// Its links take their time to end, as those of a card or of another library whose peer is silent.
class SlowToEnd final : public Transport {
 public:
  explicit SlowToEnd(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}
  std::string info() override { return transport_->info(); }
  Status take_info(uint32_t peer, const std::string& info) override { return transport_->take_info(peer, info); }
  Status prove(uint32_t peer) override { return transport_->prove(peer); }
  PeerConnections connect(uint32_t peer, PairAbilities abilities) override {
    return transport_->connect(peer, abilities);
  }
  IntroductionTaker* introduction_taker() override { return transport_->introduction_taker(); }
  bool is_abandoned() override {
    ++looks;
    return !links_stay;
  }

 private:
  const std::unique_ptr<Transport> transport_;
};

TEST(ACommunicatorBesideOne, WhoseLinksTakeTheirTimeToEndGoesOn) {
  TransportRow row = unix_row();
  row.open = [](const TransportSetup& setup) -> std::unique_ptr<Transport> {
    return std::make_unique<SlowToEnd>(open_unix(setup));
  };
  add_transport(row);
  RankProcesses processes(2, [](int rank, const trUniqueId& id) -> int {
    trConfig_t config = config_with_timeout(60'000);
    config.transports = "unix";
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRankConfig(&comm, 2, id, rank, &config));
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == 0) return static_cast<int>(trCommAbort(comm));
    Other other;
    links_stay = true;
    trStream_t stream = nullptr;
    int number = 0;
    TR_CHECK(trStreamCreate(&stream));
    TR_CHECK(trRecv(&number, 1, trInt32, 0, comm, stream));
    EXPECT_TRUE(soon([] { return looks.load() > 0; }));
    for (int before = looks, steps = 0; steps < kSteps || looks == before; ++steps) other.step();
    EXPECT_EQ(trStreamQuery(stream), trInProgress) << "the buffer may still be in use";
    links_stay = false;
    EXPECT_EQ(trStreamDestroy(stream), trRemoteError) << trGetLastError(nullptr);
    TR_CHECK(trCommDestroy(comm));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  for (const RankResult& result : processes.wait_all())
    EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << ", " << result.output << "; errors are above";
}

}  // namespace
}  // namespace treering::testing
