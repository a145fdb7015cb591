// SPDX-License-Identifier: Apache-2.0
// What the processes of a test log.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace treering::testing {

class LogFile {
 public:
  LogFile() : file_(mkstemp(name_)) { EXPECT_GE(file_, 0); }
  ~LogFile() {
    close(file_);
    unlink(name_);
  }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;
  // The process, which has logged nothing yet, logs there.
  void take(const char* level = "WARN") const {
    setenv("TREERING_DEBUG", level, 1);
    setenv("TREERING_DEBUG_FILE", name_, 1);
  }
  std::string text() const {
    std::ifstream file(name_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  char name_[32] = "/tmp/treering-log-XXXXXX";
  int file_;
};

}  // namespace treering::testing
