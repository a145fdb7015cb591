// SPDX-License-Identifier: Apache-2.0
// The conformance suite's second half: long random traffic between two real processes (threads for the
// in-process transport), and the death of the peer.
#include <algorithm>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "support/seed.h"
#include "transport/two_sides.h"

namespace treering {
namespace {

std::vector<ConformanceRow> rows_between_processes() {
  std::vector<ConformanceRow> rows;
  for (const ConformanceRow& row : conformance_rows())
    if (row.between_processes) rows.push_back(row);
  return rows;
}

// Long random traffic, both ways at once.

struct Traffic {
  uint64_t seed;
  uint32_t messages;
  uint32_t depth;  // messages under way at most
};

struct Planned {
  PayloadKind kind;
  uint32_t bytes;
};

Planned planned(const ConformanceRow& row, const Traffic& traffic, int sender, uint32_t index) {
  SplitMix64 random(traffic.seed ^ (uint64_t{index} << 1 | static_cast<uint64_t>(sender)) * 0xD1B54A32D192ED03u);
  constexpr PayloadKind kKinds[] = {PayloadKind::kInline, PayloadKind::kStaging, PayloadKind::kUser};
  PayloadKind kind = kKinds[random() % std::size(kKinds)];
  if (kind == PayloadKind::kUser && row.plain != ConformanceRow::Plain::kAlways && !row.maps_regions)
    kind = PayloadKind::kStaging;
  size_t most = kind == PayloadKind::kInline ? kInlineBytes : kSlotBytes;
  return {kind, static_cast<uint32_t>(random() % (most + 1))};
}

// Memory of the sender that the transport can refer to: `user` is its name.
class SenderMemory {
 public:
  SenderMemory(const ConformanceRow& row, Side* own) : registered_(row.maps_regions), data_(kFifoDepth * kSlotBytes) {
    base_ = data_.data();
    address_ = {0, reinterpret_cast<uint64_t>(base_)};
    if (!registered_) return;
    void* memory = nullptr;
    if (!RegionTable::instance().allocate(data_.size(), &memory).ok()) throw std::runtime_error("allocate");
    base_ = static_cast<std::byte*>(memory);
    Region region = RegionTable::instance().find(memory, data_.size());
    if (!RegionExports(own->exports).publish(region)) throw std::runtime_error("publish");
    address_ = {region.id, 0};
  }
  ~SenderMemory() {
    if (registered_) (void)RegionTable::instance().release(base_);
  }
  std::byte* at(uint32_t slot) const { return base_ + slot * kSlotBytes; }
  UserAddress address(uint32_t slot) const { return {address_.region, address_.offset + slot * kSlotBytes}; }

 private:
  bool registered_;
  std::vector<std::byte> data_;
  std::byte* base_;
  UserAddress address_;
};

void send_next(Connection* connection, const ConformanceRow& row, const Traffic& traffic, Side* own, int side,
               uint32_t index, const SenderMemory& user) {
  Planned plan = planned(row, traffic, side, index);
  auto data = pattern(traffic.seed + index * 2 + static_cast<uint64_t>(side), plan.bytes);
  uint32_t slot = index % kFifoDepth;
  Message message = inline_message(index, data.data(), plan.bytes);
  message.kind = plan.kind;
  if (plan.kind == PayloadKind::kStaging) {
    message.user.offset = slot * kSlotBytes;
    std::copy(data.begin(), data.end(), own->staging + message.user.offset);
  } else if (plan.kind == PayloadKind::kUser) {
    std::copy(data.begin(), data.end(), user.at(slot));
    message.user = user.address(slot);
  }
  connection->post(message);
}

// One side's life; what went wrong, or nothing.
std::string run_traffic(TwoSides* sides, const ConformanceRow& row, const Traffic& traffic, int side) {
  auto connection = sides->connect(side, 0);
  Side* own = &sides->side(side);
  SenderMemory user(row, own);
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  uint32_t sent = 0, received = 0;
  while (sent < traffic.messages || received < traffic.messages || !connection->has_released(traffic.messages) ||
         !connection.flushed()) {
    bool moved = false;
    if (sent < traffic.messages && connection->can_post() && sent - connection->released() < traffic.depth) {
      send_next(connection.get(), row, traffic, own, side, sent++, user);
      moved = true;
    }
    if (const Message* message = connection->front(); message != nullptr) {
      Planned plan = planned(row, traffic, 1 - side, received);
      auto expected = pattern(traffic.seed + received * 2 + static_cast<uint64_t>(1 - side), plan.bytes);
      if (message->signature != received || message->bytes != plan.bytes || message->kind != plan.kind)
        return "message " + std::to_string(received) + " has a wrong header";
      if (!same_bytes(payload_of(connection.get(), *message), expected))
        return "message " + std::to_string(received) + " has wrong bytes";
      connection->pop();
      ++received;
      moved = true;
    }
    if (!connection->health().ok()) return connection->health().message();
    if (moved) continue;
    if (std::chrono::steady_clock::now() > deadline)
      return "stuck after " + std::to_string(sent) + " sent, " + std::to_string(received) + " received";
    std::this_thread::yield();
  }
  return {};
}

// Runs `body(1)` in a child or thread and body(0) here; the child's text comes through a pipe.
template <typename Body>
void run_both(TwoSides* sides, const ConformanceRow& row, Body body) {
  if (!row.between_processes) {
    std::string texts[2];
    std::thread other([&] { texts[1] = body(1); });
    texts[0] = body(0);
    other.join();
    EXPECT_EQ(texts[0], "");
    EXPECT_EQ(texts[1], "");
    return;
  }
  int go[2], ends[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    std::string text = read(go[0], &byte, 1) == 1 ? "" : "the parent is gone";
    sides->set_pid(1, getpid());
    if (text.empty()) text = body(1);
    (void)!write(ends[1], text.data(), text.size());
    // The parent may still look into this process: it says when it is done.
    close(ends[1]);
    (void)!read(go[0], &byte, 1);
    _exit(0);
  }
  sides->set_pid(1, child);
  EXPECT_EQ(write(go[1], "!", 1), 1);
  std::string own = body(0), other;
  close(ends[1]);
  char buffer[512];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) other.append(buffer, static_cast<size_t>(got));
  EXPECT_EQ(write(go[1], "!", 1), 1);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (int fd : {go[0], go[1], ends[0]}) close(fd);
  EXPECT_EQ(own, "");
  EXPECT_EQ(other, "");
}

class LongTraffic : public ::testing::TestWithParam<ConformanceRow> {};

TEST_P(LongTraffic, ArrivesIntactAtEveryDepth) {
  const uint64_t seed = test_seed();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (uint32_t depth : {kTellEvery, 6u, kFifoDepth}) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    TwoSides sides(GetParam());
    Traffic traffic{seed + depth, 4000, depth};
    run_both(&sides, GetParam(), [&](int side) { return run_traffic(&sides, GetParam(), traffic, side); });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, LongTraffic, ::testing::ValuesIn(conformance_rows()), row_name);

void expect_dead(Connection* connection, pid_t peer) {
  EXPECT_EQ(connection->health().code(), trRemoteError);
  EXPECT_NE(connection->health().message().find(std::to_string(peer)), std::string::npos)
      << connection->health().message();
  EXPECT_FALSE(connection->can_post());
  const std::string first = connection->health().message();
  connection->post(inline_message(1, &peer, sizeof peer));
  EXPECT_EQ(connection->health().message(), first) << "the first failure stays";
}

class DeadPeer : public ::testing::TestWithParam<ConformanceRow> {};

// The peer posts two messages and is killed. Where its memory is shared they can still be read; where it is
// not, the link's health says that the process is gone. Nothing crashes or hangs either way.
TEST_P(DeadPeer, IsAnErrorOrHarmless) {
  TwoSides sides(GetParam());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t parent = getpid();
  pid_t child = fork();
  if (child == 0) {
    sides.set_pid(0, parent);
    sides.set_pid(1, getpid());
    auto connection = sides.connect(1, 0);
    uint32_t value = 5;
    connection->post(inline_message(1, &value, sizeof value));
    std::memset(sides.side(1).staging, 7, 64);
    Message staged;
    staged.signature = 2;
    staged.kind = PayloadKind::kStaging;
    staged.bytes = 64;
    connection->post(staged);
    (void)!write(ready[1], connection->health().ok() ? "!" : "?", 1);
    for (;;) pause();
  }
  sides.set_pid(1, child);
  auto connection = sides.connect(0, 0);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, '!');
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);

  ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; })) << "what had arrived stays";
  EXPECT_EQ(connection->front()->signature, 1u);
  EXPECT_EQ(payload_of(connection.get(), *connection->front()).size(), sizeof(uint32_t));
  connection->pop();
  ASSERT_TRUE(eventually([&] { return connection->front() != nullptr; }));
  if (GetParam().mapped) {
    EXPECT_EQ(payload_of(connection.get(), *connection->front()), std::vector<std::byte>(64, std::byte{7}));
    connection->pop();
    EXPECT_TRUE(connection->health().ok());
    uint32_t posted = 0;
    for (; connection->can_post(); ++posted) connection->post(inline_message(posted, &posted, sizeof posted));
    EXPECT_EQ(posted, kFifoDepth);
    return;
  }
  std::byte target[64];
  if (GetParam().copies) {
    EXPECT_EQ(payload_of(connection.get(), *connection->front()), std::vector<std::byte>(64, std::byte{7}));
    connection->pop();
    EXPECT_TRUE(eventually([&] { return connection->front() == nullptr && !connection->health().ok(); }));
    expect_dead(connection.get(), child);
    return;
  }
  EXPECT_EQ(connection->fetch(*connection->front(), 0, target, sizeof target).code(), trRemoteError);
  expect_dead(connection.get(), child);
  connection->pop();
}

INSTANTIATE_TEST_SUITE_P(Transports, DeadPeer, ::testing::ValuesIn(rows_between_processes()), row_name);

}  // namespace
}  // namespace treering
