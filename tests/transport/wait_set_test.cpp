// SPDX-License-Identifier: Apache-2.0
// Sleeping on descriptors: what ends a wait, and what does not.
#include "transport/wait_set.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "executor/backoff.h"

namespace treering {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kLong = 900'000;  // us

int milliseconds_of_wait(WaitSet* set, uint32_t microseconds, bool* woken) {
  const auto begin = Clock::now();
  *woken = set->wait(microseconds);
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count());
}

class WaitSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair_), 0);
    set_.add(pair_[0], WaitSet::For::kInput);
  }
  void TearDown() override {
    close(pair_[0]);
    close(pair_[1]);
  }
  // Until the other end takes no more.
  void fill(int fd) {
    const std::vector<char> bytes(1 << 16);
    while (send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }

  int pair_[2];
  WaitSet set_;
  bool woken_ = false;
};

TEST_F(WaitSetTest, EndsWhenTheTimeIsOver) {
  EXPECT_GE(milliseconds_of_wait(&set_, 30'000, &woken_), 29);
  EXPECT_FALSE(woken_);
}

TEST_F(WaitSetTest, EndsWhenSomethingArrives) {
  std::thread sender([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(write(pair_[1], "x", 1), 1);
  });
  const bool woken = set_.wait(kLong);
  char byte = 0;
  EXPECT_EQ(read(pair_[0], &byte, 1), 1) << "not before";
  sender.join();
  EXPECT_TRUE(woken);
}

// Between a poll that found nothing and the wait.
TEST_F(WaitSetTest, EndsAtOnceForWhatArrivedBefore) {
  EXPECT_FALSE(set_.wait(1));
  EXPECT_EQ(write(pair_[1], "x", 1), 1);
  EXPECT_TRUE(set_.wait(kLong));
  // Once: what the rank does not read, as it does not expect it, keeps it awake no longer.
  EXPECT_GE(milliseconds_of_wait(&set_, 20'000, &woken_), 19);
  EXPECT_FALSE(woken_);
}

TEST_F(WaitSetTest, EndsWhenThereIsRoomAgain) {
  fill(pair_[1]);
  WaitSet room;
  room.add(pair_[1], WaitSet::For::kRoom);
  EXPECT_FALSE(room.wait(1000));
  std::vector<char> bytes(1 << 20);
  while (read(pair_[0], bytes.data(), bytes.size()) > 0) {
  }
  EXPECT_TRUE(room.wait(kLong));
}

// Becomes readable only after it was armed, as the descriptor of a verbs device.
class ArmedSource final : public WaitSource {
 public:
  explicit ArmedSource(bool is_cheap = false) : fd(eventfd(0, EFD_NONBLOCK)), is_cheap_(is_cheap) {}
  ~ArmedSource() { close(fd); }
  void arm() override {
    ++armed;
    uint64_t count = 0;
    (void)!read(fd, &count, sizeof count);
  }
  bool is_cheap_to_poll() const override { return is_cheap_; }
  void signal() const {
    const uint64_t one = 1;
    EXPECT_EQ(write(fd, &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }

  const int fd;
  int armed = 0;

 private:
  const bool is_cheap_;
};

TEST_F(WaitSetTest, ASourceIsArmedAndEndsAWait) {
  ArmedSource source;
  EXPECT_FALSE(set_.arm()) << "there is none yet";
  set_.add(source.fd, &source);
  for (int time = 1; time <= 3; ++time) {
    EXPECT_TRUE(set_.arm());
    EXPECT_EQ(source.armed, time);
    EXPECT_FALSE(set_.wait(1));
    source.signal();
    EXPECT_TRUE(set_.wait(kLong));
  }
  set_.forget(source.fd);
  EXPECT_FALSE(set_.arm());
  EXPECT_EQ(source.armed, 3);
}

// A rank that waits for nothing else arms before each sleep, and polls between both.
TEST_F(WaitSetTest, ABackoffArmsItsSourcesBeforeItSleeps) {
  ArmedSource source;
  set_.add(source.fd, &source);
  WaitPolicy policy;
  policy.yields = 10;
  Backoff backoff(policy);
  backoff.sleep_on(&set_, true);
  int polls = 0;
  for (; source.armed == 0; ++polls) EXPECT_FALSE(backoff.pause()) << polls;
  EXPECT_TRUE(backoff.pause()) << "sleeps until the time is over";
  EXPECT_EQ(source.armed, 1);
  EXPECT_FALSE(backoff.pause()) << "arms again, to be polled";
  EXPECT_EQ(source.armed, 2);
  backoff.reset();
  for (polls = 0; source.armed == 2 && polls < 1000; ++polls) (void)backoff.pause();
  EXPECT_EQ(source.armed, 3) << "what was armed before counts no more";
  set_.forget(source.fd);
}

// Ranks with a core each poll a device for as long as memory. Others would wait for one another's polls.
TEST(WaitPolicyTest, RanksThatShareACoreSoonSleepOnADevice) {
  const auto polls_until_sleep = [](uint32_t ranks, uint32_t cores) {
    ArmedSource source(true);
    WaitSet devices;
    devices.add(source.fd, &source);
    WaitPolicy policy = wait_policy_of(ranks, cores);
    policy.notices_crowds = false;  // whether this machine is busy does not matter here
    Backoff backoff(policy);
    backoff.sleep_on(&devices, true);
    int polls = 0;
    // What a thread has noticed before counts for it alone.
    std::thread([&] {
      for (; source.armed == 0 && polls < 100'000; ++polls) (void)backoff.pause();
    }).join();
    devices.forget(source.fd);
    return polls;
  };
  EXPECT_GT(polls_until_sleep(2, 2), 10'000);
  EXPECT_LT(polls_until_sleep(3, 2), 1'000);
  EXPECT_LT(polls_until_sleep(64, 2), 100);
}

TEST_F(WaitSetTest, ForgetsAStreamWhoseSocketLivesOnElsewhere) {
  EXPECT_FALSE(set_.wait(1));
  const int copy = dup(pair_[0]);  // as a child's
  EXPECT_FALSE(set_.empty());
  set_.forget(pair_[0]);
  EXPECT_TRUE(set_.empty());
  EXPECT_EQ(write(pair_[1], "x", 1), 1);
  EXPECT_FALSE(set_.wait(20'000));
  close(copy);
}

TEST_F(WaitSetTest, EndsWhenAnotherThreadAddsAStream) {
  int more[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, more), 0);
  ASSERT_EQ(write(more[1], "x", 1), 1);
  std::thread adder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    set_.add(more[0], WaitSet::For::kInput);
  });
  woken_ = set_.wait(kLong);
  EXPECT_TRUE(woken_);
  adder.join();
  set_.forget(more[0]);
  close(more[0]);
  close(more[1]);
}

class CountedSource final : public WaitSource {
 public:
  explicit CountedSource(bool is_cheap) : is_cheap_(is_cheap) {}
  void arm() override { ++armed; }
  bool is_cheap_to_poll() const override { return is_cheap_; }
  int armed = 0;

 private:
  const bool is_cheap_;
};

// How many polls a rank makes before it asks for an event.
int polls_before_arming(bool is_cheap, bool beside_socket) {
  WaitSet set;
  CountedSource source(is_cheap);
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), socket = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  set.add(fd, &source);
  if (beside_socket) set.add(socket, WaitSet::For::kInput);
  EXPECT_EQ(set.is_cheap_to_poll(), is_cheap && !beside_socket);
  WaitPolicy policy;
  policy.spins = 300;
  policy.yields = 10;
  policy.notices_crowds = false;
  Backoff backoff(policy);
  backoff.sleep_on(&set, true);
  int polls = 0;
  // A thread remembers that its core was crowded.
  std::thread([&] {
    for (; source.armed == 0 && polls < 1000; ++polls) backoff.pause();
  }).join();
  set.forget(fd);
  set.forget(socket);
  close(fd);
  close(socket);
  return polls;
}

TEST(WaitSet, WhatIsCheapToPollIsPolledForAsLongAsMemory) {
  EXPECT_EQ(polls_before_arming(true, false), 311);
  EXPECT_EQ(polls_before_arming(false, false), 101);
  EXPECT_EQ(polls_before_arming(true, true), 101) << "polls of the socket are dear";
}

}  // namespace
}  // namespace treering
