// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace treering::perf {
namespace {

constexpr auto kAtOnce = std::chrono::milliseconds(0);
constexpr auto kOften = std::chrono::milliseconds(20);  // the test reads in between, or the terminal fills up
constexpr auto kNever = std::chrono::hours(1);
const std::string kErased = "\r\033[K";

class ProgressLine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (openpty(&reader_, &terminal_, nullptr, nullptr, nullptr) != 0)
      GTEST_SKIP() << "no terminal can be made here (is /dev/pts mounted?): " << std::strerror(errno);
  }
  void TearDown() override {
    if (reader_ < 0) return;
    close(reader_);
    close(terminal_);
  }
  // Reads on until `part` has come; false when the terminal stays silent.
  bool shows(const std::string& part) {
    while (seen_.find(part) == std::string::npos) {
      pollfd ready = {reader_, POLLIN, 0};
      if (poll(&ready, 1, 30000) != 1) return false;
      char piece[256];
      const ssize_t length = read(reader_, piece, sizeof piece);
      if (length <= 0) return false;
      seen_.append(piece, static_cast<size_t>(length));
    }
    return true;
  }
  // All that was written, once the writer is gone.
  std::string rest() {
    EXPECT_EQ(write(terminal_, "<end>", 5), 5);
    EXPECT_TRUE(shows("<end>")) << seen_;
    return seen_.substr(0, seen_.find("<end>"));
  }

  int reader_ = -1, terminal_ = -1;
  std::string seen_;
};

TEST_F(ProgressLine, TellsWhatIsDoneWithoutBeingCalledAndIsErasedAtTheEnd) {
  {
    Progress progress(terminal_, kAtOnce, kOften);
    progress.set("row 3 of 10");
    ASSERT_TRUE(shows("row 3 of 10, ")) << seen_;
    progress.set("row 4 of 10");
    ASSERT_TRUE(shows("row 4 of 10, ")) << seen_;
  }
  EXPECT_TRUE(rest().ends_with(" s" + kErased)) << seen_;
}

TEST_F(ProgressLine, IsErasedBeforeOthersPrint) {
  Progress progress(terminal_, kAtOnce, kOften);
  progress.set("one row");
  ASSERT_TRUE(shows("one row, ")) << seen_;
  progress.print([&] { ASSERT_EQ(write(terminal_, "a row\n", 6), 6); });
  ASSERT_TRUE(shows("a row")) << seen_;
  EXPECT_TRUE(seen_.substr(0, seen_.find("a row")).ends_with(" s" + kErased)) << seen_;
}

TEST_F(ProgressLine, IsNotThereForWhatIsQuick) {
  {
    Progress progress(terminal_, kNever, kOften);
    progress.set("row 1 of 1");
    progress.print([&] { ASSERT_EQ(write(terminal_, "a row\n", 6), 6); });
  }
  EXPECT_EQ(rest(), "a row\r\n");
}

TEST_F(ProgressLine, IsNotThereWithoutATerminal) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  for (const int file : {ends[1], -1}) {
    Progress progress(file, kAtOnce, kOften);
    progress.set("row 1 of 1");
    progress.print([] {});
  }
  char piece[16];
  EXPECT_EQ(read(ends[0], piece, sizeof piece), -1);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace treering::perf
