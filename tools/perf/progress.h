// SPDX-License-Identifier: Apache-2.0
// Progress: one line on a terminal that tells what is being done, for work that takes long. Nothing where there is no
// terminal.
//
// A thread of its own writes the line, so that it appears and counts the seconds also inside one long row. It wakes
// once a second, and there is none without a terminal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace treering::perf {

class Progress {
 public:
  static constexpr auto kDelay = std::chrono::milliseconds(2000);
  static constexpr auto kPeriod = std::chrono::milliseconds(1000);

  // `terminal`: a file descriptor; the line is written only where it is a terminal, from `delay` on.
  explicit Progress(int terminal, std::chrono::milliseconds delay = kDelay, std::chrono::milliseconds period = kPeriod);
  ~Progress();  // erases the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What is being done from now on, in less than a line; "" erases it.
  void set(std::string what);
  // Runs what writes to the terminal itself, with the line out of its way.
  void print(const std::function<void()>& write);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void show();
  void erase();
  void put(const std::string& text) const;

  const int terminal_;  // -1: none
  const std::chrono::milliseconds delay_, period_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex lock_;
  std::condition_variable ending_;
  std::string what_;
  bool shown_ = false;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace treering::perf
