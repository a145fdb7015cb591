// SPDX-License-Identifier: Apache-2.0
// Tests wait for what they can see, with a deadline, and not for time.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "treering/treering.h"

namespace treering::testing {

// Whether the condition comes true within `timeout`. Another thread or process brings it about; this one sleeps.
inline bool soon(const std::function<bool()>& condition, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// The same where the condition itself moves what it waits for. What the kernel still carries arrives within moments; on
// a machine that is busy with other programs, moments after `progress` was last changed. One that yields its core there
// gives away a whole slice of time; one that sleeps has it back when it wakes up.
template <typename Condition>
bool eventually(Condition condition, const uint32_t* progress = nullptr) {
  constexpr auto kTimeout = std::chrono::seconds(20);
  auto deadline = std::chrono::steady_clock::now() + kTimeout;
  uint32_t known = progress != nullptr ? *progress : 0;
  for (uint32_t tries = 1; !condition(); ++tries) {
    const auto now = std::chrono::steady_clock::now();
    if (progress != nullptr && std::exchange(known, *progress) != *progress) deadline = now + kTimeout;
    if (now > deadline) return false;
    if (tries % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
  return true;
}

// Whether a thread of this process is in a call on the communicator.
inline bool is_in_a_call(trComm_t comm) {
  trResult_t state = trSuccess;
  return trCommGetAsyncError(comm, &state) == trSuccess && state == trInProgress;
}

// A thread that does something once another one is in a call on the communicator.
inline std::jthread when_in_a_call(trComm_t comm, std::function<void()> action) {
  return std::jthread([comm, action = std::move(action)] {
    if (soon([comm] { return is_in_a_call(comm); })) action();
  });
}

// As /proc tells it: 'S' sleeps, 'T' is stopped; '?': there is none of the kind.
inline char state_of_thread(pid_t process, pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

// Until a thread of this process sleeps whenever it is looked at: it waits in its call, and has nothing left to do.
inline bool falls_asleep(const std::atomic<pid_t>& thread) {
  int asleep = 0;
  return soon([&] { return (asleep = state_of_thread(getpid(), thread) == 'S' ? asleep + 1 : 0) >= 30; });
}

// Holds back ranks (support/processes.h) until the test opens it. It is made before them.
class Gate {
 public:
  Gate() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Gate() {
    for (int end : ends_) close(end);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // In each rank's process, before anything else: else it never opens.
  void inherit() { close(std::exchange(ends_[1], -1)); }
  void wait() const {
    char byte;
    (void)!read(ends_[0], &byte, 1);
  }
  void open() { close(std::exchange(ends_[1], -1)); }

 private:
  int ends_[2] = {-1, -1};
};

// A number that the test and its ranks share. It is made before them.
class SharedNumber {
 public:
  SharedNumber()
      : number_(static_cast<std::atomic<int>*>(
            mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(static_cast<void*>(number_), MAP_FAILED);
  }
  ~SharedNumber() { munmap(number_, sizeof *number_); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  std::atomic<int>& operator*() const { return *number_; }

 private:
  std::atomic<int>* number_;
};

}  // namespace treering::testing
