// SPDX-License-Identifier: Apache-2.0
// One rank as a process of its own, for the tests of several hosts: rank RANK RANKS ID MODE [ARGUMENT].
// ID "make": this process makes it and prints it. What happens is printed as lines of a word and its values:
//   id HEX / ready PID / running / leaves / error CODE SECONDS TEXT / left SOCKETS THREADS (more than at the start) / ok
//   goes-on: it has done a call since the last such line; ten a second at most
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "faults/ids.h"
#include "faults/self_faults.h"
#include "treering/treering.h"

namespace {

using Clock = std::chrono::steady_clock;

int rank, ranks;

[[noreturn]] void stop(const char* what, trComm_t comm) {
  std::printf("failed %s: %s\n", what, trGetLastError(comm));
  std::exit(1);
}

void check(trResult_t result, const char* what, trComm_t comm = nullptr) {
  if (result != trSuccess) stop(what, comm);
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("wrong %s\n", what);
  std::exit(1);
}

#define CHECK(call) check(call, #call)
#define CHECK_OF(comm, call) check(call, #call, comm)
#define EXPECT(condition) expect(condition, #condition)

trUniqueId take_id(const std::string& text) {
  trUniqueId id{};
  if (text == "make") {
    CHECK(trGetUniqueId(&id));
    std::printf("id %s\n", faults::in_hex(id).c_str());
    return id;
  }
  return faults::from_hex(text);
}

int count_entries(const char* directory, const char* target_prefix) {
  int count = 0;
  DIR* entries = opendir(directory);
  for (const dirent* entry; (entry = readdir(entries)) != nullptr;) {
    if (entry->d_name[0] == '.') continue;
    char target[256] = "";
    const ssize_t length = readlink((std::string(directory) + "/" + entry->d_name).c_str(), target, sizeof target - 1);
    count += std::strncmp(target, target_prefix, std::strlen(target_prefix)) == 0 && (length > 0 || !*target_prefix);
  }
  closedir(entries);
  return count;
}

int threads_at_start = 0;  // one, or two where a sanitizer has its own

// Connections end in the background, those to processes that do not answer and are told of the failure after three
// seconds: they get six.
void say_what_is_left() {
  int sockets = 0;
  for (int i = 0; i < 600; ++i, usleep(10'000))
    if ((sockets = count_entries("/proc/self/fd", "socket:")) == 0) break;
  std::printf("left %d %d\n", sockets, count_entries("/proc/self/task", "") - threads_at_start);
}

trResult_t sum_ones(trComm_t comm, int of, size_t count) {
  std::vector<float> values(count, 1.0f);
  const trResult_t result = trAllReduce(values.data(), values.data(), count, trFloat32, trSum, comm, nullptr);
  if (result == trSuccess)
    for (float value : values) EXPECT(value == static_cast<float>(of));
  return result;
}

// Allreduces until one fails.
trResult_t run_until_failure(trComm_t comm, size_t count) {
  auto told = Clock::now();
  for (int i = 0;; ++i) {
    const auto begin = Clock::now();
    const trResult_t result = sum_ones(comm, ranks, count);
    if (i == 5) std::printf("running\n");
    if (result == trSuccess && Clock::now() - told > std::chrono::milliseconds(100)) {
      told = Clock::now();
      std::printf("goes-on\n");
    }
    if (result == trSuccess) continue;
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    std::printf("error %d %.3f %s\n", result, taken, trGetLastError(comm));
    return result;
  }
}

void loop(trComm_t comm, size_t count) {
  run_until_failure(comm, count);
  EXPECT(sum_ones(comm, ranks, 1) != trSuccess);  // it stays failed
  CHECK(trCommDestroy(comm));
  say_what_is_left();
}

// Splits until one fails.
void split_until_failure(trComm_t comm) {
  for (int i = 0;; ++i) {
    trComm_t part = nullptr;
    const auto begin = Clock::now();
    const trResult_t result = trCommSplit(comm, 0, -rank, &part, nullptr);
    if (i == 2) std::printf("running\n");
    if (result == trSuccess) {
      CHECK(trCommDestroy(part));
      continue;
    }
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    std::printf("error %d %.3f %s\n", result, taken, trGetLastError(comm));
    CHECK(trCommDestroy(comm));
    return say_what_is_left();
  }
}

double at_part(std::vector<double> times, double part) {
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))];
}

// Allreduces of 8 bytes on a stream of a communicator of the first ranks, until all of these say that they are done.
std::vector<double> time_allreduces(trComm_t comm, trStream_t stream, const std::function<bool()>& is_done) {
  std::vector<double> times;
  for (double sum = 0; sum < ranks - 1;) {
    double done = is_done() ? 1 : 0;
    const auto begin = Clock::now();
    CHECK_OF(comm, trAllReduce(&done, &sum, 1, trFloat64, trSum, comm, stream));
    CHECK_OF(comm, trStreamSynchronize(stream));
    times.push_back(1e3 * std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return times;
}

// The ranks but the last have a communicator of their own: what becomes of it while the other one, to which the last
// rank is lost, fails in another stream. "latency": milliseconds, the 99.9th percentile of calm and meanwhile, and the
// most of each.
void beside(trComm_t comm) {
  trComm_t local = nullptr;
  CHECK_OF(comm, trCommSplit(comm, rank == ranks - 1, 0, &local, nullptr));
  while (rank == ranks - 1) {
    std::printf("running\n");
    pause();
  }
  trStream_t healthy = nullptr, broken = nullptr;
  CHECK(trStreamCreate(&healthy));
  CHECK(trStreamCreate(&broken));
  const auto until = Clock::now() + std::chrono::seconds(3);
  const auto calm = time_allreduces(local, healthy, [&] { return Clock::now() > until; });
  std::printf("running\n");  // the last rank may be lost from now on
  std::vector<float> values(1000);
  CHECK(trAllReduce(values.data(), values.data(), values.size(), trFloat32, trSum, comm, broken));
  const auto meanwhile = time_allreduces(local, healthy, [&] { return trStreamQuery(broken) != trInProgress; });
  std::printf("latency %.4f %.4f %.4f %.4f %.4f\n", at_part(calm, 0.999), at_part(meanwhile, 0.999), at_part(calm, 1),
              at_part(meanwhile, 1), at_part(calm, 0.5));
  for (trStream_t stream : {healthy, broken}) (void)trStreamDestroy(stream);
  for (trComm_t made : {local, comm}) CHECK(trCommDestroy(made));
}

void await_line() {
  for (int c = 0; c != '\n' && c != EOF;) c = std::getchar();
}

// What rank 0 has sent is lost with its connection, and it goes on with a call on another communicator, or creates one.
void lose_and_go_on(trComm_t comm, bool creates) {
  trComm_t other = nullptr;
  trUniqueId id{};
  if (rank == 0) CHECK(trGetUniqueId(&id));
  CHECK_OF(comm, trBroadcast(&id, &id, sizeof id, trUint8, 0, comm, nullptr));
  CHECK_OF(comm, trCommDup(comm, &other));
  for (trComm_t each : {comm, other}) CHECK_OF(each, sum_ones(each, ranks, 1));
  int value = rank == 0 ? 17 : 0;
  std::printf("running\n");
  if (rank == 0) {
    await_line();  // the network is cut
    CHECK_OF(comm, trSend(&value, 1, trInt32, 1, comm, nullptr));
    EXPECT(faults::reset_sockets() > 0);
    std::printf("reset\n");
    await_line();  // the network is whole
  } else {
    CHECK_OF(comm, trRecv(&value, 1, trInt32, 0, comm, nullptr));
    EXPECT(value == 17);
    std::printf("received\n");
  }
  trComm_t created = nullptr;
  if (creates)
    CHECK(trCommInitRank(&created, ranks, id, rank));
  else
    CHECK_OF(other, sum_ones(other, ranks, 1));
  for (trComm_t made : {comm, other, created})
    if (made != nullptr) CHECK(trCommDestroy(made));
  std::printf("ok\n");
}

// Rank 0 sends, and destroys its communicator at once, while a network is cut. "destroyed": seconds.
void send_last(trComm_t comm, size_t count) {
  CHECK_OF(comm, sum_ones(comm, ranks, count));
  std::vector<int> values(count, 17 * (1 - rank));
  std::printf("running\n");
  if (rank == 0) {
    await_line();
    CHECK_OF(comm, trSend(values.data(), count, trInt32, 1, comm, nullptr));
  } else {
    CHECK_OF(comm, trRecv(values.data(), count, trInt32, 0, comm, nullptr));
    EXPECT(values.front() == 17 && values.back() == 17);
    std::printf("received\n");
  }
  const auto begin = Clock::now();
  CHECK(trCommDestroy(comm));
  std::printf("destroyed %.3f\n", std::chrono::duration<double>(Clock::now() - begin).count());
  await_line();
  say_what_is_left();
}

// Broadcasts, the last from `root`, and a barrier.
void broadcast_from(trComm_t comm, int root) {
  int32_t value = rank;
  const auto begin = Clock::now();
  trResult_t result = trSuccess;
  for (int i = 0; i < 3 && result == trSuccess; ++i)
    result = trBroadcast(&value, &value, 1, trInt32, i < 2 ? 0 : root, comm, nullptr);
  if (result == trSuccess) result = trBarrier(comm, nullptr);
  const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
  if (result != trSuccess) std::printf("error %d %.3f %s\n", result, taken, trGetLastError(comm));
  EXPECT(result != trSuccess);
  CHECK(trCommDestroy(comm));
  say_what_is_left();
}

// The ranks but `excluded`, which has died, go on; those that stay end at a word.
void shrink(trComm_t comm, int excluded, bool stays) {
  run_until_failure(comm, 10'000);
  trComm_t rest = nullptr;
  CHECK(trCommShrink(comm, &excluded, 1, &rest, nullptr, TR_SHRINK_ABORT));
  for (size_t count : {1, 1001, 100'000}) CHECK_OF(rest, sum_ones(rest, ranks - 1, count));
  CHECK(trCommDestroy(comm));
  if (stays) {
    std::printf("stays\n");
    await_line();
  }
  CHECK(trCommDestroy(rest));
  say_what_is_left();
}

// This rank was stopped while the others went on without it. It finds out that they have left, and goes on alone.
void shrink_alone(trComm_t comm) {
  run_until_failure(comm, 10'000);
  std::vector<int> lost(ranks);
  int count = 0;
  while (count < ranks - 1) {
    CHECK(trCommGetLost(comm, lost.data(), &count));
    usleep(10'000);
  }
  trComm_t rest = nullptr;
  CHECK(trCommShrink(comm, lost.data(), count, &rest, nullptr, TR_SHRINK_ABORT));
  CHECK_OF(rest, sum_ones(rest, 1, 1001));
  for (trComm_t made : {comm, rest}) CHECK(trCommDestroy(made));
  say_what_is_left();
}

// The ranks of each host go on without those of the other one, at a word; one half may succeed, not both.
void exclude_the_other_host(trComm_t comm) {
  CHECK(trBarrier(comm, nullptr));
  std::printf("running\n");
  await_line();
  std::vector<int> others;
  for (int peer = 0; peer < ranks; ++peer)
    if (peer / 2 != rank / 2) others.push_back(peer);
  trComm_t half = nullptr;
  std::printf("shrinking\n");
  const trResult_t result = trCommShrink(comm, others.data(), static_cast<int>(others.size()), &half, nullptr, 0);
  if (result == trSuccess)
    std::printf("made\n");
  else
    std::printf("error %d %s\n", result, trGetLastError(comm));
  if (half != nullptr) CHECK(trCommDestroy(half));
  CHECK(trCommDestroy(comm));
}

void subsets(trComm_t comm) {
  trComm_t parity = nullptr, backwards = nullptr, same = nullptr;
  CHECK_OF(comm, trCommSplit(comm, rank % 2, 0, &parity, nullptr));
  CHECK_OF(comm, trCommSplit(comm, 0, -rank, &backwards, nullptr));
  CHECK_OF(comm, trCommDup(comm, &same));
  CHECK_OF(parity, sum_ones(parity, (ranks + 1 - rank % 2) / 2, 5001));
  int first = rank;
  CHECK_OF(backwards, trBroadcast(&first, &first, 1, trInt32, 0, backwards, nullptr));
  EXPECT(first == ranks - 1);
  CHECK_OF(same, sum_ones(same, ranks, 70'001));
  for (trComm_t made : {parity, backwards, same}) CHECK(trCommDestroy(made));
}

void sends(trComm_t comm) {
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (size_t count : {size_t{1}, size_t{999}, size_t{200'001}}) {
    std::vector<int> out(count, rank), in(count, -1);
    CHECK_OF(comm, trSendRecv(out.data(), count, next, in.data(), count, previous, trInt32, comm, nullptr));
    EXPECT(in.front() == previous && in.back() == previous);
    std::vector<int> from_all(count * static_cast<size_t>(ranks), -1);
    CHECK(trGroupStart());
    for (int peer = 0; peer < ranks; ++peer) {
      CHECK(trSend(out.data(), count, trInt32, peer, comm, nullptr));
      CHECK(trRecv(&from_all[count * static_cast<size_t>(peer)], count, trInt32, peer, comm, nullptr));
    }
    CHECK(trGroupEnd());
    for (int peer = 0; peer < ranks; ++peer) EXPECT(from_all[count * static_cast<size_t>(peer + 1) - 1] == peer);
  }
}

void streams(trComm_t comm) {
  trStream_t stream = nullptr;
  CHECK(trStreamCreate(&stream));
  std::vector<double> a(50'001), b(3, rank);
  for (int round = 0; round < 5; ++round) {
    a.assign(a.size(), rank + round);
    CHECK_OF(comm, trAllReduce(a.data(), a.data(), a.size(), trFloat64, trMax, comm, stream));
    CHECK_OF(comm, trBroadcast(b.data(), b.data(), b.size(), trFloat64, ranks - 1, comm, stream));
    CHECK(trStreamSynchronize(stream));
    EXPECT(a.back() == ranks - 1 + round && b[2] == ranks - 1);
  }
  CHECK(trStreamDestroy(stream));
}

void persistent(trComm_t comm) {
  double value = rank;
  std::vector<float> many(30'000, 1.0f);
  trPersistent_t step = nullptr;
  CHECK(trPersistentBegin());
  CHECK(trAllReduce(&value, &value, 1, trFloat64, trMax, comm, nullptr));
  CHECK(trAllReduce(many.data(), many.data(), many.size(), trFloat32, trAvg, comm, nullptr));
  CHECK(trPersistentEnd(&step));
  for (int i = 0; i < 10; ++i, value += 1) CHECK(trPersistentStart(step));
  EXPECT(value == ranks - 1 + 10 && many.back() == 1.0f);
  CHECK(trPersistentDestroy(step));
}

void double_buffer(trComm_t comm) {
  std::vector<float> sets[2] = {std::vector<float>(20'000), std::vector<float>(20'000)};
  const size_t counts[] = {20'000};
  const float mean_of_ranks = static_cast<float>(ranks - 1) / 2;
  trDoubleBuffer_t buffer = nullptr;
  int is_ready = 0;
  CHECK(trDoubleBufferCreate(&buffer, comm, trFloat32, 0, nullptr));
  for (int step = 0; step < 6; ++step) {
    std::vector<float>& gradients = sets[step % 2];
    gradients.assign(gradients.size(), static_cast<float>(2 * step + rank));
    void* tensors[] = {gradients.data()};
    CHECK(trDoubleBufferExchange(buffer, 1, tensors, counts, &is_ready));
    EXPECT((is_ready != 0) == (step > 0));
    if (is_ready) EXPECT(static_cast<float*>(tensors[0])[19'999] == static_cast<float>(2 * (step - 1)) + mean_of_ranks);
  }
  CHECK(trDoubleBufferDestroy(buffer));
}

void everything(trComm_t comm) {
  subsets(comm);
  sends(comm);
  streams(comm);
  persistent(comm);
  double_buffer(comm);
  CHECK(trCommDestroy(comm));
  say_what_is_left();
  std::printf("ok\n");
}

// Leaves after a few operations that the others go on with.
void leave(trComm_t comm, int operations, size_t count) {
  for (int i = 0; i < operations; ++i) CHECK_OF(comm, sum_ones(comm, ranks, count));
  std::printf("leaves\n");
  CHECK(trCommDestroy(comm));
  say_what_is_left();
  while (std::getchar() != EOF) continue;  // its process stays until the test closes its input
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::thread([] {}).join();  // a sanitizer starts its own with the first
  threads_at_start = count_entries("/proc/self/task", "");
  rank = std::atoi(argv[1]);
  ranks = std::atoi(argv[2]);
  const std::string mode = argv[4];
  const int argument = argc > 5 ? std::atoi(argv[5]) : 0;
  const trUniqueId id = take_id(argv[3]);
  std::printf("ready %d\n", getpid());
  while (mode == "relay") pause();  // no rank
  trComm_t comm = nullptr;
  const auto begin = Clock::now();
  if (const trResult_t result = trCommInitRank(&comm, ranks, id, rank); result != trSuccess) {
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    std::printf("error %d %.3f %s\n", result, taken, trGetLastError(nullptr));
    say_what_is_left();
    return 0;
  }
  if (mode == "loop") loop(comm, static_cast<size_t>(argument));
  if (mode == "beside") beside(comm);
  if (mode == "splits-until-told")
    std::thread([] {
      (void)std::getchar();
      _exit(0);
    }).detach();
  if (mode.starts_with("splits")) split_until_failure(comm);
  if (mode == "roots") broadcast_from(comm, rank == argument ? 1 : 0);
  if (mode == "lose") lose_and_go_on(comm, argument != 0);
  if (mode == "send-last") send_last(comm, static_cast<size_t>(argument));
  if (mode == "shrink" || mode == "shrink-and-stay") shrink(comm, argument, mode != "shrink");
  if (mode == "shrink-alone") shrink_alone(comm);
  if (mode == "halves") exclude_the_other_host(comm);
  if (mode == "everything") everything(comm);
  if (mode == "leave") leave(comm, 20, static_cast<size_t>(argument));
  if (mode == "leave-at-once") leave(comm, 0, 0);
  if (mode == "other-call") loop(comm, static_cast<size_t>(argument) + 1);
  return 0;
}
