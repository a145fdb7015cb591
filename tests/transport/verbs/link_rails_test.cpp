// SPDX-License-Identifier: Apache-2.0
// Verbs links over several devices of the stand-in for libibverbs: what is posted by which rail, and errors of one.
#include <gtest/gtest.h>

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "support/fake_verbs/fake_verbs.h"
#include "support/seed.h"
#include "support/waiting.h"
#include "transport/verbs/pair.h"

namespace treering::verbs {
namespace {

using treering::testing::eventually;

constexpr uint32_t kChannels = 2;
constexpr size_t kPlaceBytes = 64 << 10;

fake_verbs_counters counters() {
  fake_verbs_counters now{};
  fake_verbs_get_counters(&now);
  return now;
}

class VerbsLinkRails : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake_verbs_reset(), 0);
    fake_verbs_set_seed(test_seed());
  }
  void TearDown() override {
    senders_.clear();
    receivers_.clear();
    links_[0].reset();
    links_[1].reset();
    pair_.reset();
    char left[256] = "";
    EXPECT_EQ(fake_verbs_left_over(left, sizeof left), 0) << left;
  }

  void connect(int rails_of_sender, int rails_of_receiver) {
    pair_ = std::make_unique<VerbsPair>(kChannels, kPlaceBytes, kFifoDepth, rails_of_sender, rails_of_receiver);
    for (int side : {0, 1}) links_[side] = pair_->link(side, staging_[side], sizeof staging_[side]);
    for (uint32_t channel = 0; channel < kChannels; ++channel) {
      senders_.push_back(links_[0]->connection(channel));
      receivers_.push_back(links_[1]->connection(channel));
    }
  }
  // Sends a payload and takes it.
  void pass(uint32_t number, uint32_t bytes, uint32_t channel = 0) {
    for (uint32_t i = 0; i < bytes; ++i) staging_[0][i] = static_cast<std::byte>(number + i / 256);
    Message message;
    message.signature = number;
    message.bytes = bytes;
    message.kind = PayloadKind::kStaging;
    ASSERT_TRUE(eventually([&] { return senders_[channel]->can_post(); })) << senders_[channel]->health().message();
    senders_[channel]->post(message);
    Connection* receiver = receivers_[channel].get();
    ASSERT_TRUE(eventually([&] { return links_[0]->flush(), receiver->front() != nullptr; }))
        << receiver->health().message();
    ASSERT_EQ(receiver->front()->signature, number);
    ASSERT_EQ(std::memcmp(receiver->front()->data, staging_[0], bytes), 0) << number;
    receiver->pop();
    ASSERT_TRUE(eventually([&] { return senders_[channel]->has_released(senders_[channel]->posted()); }));
  }
  std::string failure_of(Connection* connection) {
    eventually([&] {
      for (const auto& link : links_) link->flush();
      (void)connection->front();
      (void)connection->released();
      return !connection->health().ok();
    });
    return connection->health().message();
  }

  alignas(4096) std::byte staging_[2][2 * kPlaceBytes];
  std::unique_ptr<VerbsPair> pair_;
  std::shared_ptr<VerbsLink> links_[2];
  std::vector<std::unique_ptr<Connection>> senders_, receivers_;
};

constexpr int kWrite = IBV_WR_RDMA_WRITE, kTold = IBV_WR_RDMA_WRITE_WITH_IMM;

TEST_F(VerbsLinkRails, ALargeMessageIsOneMoreRequestForEachOtherRail) {
  for (const int rails : {2, 3, 4}) {
    connect(rails, rails);
    pair_->wait_until_heard();
    EXPECT_EQ(counters().qps_alive, 2u * static_cast<uint32_t>(rails));
    const fake_verbs_counters before = counters();
    constexpr uint64_t kMessages = 40;
    for (uint32_t i = 0; i < kMessages; ++i) pass(i, kPlaceBytes - i, i % kChannels);
    const fake_verbs_counters done = counters();
    EXPECT_EQ(done.sends_posted[kWrite], before.sends_posted[kWrite]);
    EXPECT_EQ(done.sends_posted[kTold] - before.sends_posted[kTold],
              kMessages * static_cast<uint32_t>(rails) + kMessages / kTellEvery);
    EXPECT_EQ(done.receives_awaited, 0u) << "a receive was always posted";
    TearDown();
    SetUp();
  }
}

TEST_F(VerbsLinkRails, ASmallMessageIsOneRequestHoweverManyRails) {
  connect(4, 4);
  pair_->wait_until_heard();
  constexpr uint32_t kMessages = 400;
  for (uint32_t i = 0; i < kMessages; ++i) {
    const uint32_t channel = i % kChannels;
    Message message;
    message.signature = i;
    message.bytes = sizeof i;
    message.data = &i;
    ASSERT_TRUE(eventually([&] { return senders_[channel]->can_post(); }));
    senders_[channel]->post(message);
    ASSERT_TRUE(eventually([&] { return links_[0]->flush(), receivers_[channel]->front() != nullptr; }));
    ASSERT_EQ(receivers_[channel]->front()->signature, i);
    receivers_[channel]->pop();
  }
  EXPECT_EQ(counters().sends_posted[kWrite], 0u);
  EXPECT_EQ(counters().sends_posted[kTold], kMessages + kMessages / kTellEvery);
}

// Both ends use the rails that both have.
TEST_F(VerbsLinkRails, ARankWithFewerRailsIsReachedByThose) {
  for (const auto& [own, peers] : {std::pair{1, 2}, {2, 1}, {4, 2}, {2, 3}}) {
    connect(own, peers);
    pair_->wait_until_heard();
    const uint64_t before = counters().sends_posted[kTold];
    for (uint32_t i = 0; i < 24; ++i) pass(i, kPlaceBytes, i % kChannels);
    const auto used = static_cast<uint64_t>(std::min(own, peers));
    EXPECT_EQ(counters().sends_posted[kTold] - before, 24 * used + 24 / kTellEvery) << own << " and " << peers;
    TearDown();
    SetUp();
  }
}

TEST_F(VerbsLinkRails, RegisteredMemoryIsReadByAllRails) {
  connect(2, 2);
  std::vector<std::byte> memory(kPlaceBytes, std::byte{7});
  const Region region{.id = 7, .base = memory.data(), .bytes = memory.size()};
  const uint64_t before = counters().bytes_registered;
  ASSERT_TRUE(pair_->regions(0).add(region, 2 * memory.size()).ok());
  EXPECT_EQ(counters().bytes_registered - before, 2 * memory.size());
  Message message;
  message.kind = PayloadKind::kUser;
  message.bytes = kPlaceBytes;
  message.user = *senders_[0]->reference({memory.data(), memory.size(), &region, false});
  senders_[0]->post(message);
  ASSERT_TRUE(eventually([&] { return links_[0]->flush(), receivers_[0]->front() != nullptr; }));
  EXPECT_EQ(std::memcmp(receivers_[0]->front()->data, memory.data(), memory.size()), 0);
  ASSERT_TRUE(eventually([&] { return senders_[0]->has_released(1); }));
  pair_->regions(0).end(region.id);
  EXPECT_EQ(counters().bytes_registered, before);
  const Region more{.id = 8, .base = memory.data(), .bytes = memory.size()};
  EXPECT_NE(pair_->regions(0).add(more, 2 * memory.size() - 1).message().find("each of 2 rails"), std::string::npos);
}

// The queue pairs in the order in which they were made: those of the first link before those of the second.
TEST_F(VerbsLinkRails, AFailedRailFailsTheLinkAndIsNamed) {
  for (const uint32_t rail : {0u, 1u}) {
    connect(2, 2);
    pass(1, kPlaceBytes);
    uint32_t numbers[4] = {};
    ASSERT_EQ(fake_verbs_qp_numbers(numbers, 4), 4u);
    fake_verbs_fail_completion(numbers[rail], FAKE_VERBS_SEND_QUEUE, 1, IBV_WC_RETRY_EXC_ERR);
    Message message;
    message.kind = PayloadKind::kStaging;
    message.bytes = kPlaceBytes;
    senders_[0]->post(message);
    const std::string error = failure_of(senders_[0].get());
    const std::string own = "fake" + std::to_string(2 * rail), peers = "fake" + std::to_string(2 * rail + 1);
    for (const std::string& part : {own + " port 1", "to " + peers + " port 1", std::string("transport retry counter")})
      EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
    EXPECT_EQ(error.find("fake" + std::to_string(2 - 2 * rail) + " port"), std::string::npos)
        << "the other is sound: " << error;
    TearDown();
    SetUp();
  }
}

TEST_F(VerbsLinkRails, AQueuePairInErrorIsSeenAlsoWhereTheOtherRailIsUsed) {
  connect(2, 2);
  pass(1, kPlaceBytes);
  uint32_t numbers[4] = {};
  ASSERT_EQ(fake_verbs_qp_numbers(numbers, 4), 4u);
  ASSERT_EQ(fake_verbs_break_qp(numbers[1]), 0);
  EXPECT_NE(failure_of(senders_[0].get()).find("fake2 port 1"), std::string::npos) << senders_[0]->health().message();
}

// A fragment that is held back holds back its message, and those after it; the header has long come.
TEST_F(VerbsLinkRails, AMessageWaitsForItsLastFragment) {
  connect(2, 2);
  pass(1, kPlaceBytes);
  uint32_t numbers[4] = {};
  ASSERT_EQ(fake_verbs_qp_numbers(numbers, 4), 4u);
  ASSERT_EQ(fake_verbs_hold_qp(numbers[1], 1), 0);
  std::memset(staging_[0], 9, kPlaceBytes);
  Message message;
  message.kind = PayloadKind::kStaging;
  message.bytes = kPlaceBytes;
  message.signature = 2;
  senders_[0]->post(message);
  message.bytes = 100;
  message.signature = 3;
  senders_[0]->post(message);
  fake_verbs_advance(10'000);
  EXPECT_EQ(receivers_[0]->front(), nullptr);
  EXPECT_FALSE(senders_[0]->has_released(2));
  ASSERT_EQ(fake_verbs_hold_qp(numbers[1], 0), 0);
  for (const uint32_t number : {2u, 3u}) {
    ASSERT_TRUE(eventually([&] { return receivers_[0]->front() != nullptr; }));
    EXPECT_EQ(receivers_[0]->front()->signature, number);
    EXPECT_EQ(*static_cast<const std::byte*>(receivers_[0]->front()->data), std::byte{9});
    receivers_[0]->pop();
  }
}

TEST_F(VerbsLinkRails, WhatWasSentByAllRailsOutlivesItsSender) {
  connect(3, 3);
  std::memset(staging_[0], 5, kPlaceBytes);
  Message message;
  message.kind = PayloadKind::kStaging;
  message.bytes = kPlaceBytes;
  for (uint32_t i = 0; i < 5; ++i) senders_[0]->post(message);
  ASSERT_TRUE(eventually([&] { return links_[0]->finish(); }));
  senders_.clear();
  links_[1]->depart();
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(eventually([&] { return receivers_[0]->front() != nullptr; })) << receivers_[0]->health().message();
    EXPECT_EQ(std::memcmp(receivers_[0]->front()->data, staging_[0], kPlaceBytes), 0);
    receivers_[0]->pop();
  }
  EXPECT_TRUE(receivers_[0]->health().ok()) << receivers_[0]->health().message();
}

TEST_F(VerbsLinkRails, ARailThatCannotBeMadeFailsTheLinkAndIsNamed) {
  fake_verbs_fail_call("ibv_create_qp", 2, EPERM);
  connect(2, 2);
  const std::string own = failure_of(senders_[0].get()), others = failure_of(receivers_[0].get());
  EXPECT_NE(own.find("fake2 port 1"), std::string::npos) << own;
  EXPECT_NE(own.find("ibv_create_qp"), std::string::npos) << own;
  EXPECT_NE(others.find("it says: "), std::string::npos) << others;
}

// A device's place on the PCI bus, as sysfs tells it, and how far the library says that this is.
TEST(VerbsDevicesOfARank, AreThoseThatAreNearest) {
  ASSERT_EQ(fake_verbs_reset(), 0);
  ASSERT_EQ(fake_verbs_set_devices(4, 2), 0);
  std::string folder = (std::filesystem::temp_directory_path() / "treering-test-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (const int device : {0, 1, 2}) {
    const std::string place = folder + "/fake" + std::to_string(device);
    std::filesystem::create_directory(place);
    std::filesystem::create_symlink("../../devices/pci0000:00/0000:0" + std::to_string(device) + ":00.0",
                                    place + "/device");
    ASSERT_EQ(fake_verbs_set_sysfs(device, place.c_str()), 0);
  }
  const auto distance_of = [](const std::string& pci_bus_id) {
    if (pci_bus_id.empty()) return -1;
    return pci_bus_id == "0000:00:00.0" ? 2 : 1;
  };
  ASSERT_EQ(fake_verbs_set_port_up(2, 1, 0), 0);
  Devices devices;
  std::vector<std::string> rejected;
  const Status opened = open_devices(Config(), distance_of, &devices, &rejected);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(opened.ok()) << opened.message();
  std::string used, unused;
  for (const auto& device : devices) used += device->rail().device + ":" + std::to_string(device->rail().port) + " ";
  for (const std::string& port : rejected) unused += port + "\n";
  EXPECT_EQ(used, "fake1:1 fake1:2 fake2:2 ") << "both ports of a device are rails";
  for (const char* part : {"fake0 port 1: fake1 port 1 is nearer", "fake0 port 2: ", "fake2 port 1: its state is ",
                           "fake3 port 1: fake1 port 1 is nearer"})
    EXPECT_NE(unused.find(part), std::string::npos) << part << " is not in " << unused;
  devices.clear();
  char left[256] = "";
  EXPECT_EQ(fake_verbs_left_over(left, sizeof left), 0) << left;
  ASSERT_EQ(fake_verbs_reset(), 0);
}

}  // namespace
}  // namespace treering::verbs
