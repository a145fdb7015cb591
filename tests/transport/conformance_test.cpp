// SPDX-License-Identifier: Apache-2.0
// The conformance suite that every transport passes: order, payloads, flow control, status, regions, death of
// the peer, and long random traffic between two real processes (threads for the in-process transport).
#include <gtest/gtest.h>

#include <cstring>

#include "transport/two_sides.h"

namespace treering {
namespace {

// Its pop is told to the sender at once.
Message awaited_message(uint32_t signature) {
  Message message;
  message.signature = signature;
  message.kind = PayloadKind::kStaging;
  message.bytes = 8;
  return message;
}

// Both sides in one process.
class Conformance : public ::testing::TestWithParam<ConformanceRow> {
 protected:
  const ConformanceRow& row() const { return GetParam(); }
  TwoSides sides_{GetParam()};
  Linked sender_ = sides_.connect(0, 0);
  Linked receiver_ = sides_.connect(1, 0);

  // The message at the head once it is there. A rank that waits sends meanwhile what it has not sent yet.
  const Message* arrived(Connection* connection) const {
    const bool came =
        eventually([&] { return (void)sender_.flushed(), (void)receiver_.flushed(), connection->front() != nullptr; });
    return came ? connection->front() : nullptr;
  }
  const Message* arrived(const Linked& connection) const { return arrived(connection.get()); }
};

TEST_P(Conformance, SaysWhatItIs) {
  EXPECT_EQ(std::string(row().name).rfind(sender_->transport_name(), 0), 0u) << sender_->transport_name();
  EXPECT_TRUE(sender_->health().ok());
  EXPECT_EQ(receiver_->front(), nullptr);
  EXPECT_TRUE(sender_->can_post());
  EXPECT_EQ(sender_->posted(), 0u);
  EXPECT_EQ(sender_->released(), 0u);
}

TEST_P(Conformance, InlineMessagesArriveInOrderOverManyLaps) {
  for (uint32_t i = 0; i < 100 * kFifoDepth; ++i) {
    uint32_t bytes = i % (kInlineBytes + 1);
    auto data = pattern(i, bytes);
    ASSERT_TRUE(eventually([&] { return sender_->can_post(); }));
    Message message = inline_message(i ^ 0xABCD, data.data(), bytes);
    message.wide = i % 2 != 0;
    sender_->post(message);
    const Message* got = arrived(receiver_);
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
    ASSERT_TRUE(eventually([&] { return sender_->can_post(); })) << "after " << next;
    sender_->post(awaited_message(next));
  }
  // No rank waits for a pop's news where payloads are copied: they come in groups.
  const uint32_t group = row().copies ? kTellEvery : 1;
  for (int round = 0; round < 30; ++round) {
    ASSERT_FALSE(sender_->can_post());
    for (uint32_t i = 0; i < group; ++i) {
      const Message* got = arrived(receiver_);
      ASSERT_NE(got, nullptr);
      EXPECT_EQ(got->signature, expected++);
      receiver_->pop();
    }
    for (uint32_t i = 0; i < group; ++i) {
      ASSERT_TRUE(eventually([&] { return sender_->can_post(); }));
      sender_->post(awaited_message(next));
      ++next;
    }
  }
  while (expected < next) {
    ASSERT_NE(arrived(receiver_), nullptr);
    EXPECT_EQ(receiver_->front()->signature, expected++);
    receiver_->pop();
  }
  EXPECT_EQ(receiver_->front(), nullptr);
}

TEST_P(Conformance, CountsWhatIsReleased) {
  for (uint32_t i = 0; i < 5; ++i) sender_->post(awaited_message(i));
  EXPECT_EQ(sender_->posted(), 5u);
  if (row().copies) {  // before the peer has popped any
    EXPECT_EQ(sender_->known_released(), 0u) << "what is known for free is not asked for";
    EXPECT_TRUE(eventually([&] { return sender_.flushed() && sender_->has_released(5); }));
    EXPECT_EQ(sender_->known_released(), 5u);
    EXPECT_FALSE(sender_->has_released(6));
    return;
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(arrived(receiver_), nullptr);
    receiver_->pop();
  }
  EXPECT_EQ(sender_->known_released(), 0u) << "what is known for free is not asked for";
  EXPECT_FALSE(sender_->has_released(4));
  EXPECT_EQ(sender_->known_released(), 3u);
  EXPECT_TRUE(sender_->has_released(3));
  EXPECT_EQ(sender_->released(), 3u);
  ASSERT_NE(arrived(receiver_), nullptr);
  receiver_->pop();
  EXPECT_EQ(sender_->known_released(), 3u);
  EXPECT_TRUE(sender_->has_released(4));
  EXPECT_FALSE(sender_->has_released(5));
}

TEST_P(Conformance, InlineMessagesMayBeCountedLateButNeverBlock) {
  uint64_t posted = 0, popped = 0;
  for (int round = 0; round < 50; ++round) {
    // Credits may be under way: what is certain is that so many more can be posted.
    ASSERT_TRUE(eventually([&] { return posted - popped > kFifoDepth - kTellEvery || sender_->can_post(); }));
    while (sender_->can_post()) {
      const auto number = static_cast<uint32_t>(posted++);
      sender_->post(inline_message(number, &number, sizeof number));
    }
    if (!row().copies) {
      EXPECT_GE(posted - popped, kFifoDepth - kTellEvery + 1);
    }
    for (int i = 0; i <= round % 7 && popped < posted; ++i, ++popped) {
      ASSERT_NE(arrived(receiver_), nullptr);
      EXPECT_EQ(receiver_->front()->signature, popped);
      receiver_->pop();
    }
    if (!row().copies) {
      EXPECT_LE(sender_->released(), popped);
    }
    EXPECT_GT(sender_->released() + kTellEvery, popped);
  }
  // One that is waited for tells of all before it.
  for (; popped < posted; ++popped) {
    ASSERT_NE(arrived(receiver_), nullptr);
    receiver_->pop();
  }
  ASSERT_TRUE(eventually([&] { return sender_->can_post(); }));
  sender_->post(awaited_message(0));
  ASSERT_NE(arrived(receiver_), nullptr);
  receiver_->pop();
  if (row().tells_late) {
    EXPECT_TRUE(eventually([&] { return sender_->released() == popped + 1; }));
  } else {
    EXPECT_EQ(sender_->released(), popped + 1);
  }
}

TEST_P(Conformance, StagedPayloadIsReadableUntilPopped) {
  auto data = pattern(7, kSlotBytes);
  std::memcpy(sides_.side(0).staging + kSlotBytes, data.data(), data.size());
  Message message;
  message.kind = PayloadKind::kStaging;
  message.bytes = kSlotBytes;
  message.whole = 4'000'000'001;
  message.user.offset = kSlotBytes;
  sender_->post(message);
  for (int time = 0; time < 3; ++time) {
    const Message* got = arrived(receiver_);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->whole, message.whole);
    EXPECT_EQ(payload_of(receiver_.get(), *got), data);
    if (row().copies) {  // the sender may use the slot again
      EXPECT_TRUE(row().tells_late ? eventually([&] { return sender_->has_released(1); }) : sender_->has_released(1));
      std::memset(sides_.side(0).staging, 0, sizeof sides_.side(0).staging);
    } else {
      EXPECT_FALSE(sender_->has_released(1));
    }
  }
  receiver_->pop();
  EXPECT_TRUE(sender_->has_released(1));
}

TEST_P(Conformance, DeliveredMessagesCarryNoPayload) {
  Message message;
  message.kind = PayloadKind::kDelivered;
  message.bytes = 1 << 20;
  message.whole = 4'000'000'001;
  sender_->post(message);
  ASSERT_NE(arrived(receiver_), nullptr);
  EXPECT_EQ(receiver_->front()->kind, PayloadKind::kDelivered);
  EXPECT_EQ(receiver_->front()->bytes, 1u << 20);
  EXPECT_EQ(receiver_->front()->whole, message.whole);
  receiver_->pop();
}

TEST_P(Conformance, PlainUserMemoryIsReadWhereItIsReached) {
  auto data = pattern(9, 100'000);
  Message message;
  message.kind = PayloadKind::kUser;
  message.bytes = static_cast<uint32_t>(data.size());
  message.whole = 4'000'000'001;
  message.user = {0, reinterpret_cast<uint64_t>(data.data())};
  sender_->post(message);
  const Message* got = arrived(receiver_);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->whole, message.whole);
  if (row().plain != ConformanceRow::Plain::kNever) {
    EXPECT_EQ(payload_of(receiver_.get(), *got), data);
  } else {
    EXPECT_EQ(got->data, nullptr);
    std::byte target[16];
    EXPECT_EQ(receiver_->fetch(*got, 0, target, sizeof target).code(), trSystemError) << "an error, not a crash";
  }
  receiver_->pop();
}

// Asked for each buffer: the answer is what post() takes, or nothing.
TEST_P(Conformance, SaysHowAMessageMayReferToMemory) {
  std::vector<std::byte> plain(100);
  const Region none;
  const auto refers = [&](bool fetch_pays) { return sender_->reference({plain.data(), 100, &none, fetch_pays}); };
  using Plain = ConformanceRow::Plain;
  EXPECT_EQ(refers(false).has_value(), row().plain == Plain::kAlways);
  ASSERT_EQ(refers(true).has_value(), row().plain != Plain::kNever);
  if (row().plain != Plain::kNever) {
    EXPECT_EQ(refers(true)->region, 0u);
    EXPECT_EQ(refers(true)->offset, reinterpret_cast<uint64_t>(plain.data()));
  }
  std::vector<std::byte> memory(1000);
  Region region;
  region.id = 7;
  region.base = memory.data();
  region.bytes = memory.size();
  const auto inside = sender_->reference({memory.data() + 900, 100, &region, false});
  ASSERT_EQ(inside.has_value(), row().maps_regions || row().plain == Plain::kAlways);
  if (row().maps_regions) {
    EXPECT_EQ(inside->region, 7u);
    EXPECT_EQ(inside->offset, 900u);
  }
  const auto over_its_end = sender_->reference({memory.data() + 901, 100, &region, false});
  EXPECT_EQ(over_its_end.has_value(), row().plain == Plain::kAlways);
}

// The peer shows its output at an operation; a final value of another one goes nowhere.
TEST_P(Conformance, StoresFinalValuesWhereThePeerShowsItsOutputInPlace) {
  std::vector<std::byte> output(100);
  OpenBuffers& shown = sides_.side(1).buffers;
  shown.output_address = reinterpret_cast<uint64_t>(output.data());
  shown.operation = 5;
  std::byte* const place = sender_->output_place(5, 40, 10);
  const bool by_address = row().mapped && !row().maps_regions;
  EXPECT_EQ(place, by_address ? output.data() + 40 : nullptr);
  EXPECT_EQ(sender_->output_place(6, 40, 10), nullptr);
  shown.output_address = 0;
  EXPECT_EQ(sender_->output_place(5, 40, 10), nullptr);
  EXPECT_EQ(sender_->slots_outlive_sender(), row().mapped);

  Message operand;
  operand.kind = PayloadKind::kUser;
  operand.data = output.data();
  EXPECT_EQ(sender_->operand_place(operand), nullptr) << "the peer does not open its operands";
  shown.open_input = 1;
  EXPECT_EQ(sender_->operand_place(operand), row().mapped ? output.data() : nullptr);
  operand.kind = PayloadKind::kStaging;
  EXPECT_EQ(sender_->operand_place(operand), nullptr);
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
  ASSERT_NE(arrived(other_receiver), nullptr);
  EXPECT_EQ(other_receiver->front()->signature, 77u);
  ASSERT_NE(arrived(sender_), nullptr);
  EXPECT_EQ(sender_->front()->signature, 78u);
  ASSERT_NE(arrived(receiver_), nullptr);
  EXPECT_EQ(receiver_->front()->signature, 0u);
  if (!row().copies) {
    EXPECT_EQ(other_sender->released(), 0u);
  }
  other_receiver->pop();
  for (uint32_t i = 1; i < kTellEvery; ++i) {
    other_sender->post(inline_message(i, &i, sizeof i));
    ASSERT_NE(arrived(other_receiver), nullptr);
    other_receiver->pop();
  }
  EXPECT_EQ(other_sender->released(), kTellEvery);
  if (!row().copies) {
    EXPECT_EQ(sender_->released(), 0u);
  }
  EXPECT_FALSE(sender_->can_post());
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
    // The peer's output begins at 4000 of the region. (In one process it is known by its address.)
    OpenBuffers& shown = sides_.side(1).buffers;
    shown.output_address = reinterpret_cast<uint64_t>(bytes) + 4000;
    shown.output_region = region.id;
    shown.output_offset = 4000;
    shown.operation = 9;
    std::byte* const mapped = sender_->output_place(9, 1000, 100);
    ASSERT_EQ(mapped != nullptr, row().mapped);
    if (row().maps_regions) {
      EXPECT_EQ(sender_->output_place(9, kBytes - 4010, 11), nullptr) << "one byte past the end";
      EXPECT_EQ(sender_->output_place(9, UINT64_MAX - 4000, 1), nullptr);
      shown.output_region = region.id + 1000;
      EXPECT_EQ(sender_->output_place(9, 0, 1), nullptr) << "no such region";
      shown.output_region = region.id;
    }
    if (mapped == nullptr) continue;
    EXPECT_EQ(mapped[0], std::byte{42});
    mapped[1] = std::byte{43};
    EXPECT_EQ(bytes[5001], std::byte{43});
    if (!row().maps_regions) continue;
    // And as a payload that is referred to.
    Message message;
    message.kind = PayloadKind::kUser;
    message.bytes = 100;
    message.user = {region.id, 5000};
    receiver_->post(message);
    ASSERT_NE(arrived(sender_), nullptr);
    EXPECT_EQ(payload_of(sender_.get(), *sender_->front()), std::vector<std::byte>(bytes + 5000, bytes + 5100));
    sender_->pop();
  }
  EXPECT_TRUE(table.release(allocated).ok());
  EXPECT_TRUE(table.end_registration(id).ok());
  munmap(moved, kBytes);
}

TEST_P(Conformance, MessagesReferToRegionsThatTheTransportWasGiven) {
  if (row().register_region == nullptr) return;
  constexpr size_t kBytes = 3 * 4096;
  RegionTable& table = RegionTable::instance();
  void* memory = nullptr;
  ASSERT_TRUE(table.allocate(kBytes, &memory).ok());
  const Region region = table.find(memory, kBytes);
  const auto data = pattern(11, kBytes);
  std::memcpy(memory, data.data(), kBytes);
  const auto reference = [&](size_t offset, size_t bytes) {
    return sender_->reference({region.base + offset, bytes, &region, false});
  };
  EXPECT_FALSE(reference(0, 100)) << "it was not given yet";
  row().register_region(&sides_, 0, region);
  row().register_region(&sides_, 0, region);  // as for each call
  EXPECT_FALSE(reference(kBytes - 99, 100)) << "one byte past the end";
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, kBytes}, {4000, 5000}, {kBytes - 1, 1}}) {
    const auto user = reference(offset, bytes);
    ASSERT_TRUE(user);
    EXPECT_EQ(user->region, region.id);
    EXPECT_EQ(user->offset, offset);
    Message message;
    message.kind = PayloadKind::kUser;
    message.bytes = static_cast<uint32_t>(bytes);
    message.user = *user;
    sender_->post(message);
    const Message* got = arrived(receiver_);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(payload_of(receiver_.get(), *got),
              std::vector<std::byte>(data.begin() + static_cast<std::ptrdiff_t>(offset),
                                     data.begin() + static_cast<std::ptrdiff_t>(offset + bytes)));
    receiver_->pop();
    EXPECT_TRUE(eventually([&] { return sender_.flushed() && sender_->has_released(sender_->posted()); }));
  }
  EXPECT_TRUE(table.release(memory).ok());
}

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(conformance_rows()), row_name);

// The counters in memory have 32 bits: the sender's arithmetic over their wrap.
TEST(Fifo, SenderCountsOverTheWrapOf32Bits) {
  auto fifo = std::make_unique<Fifo>();
  FifoSender sender(fifo.get());
  for (uint64_t behind = 0; behind <= kFifoDepth; ++behind)
    for (uint64_t posted = (uint64_t{1} << 32) - 20; posted < (uint64_t{1} << 32) + 20; ++posted) {
      fifo->popped.store(static_cast<uint32_t>(posted - behind));
      EXPECT_EQ(sender.popped(posted), posted - behind);
      sender.post(posted, inline_message(static_cast<uint32_t>(posted), &posted, sizeof posted));
      EXPECT_EQ(fifo->slots[posted % kFifoDepth].turn.load(), static_cast<uint32_t>(posted + 1));
    }
}

}  // namespace
}  // namespace treering
