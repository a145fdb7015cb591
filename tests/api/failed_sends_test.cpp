// SPDX-License-Identifier: Apache-2.0
// After a call has failed its buffers are the program's again: what the library does later, as in a shrink, reads none
// of them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <vector>

#include "support/processes.h"

namespace {

enum class Watch { kOff, kRefuse, kCount };
std::atomic<Watch> watch{Watch::kOff};
std::vector<char> buffer;
std::atomic<int> looks{0};  // of the library, at the buffer

bool is_of_buffer(const msghdr& message) {
  for (size_t i = 0; i < message.msg_iovlen; ++i)
    if (const auto* at = static_cast<const char*>(message.msg_iov[i].iov_base);
        at >= buffer.data() && at < buffer.data() + buffer.size())
      return true;
  return false;
}

}  // namespace

// Stands in for the C library's. While it refuses, the socket has no room for what lies in the buffer.
extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (watch != Watch::kOff && is_of_buffer(*message)) {
    if (looks++ == 0) treering::testing::reached();
    if (watch == Watch::kRefuse) return errno = EAGAIN, -1;
  }
  return syscall(SYS_sendmsg, socket, message, flags);
}

namespace treering::testing {
namespace {

constexpr int kRanks = 3;
const int kLost = 2;

int send_in_vain_then_shrink(trComm_t comm) {
  buffer.resize(8 << 20);
  watch = Watch::kRefuse;
  if (trSend(buffer.data(), buffer.size(), trUint8, 1, comm, nullptr) != trRemoteError) return 101;
  if (looks == 0) return 102;
  looks = 1;
  watch = Watch::kCount;
  trComm_t rest = nullptr;
  TR_CHECK(trCommShrink(comm, &kLost, 1, &rest, nullptr, 0));
  TR_CHECK(trBarrier(rest, nullptr));
  TR_CHECK(trCommDestroy(rest));
  return looks - 1;
}

TEST(FailedSends, LeaveTheBufferAlone) {
  setenv("TREERING_TRANSPORTS", "tcp", 1);
  RankProcesses processes(kRanks, [](int rank, const trUniqueId& id) {
    trComm_t comm = nullptr, rest = nullptr;
    TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
    TR_CHECK(trBarrier(comm, nullptr));
    if (rank == 0) return send_in_vain_then_shrink(comm);
    char byte = 0;
    reached();
    if (trRecv(&byte, 1, trUint8, rank == 1 ? kLost : 1, comm, nullptr) != trRemoteError) return 103;
    TR_CHECK(trCommShrink(comm, &kLost, 1, &rest, nullptr, 0));
    TR_CHECK(trBarrier(rest, nullptr));
    TR_CHECK(trCommDestroy(rest));
    return 0;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  kill(processes.pid(kLost), SIGKILL);
  for (int rank = 0; rank < kLost; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
  }
}

}  // namespace
}  // namespace treering::testing
