// The conformance suite that every transport passes: order, payloads, flow control, status, regions, death of
// the peer, and long random traffic between two real processes (threads for the in-process transport).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "transport/two_sides.h"

namespace treering {
namespace {

std::vector<TransportRow> rows_between_processes() {
  std::vector<TransportRow> rows;
  for (const TransportRow& row : transports())
    if (row.between_processes) rows.push_back(row);
  return rows;
}

std::string row_name(const ::testing::TestParamInfo<TransportRow>& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

Message inline_message(uint32_t signature, const void* data, uint32_t bytes) {
  Message message;
  message.signature = signature;
  message.bytes = bytes;
  message.data = data;
  return message;
}

// The payload of the message at the head, however it is reached; in two parts where it is fetched.
std::vector<std::byte> payload_of(Connection* connection, const Message& message) {
  std::vector<std::byte> bytes(message.bytes);
  if (message.bytes == 0) return bytes;
  if (message.data != nullptr) {
    std::memcpy(bytes.data(), message.data, bytes.size());
    return bytes;
  }
  size_t half = bytes.size() / 2;
  for (auto [offset, length] : {std::pair{size_t{0}, half}, std::pair{half, bytes.size() - half}})
    if (Status status = connection->fetch(message, offset, bytes.data() + offset, length); !status.ok())
      throw std::runtime_error(status.message());
  return bytes;
}

std::vector<std::byte> pattern(uint64_t seed, size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::byte& b : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<std::byte>(state >> 56);
  }
  return data;
}

// Both sides in one process.
class Conformance : public ::testing::TestWithParam<TransportRow> {
 protected:
  const TransportRow& row() const { return GetParam(); }
  TwoSides sides_{GetParam()};
  std::unique_ptr<Connection> sender_ = sides_.connect(0, 0);
  std::unique_ptr<Connection> receiver_ = sides_.connect(1, 0);
};

TEST_P(Conformance, SaysWhatItIs) {
  EXPECT_STREQ(sender_->transport_name(), row().name);
  EXPECT_EQ(sender_->reaches_plain_memory(), row().reaches_plain_memory);
  EXPECT_TRUE(sender_->health().ok());
  EXPECT_EQ(receiver_->front(), nullptr);
  EXPECT_TRUE(sender_->can_post());
  EXPECT_EQ(sender_->posted(), 0u);
  EXPECT_EQ(sender_->consumed(), 0u);
}

TEST_P(Conformance, InlineMessagesArriveInOrderOverManyLaps) {
  for (uint32_t i = 0; i < 100 * kFifoDepth; ++i) {
    uint32_t bytes = i % (kInlineBytes + 1);
    auto data = pattern(i, bytes);
    ASSERT_TRUE(sender_->can_post());
    Message message = inline_message(i ^ 0xABCD, data.data(), bytes);
    message.wide = i % 2 != 0;
    sender_->post(message);
    const Message* got = receiver_->front();
    ASSERT_NE(got, nullptr) << "message " << i;
    EXPECT_EQ(got->signature, i ^ 0xABCD);
    EXPECT_EQ(got->bytes, bytes);
    EXPECT_EQ(got->wide, i % 2 != 0);
    EXPECT_EQ(got->kind, PayloadKind::kInline);
    EXPECT_EQ(payload_of(receiver_.get(), *got), data);
    receiver_->pop();
    ASSERT_EQ(receiver_->front(), nullptr);
  }
}

TEST_P(Conformance, FifoFillsAtItsDepthAndOpensByOneWithEachPop) {
  uint32_t next = 0, expected = 0;
  for (; next < kFifoDepth; ++next) {
    ASSERT_TRUE(sender_->can_post()) << "after " << next;
    sender_->post(inline_message(next, &next, sizeof next));
  }
  for (int round = 0; round < 30; ++round) {
    ASSERT_FALSE(sender_->can_post());
    const Message* got = receiver_->front();
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->signature, expected++);
    receiver_->pop();
    ASSERT_TRUE(sender_->can_post());
    sender_->post(inline_message(next, &next, sizeof next));
    ++next;
  }
  while (receiver_->front() != nullptr) {
    EXPECT_EQ(receiver_->front()->signature, expected++);
    receiver_->pop();
  }
  EXPECT_EQ(expected, next);
}

TEST_P(Conformance, CountsWhatIsConsumed) {
  for (uint32_t i = 0; i < 5; ++i) sender_->post(inline_message(i, &i, sizeof i));
  EXPECT_EQ(sender_->posted(), 5u);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(receiver_->front(), nullptr);
    receiver_->pop();
  }
  EXPECT_EQ(sender_->known_consumed(), 0u) << "what is known for free is not asked for";
  EXPECT_FALSE(sender_->has_consumed(4));
  EXPECT_EQ(sender_->known_consumed(), 3u);
  EXPECT_TRUE(sender_->has_consumed(3));
  EXPECT_EQ(sender_->consumed(), 3u);
  ASSERT_NE(receiver_->front(), nullptr);
  receiver_->pop();
  EXPECT_EQ(sender_->known_consumed(), 3u);
  EXPECT_TRUE(sender_->has_consumed(4));
  EXPECT_FALSE(sender_->has_consumed(5));
}

TEST_P(Conformance, StagedPayloadIsReadableUntilPopped) {
  auto data = pattern(7, kSlotBytes);
  std::memcpy(sides_.side(0).staging + kSlotBytes, data.data(), data.size());
  Message message;
  message.kind = PayloadKind::kStaging;
  message.bytes = kSlotBytes;
  message.user.offset = kSlotBytes;
  sender_->post(message);
  for (int time = 0; time < 3; ++time) {
    const Message* got = receiver_->front();
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(payload_of(receiver_.get(), *got), data);
    EXPECT_FALSE(sender_->has_consumed(1));
  }
  receiver_->pop();
  EXPECT_TRUE(sender_->has_consumed(1));
}

TEST_P(Conformance, DeliveredMessagesCarryNoPayload) {
  Message message;
  message.kind = PayloadKind::kDelivered;
  message.bytes = 1 << 20;
  sender_->post(message);
  ASSERT_NE(receiver_->front(), nullptr);
  EXPECT_EQ(receiver_->front()->kind, PayloadKind::kDelivered);
  EXPECT_EQ(receiver_->front()->bytes, 1u << 20);
  receiver_->pop();
}

TEST_P(Conformance, PlainUserMemoryIsReadWhereItIsReached) {
  auto data = pattern(9, 100'000);
  Message message;
  message.kind = PayloadKind::kUser;
  message.bytes = static_cast<uint32_t>(data.size());
  message.user = {0, reinterpret_cast<uint64_t>(data.data())};
  sender_->post(message);
  const Message* got = receiver_->front();
  ASSERT_NE(got, nullptr);
  if (row().reaches_plain_memory) {
    EXPECT_EQ(payload_of(receiver_.get(), *got), data);
  } else {
    EXPECT_EQ(got->data, nullptr);
    std::byte target[16];
    EXPECT_EQ(receiver_->fetch(*got, 0, target, sizeof target).code(), trSystemError)
        << "an error, not a crash";
  }
  receiver_->pop();
}

TEST_P(Conformance, ChannelsAndDirectionsAreIndependent) {
  auto other_sender = sides_.connect(0, 1), other_receiver = sides_.connect(1, 1);
  for (uint32_t i = 0; i < kFifoDepth; ++i) sender_->post(inline_message(i, &i, sizeof i));
  EXPECT_FALSE(sender_->can_post());
  EXPECT_TRUE(other_sender->can_post());
  EXPECT_EQ(other_receiver->front(), nullptr);
  EXPECT_EQ(sender_->front(), nullptr) << "nothing came back";
  EXPECT_TRUE(receiver_->can_post());
  uint32_t mark = 77;
  other_sender->post(inline_message(mark, &mark, sizeof mark));
  receiver_->post(inline_message(mark + 1, &mark, sizeof mark));
  ASSERT_NE(other_receiver->front(), nullptr);
  EXPECT_EQ(other_receiver->front()->signature, 77u);
  ASSERT_NE(sender_->front(), nullptr);
  EXPECT_EQ(sender_->front()->signature, 78u);
  EXPECT_EQ(receiver_->front()->signature, 0u);
  EXPECT_EQ(other_sender->consumed(), 0u);
  other_receiver->pop();
  EXPECT_EQ(other_sender->consumed(), 1u);
  EXPECT_EQ(sender_->consumed(), 0u);
}

TEST_P(Conformance, PeerStatusIsRead) {
  RankStatus& status = sides_.side(1).status;
  status.operation = 41;
  status.completed = 40;
  status.count = 12345;
  status.signature = 99;
  status.type = trFloat16;
  status.op = trMax;
  status.waiting_for = 3;
  RankStatusSnapshot snapshot;
  ASSERT_TRUE(sender_->read_status(&snapshot));
  EXPECT_EQ(snapshot.operation, 41u);
  EXPECT_EQ(snapshot.completed, 40u);
  EXPECT_EQ(snapshot.count, 12345u);
  EXPECT_EQ(snapshot.signature, 99u);
  EXPECT_EQ(snapshot.type, trFloat16);
  EXPECT_EQ(snapshot.op, trMax);
  EXPECT_EQ(snapshot.waiting_for, 3u);
  EXPECT_FALSE(snapshot.left);
  EXPECT_FALSE(snapshot.failed);
  EXPECT_TRUE(claim_failure(&status.failure, trRemoteError, "first"));
  EXPECT_FALSE(claim_failure(&status.failure, trSystemError, "second"));
  status.left = 1;
  ASSERT_TRUE(sender_->read_status(&snapshot));
  EXPECT_TRUE(snapshot.left);
  EXPECT_TRUE(snapshot.failed);
  EXPECT_EQ(snapshot.failure_code, static_cast<uint32_t>(trRemoteError));
  EXPECT_EQ(snapshot.failure_text, "first");
  EXPECT_EQ(sender_->peer_status() != nullptr, row().mapped);
  if (row().mapped) {
    EXPECT_EQ(sender_->peer_status()->operation.load(), 41u);
  }
}

TEST_P(Conformance, RegionsOfThePeerAreMappedWhereTheTransportDoes) {
  constexpr size_t kBytes = 3 * 4096;
  RegionTable& table = RegionTable::instance();
  void* allocated = nullptr;
  ASSERT_TRUE(table.allocate(kBytes, &allocated).ok());
  void* moved = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(moved, MAP_FAILED);
  uint32_t id = 0;
  ASSERT_TRUE(table.move_in_place(moved, kBytes, &id).ok());
  RegionExports exports(sides_.side(1).exports);
  for (void* memory : {allocated, moved}) {
    auto* bytes = static_cast<std::byte*>(memory);
    bytes[5000] = std::byte{42};
    Region region = table.find(memory, kBytes);
    ASSERT_NE(region.id, 0u);
    ASSERT_TRUE(exports.publish(region));
    auto* mapped = static_cast<std::byte*>(sender_->map_peer({region.id, 5000}, 100));
    ASSERT_EQ(mapped != nullptr, row().maps_regions);
    EXPECT_EQ(sender_->map_peer({region.id, kBytes - 10}, 11), nullptr) << "one byte past the end";
    EXPECT_EQ(sender_->map_peer({region.id, UINT64_MAX}, 1), nullptr);
    EXPECT_EQ(sender_->map_peer({region.id + 1000, 0}, 1), nullptr) << "no such region";
    if (mapped == nullptr) continue;
    EXPECT_EQ(mapped[0], std::byte{42});
    mapped[1] = std::byte{43};
    EXPECT_EQ(bytes[5001], std::byte{43});
    // And as a payload that is referred to.
    Message message;
    message.kind = PayloadKind::kUser;
    message.bytes = 100;
    message.user = {region.id, 5000};
    receiver_->post(message);
    ASSERT_NE(sender_->front(), nullptr);
    EXPECT_EQ(payload_of(sender_.get(), *sender_->front()),
              std::vector<std::byte>(bytes + 5000, bytes + 5100));
    sender_->pop();
  }
  EXPECT_TRUE(table.release(allocated).ok());
  EXPECT_TRUE(table.end_registration(id).ok());
  munmap(moved, kBytes);
}

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(transports()), row_name);

// The counters in memory have 32 bits: the sender's arithmetic over their wrap.
TEST(Fifo, SenderCountsOverTheWrapOf32Bits) {
  auto fifo = std::make_unique<Fifo>();
  FifoSender sender(fifo.get());
  for (uint64_t behind = 0; behind <= kFifoDepth; ++behind)
    for (uint64_t posted = (uint64_t{1} << 32) - 20; posted < (uint64_t{1} << 32) + 20; ++posted) {
      fifo->consumed.store(static_cast<uint32_t>(posted - behind));
      EXPECT_EQ(sender.consumed(posted), posted - behind);
      sender.post(posted, inline_message(static_cast<uint32_t>(posted), &posted, sizeof posted));
      EXPECT_EQ(fifo->lines[posted % kFifoDepth].turn.load(), static_cast<uint32_t>(posted + 1));
    }
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

Planned planned(const TransportRow& row, const Traffic& traffic, int sender, uint32_t index) {
  std::mt19937_64 random(traffic.seed ^
                         (uint64_t{index} << 1 | static_cast<uint64_t>(sender)) * 0x9E3779B97F4A7C15u);
  uint64_t dice = random() % 3;
  PayloadKind kind = dice == 0   ? PayloadKind::kInline
                     : dice == 1 ? PayloadKind::kStaging
                                 : PayloadKind::kUser;
  if (kind == PayloadKind::kUser && !row.reaches_plain_memory && !row.maps_regions)
    kind = PayloadKind::kStaging;
  size_t most = kind == PayloadKind::kInline ? kInlineBytes : kSlotBytes;
  return {kind, static_cast<uint32_t>(random() % (most + 1))};
}

// Memory of the sender that the transport can refer to: `user` is its name.
class UserMemory {
 public:
  UserMemory(const TransportRow& row, Side* own)
      : registered_(row.maps_regions), data_(kFifoDepth * kSlotBytes) {
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
  ~UserMemory() {
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

void send_next(Connection* connection, const TransportRow& row, const Traffic& traffic, Side* own, int side,
               uint32_t index, const UserMemory& user) {
  Planned plan = planned(row, traffic, side, index);
  auto data = pattern(traffic.seed + index * 2 + static_cast<uint64_t>(side), plan.bytes);
  uint32_t slot = index % kFifoDepth;
  Message message = inline_message(index, data.data(), plan.bytes);
  message.kind = plan.kind;
  if (plan.kind == PayloadKind::kStaging) {
    message.user.offset = slot * kSlotBytes;
    std::memcpy(own->staging + message.user.offset, data.data(), data.size());
  } else if (plan.kind == PayloadKind::kUser) {
    std::memcpy(user.at(slot), data.data(), data.size());
    message.user = user.address(slot);
  }
  connection->post(message);
}

// One side's life; what went wrong, or nothing.
std::string run_traffic(TwoSides* sides, const TransportRow& row, const Traffic& traffic, int side) {
  auto connection = sides->connect(side, 0);
  Side* own = &sides->side(side);
  UserMemory user(row, own);
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  uint32_t sent = 0, received = 0;
  while (sent < traffic.messages || received < traffic.messages ||
         !connection->has_consumed(traffic.messages)) {
    bool moved = false;
    if (sent < traffic.messages && connection->can_post() && sent - connection->consumed() < traffic.depth) {
      send_next(connection.get(), row, traffic, own, side, sent++, user);
      moved = true;
    }
    if (const Message* message = connection->front(); message != nullptr) {
      Planned plan = planned(row, traffic, 1 - side, received);
      auto expected = pattern(traffic.seed + received * 2 + static_cast<uint64_t>(1 - side), plan.bytes);
      if (message->signature != received || message->bytes != plan.bytes || message->kind != plan.kind)
        return "message " + std::to_string(received) + " has a wrong header";
      if (payload_of(connection.get(), *message) != expected)
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
void run_both(TwoSides* sides, const TransportRow& row, Body body) {
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
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    other.append(buffer, static_cast<size_t>(got));
  EXPECT_EQ(write(go[1], "!", 1), 1);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (int fd : {go[0], go[1], ends[0]}) close(fd);
  EXPECT_EQ(own, "");
  EXPECT_EQ(other, "");
}

class LongTraffic : public ::testing::TestWithParam<TransportRow> {};

TEST_P(LongTraffic, ArrivesIntactAtEveryDepth) {
  uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (uint32_t depth : {1u, 3u, kFifoDepth}) {
    SCOPED_TRACE("depth " + std::to_string(depth));
    TwoSides sides(GetParam());
    Traffic traffic{seed + depth, 4000, depth};
    run_both(&sides, GetParam(), [&](int side) { return run_traffic(&sides, GetParam(), traffic, side); });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, LongTraffic, ::testing::ValuesIn(transports()), row_name);

class DeadPeer : public ::testing::TestWithParam<TransportRow> {};

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
  RankStatusSnapshot snapshot;
  EXPECT_TRUE(connection->read_status(&snapshot));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
  close(ready[1]);

  ASSERT_NE(connection->front(), nullptr) << "what had arrived stays";
  EXPECT_EQ(connection->front()->signature, 1u);
  EXPECT_EQ(payload_of(connection.get(), *connection->front()).size(), sizeof(uint32_t));
  connection->pop();
  ASSERT_NE(connection->front(), nullptr);
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
  EXPECT_EQ(connection->fetch(*connection->front(), 0, target, sizeof target).code(), trRemoteError);
  EXPECT_EQ(connection->health().code(), trRemoteError);
  EXPECT_NE(connection->health().message().find(std::to_string(child)), std::string::npos)
      << connection->health().message();
  EXPECT_FALSE(connection->can_post());
  EXPECT_FALSE(connection->read_status(&snapshot));
  connection->pop();
  std::string first = connection->health().message();
  connection->post(inline_message(1, target, 4));
  EXPECT_EQ(connection->health().message(), first) << "the first failure stays";
}

INSTANTIATE_TEST_SUITE_P(Transports, DeadPeer, ::testing::ValuesIn(rows_between_processes()), row_name);

}  // namespace
}  // namespace treering
