// SPDX-License-Identifier: Apache-2.0
// Which congestion control a link's streams have, on loopback.
#include "transport/tcp/congestion.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "transport/linked.h"
#include "transport/tcp/pair.h"
#include "transport/tcp/testing.h"

namespace treering {
namespace {

TEST(TcpCongestion, ANameThatTheKernelDoesNotKnowIsRefusedWithThoseThatItDoes) {
  EXPECT_TRUE(check_congestion_control("reno").ok());
  const Status unknown = check_congestion_control("renno");
  EXPECT_EQ(unknown.code(), trInvalidArgument);
  EXPECT_NE(unknown.message().find("'renno'"), std::string::npos) << unknown.message();
  EXPECT_NE(unknown.message().find("may take: "), std::string::npos) << unknown.message();
  EXPECT_NE(unknown.message().find("reno", unknown.message().find("may take: ")), std::string::npos);
  EXPECT_FALSE(check_congestion_control("a-name-that-no-kernel-can-have").ok());
}

TEST(TcpCongestion, LoopbackIsNoLongPath) {
  const auto [sender, receiver] = tcp_sockets();
  EXPECT_TRUE(is_long_path(sender, 0));
  EXPECT_FALSE(is_long_path(sender, 10'000'000));
  close(sender);
  close(receiver);
}

// What is BBR when it is connected stays paced for good.
TEST(TcpCongestion, SocketsThatAreAcceptedBeginAsTheirListener) {
  if (system_bbr().empty()) GTEST_SKIP() << "the system's congestion control is not BBR: there is nothing to leave";
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), dialer = socket(AF_INET, SOCK_STREAM, 0);
  begin_unpaced(listener);
  begin_unpaced(dialer);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, name, length), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, name, &length), 0);
  ASSERT_EQ(connect(dialer, name, length), 0);
  const int accepted = accept(listener, nullptr, nullptr);
  for (const int fd : {listener, dialer, accepted}) {
    EXPECT_EQ(congestion_control(fd).find("bbr"), std::string::npos);
    close(fd);
  }
}

// A link whose sockets begin with Reno; the controls of its streams after `messages` large ones.
std::vector<std::string> controls(const TcpCongestion& congestion, int messages) {
  constexpr uint32_t kStreams = 2;
  TcpPair pair(kStreams);
  std::vector<int> streams;
  for (uint32_t i = 0; i <= kStreams; ++i) {
    EXPECT_TRUE(set_congestion_control(pair.outgoing(0, i), "reno"));
    streams.push_back(dup(pair.outgoing(0, i)));
  }
  TcpOptions options;
  options.congestion = congestion;
  auto from = linked(pair.link(0, options), 0);
  auto to = linked(pair.link(1, options), 0);
  const auto data = pattern(3, 1 << 20);
  int posted = 0, taken = 0;
  EXPECT_TRUE(eventually([&] {
    if (posted < messages && from->can_post()) from->post(user_message(static_cast<uint32_t>(posted++), data));
    (void)from.flushed();
    if (to->front() != nullptr) to->pop(), ++taken;
    return taken == messages;
  }));
  std::vector<std::string> names;
  for (const int fd : streams) {
    names.push_back(congestion_control(fd));
    close(fd);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(TcpCongestion, StreamsOfLargeMessagesChangeOnLongPathsOnceTheyAreKnown) {
  const char* other = check_congestion_control("bbr").ok() ? "bbr" : "cubic";
  if (!check_congestion_control(other).ok()) GTEST_SKIP() << "this process may use Reno alone";
  EXPECT_EQ(controls({.all = "", .if_long = other, .long_us = 0}, 60), (Names{"reno", other, other}));
  EXPECT_EQ(controls({.all = "", .if_long = other, .long_us = 0}, 2), (Names{"reno", "reno", "reno"}));
  EXPECT_EQ(controls({.all = "", .if_long = other, .long_us = 10'000'000}, 60), (Names{"reno", "reno", "reno"}));
  EXPECT_EQ(controls({.all = "", .if_long = "", .long_us = 0}, 60), (Names{"reno", "reno", "reno"}));
}

TEST(TcpCongestion, TheOneThatIsAskedForIsThatOfAllStreams) {
  const char* other = check_congestion_control("bbr").ok() ? "bbr" : "cubic";
  if (!check_congestion_control(other).ok()) GTEST_SKIP() << "this process may use Reno alone";
  EXPECT_EQ(controls({.all = other, .if_long = "reno", .long_us = 0}, 2), (Names{other, other, other}));
}

}  // namespace
}  // namespace treering
