// SPDX-License-Identifier: Apache-2.0
// What is particular to TCP: streams with tiny buffers, slow and dying streams, frames that are no frames, bounded
// memory, and no allocation once warm.
#include "support/seed.h"
#include "transport/linked.h"
#include "transport/tcp/link.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "transport/tcp/testing.h"

namespace {
thread_local unsigned long allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void* operator new[](size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const auto unit = static_cast<size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace treering {
namespace {

// A link whose peer is played by the test, which writes and reads the sockets itself.
struct RawPeer {
  TcpPair pair{1};
  std::shared_ptr<TcpLink> link = pair.link(0, options_to(1));
  Linked connection = linked(link, 0);

  void send(const void* data, size_t bytes) {
    ASSERT_EQ(write(pair.sending_socket(1, 1), data, bytes), static_cast<ssize_t>(bytes));
  }
  void send(const TcpFrame& frame) { send(&frame, sizeof frame); }
  void leave() {
    for (int* fd : {&pair.sending_socket(1, 1), &pair.receiving_socket(1, 0)}) close(std::exchange(*fd, -1));
    link->deliver_departure();
  }
  Status wait_for_failure() {
    EXPECT_TRUE(eventually([&] { return connection->front() == nullptr && !connection->health().ok(); }));
    return connection->health();
  }
};

struct Stream {
  uint64_t seed;
  uint32_t streams, fragment_bytes, messages, most_bytes;
  int buffer_bytes;
};

// One side sends on all channels, the other receives; what went wrong, or nothing.
std::string send_all(TcpPair* pair, const Stream& stream) {
  TcpOptions options = options_to(1);
  options.fragment_bytes = stream.fragment_bytes;
  auto link = pair->link(0, options);
  Linked connections[kManyChannels];
  std::vector<std::vector<std::byte>> payloads[kManyChannels];
  for (uint32_t c = 0; c < kManyChannels; ++c) {
    connections[c] = linked(link, c);
    payloads[c].resize(kFifoDepth);
  }
  std::mt19937_64 random(stream.seed);
  uint32_t sent[kManyChannels] = {}, total = 0;
  const auto next = [&](uint32_t c) {
    auto& payload = payloads[c][sent[c] % kFifoDepth];
    payload = pattern(stream.seed + c * 1000003 + sent[c], random() % stream.most_bytes);
    const bool is_inline = payload.size() <= kInlineBytes && random() % 2 == 0;
    Message message = user_message(sent[c], payload);
    if (is_inline) message = inline_message(sent[c], payload.data(), static_cast<uint32_t>(payload.size()));
    connections[c]->post(message);
    ++sent[c];
    ++total;
  };
  const auto done = [&] {
    const auto c = static_cast<uint32_t>(random() % kManyChannels);
    // The payload of message m is changed for message m + kFifoDepth.
    if (sent[c] < stream.messages && connections[c]->can_post() &&
        (sent[c] < kFifoDepth || connections[c]->has_released(sent[c] - kFifoDepth + 1)))
      next(c);
    return !link->connection(0)->health().ok() ||
           (total == kManyChannels * stream.messages && connections[0].flushed());
  };
  const bool all = eventually(done, &total);
  if (!connections[0]->health().ok()) return connections[0]->health().message();
  return all ? "" : "the sender is stuck after " + std::to_string(total);
}

std::string receive_all(TcpPair* pair, const Stream& stream) {
  TcpOptions options = options_to(0);
  auto link = pair->link(1, options);
  Linked connections[kManyChannels];
  for (uint32_t c = 0; c < kManyChannels; ++c) connections[c] = linked(link, c);
  std::mt19937_64 random(stream.seed + 1);
  uint32_t received[kManyChannels] = {}, total = 0;
  std::string wrong;
  const auto done = [&] {
    const auto c = static_cast<uint32_t>(random() % kManyChannels);
    if (!connections[c]->health().ok()) wrong = connections[c]->health().message();
    const Message* message = connections[c]->front();
    if (message != nullptr) {
      if (message->signature != received[c]) wrong = "order on channel " + std::to_string(c);
      const auto expected = pattern(stream.seed + c * 1000003 + received[c], message->bytes);
      if (!same_bytes(payload_of(connections[c].get(), *message), expected))
        wrong = "bytes of " + std::to_string(received[c]);
      connections[c]->pop();
      ++received[c];
      ++total;
    }
    return !wrong.empty() || total == kManyChannels * stream.messages;
  };
  const bool all = eventually(done, &total);
  if (wrong.empty() && !all) return "the receiver is stuck after " + std::to_string(total);
  return wrong;
}

void run_stream(TcpPair* pair, const Stream& stream) {
  std::string receiver_says;
  std::thread receiver([&] { receiver_says = receive_all(pair, stream); });
  EXPECT_EQ(send_all(pair, stream), "");
  receiver.join();
  EXPECT_EQ(receiver_says, "");
}

TEST(Tcp, RandomMessagesThroughTinyBuffersArriveInOrder) {
  const uint64_t seed = test_seed();
  for (const Stream& stream :
       {Stream{seed, 1, 1000, 150, 20'000, 2048}, Stream{seed + 1, 3, 1000, 150, 20'000, 2048},
        Stream{seed + 2, 8, 64 << 10, 60, 600'000, 0}, Stream{seed + 3, 2, 128 << 10, 2000, 500, 0},
        Stream{seed + 4, 32, 300, 100, 5000, 4096}}) {
    SCOPED_TRACE("streams " + std::to_string(stream.streams) + " seed " + std::to_string(stream.seed));
    TcpPair pair(stream.streams, stream.buffer_bytes);
    run_stream(&pair, stream);
  }
}

// Passes bytes on at `bytes_per_ms`, until the sender closes.
void pass_on_slowly(int from, int to, size_t bytes_per_ms, std::atomic<size_t>* passed) {
  std::vector<std::byte> data(bytes_per_ms);
  for (;;) {
    const ssize_t got = read(from, data.data(), data.size());
    if (got <= 0) break;
    if (send(to, data.data(), static_cast<size_t>(got), MSG_NOSIGNAL) != got) break;
    *passed += static_cast<size_t>(got);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  close(from);
  close(to);
}

TEST(Tcp, ASlowStreamHoldsNoMoreThanItsFragments) {
  constexpr uint32_t kMessages = 100, kBytes = 1 << 20;
  std::atomic<size_t> passed{0};
  auto pair = std::make_unique<TcpPair>(3);
  const auto [sender, receiver] = tcp_sockets(8192);
  std::thread proxy(pass_on_slowly, receiver, std::exchange(pair->sending_socket(0, 1), sender), 1000, &passed);
  auto data = pattern(3, kBytes);
  TcpOptions options = options_to(1);
  options.fragment_bytes = 64 << 10;
  auto from = linked(pair->link(0, options), 0), to = linked(pair->link(1, options_to(0)), 0);
  uint32_t posted = 0, popped = 0;
  EXPECT_TRUE(eventually([&] {
    if (posted < kMessages && from->can_post()) from->post(user_message(posted++, data));
    (void)from.flushed();
    if (to->front() != nullptr) {
      EXPECT_EQ(to->front()->signature, popped++);
      to->pop();
    }
    return popped == kMessages;
  })) << popped;
  from.reset(), to.reset(), pair.reset();
  proxy.join();
  EXPECT_GT(passed, 0u);
  EXPECT_LT(passed, kMessages * size_t{kBytes} / 10) << "a third would be its part of an even distribution";
}

TEST(Tcp, TheSenderStopsWhereTheReceiverDoesNotReadAndMemoryIsBounded) {
  TcpPair pair(2);
  auto data = pattern(1, 1 << 20);
  auto from = linked(pair.link(0, options_to(1)), 1);
  auto link = pair.link(1, options_to(0));
  auto to = linked(link, 1), other = linked(link, 0);
  uint32_t posted = 0;
  for (; from->can_post(); ++posted) from->post(user_message(posted, data));
  EXPECT_EQ(posted, kFifoDepth);
  // The other channel is looked at, and brings in everything that may come.
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(other->front(), nullptr);
    return from.flushed();
  }));
  EXPECT_TRUE(eventually([&] { return from->has_released(kFifoDepth); })) << "they are copied";
  EXPECT_FALSE(from->can_post());
  EXPECT_LE(link->receive_memory(), kFifoDepth * data.size());
  for (uint32_t i = 0; i < kFifoDepth; ++i) {
    ASSERT_TRUE(eventually([&] { return to->front() != nullptr; }));
    EXPECT_EQ(to->front()->signature, i);
    to->pop();
  }
  EXPECT_TRUE(eventually([&] { return from->can_post(); }));
}

TEST(Tcp, FiveMessagesCanAlwaysBePostedAndTheCallerMayReuseInlineMemory) {
  TcpPair pair(1);
  auto from = linked(pair.link(0, options_to(1)), 0), to = linked(pair.link(1, options_to(0)), 0);
  for (uint32_t popped = 0; popped < 30; ++popped) {
    for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(eventually([&] { return from->can_post(); }));
    uint32_t value = popped;
    from->post(inline_message(popped, &value, sizeof value));
    value = 99;
    ASSERT_TRUE(eventually([&] { return to->front() != nullptr; }));
    EXPECT_EQ(std::memcmp(to->front()->data, &popped, sizeof popped), 0);
    to->pop();
    EXPECT_TRUE(from->has_released(popped + 1));
  }
}

TEST(Tcp, APeerThatDiesInTheMiddleOfAMessageIsNamed) {
  RawPeer peer;
  TcpFrame frame;
  frame.kind = static_cast<uint8_t>(PayloadKind::kUser);
  frame.bytes = frame.length = 100'000;
  peer.send(frame);
  peer.send("only a part", 11);
  EXPECT_EQ(peer.connection->front(), nullptr);
  EXPECT_TRUE(peer.connection->health().ok());
  peer.leave();
  const Status failure = peer.wait_for_failure();
  EXPECT_EQ(failure.code(), trRemoteError);
  EXPECT_NE(failure.message().find("rank 1"), std::string::npos) << failure.message();
  EXPECT_FALSE(peer.connection->can_post());
}

TEST(Tcp, FramesThatAreNoneAreErrors) {
  std::vector<std::pair<const char*, TcpFrame>> wrong;
  const auto add = [&](const char* what, auto change) {
    TcpFrame frame;
    frame.kind = static_cast<uint8_t>(PayloadKind::kUser);
    frame.bytes = frame.length = 1000;
    change(&frame);
    wrong.emplace_back(what, frame);
  };
  add("another version", [](TcpFrame* f) { f->mark += 1 << 24; });
  add("type", [](TcpFrame* f) { f->type = static_cast<TcpFrameType>(5); });
  add("kind", [](TcpFrame* f) { f->kind = 4; });
  add("lost shared stream", [](TcpFrame* f) { f->type = TcpFrameType::kLost, f->kind = 0; });
  add("lost stream that there is not", [](TcpFrame* f) { f->type = TcpFrameType::kLost, f->kind = 9; });
  add("channel", [](TcpFrame* f) { f->channel = kManyChannels; });
  add("message", [](TcpFrame* f) { f->message = kFifoDepth; });
  add("message before the first", [](TcpFrame* f) { f->message = UINT32_MAX; });
  add("offset", [](TcpFrame* f) { f->offset = 1; });
  add("offset that wraps", [](TcpFrame* f) { f->offset = UINT32_MAX; });
  add("length", [](TcpFrame* f) { f->length = UINT32_MAX; });
  add("no length", [](TcpFrame* f) { f->length = 0; });
  add("size", [](TcpFrame* f) { f->bytes = f->length = UINT32_MAX; });
  add("inline size", [](TcpFrame* f) { f->kind = 0; });
  add("credit for nothing", [](TcpFrame* f) { f->popped = 1; });
  add("credit of a transfer", [](TcpFrame* f) {
    f->type = TcpFrameType::kCredit;
    f->whole = 1;
  });
  for (const auto& [what, frame] : wrong) {
    SCOPED_TRACE(what);
    RawPeer peer;
    peer.send(frame);
    const Status failure = peer.wait_for_failure();
    EXPECT_EQ(failure.code(), trSystemError);
    EXPECT_NE(failure.message().find("rank 1"), std::string::npos) << failure.message();
    peer.connection->post(inline_message(1, what, 4));
    EXPECT_EQ(peer.connection->health().message(), failure.message()) << "the first failure stays";
  }
}

TEST(Tcp, FragmentsThatDoNotBelongTogetherAreErrors) {
  for (int variant = 0; variant < 3; ++variant) {
    RawPeer peer;
    TcpFrame frame;
    frame.kind = static_cast<uint8_t>(PayloadKind::kUser);
    frame.bytes = 8;
    frame.length = 4;
    peer.send(frame), peer.send("abcd", 4);
    if (variant == 0) frame.signature = 1;
    if (variant == 1) frame.bytes = 9;
    if (variant == 2) frame.length = 8;  // more than is left
    peer.send(frame);
    EXPECT_EQ(peer.wait_for_failure().code(), trSystemError);
  }
}

TEST(Tcp, AnythingAtAllEndsInAnErrorAndNotInACrash) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    RawPeer peer;
    for (int i = 0; i < 20; ++i) {
      TcpFrame frame;
      frame.type = static_cast<TcpFrameType>(1 + random() % 2);
      frame.kind = static_cast<uint8_t>(random() % 4);
      frame.channel = static_cast<uint8_t>(random() % kManyChannels);
      frame.message = static_cast<uint32_t>(random() % 4);
      frame.bytes = static_cast<uint32_t>(random() % 400);
      frame.offset = static_cast<uint32_t>(random() % 2 * (random() % 400));
      frame.length = static_cast<uint32_t>(random() % 400);
      if (random() % 20 == 0) reinterpret_cast<unsigned char*>(&frame)[random() % sizeof frame] ^= 1 << random() % 8;
      peer.send(frame);
      const auto bytes = pattern(random(), frame.length % 1000);
      peer.send(bytes.data(), bytes.size());
    }
    peer.leave();
    Linked channels[kManyChannels];
    for (uint32_t c = 0; c < kManyChannels; ++c) channels[c] = linked(peer.link, c);
    EXPECT_TRUE(eventually([&] {
      for (auto& channel : channels)
        if (channel->front() != nullptr) channel->pop();
      return !channels[0]->health().ok();
    }));
  }
}

TEST(Tcp, SomethingThatComesBackOnAStreamIsAnError) {
  RawPeer peer;
  const auto data = pattern(1, kSharedStreamBytes + 1);
  for (uint32_t i = 0; peer.connection->can_post(); ++i) peer.connection->post(user_message(i, data));
  ASSERT_EQ(write(peer.pair.receiving_socket(1, 1), "?", 1), 1);
  EXPECT_TRUE(eventually([&] { return !peer.connection->can_post() && !peer.connection->health().ok(); }));
  EXPECT_EQ(peer.connection->health().code(), trSystemError);
}

TEST(Tcp, AStreamThatCannotBeOpenedIsAnErrorOfWhoeverSends) {
  NoStreams source;
  auto link = TcpLink::make(options_to(7), &source);
  auto connection = linked(link, 0);
  EXPECT_EQ(connection->front(), nullptr);
  EXPECT_TRUE(connection->can_post());
  EXPECT_TRUE(source.asked.empty()) << "opened with the first post";
  uint32_t value = 1;
  connection->post(inline_message(1, &value, sizeof value));
  ASSERT_EQ(source.asked.size(), 1u);
  EXPECT_EQ(source.asked[0].first, 7u);
  EXPECT_EQ(source.asked[0].second, PeerStreamId(0));
  EXPECT_FALSE(connection.flushed());
  EXPECT_FALSE(connection->has_released(1));
  std::thread([&] { link->deliver_outgoing(0, {trSystemError, "connect to 10.0.0.7:1: no route"}, -1); }).join();
  EXPECT_FALSE(connection.flushed());
  EXPECT_EQ(connection->health().code(), trSystemError);
  EXPECT_NE(connection->health().message().find("10.0.0.7:1: no route"), std::string::npos);
  EXPECT_EQ(source.asked.size(), 1u) << "asked once: the answer was final";
}

TEST(Tcp, SteadyTrafficAllocatesNothing) {
  TcpPair pair(2);
  TcpOptions options = options_to(1);
  options.fragment_bytes = 16 << 10;
  auto from = linked(pair.link(0, options), 0), to = linked(pair.link(1, options_to(0)), 0);
  auto small = pattern(1, 100), large = pattern(2, 100'000);
  const auto round = [&](uint32_t turn) {
    const bool is_small = turn % 2 == 0;
    if (!eventually([&] { return from->can_post(); })) return false;
    from->post(is_small ? inline_message(turn, small.data(), 100) : user_message(turn, large));
    if (!eventually([&] { return to->front() != nullptr && from.flushed(); })) return false;
    to->pop();
    return true;
  };
  // Twice around the places, each of which may have held both sizes; the streams are all open then.
  for (uint32_t turn = 0; turn < 4 * kFifoDepth; ++turn) ASSERT_TRUE(round(turn));
  const unsigned long before = allocations;
  bool good = true;
  for (uint32_t turn = 0; turn < 2000; ++turn) good &= round(turn);
  const unsigned long after = allocations;
  EXPECT_TRUE(good);
  EXPECT_EQ(after - before, 0u);
}

}  // namespace
}  // namespace treering
