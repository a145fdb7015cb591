// SPDX-License-Identifier: Apache-2.0
// Links over UCX on the loopback interface: payloads that are fetched, order, false headers, leaving, errors.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/waiting.h"
#include "transport/ucx/pair.h"

namespace treering::ucx {
namespace {

using treering::testing::eventually;

constexpr uint32_t kChannels = 2;
constexpr size_t kPlaceBytes = 1 << 20;
constexpr size_t kSlotBytes = 64 << 10;

class UcxLinks : public ::testing::Test {
 protected:
  UcxLinks() { open(); }
  ~UcxLinks() override {
    for (const char* name : {"UCX_RNDV_THRESH", "UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"}) unsetenv(name);
  }

  void open() {
    pair_ = std::make_unique<UcxPair>(kChannels, kPlaceBytes);
    for (int side : {0, 1}) pair_->set_staging(side, staging_[side].data());
  }
  void connect() {
    for (int side : {0, 1}) sides_[side] = pair_->connect(side, false);
    sender_ = sides_[0].channels[0].get();
    receiver_ = sides_[1].channels[0].get();
  }
  // Both hubs end, in the order of a rank that leaves.
  void leave(int side) {
    pair_->hub(side)->finish(Clock::now() + std::chrono::seconds(2));
    end(side);
  }
  void end(int side) {
    sides_[side] = {};
    pair_->end(side);
  }

  static Message small(uint32_t number) {
    static thread_local uint32_t data;
    data = number;
    Message message;
    message.signature = number;
    message.bytes = sizeof data;
    message.data = &data;
    return message;
  }
  Message staged(uint32_t number, uint32_t bytes) {
    const uint64_t offset = number % kFifoDepth * kSlotBytes;
    std::memset(staging_[0].data() + offset, static_cast<int>(number), bytes);
    Message message;
    message.signature = number;
    message.bytes = bytes;
    message.kind = PayloadKind::kStaging;
    message.user.offset = offset;
    return message;
  }
  static Message of_user(uint32_t number, const void* data, size_t bytes) {
    Message message;
    message.signature = number;
    message.bytes = static_cast<uint32_t>(bytes);
    message.kind = PayloadKind::kUser;
    message.user = {0, reinterpret_cast<uint64_t>(data)};
    return message;
  }
  void progress() {
    for (PeerConnections& side : sides_)
      if (side.queue) (void)side.queue->flush();
  }
  const Message* arrived() {
    eventually([&] { return progress(), receiver_->front() != nullptr || !receiver_->health().ok(); });
    return receiver_->front();
  }
  std::string failure_of(Connection* connection) {
    eventually([&] {
      progress();
      if (connection->front() != nullptr) connection->pop();
      return !connection->health().ok();
    });
    return connection->health().message();
  }

  std::vector<std::byte> staging_[2] = {std::vector<std::byte>(kFifoDepth * kSlotBytes),
                                        std::vector<std::byte>(kFifoDepth* kSlotBytes)};
  std::unique_ptr<UcxPair> pair_;
  PeerConnections sides_[2];
  Connection *sender_ = nullptr, *receiver_ = nullptr;
};

// UCX has copied a message, and lets its sender go on, though a part waits for room in the socket: that is sent on while the
// sender waits, and a call of the sender does not end before.
TEST_F(UcxLinks, WhatTheSocketHadNoRoomForHasLeftWhenTheQueueIsFlushed) {
  for (const char* name : {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"}) setenv(name, "4096", 1);
  connect();
  sender_->post(staged(1, kSlotBytes));
  EXPECT_FALSE(sides_[0].queue->flush());
  ASSERT_TRUE(eventually([&] {
    (void)sides_[1].queue->flush();  // the receiver waits for something else
    return sides_[0].queue->flush() && sender_->has_released(sender_->posted());
  }));
  ASSERT_TRUE(eventually([&] { return receiver_->front() != nullptr; })) << "its sender is asked for nothing more";
  EXPECT_EQ(receiver_->front()->bytes, kSlotBytes);
  receiver_->pop();
}

// A large payload is fetched by its receiver, after its header has come; the small one behind it waits.
TEST_F(UcxLinks, PayloadsThatAreFetchedKeepTheOrder) {
  setenv("UCX_RNDV_THRESH", "1000", 1);
  connect();
  for (uint32_t number = 0; number < 60; number += 2) {
    std::vector<std::byte> data(kPlaceBytes, static_cast<std::byte>(number));
    ASSERT_TRUE(eventually([&] { return progress(), sender_->can_post(); }));
    sender_->post(of_user(number, data.data(), data.size()));
    ASSERT_TRUE(eventually([&] { return progress(), sender_->can_post(); }));
    sender_->post(small(number + 1));
    for (const uint32_t expected : {number, number + 1}) {
      ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
      EXPECT_EQ(receiver_->front()->signature, expected);
      if (expected == number) {
        EXPECT_EQ(std::memcmp(receiver_->front()->data, data.data(), data.size()), 0);
      }
      receiver_->pop();
    }
    ASSERT_TRUE(eventually([&] { return progress(), sender_->has_released(number + 2); }));
  }
}

// ... also where UCX is told to fetch the smallest.
TEST_F(UcxLinks, InlinePayloadsMayBeFetched) {
  setenv("UCX_RNDV_THRESH", "0", 1);
  connect();
  for (uint32_t number = 0; number < 40; ++number) {
    ASSERT_TRUE(eventually([&] { return progress(), sender_->can_post(); }));
    sender_->post(small(number));
    ASSERT_NE(arrived(), nullptr) << receiver_->health().message();
    uint32_t value = 0;
    std::memcpy(&value, receiver_->front()->data, sizeof value);
    EXPECT_EQ(value, number);
    receiver_->pop();
  }
}

// No more than the receiver's socket takes at once: if more is on its way, a credit to the closed socket may lose it on a
// busy machine (docs/ucx.md).
TEST_F(UcxLinks, WhatWasSentOutlivesItsSender) {
  constexpr size_t kBytes = 8 << 10;
  setenv("UCX_RNDV_THRESH", "inf", 1);
  for (int time = 0; time < 10; ++time) {
    open();
    connect();
    for (uint32_t number = 0; number < kFifoDepth; ++number) {
      ASSERT_TRUE(sender_->can_post());
      sender_->post(staged(number, kBytes));
    }
    leave(0);  // while the receiver does not look
    for (uint32_t number = 0; number < kFifoDepth; ++number) {
      ASSERT_NE(arrived(), nullptr) << "message " << number << ": " << receiver_->health().message();
      EXPECT_EQ(receiver_->front()->signature, number);
      EXPECT_EQ(static_cast<const std::byte*>(receiver_->front()->data)[kBytes - 1], static_cast<std::byte>(number));
      receiver_->pop();  // the credits reach no rank, which is no failure
    }
    EXPECT_TRUE(receiver_->health().ok()) << receiver_->health().message();
    EXPECT_NE(failure_of(receiver_).find("it has left"), std::string::npos) << receiver_->health().message();
    sides_[1] = {};
  }
}

TEST_F(UcxLinks, APeerThatLeftTakesNothingMore) {
  connect();
  leave(0);
  EXPECT_NE(failure_of(receiver_).find("it has left"), std::string::npos) << receiver_->health().message();
  EXPECT_FALSE(receiver_->can_post());
}

// The farewell is lost with the rest, but the control tree tells.
TEST_F(UcxLinks, ADepartureThatIsToldIsNoFailure) {
  connect();
  pair_->hub(1)->depart(0);
  end(0);
  ASSERT_TRUE(eventually([&] { return receiver_->front(), !receiver_->health().ok(); }));
  EXPECT_NE(receiver_->health().message().find("it has left"), std::string::npos) << receiver_->health().message();
}

TEST_F(UcxLinks, AFailedEndpointNamesBothRanksAndWhatUcxSays) {
  connect();
  sender_->post(small(7));
  ASSERT_NE(arrived(), nullptr);
  end(1);  // in the middle of it
  const std::string error = failure_of(sender_);
  EXPECT_EQ(sender_->health().code(), trRemoteError);
  EXPECT_EQ(error.find("ucx from rank 0 to rank 1: "), 0u) << error;
  EXPECT_TRUE(error.ends_with("reset by remote peer") || error.ends_with("Endpoint timeout")) << error;
}

// When an error is told, or the communicator ends, UCX reads no memory of the user any more.
class UserMemory {
 public:
  UserMemory() : data_(mmap(nullptr, kPlaceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  ~UserMemory() { munmap(data_, kPlaceBytes); }
  UserMemory(const UserMemory&) = delete;
  UserMemory& operator=(const UserMemory&) = delete;
  void* data() const { return data_; }
  void take_away() const { EXPECT_EQ(mprotect(data_, kPlaceBytes, PROT_NONE), 0); }

 private:
  void* data_;
};

TEST_F(UcxLinks, AfterAnErrorNoMemoryOfTheUserIsRead) {
  for (const char* threshold : {"1000", "inf"}) {  // fetched, sent at once
    setenv("UCX_RNDV_THRESH", threshold, 1);
    open();
    connect();
    const UserMemory memory;
    while (sender_->can_post()) sender_->post(of_user(0, memory.data(), kPlaceBytes));
    end(1);
    EXPECT_EQ(failure_of(sender_).find("ucx from rank 0"), 0u);
    memory.take_away();
    for (int i = 0; i < 1000; ++i) (void)sender_->front();
    end(0);
  }
}

TEST_F(UcxLinks, AfterAStopNoMemoryOfTheUserIsRead) {
  for (const char* threshold : {"1000", "inf"}) {
    setenv("UCX_RNDV_THRESH", threshold, 1);
    open();
    connect();
    const UserMemory memory;
    while (sender_->can_post()) sender_->post(of_user(0, memory.data(), kPlaceBytes));
    pair_->stop(0);
    EXPECT_FALSE(sender_->health().ok());
    EXPECT_FALSE(sender_->can_post());
    memory.take_away();
    for (int i = 0; i < 1000; ++i) (void)sender_->front(), (void)receiver_->can_post();
    end(0);
    EXPECT_NE(failure_of(receiver_), "");
    sides_[1] = {};
  }
}

TEST_F(UcxLinks, AMessageThatIsTooLongIsRefused) {
  connect();
  sender_->post(of_user(0, this, kPlaceBytes + 1));
  EXPECT_NE(failure_of(sender_).find("at most"), std::string::npos);
}

TEST_F(UcxLinks, ARankThatDoesNotAnswerIsNotReached) {
  for (int side : {0, 1}) pair_->open(side);
  for (int side : {0, 1}) pair_->introduce(side);
  const Status deaf = pair_->reach(0, std::chrono::milliseconds(50));
  EXPECT_NE(deaf.message().find("UCX_TLS"), std::string::npos) << deaf.message();
  pair_->end(1);
  const Status gone = pair_->reach(0, std::chrono::milliseconds(50));
  EXPECT_FALSE(gone.ok());
}

TEST_F(UcxLinks, TheHigherRankLeavesItToTheLowerToOpenAConnectionForAWhile) {
  for (int side : {0, 1}) pair_->open(side);
  pair_->introduce(1);
  const size_t before = sockets();
  const auto try_once = [&] { return pair_->reach(1, std::chrono::milliseconds(0)).ok(); };
  EXPECT_FALSE(try_once());
  EXPECT_EQ(sockets(), before);
  EXPECT_TRUE(eventually([&] { return !try_once() && sockets() > before; }));
}

TEST_F(UcxLinks, AHubThatHasStoppedAnswersNoPeer) {
  for (int side : {0, 1}) pair_->open(side);
  for (int side : {0, 1}) pair_->introduce(side);
  pair_->stop(0);
  std::atomic<bool> is_over = false;
  std::thread own([&] {
    while (!is_over) pair_->hub(0)->progress();
  });
  const Status reached = pair_->reach(1, std::chrono::seconds(1));
  is_over = true;
  own.join();
  EXPECT_EQ(reached.code(), trTimeout);
  EXPECT_NE(reached.message().find("was not heard"), std::string::npos) << reached.message();
}

// A rank that it tries to reach may have died: that is known by the control connections.
TEST_F(UcxLinks, AreTriedNoLongerOnceTheCreationHasFailed) {
  int looks = 0;
  pair_->set_look(1, [&] { return ++looks < 3 ? Status() : Status(trRemoteError, "rank 0 has died"); });
  for (int side : {0, 1}) pair_->open(side);
  for (int side : {0, 1}) pair_->introduce(side);
  const Status reached = pair_->reach(1, std::chrono::hours(1));
  EXPECT_EQ(reached.code(), trRemoteError);
  EXPECT_EQ(reached.message(), "rank 0 has died");
  EXPECT_EQ(looks, 3);
}

TEST_F(UcxLinks, OtherSizesAreNamed) {
  UcxPair other(kChannels, kPlaceBytes / 2);
  other.open(1);
  pair_->open(0);
  ASSERT_TRUE(pair_->hub(0)->take_info(1, other.hub(1)->info()).ok());
  EXPECT_NE(pair_->reach(0).message().find("524288"), std::string::npos) << pair_->reach(0).message();
  EXPECT_FALSE(pair_->hub(0)->take_info(1, "nonsense").ok());
}

// One that speaks to side 0 as rank 1, and says what it likes.
class Forger {
 public:
  explicit Forger(const Hub& hub) {
    Reader reader(info_text_ = hub.info());
    reader(info_);
    EXPECT_TRUE(reader.complete());
    EXPECT_TRUE(Worker::open(2, 64 << 10, &worker_).ok());
    EXPECT_TRUE(endpoint_.open(worker_->handle(), info_.address).ok());
  }
  ~Forger() {
    endpoint_.close();
    (void)eventually([&] { return worker_->progress(), endpoint_.ended(); });
  }
  Forger(const Forger&) = delete;
  Forger& operator=(const Forger&) = delete;

  Header header(uint32_t number) const {
    Header header;
    header.key = info_.key;
    header.from = 1;
    header.number = number;
    header.kind = static_cast<uint8_t>(PayloadKind::kDelivered);
    return header;
  }
  void send(const Header& header, size_t payload = 0) {
    notes_.push_back(std::make_unique<Note>());
    notes_.back()->header = header;
    endpoint_.send(notes_.back().get(), payload_, payload);
  }
  void progress() { (void)worker_->progress(); }

 private:
  std::string info_text_;
  RankInfo info_;
  std::vector<std::unique_ptr<Note>> notes_;
  Endpoint endpoint_;
  std::unique_ptr<Worker> worker_;
  std::byte payload_[4096] = {};
};

class UcxHeaders : public UcxLinks {
 protected:
  UcxHeaders() {
    pair_->open(0);
    pair_->open(1);  // rank 1's own, which says nothing
    pair_->introduce(0);
    sides_[0] = pair_->hub(0)->connect(1);
    receiver_ = sides_[0].channels[0].get();
    forger_ = std::make_unique<Forger>(*pair_->hub(0));
  }
  void expect_failure(const char* part) {
    eventually([&] { return forger_->progress(), (void)receiver_->front(), !receiver_->health().ok(); });
    EXPECT_NE(receiver_->health().message().find(part), std::string::npos)
        << part << " is not in: " << receiver_->health().message();
    EXPECT_EQ(receiver_->health().message().find("ucx from rank 0 to rank 1: "), 0u);
  }
  bool comes() {
    return eventually([&] { return forger_->progress(), receiver_->front() != nullptr; });
  }
  std::unique_ptr<Forger> forger_;
};

TEST_F(UcxHeaders, MessagesThatOvertakeEachOtherArePutRight) {
  for (const uint32_t number : {2u, 1u, 3u, 0u}) forger_->send(forger_->header(number));
  for (uint32_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(comes()) << number;
    receiver_->pop();
  }
  EXPECT_TRUE(receiver_->health().ok());
}

TEST_F(UcxHeaders, StrangersAreNotHeard) {
  Header header = forger_->header(0);
  header.signature = 13;
  header.key ^= 1;
  forger_->send(header);
  header.key ^= 1;
  for (const uint32_t from : {0u, 2u, UINT32_MAX}) {
    header.from = from;
    forger_->send(header);
  }
  header.from = 1;
  header.signature = 14;
  forger_->send(header);
  ASSERT_TRUE(comes());
  EXPECT_EQ(receiver_->front()->signature, 14u);
  EXPECT_TRUE(receiver_->health().ok());
}

TEST_F(UcxHeaders, ANumberThatComesTwiceFailsTheLink) {
  forger_->send(forger_->header(3));
  forger_->send(forger_->header(3));
  expect_failure("it has come before");
}

TEST_F(UcxHeaders, ANumberThatIsTooFarAheadFailsTheLink) {
  forger_->send(forger_->header(kFifoDepth));
  expect_failure("too far ahead");
}

TEST_F(UcxHeaders, AnUnknownChannelFailsTheLink) {
  Header header = forger_->header(0);
  header.channel = kChannels;
  forger_->send(header);
  expect_failure("channel 2");
}

TEST_F(UcxHeaders, AnUnknownTypeFailsTheLink) {
  Header header = forger_->header(0);
  header.type = static_cast<Type>(77);
  forger_->send(header);
  expect_failure("type 77");
}

TEST_F(UcxHeaders, AKindThatThereIsNotFailsTheLink) {
  Header header = forger_->header(0);
  header.kind = 9;
  forger_->send(header);
  expect_failure("kind 9");
}

TEST_F(UcxHeaders, ALengthThatIsNotTheHeadersFailsTheLink) {
  Header header = forger_->header(0);
  header.kind = static_cast<uint8_t>(PayloadKind::kStaging);
  header.bytes = 100;
  header.has_payload = 1;
  forger_->send(header, 99);
  expect_failure("99 bytes");
}

TEST_F(UcxHeaders, ACreditForWhatWasNotSentFailsTheLink) {
  Header header = forger_->header(0);
  header.type = Type::kCredit;
  header.popped = 1;
  forger_->send(header);
  expect_failure("popped 1");
}

}  // namespace
}  // namespace treering::ucx
