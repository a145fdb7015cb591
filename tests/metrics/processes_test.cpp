// SPDX-License-Identifier: Apache-2.0
// Metrics and traces of jobs: of several processes, one of which is late; of one that forks; where they cannot be written.
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "metrics/scrape.h"
#include "support/log_file.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/treering-metrics-XXXXXX";
    if (mkdtemp(name) == nullptr) ADD_FAILURE() << "no folder";
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_; }

 private:
  fs::path path_;
};

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

trConfig_t named(const char* name) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.name = name;
  return config;
}

// Rank 1 comes to a barrier once rank 0's metrics say that it has waited for it for a while.
constexpr double kLateness = 0.05;  // seconds

int be_late(int rank, int ranks, const trUniqueId& id, int port) {
  trComm_t comm = nullptr;
  const trConfig_t config = named("steps");
  TR_CHECK(trCommInitRankConfig(&comm, ranks, id, rank, &config));
  int sum = 0;
  for (int i = 0; i < 10; ++i) TR_CHECK(count_by_sum(comm, &sum));
  if (rank == 1) {
    const bool waits = soon([port] {
      return value_of(scrape(port), "treering_waited_for_seconds_total", {"peer=\"1\""}).value_or(0) >= kLateness;
    });
    if (!waits) return say("rank 0 tells of no wait: " + scrape(port)), 1;
  }
  TR_CHECK(trBarrier(comm, nullptr));
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(Metrics, TellWhoWasWaitedFor) {
  constexpr int kRanks = 3;
  const int port = free_ports(kRanks);
  Gate gate;
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    gate.inherit();
    setenv("TREERING_METRICS", (":" + std::to_string(port)).c_str(), 1);
    const int result = be_late(rank, kRanks, id, port);
    reached();
    gate.wait();
    return result;
  });
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string text = scrape(port + rank);  // of a communicator that has ended
    const std::string own = "rank=\"" + std::to_string(rank) + "\"";
    SCOPED_TRACE(text);
    EXPECT_EQ(value_of(text, "treering_calls_total", {"communicator=\"steps\"", "allreduce", own}), 10);
    EXPECT_EQ(value_of(text, "treering_call_bytes_total", {"allreduce", own}), 40);
    EXPECT_EQ(value_of(text, "treering_calls_total", {"barrier", own}), 1);
    EXPECT_EQ(value_of(text, "treering_call_seconds_count", {"allreduce", own}), 10);
    EXPECT_EQ(value_of(text, "treering_call_failures_total", {"allreduce", own}), 0);
    EXPECT_EQ(value_of(text, "treering_communicators", {own}), 0);
    EXPECT_GE(value_of(text, "treering_sent_bytes_total", {own}).value_or(0), 40);
    if (rank == 0) {
      EXPECT_GE(value_of(text, "treering_waited_seconds_total", {"barrier"}).value_or(0), kLateness);
      EXPECT_GE(value_of(text, "treering_call_seconds_sum", {"barrier"}).value_or(0), kLateness);
    }
  }
  gate.open();
  for (const RankResult& result : processes.wait_all()) EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(Metrics, AreInAFileOfEachProcess) {
  const Folder folder;
  expect_all_succeed(2, [&](int rank, const trUniqueId& id) {
    setenv("TREERING_METRICS", (folder / "m.prom").c_str(), 1);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    int sum = 0;
    for (int i = 0; i < 1000; ++i) TR_CHECK(count_by_sum(comm, &sum));
    std::vector<float> large(100'000);
    TR_CHECK(trBroadcast(large.data(), large.data(), large.size(), trFloat32, 0, comm, nullptr));
    if (rank == 0) TR_CHECK(trSend(&sum, 1, trInt32, 1, comm, nullptr));
    if (rank == 1) TR_CHECK(trRecv(&sum, 1, trInt32, 0, comm, nullptr));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  for (const char* name : {"m.prom", "m-rank1.prom"}) {
    const std::string text = text_of(folder / name);
    SCOPED_TRACE(name + text);
    EXPECT_TRUE(text.ends_with("# EOF\n"));
    EXPECT_EQ(value_of(text, "treering_calls_total", {"(unnamed)", "allreduce"}), 1000);
    EXPECT_EQ(value_of(text, "treering_call_bytes_total", {"broadcast"}), 400'000);
    EXPECT_EQ(value_of(text, "treering_call_bytes_total", {"send-receive"}), 4);
  }
  EXPECT_GE(value_of(text_of(folder / "m.prom"), "treering_sent_bytes_total", {}).value_or(0), 400'000);
  size_t files = 0;
  for ([[maybe_unused]] const auto& file : fs::directory_iterator(folder.path())) ++files;
  EXPECT_EQ(files, 2u) << "no temporary file is left";
}

TEST(Metrics, CountWhatRunsInStreamsAndWhatFails) {
  const Folder folder;
  expect_all_succeed(2, [&](int rank, const trUniqueId& id) {
    setenv("TREERING_METRICS", (folder / "m%r").c_str(), 1);
    trComm_t comm = nullptr;
    trStream_t stream = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    TR_CHECK(trStreamCreate(&stream));
    std::vector<float> values(1000);
    for (int i = 0; i < 5; ++i)
      TR_CHECK(trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, stream));
    TR_CHECK(trStreamSynchronize(stream));
    int sum = 0;
    if (rank == 0) {
      TR_CHECK(trCommAbort(comm));
    } else {
      if (trBarrier(comm, nullptr) == trSuccess || trBarrier(comm, nullptr) == trSuccess) return 1;
      TR_CHECK(trStreamDestroy(stream));
      TR_CHECK(trCommDestroy(comm));
    }
    (void)sum;
    return 0;
  });
  const std::string text = text_of(folder / "m1");
  SCOPED_TRACE(text);
  EXPECT_EQ(value_of(text, "treering_calls_total", {"allreduce"}), 5);
  EXPECT_EQ(value_of(text, "treering_calls_total", {"barrier"}), 2);
  EXPECT_EQ(value_of(text, "treering_call_failures_total", {"barrier"}), 2);
}

// The parent's are the parent's; a child with a communicator has a file of its own.
TEST(Metrics, AForkedChildLeavesThemAlone) {
  const Folder folder;
  expect_all_succeed(1, [&](int rank, const trUniqueId& id) {
    setenv("TREERING_METRICS", (folder / "m-%p").c_str(), 1);
    setenv("TREERING_TRACE", (folder / "trace").c_str(), 1);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 1, id, rank));
    int sum = 0;
    TR_CHECK(count_by_sum(comm, &sum));
    const std::string file = folder / ("m-" + std::to_string(getpid()));
    if (!soon([&] { return fs::exists(file); })) return say("no file"), 1;
    fs::remove(file);
    for (const bool makes_one : {false, true}) {
      const pid_t child = fork_when_quiet();
      if (child == 0) {
        trComm_t own = nullptr;
        trUniqueId own_id;
        const bool made = makes_one && trGetUniqueId(&own_id) == trSuccess &&
                          trCommInitRank(&own, 1, own_id, 0) == trSuccess && trBarrier(own, nullptr) == trSuccess;
        std::exit(made == makes_one ? 0 : 1);  // normally: it writes at its end
      }
      int status = 0;
      if (waitpid(child, &status, 0) != child || status != 0) return say("the child failed"), 2;
      const std::string of_child = folder / ("m-" + std::to_string(child));
      if (fs::exists(of_child) != makes_one) return say("the child's file"), 3;
      if (makes_one && value_of(text_of(of_child), "treering_calls_total", {"allreduce"})) return 4;
    }
    if (fs::exists(file)) return say("a child wrote its parent's file"), 5;
    TR_CHECK(trCommDestroy(comm));
    return value_of(text_of(file), "treering_calls_total", {"allreduce"}) == 1 ? 0 : 6;
  });
}

// What is wrong is said once, and the job goes on.
TEST(Metrics, WhatCannotBeWrittenFailsNoCall) {
  const Folder folder;
  const int port = free_ports(1);
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  ASSERT_EQ(bind(taken, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  const std::pair<std::string, std::string> cases[] = {
      {folder / "none/m.prom",
       "No such file or directory; the job goes on without the file. Name a file in a directory"},
      {":" + std::to_string(port),
       "port " + std::to_string(port) + " of 127.0.0.1 cannot be had: Address already in use"}};
  for (const auto& [option, words] : cases) {
    const LogFile log;
    expect_all_succeed(1, [&, option = option](int rank, const trUniqueId& id) {
      log.take();
      setenv("TREERING_METRICS", option.c_str(), 1);
      setenv("TREERING_TRACE", (folder / "none/trace").c_str(), 1);
      for (int time = 0; time < 3; ++time) {
        trUniqueId own = id;
        if (time > 0) TR_CHECK(trGetUniqueId(&own));
        trComm_t comm = nullptr;
        TR_CHECK(trCommInitRank(&comm, 1, own, rank));
        TR_CHECK(trBarrier(comm, nullptr));
        TR_CHECK(trCommDestroy(comm));
      }
      return 0;
    });
    const std::string text = log.text();
    const std::string metrics = "TREERING_METRICS is '" + option + "'";
    const std::string trace = "TREERING_TRACE is '" + (folder / "none/trace") + "': cannot make the directory";
    for (const std::string& line : {metrics, words, trace}) {
      EXPECT_NE(text.find(line), std::string::npos) << line << "\nis not in\n" << text;
      EXPECT_EQ(text.find(line), text.rfind(line)) << "said twice\n" << text;
    }
  }
  close(taken);
}

TEST(Metrics, BadOptionsAreRefused) {
  expect_all_succeed(1, [](int rank, const trUniqueId& id) {
    for (const std::string value : {":", ":0", ":65536", ":80a", ":-1", "/tmp/"}) {
      setenv("TREERING_METRICS", value.c_str(), 1);
      trComm_t comm = nullptr;
      const trResult_t result = trCommInitRank(&comm, 1, id, rank);
      const std::string text = trGetLastError(nullptr);
      if (result != trInvalidArgument ||
          text.find("TREERING_METRICS is '" + value + "'; give a file") == std::string::npos)
        return say(value + ": " + text), 1;
    }
    return 0;
  });
}

// What a program prints, and its exit status.
std::pair<std::string, int> output_of(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string text;
  char part[4096];
  while (const size_t bytes = fread(part, 1, sizeof part, pipe)) text.append(part, bytes);
  const int status = pclose(pipe);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

std::string joined_by_tool(const std::string& arguments) {
  const auto [text, status] = output_of(std::string(TREERING_TRACE_TOOL) + " " + arguments);
  EXPECT_EQ(status, 0) << text;
  return text;
}

TEST(Trace, NamesTheRankThatWasLate) {
  constexpr int kRanks = 3;
  const Folder folder;
  const int port = free_ports(kRanks);
  RankProcesses processes(kRanks, [&](int rank, const trUniqueId& id) {
    setenv("TREERING_METRICS", (":" + std::to_string(port)).c_str(), 1);
    setenv("TREERING_TRACE", folder.path().c_str(), 1);
    return be_late(rank, kRanks, id, port);
  });
  const pid_t late = processes.pid(1);
  for (const RankResult& result : processes.wait_all()) ASSERT_EQ(result.exit_code, 0) << result.output;
  // A machine that is busy makes other ranks late, too, for less time.
  const std::string text = joined_by_tool(folder.path() + " --least 40000");
  std::smatch row;
  const std::regex expected("rank 1 \\(pid " + std::to_string(late) + " on \\S+\\) +(\\d+) .* in|rank 1 \\(pid " +
                            std::to_string(late) + " on \\S+\\) +(\\d+) .*barrier 11 of steps");
  EXPECT_TRUE(std::regex_search(text, row, expected)) << text;
  EXPECT_NE(text.find("3 processes, 1 clock, 1 communicator, 11 calls"), std::string::npos) << text;
  const std::string joined = text_of(folder / "joined.json");
  EXPECT_TRUE(joined.starts_with("[\n{") && joined.ends_with("}\n]\n"));
  for (const char* part : {"\"name\":\"barrier\"", "\"wait for rank 1\"", "\"name\":\"steps, rank 2 of 3\""})
    EXPECT_NE(joined.find(part), std::string::npos) << part;
}

// As between two hosts, of which one has been up for longer: the clock of rank 1's file is put back.
TEST(Trace, JoinsClocks) {
  const Folder folder;
  expect_all_succeed(2, [&](int rank, const trUniqueId& id) {
    setenv("TREERING_TRACE", folder.path().c_str(), 1);
    setenv("TREERING_HOSTID", rank == 0 ? "a" : "b", 1);
    trComm_t comm = nullptr;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    int sum = 0;
    for (int i = 0; i < 100; ++i) TR_CHECK(count_by_sum(comm, &sum));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  constexpr double kShift = 1'234'567'000;  // us
  for (const auto& file : fs::directory_iterator(folder.path())) {
    if (!file.path().filename().string().starts_with("rank1")) continue;
    std::istringstream lines(text_of(file.path()));
    std::ofstream out(file.path());
    for (std::string line; std::getline(lines, line);) {
      if (const size_t at = line.find("\"ts\":"); at != std::string::npos) {
        char time[32];
        const size_t end = line.find(',', at);
        std::snprintf(time, sizeof time, "%.3f", std::stod(line.substr(at + 5, end - at - 5)) - kShift);
        line.replace(at + 5, end - at - 5, time);
      }
      out << std::regex_replace(line, std::regex("\"clock\":\""), "\"clock\":\"other ") << "\n";
    }
  }
  const std::string text = joined_by_tool(folder.path());
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(text, found, std::regex("clock of .*: \\+([0-9.]+) ms, known to ([0-9.]+) us by (\\d+) calls")))
      << text;
  const double offset = std::stod(found[1]) * 1e3, error = std::stod(found[2]);
  EXPECT_LE(std::abs(offset - kShift), error + 1) << text;
  EXPECT_GE(std::stoi(found[3]), 90) << text;
}

}  // namespace
}  // namespace treering::testing
