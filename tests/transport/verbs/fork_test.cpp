// SPDX-License-Identifier: Apache-2.0
// What a forked child keeps of its parent's devices: nothing. On the stand-in, whose devices are files that /proc calls
// uverbs0 and so on.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "transport/verbs/devices/device.h"
#include "transport/verbs/devices/inherited_contexts.h"
#include "transport/verbs/queue_pair.h"

namespace treering::verbs {
namespace {

constexpr const char* kDevice = "uverbs";

// The mappings and descriptors of devices in this process:
int mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(kDevice) != line.npos;
  return count;
}
int descriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char path[PATH_MAX] = "";
    (void)!readlinkat(dirfd(folder), entry->d_name, path, sizeof path - 1);
    count += std::strstr(path, kDevice) != nullptr;
  }
  closedir(folder);
  return count;
}
bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

// In a child; what it returns is the child's exit status.
template <typename Child>
int status_of_child(Child child) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Opened {
  Opened() {
    Config config;
    config.verbs_devices = "=fake0";
    std::vector<std::string> rejected;
    EXPECT_TRUE(open_devices(config, nullptr, &devices, &rejected).ok());
    EXPECT_TRUE(QueuePair::create(device(), {}, 0, &pair).ok());
  }
  const Device& device() const { return *devices.front(); }
  std::array<int, 3> descriptors() const {
    return {device().context()->cmd_fd, device().context()->async_fd, device().events()->fd};
  }

  Devices devices;
  std::unique_ptr<QueuePair> pair;
};

TEST(VerbsFork, AChildHasNoDescriptorAndNoMappingOfADevice) {
  const Opened opened;
  ASSERT_EQ(mappings(), 1);
  ASSERT_EQ(descriptors(), 1);
  for (const int fd : opened.descriptors()) ASSERT_TRUE(is_open(fd));
  const int status = status_of_child([&] {
    int kept = mappings() + descriptors();
    for (const int fd : opened.descriptors()) kept += is_open(fd);
    close_context(opened.device().context());  // the parent's: nothing happens
    return kept;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(mappings(), 1) << "the parent keeps what it has";
  for (const int fd : opened.descriptors()) EXPECT_TRUE(is_open(fd));
}

TEST(VerbsFork, AChildOpensDevicesOfItsOwnWhichItsChildDoesNotKeep) {
  const Opened opened;
  EXPECT_EQ(status_of_child([] {
              const Opened own;
              if (mappings() != 1 || descriptors() != 1) return 1;
              return status_of_child([] { return mappings() + descriptors(); });
            }),
            0);
}

// A program may close all descriptors that it does not know.
TEST(VerbsFork, ANumberThatServesAnotherFileStaysOpen) {
  const Opened opened;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const int fd : opened.descriptors()) {
    const int kept = dup(fd);
    ASSERT_EQ(dup2(ends[0], fd), fd);
    EXPECT_EQ(status_of_child([&] { return is_open(fd) ? 0 : 1; }), 0);
    ASSERT_EQ(dup2(kept, fd), fd);
    close(kept);
  }
  for (const int end : ends) close(end);
}

TEST(VerbsFork, AForkComesBeforeOrAfterADeviceIsOpened) {
  constexpr int kForks = 50;
  std::atomic<bool> is_over{false};
  std::thread opens([&] {
    while (!is_over) const Opened opened;
  });
  for (int i = 0; i < kForks; ++i) EXPECT_EQ(status_of_child([] { return mappings() + descriptors(); }), 0);
  is_over = true;
  opens.join();
}

}  // namespace
}  // namespace treering::verbs
