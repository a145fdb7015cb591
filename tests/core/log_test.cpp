// SPDX-License-Identifier: Apache-2.0
// What TREERING_DEBUG and TREERING_DEBUG_FILE do. They are read once, so each case has a process of its own.
#include "core/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace treering {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/treering-log-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static std::string read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  // What a process that logs an INFO and a WARN line writes to standard error.
  std::string logged(const char* level, const std::string& file) {
    const std::string errors = directory_ + "/stderr";
    const pid_t pid = fork();
    if (pid == 0) {
      if (std::freopen(errors.c_str(), "w", stderr) == nullptr) _exit(1);
      setenv("TREERING_DEBUG", level, 1);
      setenv("TREERING_DEBUG_FILE", file.c_str(), 1);
      log_line(LogLevel::kInfo, "an info line");
      log_line(LogLevel::kWarn, "a warning");
      {
        const LogRank outer(3);
        {
          const LogRank inner(5);
          log_line(LogLevel::kInfo, "a line of rank 5");
        }
        log_line(LogLevel::kWarn, "a line of rank 3");
      }
      std::fflush(stderr);
      _exit(0);
    }
    logging_pid_ = pid;
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    return read(errors);
  }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  std::string directory_;
  pid_t logging_pid_ = 0;
};

TEST_F(Log, LevelsAreTakenInEitherCase) {
  for (const char* level : {"INFO", "info", "Trace"}) EXPECT_TRUE(contains(logged(level, ""), "an info line")) << level;
  for (const char* level : {"WARN", "warn", ""}) {
    const std::string text = logged(level, "");
    EXPECT_TRUE(contains(text, "a warning") && !contains(text, "an info line")) << level << "\n" << text;
    EXPECT_FALSE(contains(text, "TREERING_DEBUG")) << text;
  }
  EXPECT_EQ(logged("error", ""), "");
}

TEST_F(Log, ALineHasTheTimeTheHostTheProcessAndTheRankOfItsThread) {
  char host[256] = "";
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  const std::string name = std::string(host).substr(0, std::string(host).find('.'));
  // Every digit of the time as a 0.
  const std::string begin = "treering 0000-00-00 00:00:00.000 ";
  const auto without_time = [&](std::string line) {
    for (size_t i = 0; i < std::min(line.size(), begin.size()); ++i)
      if (line[i] >= '0' && line[i] <= '9') line[i] = '0';
    return line;
  };
  std::stringstream text(logged("INFO", ""));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  const char* const expected[] = {" I: an info line", " W: a warning", " rank 5 I: a line of rank 5",
                                  " rank 3 W: a line of rank 3"};
  for (size_t i = 0; i < lines.size(); ++i)
    EXPECT_EQ(without_time(lines[i]), begin + name + ":" + std::to_string(logging_pid_) + expected[i]) << lines[i];
}

TEST_F(Log, AnUnknownLevelIsNamedWithWhatIsTakenAndWhatIsDone) {
  const std::string text = logged("verbose", "");
  for (const char* part : {"TREERING_DEBUG is 'verbose'", "ERROR, WARN, INFO or TRACE", "TREERING_DEBUG=INFO",
                           "WARN is used", "a warning"})
    EXPECT_TRUE(contains(text, part)) << part << " is not in: " << text;
}

TEST_F(Log, AFileIsWritten) {
  EXPECT_EQ(logged("INFO", directory_ + "/ranks.log"), "");
  EXPECT_TRUE(contains(read(directory_ + "/ranks.log"), "an info line"));
}

TEST_F(Log, AFileInNoDirectoryIsAnErrorThatNamesItAndNothingIsLost) {
  const std::string missing = directory_ + "/missing", file = missing + "/ranks.log";
  const std::string text = logged("INFO", file);
  for (const std::string& part :
       {"TREERING_DEBUG_FILE is '" + file + "'", "'" + missing + "' is not a directory; make it",
        std::string("standard error"), std::string("an info line"), std::string("a warning")})
    EXPECT_TRUE(contains(text, part)) << part << " is not in: " << text;
  EXPECT_FALSE(std::filesystem::exists(missing));
}

TEST_F(Log, AFileThatCannotBeWrittenIsAnErrorThatNamesItAndNothingIsLost) {
  const std::string text = logged("INFO", directory_);
  for (const std::string& part :
       {"TREERING_DEBUG_FILE is '" + directory_ + "'", std::string("may write"), std::string("an info line")})
    EXPECT_TRUE(contains(text, part)) << part << " is not in: " << text;
}

}  // namespace
}  // namespace treering
