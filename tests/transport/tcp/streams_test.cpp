// SPDX-License-Identifier: Apache-2.0
// Which streams a link opens, shares and keeps, and what is left of them when a rank leaves.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <tuple>

#include "support/descriptor_limit.h"
#include "support/seed.h"
#include "transport/tcp/breaks.h"
#include "transport/tcp/testing.h"

namespace treering {
namespace {

// The kernel delivers what a rank that has left had handed over, though the peer's credits meet closed sockets.
TEST(TcpStreams, WhatWasPostedArrivesAfterTheSenderHasLeft) {
  // 20'000: the kernel takes as many as are under way without a reader; 1000: on the shared stream.
  for (auto [streams, bytes] : {std::pair{1u, 20'000u}, {4u, 20'000u}, {1u, 1000u}}) {
    SCOPED_TRACE(std::to_string(streams) + " streams, " + std::to_string(bytes) + " bytes");
    TcpPair pair(streams);
    auto to = linked(pair.link(1, options_to(0)), 0);
    auto data = pattern(5, bytes);
    std::thread sender([&pair, &data] {
      TcpPair* half = &pair;
      auto connection = linked(half->link(0, options_to(1)), 0);
      for (uint32_t i = 0; i < 3 * kFifoDepth; ++i) {
        if (!eventually([&] { return connection->can_post(); })) return;
        connection->post(user_message(i, data));
      }
      (void)eventually([&] { return connection.flushed(); });
      connection.reset();
      half->drop_link(0);
    });
    for (uint32_t i = 0; i < 3 * kFifoDepth; ++i) {
      ASSERT_TRUE(eventually([&] { return to->front() != nullptr; })) << i << ": " << to->health().message();
      EXPECT_EQ(to->front()->signature, i);
      EXPECT_EQ(payload_of(to.get(), *to->front()), data);
      to->pop();
      if (i == 2 * kFifoDepth) sender.join();  // everything from here on comes from a rank that has gone
    }
    EXPECT_TRUE(to.flushed());
    EXPECT_TRUE(eventually([&] { return to->front() == nullptr && !to->health().ok(); })) << "now it is waited for";
    EXPECT_EQ(to->health().code(), trRemoteError);
  }
}

// A rank that only receives needs a stream for its credits alone: without one it still gets what was sent by a rank
// that has left; one that is there would wait for ever.
TEST(TcpStreams, AReceiverWhoseCreditsCannotGoStillReceives) {
  NoStreams source;
  auto link = TcpLink::make(options_to(7), &source);
  auto connection = linked(link, 0);
  const auto [sender, receiver] = tcp_sockets();
  link->deliver_incoming(1, receiver);
  for (uint32_t i = 0; i < 2 * kTellEvery; ++i) {
    ASSERT_TRUE(write_message(sender, i, "abcd"));
    ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; })) << connection->health().message();
    connection->pop();
    if (i + 1 == kTellEvery) {
      EXPECT_FALSE(connection.flushed()) << "a credit waits for its stream";
      link->deliver_outgoing(0, {trRemoteError, "refused"}, -1);
      EXPECT_FALSE(connection.flushed()) << "the peer waits for it";
      link->deliver_departure();
    }
    EXPECT_TRUE(connection.flushed()) << "it is known not to come";
    EXPECT_TRUE(connection->health().ok());
  }
  close(sender);
}

TEST(TcpStreams, CreditsThatCannotGoToALivePeerAreAnError) {
  NoStreams source;
  auto link = TcpLink::make(options_to(7), &source);
  auto connection = linked(link, 0);
  const auto [sender, receiver] = tcp_sockets();
  link->deliver_incoming(1, receiver);
  for (uint32_t i = 0; i < kTellEvery; ++i) {
    ASSERT_TRUE(write_message(sender, i, ""));
    ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; })) << connection->health().message();
    connection->pop();
  }
  link->deliver_outgoing(0, {trSystemError, "Too many open files"}, -1);
  EXPECT_TRUE(eventually([&] { return !connection.flushed() && !connection->health().ok(); }));
  EXPECT_NE(connection->health().message().find("Too many open files"), std::string::npos);
  close(sender);
}

// The rank whose limit it is, and what to do.
TEST(TcpStreams, ARankWithoutADescriptorForAStreamNamesItself) {
  NoStreams source;
  TcpOptions options = options_to(7);
  options.own_name = "rank 3 (pid 5)";
  auto link = TcpLink::make(options, &source);
  auto connection = linked(link, 0);
  const auto [sender, receiver] = tcp_sockets();
  ASSERT_TRUE(testing::leave_descriptors(0));
  link->deliver_incoming(0, receiver);
  EXPECT_TRUE(eventually([&] { return connection->front() == nullptr && !connection->health().ok(); }));
  testing::allow_descriptors();
  EXPECT_EQ(connection->health().code(), trSystemError);
  EXPECT_EQ(connection->health().message().rfind(
                "TCP with rank 7: rank 3 (pid 5): no file descriptor is left for a connection (its limit is ", 0),
            0u)
      << connection->health().message();
  close(sender);
}

// The stream breaks at the receiver's end once the sender's kernel has taken all: nothing but may_finish() finds that.
// The receiver does nothing meanwhile, as kernels take what is sent again.
TEST(TcpStreams, WhatWasSentLastIsSentAgainBeforeTheSenderLeaves) {
  constexpr uint32_t kTakenByKernels = 100'000;  // of more the receiver must read a part
  for (const uint32_t bytes : {100u, 20'000u, 500'000u}) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    BreakablePair pair(1);
    const auto data = pattern(1, bytes);
    Linked &from = pair.at(0), &to = pair.at(1);
    from->post(user_message(0, data));
    ASSERT_TRUE(eventually([&] {
      const bool flushed = from.flushed();
      return to->front() != nullptr && flushed;
    }));
    to->pop();
    ASSERT_TRUE(eventually([&] { return to.flushed() && from->released() == 1; }));
    from->post(user_message(1, data));
    ASSERT_TRUE(eventually([&] {
      if (bytes > kTakenByKernels) (void)to->front();
      return from->released() == 2;
    })) << from->health().message();
    ASSERT_TRUE(pair.break_stream(0, bytes <= kSharedStreamBytes ? 0 : 1, 1, Break::kReset));
    std::atomic<bool> done = false;
    std::thread reader([&] {
      while (bytes > kTakenByKernels && !done) EXPECT_EQ(pair.at(1, 2)->front(), nullptr);  // reads for all channels
    });
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(eventually([&] { return pair.link(0)->may_finish(); }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, TcpTimeouts(std::chrono::milliseconds(0)).leave) << "in vain";
    done = true;
    reader.join();
    EXPECT_TRUE(from->health().ok()) << from->health().message();
    pair.leave(0);
    ASSERT_TRUE(eventually([&] { return to->front() != nullptr; })) << to->health().message();
    EXPECT_EQ(payload_of(to.get(), *to->front()), data);
  }
}

TEST(TcpStreams, ARankThatLeavesDoesNotWaitForAProcessThatHasEnded) {
  BreakablePair pair(1);
  const auto data = pattern(1, 100);
  pair.at(0)->post(user_message(0, data));
  ASSERT_TRUE(eventually([&] { return pair.at(0).flushed(); }));
  pair.refusal = {trRemoteError, "connection refused"};
  ASSERT_TRUE(pair.break_stream(0, 0, 1, Break::kReset));
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(pair.link(0)->may_finish());
  pair.link(0)->deliver_end();
  EXPECT_TRUE(pair.link(0)->may_finish());
}

// What a rank that leaves has sent and the peer's kernel has not acknowledged is not lost by the peer's credits: its
// socket stays, and is read.
TEST(TcpStreams, WhatIsUnderWayWhenALinkEndsIsDrained) {
  NoStreams source;
  TcpOptions options = options_to(7);
  int drained = -1;
  options.drain = [&](int fd) { drained = fd; };
  auto link = TcpLink::make(std::move(options), &source);
  const auto [own, peer] = tcp_sockets(4096);
  link->deliver_incoming(0, own);
  {
    auto connection = linked(link, 0);
    const auto data = pattern(1, 4000);
    while (connection->can_post()) connection->post(user_message(0, data));
    ASSERT_TRUE(write_message(peer, 0, "a message that is never read"));
  }
  link.reset();
  ASSERT_GE(drained, 0);
  int under_way = 0, arrived = 0;
  // What has arrived counts as under way, too, until the kernel has acknowledged it.
  for (int same = 0, before = -1; same < 3; before = under_way + arrived) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_EQ(ioctl(drained, SIOCOUTQ, &under_way), 0);
    ASSERT_EQ(ioctl(peer, FIONREAD, &arrived), 0);
    same = under_way + arrived == before ? same + 1 : 0;
  }
  EXPECT_GT(under_way, 1);
  const timeval timeout{10, 0};
  setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  std::vector<std::byte> bytes(1 << 16);
  size_t got = 0;
  ssize_t part = 0;
  while ((part = recv(peer, bytes.data(), bytes.size(), 0)) > 0) got += static_cast<size_t>(part);
  EXPECT_EQ(part, 0) << std::strerror(errno);
  EXPECT_EQ(got, static_cast<size_t>(under_way - 1 + arrived)) << "one is the end";
  close(drained);
  close(peer);
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// A data loader's worker would hold the stream open for the peer. The test's own descriptor is not the library's to
// close.
TEST(TcpStreams, AForkedChildHoldsNoCopyOfTheSharedStream) {
  TcpPair pair(1);
  struct stat shared {};
  ASSERT_EQ(fstat(pair.sending_socket(0, 0), &shared), 0);
  auto copies = [&shared] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd)
      if (struct stat file{}; fstat(fd, &file) == 0 && file.st_ino == shared.st_ino && file.st_dev == shared.st_dev)
        ++count;
    return count;
  };
  auto from = linked(pair.link(0, options_to(1)), 0), to = linked(pair.link(1, options_to(0)), 0);
  const auto data = pattern(5, 100);
  from->post(user_message(0, data));
  ASSERT_TRUE(eventually([&] { return from.flushed() && to->front() != nullptr; }));
  ASSERT_EQ(copies(), 2) << "one to read, one to write";
  const pid_t child = fork();
  if (child == 0) _exit(copies());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(copies(), 2);
}

// The peer sent on the stream that it had opened, and left before it took this rank's: the end of the one that brought
// nothing does not touch what comes on the other.
TEST(TcpStreams, TheEndOfASharedStreamThatBroughtNothingLosesNoPart) {
  NoStreams source;
  TcpOptions options = options_to(7);
  options.keeps_shared = true;
  auto link = TcpLink::make(std::move(options), &source);
  auto connection = linked(link, 0);
  const auto [peer, own] = tcp_sockets();
  const auto [kept, unused] = tcp_sockets();
  link->deliver_incoming(0, own);
  link->deliver_outgoing(0, {}, kept);
  TcpFrame frame;
  frame.kind = static_cast<uint8_t>(PayloadKind::kStaging);
  frame.bytes = frame.length = 3000;
  const std::vector<std::byte> data = pattern(3, frame.bytes);
  std::vector<std::byte> bytes(sizeof frame + data.size());
  std::memcpy(bytes.data(), &frame, sizeof frame);
  std::memcpy(bytes.data() + sizeof frame, data.data(), data.size());
  const size_t half = bytes.size() / 2;
  ASSERT_EQ(write(peer, bytes.data(), half), static_cast<ssize_t>(half));
  ASSERT_TRUE(eventually([&] { return connection->front() != nullptr || link->receive_memory() > 0; }));
  // Once the link knows that the other has ended it sends on this one.
  connection->post(user_message(0, data));
  close(unused);
  char byte;
  ASSERT_TRUE(eventually([&] {
    (void)connection.flushed();
    return connection->front() != nullptr || recv(peer, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
  }));
  ASSERT_EQ(write(peer, bytes.data() + half, bytes.size() - half), static_cast<ssize_t>(bytes.size() - half));
  link->deliver_departure();
  ASSERT_TRUE(eventually([&] { return connection->front() != nullptr || !connection->health().ok(); }));
  ASSERT_NE(connection->front(), nullptr) << connection->health().message();
  EXPECT_EQ(payload_of(connection.get(), *connection->front()), data);
  close(peer);
}

// Whatever the order in which two ranks open the shared stream and hear of the other's, one remains, and nothing is
// lost.
TEST(TcpStreams, OfTwoSharedStreamsOneRemains) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  constexpr uint32_t kMessages = 40;
  int both_opened = 0;
  for (int round = 0; round < 200; ++round) {
    const size_t before = open_descriptors();
    NoStreams sources[2];
    std::shared_ptr<TcpLink> links[2];
    Linked sides[2];
    for (int side = 0; side < 2; ++side) {
      TcpOptions options = options_to(1 - side);
      options.keeps_shared = side == 0;
      links[side] = TcpLink::make(options, &sources[side]);
      sides[side] = linked(links[side], 0);
    }
    // Deliveries under way: {opener, to the opener itself}; the socket of it.
    std::vector<std::tuple<int, bool, int>> deliveries;
    size_t asked[2] = {};
    uint32_t posted[2] = {}, popped[2] = {};
    const bool done = eventually([&] {
      const int side = static_cast<int>(random() % 2);
      switch (random() % 3) {
        case 0:
          if (posted[side] < kMessages && sides[side]->can_post())
            sides[side]->post(inline_message(posted[side], &posted[side], sizeof(uint32_t))), ++posted[side];
          (void)sides[side].flushed();
          break;
        case 1:
          if (const Message* message = sides[side]->front(); message != nullptr) {
            EXPECT_EQ(message->signature, popped[side]++);
            sides[side]->pop();
          }
          break;
        default:
          if (deliveries.empty() || random() % 8 != 0) break;
          auto place = deliveries.begin() + static_cast<long>(random() % deliveries.size());
          const auto [opener, to_itself, fd] = *place;
          deliveries.erase(place);
          if (to_itself)
            links[opener]->deliver_outgoing(0, {}, fd);
          else
            links[1 - opener]->deliver_incoming(0, fd);
      }
      for (; asked[side] < sources[side].asked.size(); ++asked[side]) {
        EXPECT_EQ(sources[side].asked[asked[side]].second, PeerStreamId(0)) << "the shared stream, once";
        const auto [own, peers] = tcp_sockets();
        deliveries.insert(deliveries.end(), {{side, true, own}, {side, false, peers}});
      }
      return !sides[0]->health().ok() || !sides[1]->health().ok() ||
             (popped[0] == kMessages && popped[1] == kMessages && deliveries.empty());
    });
    ASSERT_TRUE(done) << "round " << round << ": " << popped[0] << " and " << popped[1];
    for (const auto& side : sides) ASSERT_TRUE(side->health().ok()) << side->health().message();
    both_opened += asked[0] == 1 && asked[1] == 1;
    // A socket at each end, which each side holds for reading and for writing.
    EXPECT_TRUE(eventually([&] {
      for (const auto& side : sides) (void)side->front(), (void)side.flushed();
      return open_descriptors() == before + 4;
    })) << open_descriptors()
        << " descriptors, " << before << " before";
  }
  EXPECT_GT(both_opened, 10) << "of 200 rounds";
  EXPECT_LT(both_opened, 190) << "of 200 rounds";
}

}  // namespace
}  // namespace treering
