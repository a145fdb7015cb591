// SPDX-License-Identifier: Apache-2.0
// After a communicator's end, and after ranks were killed, nothing of it stays: no process, no file in
// /dev/shm or /tmp, no socket (file or abstract), no descriptor, no mapping.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "support/processes.h"
#include "support/waiting.h"

namespace treering::testing {
namespace {

// What the descriptors of this process refer to.
std::vector<std::string> descriptors() {
  std::vector<std::string> targets;
  DIR* directory = opendir("/proc/self/fd");
  while (dirent* entry = readdir(directory)) {
    char target[512];
    ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target);
    if (length > 0) targets.emplace_back(target, static_cast<size_t>(length));
  }
  closedir(directory);
  return targets;
}

// Names of the Unix sockets of this process ("@..." = abstract), without those that have none.
std::set<std::string> socket_names() {
  std::set<std::string> inodes, names;
  for (const std::string& target : descriptors())
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word, inode, name;
    for (int i = 0; i < 6; ++i) words >> word;
    if (words >> inode >> name && inodes.count(inode) != 0) names.insert(name);
  }
  return names;
}

bool socket_exists(const std::string& name) {
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word;
    while (words >> word)
      if (word == name) return true;
  }
  return false;
}

std::vector<std::string> mappings_with(const std::string& word) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(maps, line);)
    if (line.find(word) != std::string::npos) lines.push_back(line);
  return lines;
}

size_t threads() {
  auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Files that a rank could leave behind: what it has open or mapped in directories that outlive it, besides
// what it has inherited (its output may go to a file).
std::string lasting_files(const std::vector<std::string>& inherited) {
  std::string found;
  for (const std::string& target : descriptors()) {
    if (std::find(inherited.begin(), inherited.end(), target) != inherited.end()) continue;
    for (const char* place : {"/dev/shm/", "/tmp/", "/run/", "/var/"})
      if (target.rfind(place, 0) == 0 && target.find("(deleted)") == std::string::npos) found += target + " ";
  }
  for (const std::string& line : mappings_with("/dev/shm/")) found += line + " ";
  for (const std::string& name : socket_names())
    if (name[0] != '@') found += name + " ";
  return found;
}

int one_life(int rank, int ranks, const trUniqueId& id, const std::function<int(trComm_t)>& middle) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.timeout_ms = 30'000;
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRankConfig(&comm, ranks, id, rank, &config));
  std::vector<float> buffer(100'000, 1.0f);
  TR_CHECK(trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trSum, comm, nullptr));
  if (int code = middle(comm); code != 0) return code;
  TR_CHECK(trCommDestroy(comm));
  return 0;
}

TEST(LeftBehind, NothingAfterANormalEnd) {
  auto inherited = descriptors();
  RankProcesses processes(3, [&inherited](int rank, const trUniqueId& id) {
    // Only now, between trGetUniqueId and the end of init, does rank 0 listen.
    if (rank == 0)
      for (const std::string& name : socket_names()) say(name + "\n");
    int code = one_life(rank, 3, id, [&](trComm_t) {
      std::string files = lasting_files(inherited);
      return files.empty() ? 0 : (say("open or mapped: " + files), 2);
    });
    if (code != 0) return code;
    if (!soon([] { return socket_names().empty(); })) return say("a socket stays"), 3;
    if (!soon([] { return mappings_with("memfd:treering").empty(); }))
      return say("a mapping stays: " + mappings_with("memfd:treering").front()), 4;
    for (const std::string& target : descriptors())
      if (target.find("memfd") != std::string::npos) return say("a memfd stays: " + target), 5;
    return 0;
  });
  auto results = processes.wait_all();
  for (const RankResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
  std::istringstream names(results[0].output);
  int seen = 0;
  for (std::string name; std::getline(names, name); ++seen) {
    EXPECT_EQ(name[0], '@') << "an abstract socket, no file: " << name;
    EXPECT_FALSE(socket_exists(name)) << name;
  }
  EXPECT_GE(seen, 1) << "the test saw the listener while it was there";
}

TEST(LeftBehind, DescriptorsAndThreadsDoNotGrowWithCommunicators) {
  pid_t child = fork();
  if (child == 0) {
    auto live = [] {
      trComm_t comms[3];
      if (trCommInitAll(comms, 3) != trSuccess) return false;
      float values[3] = {1, 2, 3};
      trGroupStart();
      for (int rank = 0; rank < 3; ++rank)
        trAllReduce(&values[rank], &values[rank], 1, trFloat32, trSum, comms[rank], nullptr);
      if (trGroupEnd() != trSuccess || values[1] != 6) return false;
      for (trComm_t comm : comms)
        if (trCommDestroy(comm) != trSuccess) return false;
      return true;
    };
    if (!live() || !live()) _exit(1);
    if (!soon([] { return socket_names().empty(); })) _exit(2);
    size_t open = descriptors().size(), running = threads(), mapped = mappings_with("memfd").size();
    for (int time = 0; time < 10; ++time)
      if (!live()) _exit(1);
    if (!soon([=] { return descriptors().size() <= open; })) _exit(3);
    if (!soon([=] { return threads() <= running; })) _exit(4);
    _exit(mappings_with("memfd").size() <= mapped ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: a call failed, 2: a socket, 3: descriptors, 4: threads, 5: mappings";
}

// A call in a forked child on what is the parent's.
bool refused(trResult_t result) {
  const bool told = result == trInvalidUsage &&
                    std::string(trGetLastError(nullptr)).find("was forked from; make one after") != std::string::npos;
  if (!told) say(std::to_string(result) + ": " + trGetLastError(nullptr) + "\n");
  return told;
}

// The child's calls are errors, and do not end what the parent and the other rank go on using.
TEST(LeftBehind, CommunicatorsStayWithTheProcessThatForks) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    trComm_t comm;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    float value = 1;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    trStream_t stream = nullptr;
    TR_CHECK(trStreamCreate(&stream));  // its thread is not in the child
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream));
    TR_CHECK(trStreamSynchronize(stream));
    const pid_t child = fork();
    if (child == 0) {
      const bool told = refused(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr)) &&
                        trCommDestroy(comm) == trInvalidUsage;
      trComm_t own[2] = {};
      bool makes = trCommInitAll(own, 2) == trSuccess && trStreamCreate(&stream) == trSuccess;
      for (int turn = 0; turn < 3 && makes; ++turn) {
        float mine[] = {1, 2};
        trGroupStart();
        for (int r : {0, 1}) trAllReduce(&mine[r], &mine[r], 1, trFloat32, trSum, own[r], r == 0 ? stream : nullptr);
        makes = trGroupEnd() == trSuccess && trStreamSynchronize(stream) == trSuccess && mine[0] == 3 && mine[1] == 3;
      }
      makes = makes && trCommDestroy(own[0]) == trSuccess && trCommDestroy(own[1]) == trSuccess;
      if (!told) _exit(1);
      _exit(makes ? 0 : 2);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return say("wait status " + std::to_string(status)), 3;
    TR_CHECK(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, nullptr));
    TR_CHECK(trCommDestroy(comm));
    return value == 8 ? 0 : 4;
  });
  for (const RankResult& result : processes.wait_all()) EXPECT_EQ(result.exit_code, 0) << result.output;
}

int streams_in_a_child(trStream_t stream, trEvent_t event, trComm_t comm) {
  int number = 0, fd = -1;
  float value = 1;
  trStream_t own = nullptr;
  trEvent_t mark = nullptr;
  const auto callback = [](trResult_t, void*) {};
  const auto all = [&number](std::initializer_list<bool> checks) {
    return std::all_of(checks.begin(), checks.end(), [&number](bool good) { return ++number, good; });
  };
  if (!all({refused(trStreamSynchronize(stream)), refused(trStreamQuery(stream)),
            refused(trStreamAddCallback(stream, callback, nullptr)), refused(trEventRecord(event, nullptr)),
            refused(trEventQuery(event)), refused(trEventSynchronize(event)), refused(trEventGetFd(event, &fd)),
            refused(trStreamWaitEvent(stream, event)), refused(trStreamDestroy(stream)), refused(trEventDestroy(event)),
            refused(trAllReduce(&value, &value, 1, trFloat32, trSum, comm, stream))}))
    return number;
  // Its own, beside the parent's.
  number = 100;
  if (!all({trStreamCreate(&own) == trSuccess, trEventCreate(&mark) == trSuccess, own != stream && mark != event,
            refused(trEventRecord(mark, stream)), refused(trStreamWaitEvent(own, event)),
            trEventRecord(mark, own) == trSuccess, trEventSynchronize(mark) == trSuccess,
            trStreamSynchronize(own) == trSuccess, trStreamDestroy(own) == trSuccess,
            trStreamSynchronize(own) == trInvalidUsage &&
                std::string(trGetLastError(nullptr)).find("was destroyed") != std::string::npos}))
    return number;
  return 0;
}

// What they hold at the fork is under way in the parent alone: a child to which it was done would use buffers that are
// not filled.
TEST(LeftBehind, StreamsAndEventsStayWithTheProcessThatForks) {
  RankProcesses processes(1, [](int, const trUniqueId&) {
    trComm_t comms[2];
    TR_CHECK(trCommInitAll(comms, 2));
    trStream_t stream = nullptr;
    trEvent_t event = nullptr;
    TR_CHECK(trStreamCreate(&stream));
    TR_CHECK(trEventCreate(&event));
    float values[] = {1, 2};
    TR_CHECK(trAllReduce(&values[0], &values[0], 1, trFloat32, trSum, comms[0], stream));  // waits for rank 1
    TR_CHECK(trEventRecord(event, stream));
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const pid_t grandchild = fork();  // the same for a child of the child
      if (grandchild == 0) _exit(streams_in_a_child(stream, event, comms[0]));
      int status = 0;
      if (waitpid(grandchild, &status, 0) != grandchild || status != 0) _exit(200);
      _exit(streams_in_a_child(stream, event, comms[0]));
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0)
      return say("check " + std::to_string(WEXITSTATUS(status)) + " of the child"), 3;
    if (trEventQuery(event) != trInProgress) return say("the parent's event changed"), 4;
    TR_CHECK(trAllReduce(&values[1], &values[1], 1, trFloat32, trSum, comms[1], nullptr));
    TR_CHECK(trEventSynchronize(event));
    TR_CHECK(trStreamDestroy(stream));
    TR_CHECK(trEventDestroy(event));
    for (trComm_t comm : comms) TR_CHECK(trCommDestroy(comm));
    return values[0] == 3 && values[1] == 3 ? 0 : 5;
  });
  for (const RankResult& result : processes.wait_all()) EXPECT_EQ(result.exit_code, 0) << result.output;
}

// A child may free what it inherited, as its destructors do: the parent and its peers keep theirs.
TEST(LeftBehind, MemoryStaysWithTheProcessThatForks) {
  RankProcesses processes(2, [](int rank, const trUniqueId& id) {
    constexpr size_t kCount = 100'000;
    trComm_t comm;
    TR_CHECK(trCommInitRank(&comm, 2, id, rank));
    void* memory = nullptr;
    TR_CHECK(trMemAlloc(&memory, kCount * sizeof(float)));
    auto* values = static_cast<float*>(memory);
    const auto all = [values](float value) {
      return std::all_of(values, values + kCount, [value](float v) { return v == value; });
    };
    std::fill_n(values, kCount, 1.0f);
    TR_CHECK(trAllReduce(values, values, kCount, trFloat32, trSum, comm, nullptr));
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const size_t mapped = mappings_with("memfd:treering-region").size();  // the other rank's, too
      if (!all(2) || trMemFree(memory) != trSuccess) _exit(1);
      if (mappings_with("memfd:treering-region").size() != mapped - 1) _exit(2);
      if (trMemFree(memory) != trInvalidArgument) _exit(3);
      // Its own is given back when it is freed.
      void* own = nullptr;
      _exit(trMemAlloc(&own, 4096) == trSuccess && trMemFree(own) == trSuccess ? 0 : 4);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return say("wait status " + std::to_string(status)), 3;
    if (!all(2)) return say("the child's free reached the parent: " + std::to_string(values[0])), 4;
    TR_CHECK(trAllReduce(values, values, kCount, trFloat32, trSum, comm, nullptr));
    if (!all(4)) return say("sum " + std::to_string(values[0])), 5;
    TR_CHECK(trMemFree(memory));
    TR_CHECK(trCommDestroy(comm));
    return 0;
  });
  for (const RankResult& result : processes.wait_all()) EXPECT_EQ(result.exit_code, 0) << result.output;
}

// The children of a process, by its threads.
std::string children_of(pid_t pid) {
  std::string all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream children(task.path() / "children");
    for (std::string child; children >> child;) all += child + " ";
  }
  return all;
}

class LeftBehindAfterKill : public ::testing::TestWithParam<bool> {};

// Killed before init is done (only rank 0 listens), or in the middle of operations; one rank, then all.
TEST_P(LeftBehindAfterKill, Nothing) {
  bool during_init = GetParam();
  RankProcesses processes(3, [during_init](int rank, const trUniqueId& id) {
    if (rank == 0)
      for (const std::string& name : socket_names()) say(name + "\n");
    if (during_init) {
      reached();
      if (rank == 2) pause();
    }
    return one_life(rank, 3, id, [](trComm_t comm) {
      std::vector<float> buffer(1'000'000, 0.0f);
      reached();
      for (;;)
        if (trAllReduce(buffer.data(), buffer.data(), buffer.size(), trFloat32, trSum, comm, nullptr) != trSuccess)
          return 20;
    });
  });
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(processes.wait_until_reached(rank));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(children_of(processes.pid(rank)), "") << "a rank starts no process";
  kill(processes.pid(1), SIGKILL);
  std::vector<RankResult> results(3);
  if (during_init) {
    kill(processes.pid(0), SIGKILL);
    kill(processes.pid(2), SIGKILL);
  }
  for (int rank = 0; rank < 3; ++rank) {
    results[static_cast<size_t>(rank)] = processes.wait(rank, std::chrono::seconds(20));
    if (during_init) continue;  // a rank may learn of the first death, and end by itself, before it is killed
    bool killed = rank == 1;
    EXPECT_EQ(results[static_cast<size_t>(rank)].signal, killed ? SIGKILL : 0) << "rank " << rank;
    if (!killed) {
      EXPECT_EQ(results[static_cast<size_t>(rank)].exit_code, 20) << results[static_cast<size_t>(rank)].output;
    }
    EXPECT_NE(kill(processes.pid(rank), 0), 0) << "rank " << rank << " still runs";
  }
  std::istringstream names(results[0].output);
  int seen = 0;
  for (std::string name; std::getline(names, name); ++seen) EXPECT_FALSE(socket_exists(name)) << name;
  EXPECT_GE(seen, 1);
}

INSTANTIATE_TEST_SUITE_P(When, LeftBehindAfterKill, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "DuringInit" : "DuringOperations"; });

}  // namespace
}  // namespace treering::testing
