// SPDX-License-Identifier: Apache-2.0
// Sends that the kernel does not copy: whose memory is free when, and what happens where it copies all the same.
#include "support/seed.h"
#include "transport/linked.h"
#include "transport/tcp/zero_copy.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <random>

#include "transport/tcp/testing.h"

namespace treering {
namespace {

using Places = std::vector<uint32_t>;

struct Sends {
  ZeroCopySends sends;
  Places released;
  explicit Sends(uint32_t first, uint32_t count) : sends(first) {
    for (uint32_t i = 0; i < count; ++i) sends.add(i);
  }
  bool complete(uint32_t first, uint32_t last) {
    return sends.complete(first, last, [this](uint32_t place) { released.push_back(place); });
  }
};

TEST(ZeroCopySends, AreReleasedOnceInWhateverOrderTheirRangesCome) {
  Sends of(0, 6);
  EXPECT_TRUE(of.complete(3, 4));
  EXPECT_EQ(of.released, (Places{3, 4}));
  EXPECT_TRUE(of.complete(0, 1));
  EXPECT_TRUE(of.complete(5, 5));
  EXPECT_FALSE(of.sends.empty());
  EXPECT_TRUE(of.complete(2, 2));
  EXPECT_EQ(of.released, (Places{3, 4, 0, 1, 5, 2}));
  EXPECT_TRUE(of.sends.empty());
}

TEST(ZeroCopySends, NumbersGoOnAtZero) {
  Sends of(UINT32_MAX - 1, 5);  // 2^32 - 2, 2^32 - 1, 0, 1, 2
  EXPECT_TRUE(of.complete(UINT32_MAX, 1));
  EXPECT_EQ(of.released, (Places{1, 2, 3}));
  EXPECT_TRUE(of.complete(2, 2));
  EXPECT_TRUE(of.complete(UINT32_MAX - 1, UINT32_MAX - 1));
  EXPECT_TRUE(of.sends.empty());
}

TEST(ZeroCopySends, WhatWasNotSentIsRefused) {
  Sends of(10, 4);
  EXPECT_FALSE(of.complete(9, 10));
  EXPECT_FALSE(of.complete(13, 14));
  EXPECT_FALSE(of.complete(12, 11));
  EXPECT_FALSE(of.complete(0, UINT32_MAX));
  EXPECT_TRUE(of.released.empty());
  EXPECT_TRUE(of.complete(10, 10));
  EXPECT_FALSE(of.complete(10, 10)) << "twice";
  EXPECT_TRUE(of.complete(12, 12));
  EXPECT_FALSE(of.complete(12, 12)) << "twice, with one before it under way";
}

TEST(ZeroCopySends, RandomRangesThroughTheEndOfTheNumbers) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  ZeroCopySends sends(UINT32_MAX - 5000);
  uint32_t next = UINT32_MAX - 5000, added = 0;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // that were sent: first, count
  std::vector<int> released(20'000);
  while (added < released.size() || !ranges.empty()) {
    const uint32_t count = 1 + static_cast<uint32_t>(random() % 5);
    uint32_t got = 0;
    for (; got < count && !sends.full() && added < released.size(); ++got) sends.add(added++);
    if (got > 0) ranges.emplace_back(next, got), next += got;
    if (ranges.empty() || (random() % 2 == 0 && !sends.full())) continue;
    auto range = ranges.begin() + static_cast<long>(random() % ranges.size());
    ASSERT_TRUE(sends.complete(range->first, range->first + range->second - 1, [&](uint32_t i) { ++released[i]; }));
    ranges.erase(range);
  }
  EXPECT_TRUE(sends.empty());
  EXPECT_EQ(std::count(released.begin(), released.end(), 1), static_cast<long>(released.size()));
}

TEST(ZeroCopyUse, EndsWhereTheKernelCopiesOrRefuses) {
  constexpr uint32_t kTrials = ZeroCopyUse::kTrials;
  ZeroCopyUse copies(TcpZeroCopy::kWhereItPays), pays = copies, refused = copies, always(TcpZeroCopy::kAlways);
  copies.completed(kTrials - 1, true), always.completed(kTrials - 1, true);
  EXPECT_TRUE(copies.on());
  copies.completed(1, true), always.completed(1, true);
  EXPECT_FALSE(copies.on());
  EXPECT_TRUE(always.on());
  pays.completed(2 * kTrials, false), pays.completed(2 * kTrials, true);
  EXPECT_TRUE(pays.on());
  ZeroCopyUse unknown(TcpZeroCopy::kWhereItPays);
  for (uint32_t i = 0; i < kTrials; ++i) {
    EXPECT_TRUE(unknown.wants());
    unknown.sent();
  }
  EXPECT_FALSE(unknown.wants()) << "before it is known what became of them";
  unknown.completed(kTrials, false);
  EXPECT_TRUE(unknown.wants());
  for (uint32_t i = 1; i < kTrials; ++i) refused.refused();
  refused.completed(1, false);  // there was just too much under way
  for (uint32_t i = 1; i < kTrials; ++i) refused.refused();
  EXPECT_TRUE(refused.on());
  refused.refused();
  EXPECT_FALSE(refused.on());
  EXPECT_FALSE(ZeroCopyUse(TcpZeroCopy::kNever).on());
}

TcpOptions with(TcpZeroCopy wish, uint32_t peer, uint32_t fragment_bytes = TcpOptions().fragment_bytes) {
  TcpOptions options = options_to(peer);
  options.zero_copy = wish;
  options.fragment_bytes = fragment_bytes;
  return options;
}

// Messages of random sizes on several channels, from buffers that are overwritten as soon as they are free.
struct Traffic {
  static constexpr uint32_t kMessages = 60, kMax = 900'000;  // of each channel; bytes
  std::vector<std::byte> source = pattern(1, 2 << 20);
  const uint64_t seed = test_seed();

  // Message `number` of a channel is a part of the source.
  std::pair<const std::byte*, uint32_t> message(uint32_t channel, uint32_t number) const {
    SplitMix64 random(seed + channel * 1000 + number);
    return {source.data() + random() % (1 << 20), 1 + static_cast<uint32_t>(random() % kMax)};
  }

  std::string send(const std::shared_ptr<TcpLink>& link) const {
    Linked connections[kManyChannels];
    std::vector<std::byte> buffers[kManyChannels][kFifoDepth];
    uint32_t sent[kManyChannels] = {}, overwritten[kManyChannels] = {}, total = 0;
    for (uint32_t c = 0; c < kManyChannels; ++c) connections[c] = linked(link, c);
    std::mt19937_64 random(seed);
    const bool all = eventually(
        [&] {
          for (uint32_t c = 0; c < kManyChannels; ++c)
            for (const uint64_t released = connections[c]->released(); overwritten[c] < released; ++overwritten[c])
              std::ranges::fill(buffers[c][overwritten[c] % kFifoDepth], std::byte{0xEE});
          const auto c = static_cast<uint32_t>(random() % kManyChannels);
          if (sent[c] < kMessages && sent[c] - overwritten[c] < kFifoDepth && connections[c]->can_post()) {
            auto& buffer = buffers[c][sent[c] % kFifoDepth];
            const auto [data, bytes] = message(c, sent[c]);
            buffer.assign(data, data + bytes);
            connections[c]->post(user_message(sent[c], buffer));
            ++sent[c], ++total;
          }
          const bool done = total == kManyChannels * kMessages && connections[0].flushed();
          return done || !connections[0]->health().ok();
        },
        &total);
    // The buffers are freed with this call.
    return all ? connections[0]->health().message() : "the sender is stuck after " + std::to_string(total);
  }

  std::string receive(const std::shared_ptr<TcpLink>& link) const {
    Linked connections[kManyChannels];
    for (uint32_t c = 0; c < kManyChannels; ++c) connections[c] = linked(link, c);
    std::mt19937_64 random(seed + 1);
    uint32_t received[kManyChannels] = {}, total = 0;
    std::string wrong;
    const bool all = eventually(
        [&] {
          // Now and then there is no room for what comes, and it stays with the sender.
          if (random() % 200 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
          const auto c = static_cast<uint32_t>(random() % kManyChannels);
          const Message* got = connections[c]->front();
          if (got == nullptr) {
            wrong = connections[c]->health().message();
            return !wrong.empty();
          }
          const auto [data, bytes] = message(c, received[c]);
          if (got->bytes != bytes || std::memcmp(got->data, data, bytes) != 0)
            wrong = "message " + std::to_string(received[c]) + " of channel " + std::to_string(c);
          connections[c]->pop();
          ++received[c], ++total;
          return !wrong.empty() || total == kManyChannels * kMessages;
        },
        &total);
    return all ? wrong : "the receiver is stuck after " + std::to_string(total);
  }

  void run(TcpPair* pair, TcpZeroCopy wish, uint32_t fragment_bytes) const {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto from = pair->link(0, with(wish, 1, fragment_bytes)), to = pair->link(1, with(wish, 0));
    std::string receiver_says;
    std::thread receiver([&] { receiver_says = receive(to); });
    EXPECT_EQ(send(from), "");
    receiver.join();
    EXPECT_EQ(receiver_says, "");
  }
};

TEST(TcpZeroCopyLink, BuffersThatAreOverwrittenAsSoonAsTheyAreFreeArriveWhole) {
  for (auto [streams, fragment, buffer] : {std::tuple{1u, 128u, 0}, {3u, 128u, 0}, {4u, 40u, 16 << 10}, {8u, 64u, 0}}) {
    SCOPED_TRACE(std::to_string(streams) + " streams");
    TcpPair pair(streams, buffer);
    Traffic().run(&pair, TcpZeroCopy::kAlways, fragment << 10);
    EXPECT_GT(pair.link(0, {})->zero_copy_sends(), kManyChannels * Traffic::kMessages);
  }
}

TEST(TcpZeroCopyLink, StopsAskingOnLoopbackWhichCopies) {
  TcpPair pair(2);
  Traffic().run(&pair, TcpZeroCopy::kWhereItPays, 128 << 10);
  const uint64_t sends = pair.link(0, {})->zero_copy_sends();
  EXPECT_GE(sends, ZeroCopyUse::kTrials);
  EXPECT_LT(sends, 2 * ZeroCopyUse::kTrials);
  TcpPair never(2);
  Traffic().run(&never, TcpZeroCopy::kNever, 128 << 10);
  EXPECT_EQ(never.link(0, {})->zero_copy_sends(), 0u);
}

// The kernel may lock no memory for this thread: ENOBUFS.
TEST(TcpZeroCopyLink, MemoryThatMayNotBeLockedIsCopied) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  TcpPair pair(2);
  std::thread without_capabilities([&pair] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct nothing[2] = {};
    ASSERT_EQ(syscall(SYS_capset, &header, nothing), 0);  // of this thread
    Traffic().run(&pair, TcpZeroCopy::kWhereItPays, 128 << 10);
  });
  without_capabilities.join();
  EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(pair.link(0, {})->zero_copy_sends(), 0u);
}

TEST(TcpZeroCopyLink, WhatWasFlushedArrivesAfterTheSenderHasLeft) {
  TcpPair pair(1);
  auto to = linked(pair.link(1, with(TcpZeroCopy::kAlways, 0)), 0);
  const auto data = pattern(2, kZeroCopyBytes);
  {
    auto from = linked(pair.link(0, with(TcpZeroCopy::kAlways, 1)), 0);
    auto sent = data;
    from->post(user_message(7, sent));
    EXPECT_TRUE(eventually([&] { return from.flushed(); }));
    EXPECT_TRUE(eventually([&] { return from->has_released(1); }));
    EXPECT_EQ(pair.link(0, {})->zero_copy_sends(), 1u);
    std::ranges::fill(sent, std::byte{});
    from.reset();
    pair.drop_link(0);
  }
  ASSERT_TRUE(eventually([&] { return to->front() != nullptr; })) << to->health().message();
  EXPECT_EQ(payload_of(to.get(), *to->front()), data);
}

// Its peer does not read: what the kernel was given arrives, and then the link ends in an error.
TEST(TcpZeroCopyLink, WhoLeavesWithSendsUnderWayIsNotHeldUp) {
  TcpPair pair(2);
  auto to = linked(pair.link(1, with(TcpZeroCopy::kAlways, 0)), 0);
  const auto data = pattern(2, 4 << 20);
  auto begin = std::chrono::steady_clock::now();
  {
    auto from = linked(pair.link(0, with(TcpZeroCopy::kAlways, 1)), 0);
    auto sent = data;
    for (uint32_t i = 0; i < kFifoDepth; ++i) from->post(user_message(i, sent));
    EXPECT_FALSE(from.flushed());
    begin = std::chrono::steady_clock::now();
    from.reset();
    pair.drop_link(0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(eventually([&] {
    if (const Message* message = to->front(); message != nullptr) {
      EXPECT_TRUE(same_bytes(payload_of(to.get(), *message), data));
      to->pop();
    }
    return !to->health().ok();
  }));
}

// Two ranks that send more than the kernels have room for, and take messages only once their own are through.
TEST(TcpZeroCopyLink, RanksThatWaitForEachOthersKernelsRead) {
  TcpPair pair(1, 16 << 10);
  const auto data = pattern(2, 1 << 20);
  constexpr int kMessages = 3;
  Linked sides[2];
  for (int side = 0; side < 2; ++side) {
    sides[side] = linked(pair.link(side, with(TcpZeroCopy::kAlways, 1 - side)), 0);
    for (uint32_t i = 0; i < kMessages; ++i) sides[side]->post(user_message(i, data));
  }
  int taken[2] = {};
  bool flushed[2] = {};
  EXPECT_TRUE(eventually([&] {
    for (int side = 0; side < 2; ++side) {
      flushed[side] = flushed[side] || sides[side].flushed();
      const Message* message = flushed[side] ? sides[side]->front() : nullptr;
      if (message == nullptr) continue;
      EXPECT_TRUE(same_bytes(payload_of(sides[side].get(), *message), data));
      sides[side]->pop();
      ++taken[side];
    }
    return taken[0] == kMessages && taken[1] == kMessages;
  })) << "flushed "
      << flushed[0] << ' ' << flushed[1] << ", taken " << taken[0] << ' ' << taken[1];
}

// A notice makes the socket's error queue readable, which epoll calls an error: news once, and no failure.
TEST(TcpZeroCopyLink, NoticesEndAWaitOnce) {
  const auto [sender, receiver] = tcp_sockets();
  WaitSet room;
  room.add(sender, WaitSet::For::kRoom);
  while (room.wait(10'000)) {
  }
  ASSERT_TRUE(ZeroCopyUse(TcpZeroCopy::kAlways).enable(sender));
  const auto data = pattern(2, kZeroCopyBytes);
  ASSERT_GT(::send(sender, data.data(), data.size(), MSG_ZEROCOPY | MSG_DONTWAIT), 0);
  EXPECT_TRUE(room.wait(900'000));
  int woken = 0;
  for (int i = 0; i < 20; ++i) woken += room.wait(5000);
  EXPECT_LE(woken, 2) << "with the notice still there";
  ZeroCopyNotice notice;
  ASSERT_TRUE(take_zero_copy_notice(sender, &notice));
  EXPECT_EQ(notice.first, 0u);
  EXPECT_EQ(notice.last, 0u);
  EXPECT_FALSE(take_zero_copy_notice(sender, &notice));
  EXPECT_EQ(::send(sender, "x", 1, 0), 1) << "nothing is wrong with the connection";
  room.forget(sender);
  close(sender);
  close(receiver);
}

}  // namespace
}  // namespace treering
