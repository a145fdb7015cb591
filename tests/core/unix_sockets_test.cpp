// SPDX-License-Identifier: Apache-2.0
#include "core/unix_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <deque>
#include <string>
#include <utility>

namespace treering {
namespace {

class UnixSockets : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0); }
  void TearDown() override {
    for (const int end : ends_) close(end);
    for (const int descriptor : received_) close(descriptor);
  }
  std::string receive(std::deque<int>* descriptors) {
    char text[64];
    const ssize_t got = receive_with_descriptors(ends_[1], text, sizeof text, MSG_DONTWAIT, descriptors);
    return got < 0 ? "nothing" : std::string(text, static_cast<size_t>(got));
  }

  int ends_[2] = {-1, -1};
  std::deque<int> received_;
};

TEST_F(UnixSockets, ADescriptorTravelsWithBytes) {
  const int file = memfd_create("passed", MFD_CLOEXEC);
  ASSERT_EQ(write(file, "text", 4), 4);
  EXPECT_EQ(send_with_descriptor(ends_[0], "bytes", 5, file, 0), 5);
  close(file);
  EXPECT_EQ(receive(&received_), "bytes");
  ASSERT_EQ(received_.size(), 1u);
  char text[4] = {};
  EXPECT_EQ(pread(received_[0], text, sizeof text, 0), 4);
  EXPECT_EQ(std::string(text, 4), "text");
  EXPECT_NE(fcntl(received_[0], F_GETFD) & FD_CLOEXEC, 0);
}

// Each comes with a byte of its own: a read ends where a descriptor does.
TEST_F(UnixSockets, SeveralTravelInTheirOrder) {
  int files[3];
  for (int& file : files) {
    file = memfd_create("passed", MFD_CLOEXEC);
    const char number = static_cast<char>('0' + (&file - files));
    ASSERT_EQ(write(file, &number, 1), 1);
    EXPECT_EQ(send_with_descriptor(ends_[0], "b", 1, file, 0), 1);
    close(file);
  }
  std::string bytes;
  while (bytes.size() < 3) bytes += receive(&received_);
  EXPECT_EQ(bytes, "bbb");
  ASSERT_EQ(received_.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    char number = 0;
    EXPECT_EQ(pread(received_[i], &number, 1, 0), 1);
    EXPECT_EQ(number, static_cast<char>('0' + i));
  }
}

TEST_F(UnixSockets, BytesTravelWithoutOne) {
  EXPECT_EQ(send_with_descriptor(ends_[0], "bytes", 5, -1, 0), 5);
  EXPECT_EQ(receive(&received_), "bytes");
  EXPECT_TRUE(received_.empty());
  EXPECT_EQ(receive(&received_), "nothing");
}

TEST_F(UnixSockets, WhatIsNotTakenIsDropped) {
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
  EXPECT_EQ(send_with_descriptor(ends_[0], "bytes", 5, pipes[1], 0), 5);
  close(pipes[1]);
  EXPECT_EQ(receive(nullptr), "bytes");
  char byte;
  EXPECT_EQ(read(pipes[0], &byte, 1), 0) << "the end for writing is still open";
  close(pipes[0]);
}

TEST_F(UnixSockets, AnEndedOtherSideRaisesNoSignal) {
  close(std::exchange(ends_[1], -1));
  EXPECT_EQ(send_with_descriptor(ends_[0], "bytes", 5, -1, 0), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(UnixSockets, TheOtherSideIsKnown) {
  EXPECT_EQ(peer_of(ends_[0]).pid, getpid());
  EXPECT_TRUE(is_of_this_user(ends_[0]));
  EXPECT_FALSE(is_of_this_user(-1));
}

TEST(AbstractAddress, BeginsWithAZeroByteAndHasNoneAtItsEnd) {
  sockaddr_un address;
  EXPECT_EQ(abstract_address("name", &address), sizeof(sa_family_t) + 1 + 4);
  EXPECT_EQ(address.sun_path[0], '\0');
  EXPECT_STREQ(address.sun_path + 1, "name");
}

}  // namespace
}  // namespace treering
