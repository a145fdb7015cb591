// SPDX-License-Identifier: Apache-2.0
// Some ranks of a large communicator, as threads of one process: scale_rank RANKS FIRST COUNT ID
// ID "make": this process makes it and prints it. What happens is printed as lines of a word, the first rank and
// values, each by one write, so that many processes may share a pipe; times are of CLOCK_MONOTONIC, in seconds:
//   id HEX / init FIRST BEGIN END / small FIRST BEGIN END / large FIRST BEGIN END / parked FIRST / destroy FIRST BEGIN END /
//   failed FIRST TEXT
// Between "parked" and "destroy" it waits for the end of its standard input, and can be looked at.
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "treering/treering.h"

namespace {

constexpr int kSmallCalls = 5, kLargeCalls = 2;
constexpr size_t kLargeCount = (1 << 20) / sizeof(float);

int ranks, first, count;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[gnu::format(printf, 1, 2)]] void say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length++] = '\n';
  if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) _exit(3);
}

[[noreturn]] void stop(const char* what, trComm_t comm) {
  say("failed %d %s: %s", first, what, trGetLastError(comm));
  _exit(1);
}

void check(trResult_t result, const char* what, trComm_t comm) {
  if (result != trSuccess) stop(what, comm);
}

trUniqueId take_id(const std::string& text) {
  trUniqueId id{};
  if (text == "make") {
    check(trGetUniqueId(&id), "trGetUniqueId", nullptr);
    std::string hex;
    for (char byte : id.internal) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      hex += digits;
    }
    say("id %s", hex.c_str());
    return id;
  }
  for (size_t i = 0; i < sizeof id.internal && 2 * i + 1 < text.size(); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

void sum_small(int rank, trComm_t comm) {
  const int64_t all = int64_t{ranks} * (ranks - 1) / 2;
  for (int call = 0; call < kSmallCalls; ++call) {
    int64_t value = rank + call;
    check(trAllReduce(&value, &value, 1, trInt64, trSum, comm, nullptr), "trAllReduce of 8 bytes", comm);
    if (value != all + int64_t{ranks} * call) stop("a wrong sum of 8 bytes", comm);
  }
}

void sum_large(int rank, trComm_t comm) {
  std::vector<float> values(kLargeCount);
  float all = 0;  // small integers: exact
  for (int r = 0; r < ranks; ++r) all += static_cast<float>(r % 8);
  for (int call = 0; call < kLargeCalls; ++call) {
    for (size_t i = 0; i < kLargeCount; ++i) values[i] = static_cast<float>(rank % 8 + static_cast<int>(i % 2));
    check(trAllReduce(values.data(), values.data(), kLargeCount, trFloat32, trSum, comm, nullptr),
          "trAllReduce of 1 MiB", comm);
    for (size_t i = 0; i < kLargeCount; ++i)
      if (values[i] != all + static_cast<float>(i % 2 * static_cast<size_t>(ranks))) stop("a wrong sum of 1 MiB", comm);
  }
}

// The ranks of this process take each step together; the first speaks for all.
void run(int rank, const trUniqueId& id, std::barrier<>* together) {
  trComm_t comm = nullptr;
  const auto step = [&](const char* name, auto work) {
    together->arrive_and_wait();
    const double begin = now();
    work();
    together->arrive_and_wait();
    if (rank == first) say("%s %d %.6f %.6f", name, first, begin, now());
  };
  step("init", [&] { check(trCommInitRank(&comm, ranks, id, rank), "trCommInitRank", nullptr); });
  step("small", [&] { sum_small(rank, comm); });
  step("large", [&] { sum_large(rank, comm); });
  if (rank == first) {
    say("parked %d", first);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  }
  step("destroy", [&] { check(trCommDestroy(comm), "trCommDestroy", comm); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  ranks = std::atoi(argv[1]);
  first = std::atoi(argv[2]);
  count = std::atoi(argv[3]);
  const trUniqueId id = take_id(argv[4]);
  std::barrier together(count);
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back(run, first + i, id, &together);
  run(first, id, &together);
  for (std::thread& thread : threads) thread.join();
  return 0;
}
