// SPDX-License-Identifier: Apache-2.0
// A soak: collectives, sends, splits, communicators made and destroyed, again and again; what a process holds does not
// grow. 20 s for each way that ranks are reached, 200 s in tests/run --long; TREERING_SOAK_SECONDS sets another time.
#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <vector>

#include "support/processes.h"
#include "support/sanitized.h"
#include "support/seed.h"

namespace treering::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 3;
// Allocated memory grows a little: buffers reach the size of the largest messages that were under way at a time. Pages
// vary by some MiB, because the allocator places freed and used memory differently each time. A sanitizer counts no
// allocations, and keeps what was freed.
constexpr long kMaxAllocatedKib = 64;
constexpr long kMaxPagesKib = kSanitized ? 1 << 20 : 4096;
constexpr int kMinRounds = kSanitized ? 12 : 40;

struct Held {
  long allocated_kib = 0;
  long pages_kib = 0;  // private ones, in memory
  int descriptors = 0, threads = 0;
};

int count_entries(const char* directory) {
  int count = 0;
  DIR* entries = opendir(directory);
  while (readdir(entries) != nullptr) ++count;
  closedir(entries);
  return count;
}

Held held() {
  Held now;
  (void)malloc_trim(0);  // what the allocator keeps for later does not count
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "RssAnon:") status >> now.pages_kib;
  const struct mallinfo2 allocated = mallinfo2();
  now.allocated_kib = static_cast<long>((allocated.uordblks + allocated.hblkhd) >> 10);
  now.descriptors = count_entries("/proc/self/fd");
  now.threads = count_entries("/proc/self/task");
  return now;
}

bool sums_are_right(trComm_t comm, size_t count, trStream_t stream) {
  int ranks = 0;
  trCommCount(comm, &ranks);
  std::vector<float> values(count, 1.0f);
  if (trAllReduce(values.data(), values.data(), count, trFloat32, trSum, comm, stream) != trSuccess) return false;
  if (stream != nullptr && trStreamSynchronize(stream) != trSuccess) return false;
  return std::all_of(values.begin(), values.end(), [&](float value) { return value == static_cast<float>(ranks); });
}

// What a long-running program does with a communicator; the same on all ranks, by the number of the round.
int use(trComm_t comm, int rank, uint64_t seed, int round) {
  std::mt19937_64 random(seed + static_cast<uint64_t>(round));
  trComm_t part = nullptr, same = nullptr, created = nullptr;
  trStream_t stream = nullptr;
  TR_CHECK(trStreamCreate(&stream));
  for (size_t count : {size_t{2}, size_t{random() % 5000 + 1}})
    if (!sums_are_right(comm, count, round % 2 != 0 ? stream : nullptr)) return say(trGetLastError(comm)), 101;
  TR_CHECK(trCommSplit(comm, rank == 0 ? 0 : 1, 0, &part, nullptr));
  TR_CHECK(trCommDup(comm, &same));
  trUniqueId id{};
  if (rank == 0) TR_CHECK(trGetUniqueId(&id));
  TR_CHECK(trBroadcast(&id, &id, sizeof id, trUint8, 0, same, nullptr));
  TR_CHECK(trCommInitRank(&created, kRanks, id, rank));
  // A link over TCP keeps the buffers of the largest messages that it has had, of each size: of a communicator that
  // lives on they would take hundreds of rounds until none is missing.
  if (!sums_are_right(created, random() % 500'000 + 1, round % 2 != 0 ? stream : nullptr))
    return say(trGetLastError(created)), 104;
  for (trComm_t made : {part, same, created})
    if (!sums_are_right(made, 3000, stream)) return say(trGetLastError(made)), 102;
  const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
  std::vector<int> out(random() % 20'000 + 1, rank), in(out.size(), -1);
  TR_CHECK(trSendRecv(out.data(), out.size(), next, in.data(), in.size(), previous, trInt32, created, nullptr));
  if (in.back() != previous) return say("a wrong value"), 103;
  for (trComm_t made : {created, same, part}) TR_CHECK(trCommDestroy(made));
  TR_CHECK(trStreamDestroy(stream));
  return 0;
}

int soak(int rank, const trUniqueId& id, uint64_t seed, double seconds) {
  trComm_t comm = nullptr;
  TR_CHECK(trCommInitRank(&comm, kRanks, id, rank));
  std::vector<Held> rounds;
  const auto begin = Clock::now();
  for (int round = 0, goes_on = 1; goes_on != 0; ++round) {
    if (const int failed = use(comm, rank, seed, round); failed != 0) return failed;
    rounds.push_back(held());
    goes_on = std::chrono::duration<double>(Clock::now() - begin).count() < seconds || round < kMinRounds;
    TR_CHECK(trBroadcast(&goes_on, &goes_on, 1, trInt32, 0, comm, nullptr));
  }
  TR_CHECK(trCommDestroy(comm));
  // The least of some rounds: what is under way in the background when one looks comes and goes.
  const auto least = [&](size_t from, size_t to, auto field) {
    auto value = rounds[from].*field;
    for (size_t i = from; i < to; ++i) value = std::min(value, rounds[i].*field);
    return value;
  };
  const size_t count = rounds.size(), third = count / 3;
  const auto growth = [&](auto field) { return least(count - third, count, field) - least(third, 2 * third, field); };
  const long allocated = growth(&Held::allocated_kib), pages = growth(&Held::pages_kib);
  // A leak raises the median, too; a connection that was being replaced for a moment lowers the least alone.
  const auto median = [&](size_t from, size_t to, auto field) {
    std::vector<int> values;
    for (size_t i = from; i < to; ++i) values.push_back(rounds[i].*field);
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  };
  const auto lasting_growth = [&](auto field) {
    return std::min(growth(field), median(count - third, count, field) - median(third, 2 * third, field));
  };
  const int descriptors = lasting_growth(&Held::descriptors), threads = lasting_growth(&Held::threads);
  say(std::to_string(count) + " rounds, " + std::to_string(rounds.back().allocated_kib) + " KiB allocated, pages of " +
      std::to_string(rounds.back().pages_kib) + " KiB; from the second third to the last: " +
      std::to_string(allocated) + " KiB, pages of " + std::to_string(pages) + " KiB, " + std::to_string(descriptors) +
      " descriptors, " + std::to_string(threads) + " threads\n");
  if (allocated > kMaxAllocatedKib) return 105;
  if (pages > kMaxPagesKib) return 106;
  if (descriptors > 0) return 107;
  return threads > 0 ? 108 : 0;
}

class Soak : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, Soak, ::testing::Values("all", "cma", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Soak, HoldsNoMoreAtTheEnd) {
  const char* const chosen = std::getenv("TREERING_SOAK_SECONDS");
  const double usual = std::getenv("TREERING_LONG_TESTS") != nullptr ? 200 : 20;
  const double seconds = chosen != nullptr ? std::atof(chosen) : usual;
  if (GetParam() != std::string("all")) setenv("TREERING_TRANSPORTS", GetParam(), 1);
  const uint64_t seed = test_seed(5);
  RankProcesses processes(kRanks, [=](int rank, const trUniqueId& id) { return soak(rank, id, seed, seconds); });
  for (const RankResult& result : processes.wait_all(std::chrono::seconds(static_cast<int>(3 * seconds) + 120))) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::printf("%s", result.output.c_str());
  }
  unsetenv("TREERING_TRANSPORTS");
}

}  // namespace
}  // namespace treering::testing
