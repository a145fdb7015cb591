// SPDX-License-Identifier: Apache-2.0
// Introductions are told to the transport that they are of.
#include "peers/introductions.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

namespace treering {
namespace {

struct Taker final : IntroductionTaker {
  std::vector<std::string> told;

  void introduced(uint32_t peer, const std::string& bytes, int fd) override {
    told.push_back("introduced " + std::to_string(peer) + " " + bytes + (fd >= 0 ? " +" : ""));
    if (fd >= 0) close(fd);
  }
  void connected(uint32_t peer, const std::string& bytes, const Status& status, int fd) override {
    told.push_back("connected " + std::to_string(peer) + " " + bytes + (status.ok() ? " ok" : " not"));
    if (fd >= 0) close(fd);
  }
  void departed(uint32_t peer) override { told.push_back("departed " + std::to_string(peer)); }
};

// What one rank gives comes back to it as from another: to the taker of the same name, and none else.
TEST(Introductions, AreToldToTheTransportOfTheSameName) {
  std::vector<Introduction> given;
  Introductions introductions([&](uint32_t, Introduction introduction) { given.push_back(std::move(introduction)); },
                              [](uint32_t peer) { return peer + 10; });
  Taker red, blue;
  introductions.set_taker("red", &red);
  introductions.set_taker("blue", &blue);
  introductions.set_taker("mute", nullptr);
  MemberEvents events;
  introductions.listen(&events);

  introductions.introducer("red")->introduce(4, {.bytes = "a"});
  introductions.introducer("blue")->introduce(4, {.bytes = "", .connects = true, .way = 2, .again = true});
  ASSERT_EQ(given.size(), 2u);
  EXPECT_FALSE(given[0].connects);
  EXPECT_TRUE(given[1].connects && given[1].again);
  EXPECT_EQ(given[1].way, 2u);
  EXPECT_EQ(introductions.introducer("red")->interfaces_to(3), 13u);

  events.on_introduced(7, given[0].bytes, -1);
  events.on_connected(8, given[1].bytes, {trTimeout, "late"}, -1);
  EXPECT_EQ(red.told, std::vector<std::string>{"introduced 7 a"});
  EXPECT_EQ(blue.told, std::vector<std::string>{"connected 8  not"});
  introductions.departed(7);
  EXPECT_EQ(red.told.back(), "departed 7");
  EXPECT_EQ(blue.told.back(), "departed 7");
}

// Sockets that come with what no transport takes are closed.
TEST(Introductions, WithoutATransportAreDropped) {
  std::vector<Introduction> given;
  Introductions introductions([&](uint32_t, Introduction introduction) { given.push_back(std::move(introduction)); },
                              [](uint32_t) { return 1u; });
  MemberEvents events;
  introductions.listen(&events);
  introductions.introducer("red")->introduce(4, {.bytes = "a"});
  for (const std::string& bytes : {given[0].bytes, std::string("no name"), std::string()}) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    events.on_introduced(7, bytes, ends[0]);
    events.on_connected(7, bytes, {}, ends[1]);
    EXPECT_EQ(fcntl(ends[0], F_GETFD), -1);
    EXPECT_EQ(fcntl(ends[1], F_GETFD), -1);
  }
}

// The deadline's grace: short on an idle machine that is near, up to a second otherwise.
TEST(TimeForNews, GrowsWithLatenessAndReach) {
  using std::chrono::milliseconds;
  EXPECT_EQ(time_for_news({}, {}), milliseconds(300));
  EXPECT_EQ(time_for_news(milliseconds(10), {}), milliseconds(500));
  EXPECT_EQ(time_for_news({}, milliseconds(100)), milliseconds(500));
  EXPECT_EQ(time_for_news(milliseconds(10), milliseconds(100)), milliseconds(700));
  EXPECT_EQ(time_for_news(std::chrono::hours(1), {}), kMaxNewsTime);
  EXPECT_EQ(time_for_news({}, std::chrono::hours(1)), kMaxNewsTime);
}

}  // namespace
}  // namespace treering
