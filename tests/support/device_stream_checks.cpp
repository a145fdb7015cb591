// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "support/device_rank_checks.h"

namespace treering::testing {
namespace {

int sum_of_ranks(int n) { return n * (n + 1) / 2; }
int power(int base, int exponent) { return exponent == 0 ? 1 : base * power(base, exponent - 1); }

void add_one(int* data, size_t count) {
  for (size_t i = 0; i < count; ++i) ++data[i];
}

void add_one_late(int* data, size_t count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (size_t i = 0; i < count; ++i) ++data[i];
}

// What each rank does again and again: those with a GPU by launches of a graph, those without by calls.
class Repeated {
 public:
  // Once before the capture, as a program must. `body` is right however often it runs.
  Repeated(DeviceRanks* ranks, DeviceRanks::Body body) : ranks_(*ranks), body_(std::move(body)) {
    ranks_.run(false, body_);
    graphs_.resize(static_cast<size_t>(ranks_.count()));
  }
  ~Repeated() {
    for (ProgramGraph* graph : graphs_)
      if (graph != nullptr) destroy_graph(graph);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  void capture() {
    for (int r : ranks_.local()) {
      if (ranks_.device(r) < 0) continue;
      begin_capture(ranks_.cuda(r));
      EXPECT_EQ(body_(r, ranks_.comm(r), ranks_.stream(r)), trSuccess) << trGetLastError(nullptr);
      graphs_[static_cast<size_t>(r)] = end_capture(ranks_.cuda(r));
    }
  }
  void launch() {
    for (int r : ranks_.local())
      if (ranks_.device(r) >= 0) launch_graph(graphs_[static_cast<size_t>(r)], ranks_.cuda(r));
    ranks_.enqueue([this](int r, trComm_t comm, trStream_t stream) {
      return ranks_.device(r) < 0 ? body_(r, comm, stream) : trSuccess;
    });
  }

 private:
  DeviceRanks& ranks_;
  const DeviceRanks::Body body_;
  std::vector<ProgramGraph*> graphs_;
};

// A stream beside that of each rank.
class OtherStreams {
 public:
  explicit OtherStreams(const DeviceRanks& ranks) : ranks_(ranks), cuda_(ranks.count()), streams_(ranks.count()) {
    for (int r : ranks_.local()) {
      if (ranks_.device(r) >= 0) cuda_[r] = create_stream_of(ranks_.device(r));
      EXPECT_EQ(ranks_.device(r) < 0 ? trStreamCreate(&streams_[r])
                                     : trStreamFromCuda(&streams_[r], ranks_.device(r), cuda_[r]),
                trSuccess);
    }
  }
  ~OtherStreams() {
    for (int r : ranks_.local()) {
      EXPECT_EQ(trStreamDestroy(streams_[r]), trSuccess);
      if (ranks_.device(r) >= 0) destroy_stream(cuda_[r]);
    }
  }
  OtherStreams(const OtherStreams&) = delete;
  OtherStreams& operator=(const OtherStreams&) = delete;

  trStream_t of(int rank) const { return streams_[rank]; }
  DeviceStream cuda(int rank) const { return cuda_[rank]; }
  void synchronize() const {
    for (int r : ranks_.local()) ASSERT_EQ(trStreamSynchronize(streams_[r]), trSuccess);
  }

 private:
  const DeviceRanks& ranks_;
  std::vector<DeviceStream> cuda_;
  std::vector<trStream_t> streams_;
};

// The error that a rank whose peer is missing finds behind its stream.
void expect_failure(DeviceRanks& ranks, int rank, trResult_t expected, const std::string& text) {
  trResult_t result = trSuccess;
  EXPECT_EQ(trCommGetAsyncError(ranks.comm(rank), &result), trSuccess);
  EXPECT_EQ(result, expected) << "rank " << rank << ": " << trGetLastError(ranks.comm(rank));
  EXPECT_NE(std::string(trGetLastError(ranks.comm(rank))).find(text), std::string::npos)
      << trGetLastError(ranks.comm(rank));
}

}  // namespace

// Each call is behind what writes its input and before what reads its output.
void check_order(DeviceRanks& ranks, size_t count) {
  auto data = ranks.buffers(count);
  std::vector<int> expected;
  for (int r = 0; r < ranks.count(); ++r) expected.push_back(r + 1);
  for (int step = 0; step < 5; ++step) {
    for (int r : ranks.local())
      if (ranks.device(r) >= 0) change_in_stream(ranks.cuda(r), data[r].data(), count, add_one_late);
    ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, comm, stream);
    });
    int sum = 0;
    for (int r = 0; r < ranks.count(); ++r) sum += expected[r] + (ranks.device(r) >= 0 ? 1 : 0);
    expected.assign(expected.size(), sum);
  }
  ranks.synchronize();
  for (int r : ranks.local()) ASSERT_TRUE(data[r].all_equal([&](size_t) { return expected[0]; })) << "rank " << r;
}

void check_graphs(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  auto data = ranks.buffers(count);
  Repeated reduce(&ranks, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, comm, stream);
  });
  reduce.capture();
  for (int r : ranks.local())
    ASSERT_TRUE(data[r].all_equal([&](size_t) { return sum_of_ranks(n); })) << "captured, not run";
  constexpr int kTurns = 4;
  for (int turn = 0; turn < kTurns; ++turn) reduce.launch();
  ranks.synchronize();
  for (int r : ranks.local())
    ASSERT_TRUE(data[r].all_equal([&](size_t) { return sum_of_ranks(n) * power(n, kTurns); })) << "rank " << r;
}

void check_graphs_of_transfers(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  auto in = ranks.buffers(count), out = ranks.buffers(count);
  Repeated exchange(&ranks, [&](int r, trComm_t comm, trStream_t stream) {
    return trSendRecv(in[r].data(), count, (r + 1) % n, out[r].data(), count, (r + n - 1) % n, trInt32, comm, stream);
  });
  exchange.capture();
  for (int turn = 0; turn < 3; ++turn) {
    for (int r : ranks.local()) out[r].fill([](size_t) { return 0; });
    exchange.launch();
    ranks.synchronize();
    for (int r : ranks.local())
      ASSERT_TRUE(out[r].all_equal([&](size_t) { return (r + n - 1) % n + 1; })) << "rank " << r << " turn " << turn;
  }
}

namespace {

// Around the ring: rank r's input, which stream `a` writes late, is sent in that stream and received in stream `b`,
// which then changes it. Ranks name the streams in different orders, and a collective lies between.
struct RingOnTwoStreams {
  RingOnTwoStreams(DeviceRanks* all, const OtherStreams* others, size_t count)
      : ranks(*all), streams(*others), in(all->buffers(count)), out(all->buffers(count)), sum(all->buffers(1)) {}
  trResult_t call(int r) {
    const int n = ranks.count(), next = (r + 1) % n, before = (r + n - 1) % n;
    trComm_t comm = ranks.comm(r);
    const auto send = [&] { return trSend(in[r].data(), in[r].count(), trInt32, next, comm, ranks.stream(r)); };
    const auto receive = [&] { return trRecv(out[r].data(), out[r].count(), trInt32, before, comm, streams.of(r)); };
    trResult_t result = r % 2 == 0 ? send() : receive();
    if (result == trSuccess) result = trAllReduce(sum[r].data(), sum[r].data(), 1, trInt32, trMax, comm, streams.of(r));
    if (result == trSuccess) result = r % 2 == 0 ? receive() : send();
    return result;
  }
  void expect(int turn) {
    for (int r : ranks.local()) {
      const int before = (r + ranks.count() - 1) % ranks.count();
      const int written = (ranks.device(before) >= 0 ? turn : 0) + (ranks.device(r) >= 0 ? 1 : 0);
      ASSERT_TRUE(out[r].all_equal([&](size_t) { return before + 1 + written; })) << "rank " << r << " turn " << turn;
    }
  }
  DeviceRanks& ranks;
  const OtherStreams& streams;
  std::vector<Buffer> in, out, sum;
};

}  // namespace

void check_transfers_on_two_streams(DeviceRanks& ranks, size_t count) {
  const OtherStreams streams(ranks);
  RingOnTwoStreams ring(&ranks, &streams, count);
  for (int turn = 1; turn <= 3; ++turn) {
    for (int r : ranks.local())
      if (ranks.device(r) >= 0) change_in_stream(ranks.cuda(r), ring.in[r].data(), count, add_one_late);
    ranks.enqueue([&](int r, trComm_t, trStream_t) { return ring.call(r); });
    for (int r : ranks.local())
      if (ranks.device(r) >= 0) change_in_stream(streams.cuda(r), ring.out[r].data(), count, add_one);
    ranks.synchronize();
    streams.synchronize();
    ASSERT_NO_FATAL_FAILURE(ring.expect(turn));
  }
}

// For ranks that all have GPUs.
void check_graphs_on_two_streams(DeviceRanks& ranks, size_t count) {
  const OtherStreams streams(ranks);
  RingOnTwoStreams ring(&ranks, &streams, count);
  ranks.enqueue([&](int r, trComm_t, trStream_t) { return ring.call(r); });
  ranks.synchronize();
  streams.synchronize();
  std::vector<ProgramGraph*> graphs(static_cast<size_t>(ranks.count()));
  for (int r : ranks.local()) {
    begin_capture(ranks.cuda(r));
    ASSERT_EQ(trGroupStart(), trSuccess);
    ASSERT_EQ(ring.call(r), trSuccess);
    EXPECT_EQ(trGroupEnd(), trInvalidUsage) << "one of the two streams is captured";
    graphs[static_cast<size_t>(r)] = end_capture(ranks.cuda(r));
    destroy_graph(graphs[static_cast<size_t>(r)]);
  }
  for (int r : ranks.local()) {
    begin_capture(ranks.cuda(r));
    wait_for_stream(streams.cuda(r), ranks.cuda(r));
    change_in_stream(ranks.cuda(r), ring.in[r].data(), count, add_one);
    ASSERT_EQ(trGroupStart(), trSuccess);
    ASSERT_EQ(ring.call(r), trSuccess);
    EXPECT_EQ(trGroupEnd(), trSuccess) << trGetLastError(nullptr);
    change_in_stream(streams.cuda(r), ring.out[r].data(), count, add_one);
    wait_for_stream(ranks.cuda(r), streams.cuda(r));
    graphs[static_cast<size_t>(r)] = end_capture(ranks.cuda(r));
  }
  for (int turn = 1; turn <= 3; ++turn) {
    for (int r : ranks.local()) launch_graph(graphs[static_cast<size_t>(r)], ranks.cuda(r));
    ranks.synchronize();
    ASSERT_NO_FATAL_FAILURE(ring.expect(turn));
  }
  for (int r : ranks.local()) destroy_graph(graphs[static_cast<size_t>(r)]);
}

void check_graphs_beside_calls(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  const OtherStreams streams(ranks);
  auto first = ranks.buffers(count), second = ranks.buffers(count), out = ranks.buffers(count),
       other = ranks.buffers(count, 1);
  Repeated twice(&ranks, [&](int r, trComm_t comm, trStream_t stream) {
    for (const auto* data : {&first, &second}) {
      const trResult_t result = trAllReduce((*data)[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
      if (result != trSuccess) return result;
    }
    return trSuccess;
  });
  twice.capture();
  for (int turn = 0; turn < 10; ++turn) {
    for (int r : ranks.local()) out[r].fill([](size_t) { return 0; });
    twice.launch();
    ranks.enqueue([&](int r, trComm_t comm, trStream_t own) {
      trStream_t const stream = turn % 2 == 0 ? streams.of(r) : own;
      return trAllReduce(other[r].data(), other[r].data(), count, trInt32, trMax, comm, stream);
    });
    twice.launch();
    ranks.synchronize();
    streams.synchronize();
    for (int r : ranks.local()) {
      ASSERT_TRUE(out[r].all_equal([&](size_t) { return sum_of_ranks(n); })) << "turn " << turn;
      ASSERT_TRUE(other[r].all_equal([&](size_t i) { return n + static_cast<int>(i); })) << "turn " << turn;
    }
  }
}

// The second has the ranks in the reverse order, and streams of its own.
void check_two_communicators(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  const OtherStreams streams(ranks);
  std::vector<trComm_t> reversed(static_cast<size_t>(n));
  ranks.run(true, [&](int r, trComm_t comm, trStream_t) { return trCommSplit(comm, 0, n - r, &reversed[r], nullptr); });
  auto a = ranks.buffers(count), b = ranks.buffers(count);
  for (int step = 0; step < 5; ++step) {
    ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(a[r].data(), a[r].data(), count, trInt32, trMax, comm, stream);
    });
    ranks.enqueue([&](int r, trComm_t, trStream_t) {
      return trBroadcast(b[r].data(), b[r].data(), count, trInt32, 0, reversed[r], streams.of(r));
    });
  }
  ranks.synchronize();
  streams.synchronize();
  for (int r : ranks.local()) {
    ASSERT_TRUE(a[r].all_equal([&](size_t) { return n; }));
    ASSERT_TRUE(b[r].all_equal([&](size_t) { return n; })) << "its root is the last rank of the first";
    EXPECT_EQ(trCommDestroy(reversed[r]), trSuccess);
  }
}

void check_end(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  auto data = ranks.buffers(count, 1);
  ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, comm, stream);
  });
  for (int r : ranks.local()) {
    if (ranks.device(r) < 0) {
      ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
    }
    ASSERT_EQ(trCommDestroy(std::exchange(ranks.comm(r), nullptr)), trSuccess);
  }
  for (int r : ranks.local()) ASSERT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
  for (int r : ranks.local())
    ASSERT_TRUE(data[r].all_equal([&](size_t i) { return sum_of_ranks(n) + n * static_cast<int>(i); })) << "rank " << r;
}

void check_abort(DeviceRanks& ranks, size_t count, const std::function<void()>& meet) {
  const int last = ranks.count() - 1;
  auto data = ranks.buffers(count);
  const auto begun = std::chrono::steady_clock::now();
  ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
    if (r == last) return trSuccess;
    return trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, comm, stream);
  });
  if (meet) meet();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // kernels that run are no more to be seen than others
  if (ranks.is_local(last)) {
    EXPECT_EQ(trCommAbort(std::exchange(ranks.comm(last), nullptr)), trSuccess);
  }
  for (int r : ranks.local()) {
    if (r == last) continue;
    // A stream of the host's tells the error, one of a GPU goes on.
    EXPECT_EQ(trStreamSynchronize(ranks.stream(r)), ranks.device(r) < 0 ? trRemoteError : trSuccess);
    // For staged operations the host finds that the rank is gone. Kernels are told.
    expect_failure(ranks, r, trRemoteError, "rank " + std::to_string(last) + " (pid ");
    EXPECT_NE(trAllReduce(data[r].data(), data[r].data(), count, trInt32, trSum, ranks.comm(r), ranks.stream(r)),
              trSuccess);
    EXPECT_EQ(trCommAbort(std::exchange(ranks.comm(r), nullptr)), trSuccess);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30)) << "the end waited for a deadline";
}

// The rank that aborts has nothing under way itself. The others wait for it in a graph, whose launches are not counted.
void check_abort_beside_graphs(DeviceRanks& ranks, size_t count) {
  const int last = ranks.count() - 1;
  auto data = ranks.buffers(count);
  const auto begun = std::chrono::steady_clock::now();
  std::vector<ProgramGraph*> graphs(static_cast<size_t>(ranks.count()));
  const auto reduce = [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(data[r].data(), data[r].data(), count, trInt32, trMax, comm, stream);
  };
  ranks.run(false, reduce);
  for (int r : ranks.local()) {
    begin_capture(ranks.cuda(r));
    EXPECT_EQ(reduce(r, ranks.comm(r), ranks.stream(r)), trSuccess) << trGetLastError(nullptr);
    graphs[static_cast<size_t>(r)] = end_capture(ranks.cuda(r));
  }
  for (int r : ranks.local())
    if (r != last) launch_graph(graphs[static_cast<size_t>(r)], ranks.cuda(r));
  EXPECT_EQ(trCommAbort(std::exchange(ranks.comm(last), nullptr)), trSuccess);
  for (int r : ranks.local()) {
    if (r != last) synchronize_stream(ranks.cuda(r));
    destroy_graph(graphs[static_cast<size_t>(r)]);
    if (r != last) {
      EXPECT_EQ(trCommAbort(std::exchange(ranks.comm(r), nullptr)), trSuccess);
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30)) << "the end waited for a deadline";
}

// To free what the first has, a driver may wait for the kernels of the second, which nothing else ends.
void check_aborts_of_two_communicators(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count(), last = n - 1;
  const OtherStreams streams(ranks);
  std::vector<trComm_t> second(static_cast<size_t>(n));
  ranks.run(true, [&](int r, trComm_t comm, trStream_t) { return trCommSplit(comm, 0, r, &second[r], nullptr); });
  auto a = ranks.buffers(count), b = ranks.buffers(count);
  const auto begun = std::chrono::steady_clock::now();
  ranks.enqueue([&](int r, trComm_t comm, trStream_t stream) {
    if (r == last) return trSuccess;
    const trResult_t result = trAllReduce(a[r].data(), a[r].data(), count, trInt32, trSum, comm, stream);
    if (result != trSuccess) return result;
    return trAllReduce(b[r].data(), b[r].data(), count, trInt32, trSum, second[r], streams.of(r));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // as above
  for (int r : ranks.local()) EXPECT_EQ(trCommAbort(std::exchange(ranks.comm(r), nullptr)), trSuccess);
  for (trComm_t comm : second) EXPECT_EQ(trCommAbort(comm), trSuccess);
  for (int r : ranks.local())
    for (trStream_t stream : {ranks.stream(r), streams.of(r)}) (void)trStreamSynchronize(stream);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30)) << "the end waited for a deadline";
}

// The others are in the first of two collectives that the last one has not given.
void check_deadline(DeviceRanks& ranks) {
  const int last = ranks.count() - 1;
  auto data = ranks.buffers(1000);
  const auto reduce = [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(data[r].data(), data[r].data(), 1000, trInt32, trSum, comm, stream);
  };
  ranks.run(false, reduce);
  for (int i = 0; i < 2; ++i)
    ranks.enqueue(
        [&](int r, trComm_t comm, trStream_t stream) { return r == last ? trSuccess : reduce(r, comm, stream); });
  for (int r : ranks.local()) {
    if (r == last) continue;
    EXPECT_EQ(trStreamSynchronize(ranks.stream(r)), trSuccess);
    expect_failure(ranks, r, trTimeout,
                   ": rank " + std::to_string(last) + " (pid " + std::to_string(getpid()) +
                       ") has not given its GPU collective 2 (it is at 1)");
  }
}

}  // namespace treering::testing
