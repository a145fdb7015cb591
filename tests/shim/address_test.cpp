// SPDX-License-Identifier: Apache-2.0
// NCCL_COMM_ID: every rank makes the id by itself. A program of its own, because it forks before it has threads.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "shim/helpers.h"

namespace treering::testing {
namespace {

// A port of this machine that no program listens on.
std::string free_address() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

TEST(Init, IdOfAnAddress) {
  const std::string address = free_address();
  expect_all_succeed(3, [&](int rank, const trUniqueId&) {
    setenv("NCCL_COMM_ID", address.c_str(), 1);
    for (int round = 0; round < 2; ++round) {
      ncclUniqueId id;
      ncclComm_t comm;
      NCCL_CHECK(ncclGetUniqueId(&id));
      NCCL_CHECK(ncclCommInitRank(&comm, 3, id, rank));
      int sum = 0;
      NCCL_CHECK(count_by_sum(comm, &sum));
      RANK_EXPECT(sum == 3);
      NCCL_CHECK(ncclCommDestroy(comm));
    }
    setenv("NCCL_COMM_ID", "nowhere", 1);
    ncclUniqueId id;
    RANK_EXPECT(ncclGetUniqueId(&id) == ncclInvalidArgument);
    return 0;
  });
}

// A rank that never comes: rank 0 names it, and a rank that rank 0 never answers names rank 0.
TEST(Init, AnAddressWhereRanksAreMissingIsATimeout) {
  const std::string address = free_address();
  for (const int rank : {0, 1}) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("NCCL_COMM_ID", address.c_str(), 1);
      setenv("TREERING_TIMEOUT", "1", 1);
      ncclUniqueId id;
      ncclComm_t comm = nullptr;
      if (ncclGetUniqueId(&id) != ncclSuccess) _exit(1);
      const auto begun = std::chrono::steady_clock::now();
      if (ncclCommInitRank(&comm, 3, id, rank) == ncclSuccess) _exit(2);
      if (std::chrono::steady_clock::now() - begun < std::chrono::seconds(1)) _exit(3);
      const std::string error = ncclGetLastError(nullptr);
      const std::string missing = rank == 0 ? "missing: rank 1, rank 2 of 3 ranks" : "missing: rank 0";
      if (error.find(address) == std::string::npos || error.find(missing) == std::string::npos) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.c_str());
        _exit(4);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace treering::testing
