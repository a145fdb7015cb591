// SPDX-License-Identifier: Apache-2.0
// A connection without the secret does not disturb the rendezvous. Nothing of an old connection can be used again.
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstddef>
#include <random>

#include "bootstrap/frames.h"
#include "bootstrap/handshake.h"
#include "bootstrap/jobs.h"
#include "bootstrap/local_socket.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

int connect_tcp(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

int connect_unix(const UniqueId& id) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = local_socket_name(id.root_local);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  return fd;
}

std::string random_bytes(size_t count, std::mt19937* random) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>((*random)());
  return bytes;
}

// The other side has closed: everything there is to read, then the end.
bool is_closed(int fd) {
  timeval timeout{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0) continue;
  return got == 0 || errno == ECONNRESET;
}

class Unauthenticated : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(Membership::make_rendezvous_root(&id_).ok()); }
  void TearDown() override {
    for (int fd : open_) close(fd);
  }
  int dial(bool tcp) {
    const int fd = tcp ? connect_tcp(id_.port) : connect_unix(id_);
    open_.push_back(fd);
    return fd;
  }
  // Two ranks meet, with a light round; how long it took.
  std::chrono::milliseconds meet() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([this, rank] {
        std::unique_ptr<Membership> membership;
        Status status = Membership::join(id_, request_of(rank, 2), &membership);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(!status.ok() || check_round(membership.get(), rank, 2, 10).ok());
      });
    for (std::thread& thread : threads) thread.join();
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  }

  UniqueId id_;
  std::vector<int> open_;
};

TEST_F(Unauthenticated, GarbageIsRefusedAndTheRendezvousGoesOn) {
  const uint64_t seed = test_seed();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (int i = 0; i < 60; ++i) {
    const std::string bytes = random_bytes(random() % 5000, &random);
    const int fd = dial(i % 2 == 0);
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(bytes.size() < 56 || is_closed(fd)) << bytes.size();
  }
  EXPECT_LT(meet(), std::chrono::seconds(2));
}

TEST_F(Unauthenticated, SilentOnesDoNotKeepOthersOut) {
  for (int i = 0; i < 400; ++i) (void)dial(i % 2 == 0);  // more than are kept
  const pid_t child = fork_when_quiet();
  if (child == 0) {  // over a socket, as any other process
    std::unique_ptr<Membership> membership;
    _exit(Membership::join(id_, request_of(1, 2), &membership).ok() ? 0 : 1);
  }
  std::unique_ptr<Membership> membership;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(Membership::join(id_, request_of(0, 2), &membership).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Unauthenticated, HalfOpenAndSlowOnesAreGivenUp) {
  const int half_open = dial(true), slow = dial(false);
  shutdown(half_open, SHUT_WR);
  (void)!send(slow, "treer", 5, MSG_NOSIGNAL);
  EXPECT_TRUE(is_closed(half_open));
  EXPECT_TRUE(is_closed(slow)) << "after some seconds";
  EXPECT_LT(meet(), std::chrono::seconds(2));
}

TEST_F(Unauthenticated, WrongSecretIsSaid) {
  UniqueId wrong = id_;
  wrong.secret[5] ^= 1;
  const pid_t child = fork_when_quiet();
  if (child == 0) {
    std::unique_ptr<Membership> membership;
    const Status status = Membership::join(wrong, request_of(0, 2, 20'000), &membership);
    _exit(status.message().find("does not know the communicator's secret") != std::string::npos ? 7 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  EXPECT_LT(meet(), std::chrono::seconds(2));
}

// Everything that a process once sent, sent again.
TEST_F(Unauthenticated, ARecordedConnectionIsOfNoUse) {
  Handshake handshake(id_.job, id_.secret, id_.root_local);
  auto exchange = [&](int fd, const std::string& opening, std::string* proof) {
    EXPECT_EQ(send(fd, opening.data(), opening.size(), MSG_NOSIGNAL), static_cast<ssize_t>(opening.size()));
    std::string answer(handshake.wanted(), '\0');
    EXPECT_EQ(recv(fd, answer.data(), answer.size(), MSG_WAITALL), static_cast<ssize_t>(answer.size()));
    return handshake.step(answer, proof);
  };
  const std::string opening = handshake.opening();
  std::string proof, other_proof;
  const int first = dial(true);
  EXPECT_EQ(exchange(first, opening, &proof), Handshake::Progress::kDone);
  EXPECT_EQ(send(first, proof.data(), proof.size(), MSG_NOSIGNAL), static_cast<ssize_t>(proof.size()));
  const int second = dial(true);
  EXPECT_EQ(exchange(second, opening, &other_proof), Handshake::Progress::kDone);
  EXPECT_NE(proof, other_proof) << "the other side's nonce is fresh";
  EXPECT_EQ(send(second, proof.data(), proof.size(), MSG_NOSIGNAL), static_cast<ssize_t>(proof.size()));
  EXPECT_TRUE(is_closed(second));
}

TEST(HandshakeTest, BothSidesDeriveTheSameKeysOneForEachDirection) {
  ASSERT_GE(sodium_init(), 0);
  const JobName job{1, 2, 3};
  const Secret secret{4, 5, 6};
  Handshake initiator(job, secret, 7),
      acceptor([&](const JobName&name, uint64_t process) { return name == job && process == 7 ? &secret : nullptr; });
  std::string challenge, proof, nothing;
  ASSERT_EQ(acceptor.step(initiator.opening(), &challenge), Handshake::Progress::kMore);
  ASSERT_EQ(initiator.step(challenge, &proof), Handshake::Progress::kDone);
  ASSERT_EQ(acceptor.step(proof, &nothing), Handshake::Progress::kDone);
  EXPECT_EQ(initiator.sending_key(), acceptor.receiving_key());
  EXPECT_EQ(initiator.receiving_key(), acceptor.sending_key());
  EXPECT_NE(initiator.sending_key(), initiator.receiving_key());
}

TEST(HandshakeTest, AnotherProcessRefuses) {
  ASSERT_GE(sodium_init(), 0);
  const Secret secret{4};
  Handshake initiator(JobName{1}, secret, 7),
      acceptor([&](const JobName&, uint64_t process) { return process == 8 ? &secret : nullptr; });
  std::string answer, nothing;
  EXPECT_EQ(acceptor.step(initiator.opening(), &answer), Handshake::Progress::kRefused);
  EXPECT_EQ(initiator.step(answer, &nothing), Handshake::Progress::kRefused);
  EXPECT_NE(initiator.reason().find("another process"), std::string::npos) << initiator.reason();
  EXPECT_TRUE(nothing.empty());
}

TEST(HandshakeTest, AProofCannotBeSentBack) {
  ASSERT_GE(sodium_init(), 0);
  const JobName job{1};
  const Secret secret{4};
  Handshake initiator(job, secret, 7), acceptor([&](const JobName&, uint64_t) { return &secret; });
  std::string challenge, nothing;
  ASSERT_EQ(acceptor.step(initiator.opening(), &challenge), Handshake::Progress::kMore);
  EXPECT_EQ(acceptor.step(challenge.substr(kNonceBytes), &nothing), Handshake::Progress::kRefused);
}

}  // namespace
}  // namespace treering::testing
