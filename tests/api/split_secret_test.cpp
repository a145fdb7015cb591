// SPDX-License-Identifier: Apache-2.0
// Who listens on the network does not learn the ids of the communicators that a split makes.
#include <arpa/inet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "support/processes.h"

namespace treering::testing {
namespace {

// A network of this process's own, so that no other process's packets are read: loopback alone.
bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return up;
}

// All packets, until it is told to stop.
class Listener {
 public:
  Listener() : fd_(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL))) {
    const timeval timeout{0, 100'000};
    const int room = 64 << 20;
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    if (fd_ >= 0) thread_ = std::thread([this] { read_all(); });
  }
  ~Listener() { (void)stop(); }
  bool good() const { return fd_ >= 0; }
  const std::string& stop() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    return heard_;
  }

 private:
  void read_all() {
    std::string packet(1 << 17, '\0');
    for (;;) {
      const ssize_t got = recv(fd_, packet.data(), packet.size(), 0);
      if (got > 0) heard_.append(packet, 0, static_cast<size_t>(got));
      if (got <= 0 && stops_) return;
    }
  }

  int fd_;
  std::atomic<bool> stops_{false};
  std::string heard_;
  std::thread thread_;
};

TEST(SplitSecret, IsNotSentInTheClear) {
  if (!enter_own_network()) GTEST_SKIP() << "no network namespace: " << std::strerror(errno);
  Listener listener;
  ASSERT_TRUE(listener.good()) << std::strerror(errno);
  RankProcesses processes(3, [](int rank, const trUniqueId& id) {
    setenv("TREERING_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
    trComm_t comm = nullptr, child = nullptr;
    TR_CHECK(trCommInitRank(&comm, 3, id, rank));
    char word[] = "a word in the clear";  // proves that the listener hears data
    TR_CHECK(trBroadcast(word, word, sizeof word, trInt8, 0, comm, nullptr));
    TR_CHECK(trCommSplit(comm, 0, -rank, &child, nullptr));
    int one = 1, sum = 0;
    TR_CHECK(trAllReduce(&one, &sum, 1, trInt32, trSum, child, nullptr));
    TR_CHECK(trCommDestroy(child));
    TR_CHECK(trCommDestroy(comm));
    return sum == 3 ? 0 : 50;
  });
  for (int rank = 0; rank < 3; ++rank) {
    const RankResult result = processes.wait(rank);
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ", signal " << result.signal << ": " << result.output;
  }
  const std::string& heard = listener.stop();
  EXPECT_NE(heard.find("a word in the clear"), std::string::npos);
  trUniqueId example;
  ASSERT_EQ(trGetUniqueId(&example), trSuccess);
  const std::string mark(example.internal, 8);
  EXPECT_EQ(heard.find(mark), std::string::npos) << "an id, which begins with '" << mark << "'";
}

}  // namespace
}  // namespace treering::testing
