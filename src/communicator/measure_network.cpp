#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "communicator/local_socket.h"
#include "communicator/measure.h"

namespace treering {
namespace {

constexpr int kWarmLaps = 2, kLaps = 8;
constexpr size_t kMessageBytes = 64 << 10;
constexpr uint64_t kMostBytes = 4 << 20;
constexpr uint64_t kSkippedBytes = 1 << 20;  // what queues and token buckets let through at once
constexpr auto kSendFor = std::chrono::milliseconds(100);
constexpr uint32_t kEnd = 1;  // signature of the last message

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

class Ring {
 public:
  Ring(Connection* next, Connection* previous, Clock::time_point deadline, const std::function<Status()>& verdict)
      : next_(next), previous_(previous), waiting_for_(next), deadline_(deadline), verdict_(verdict) {}

  bool has_failed() { return !failure().ok(); }
  // The first; it stays.
  Status failure() {
    if (failure_.ok()) failure_ = find_failure();
    return failure_;
  }
  Connection* failed() const { return failed_; }
  bool send(uint32_t signature, const void* data, uint32_t bytes, PayloadKind kind) {
    waiting_for_ = next_;
    while (!next_->can_post()) {
      if (has_failed()) return false;
      sched_yield();
    }
    Message message;
    message.signature = signature;
    message.bytes = bytes;
    message.kind = kind;
    message.data = data;
    message.user.offset = reinterpret_cast<uint64_t>(data);
    const auto begin = Clock::now();
    next_->post(message);
    last_post_us_ = 1e6 * seconds(Clock::now() - begin);
    return true;
  }
  // What the last post took.
  double last_post_us() const { return last_post_us_; }
  bool receive() {
    waiting_for_ = previous_;
    while (previous_->front() == nullptr) {
      if (has_failed()) return false;
      (void)next_->flushed();
      sched_yield();
    }
    previous_->pop();
    return true;
  }
  bool flush() {
    waiting_for_ = next_;
    while (!next_->flushed() || !next_->has_consumed(next_->posted()))
      if (has_failed()) return false;
    return true;
  }
  Connection* next() { return next_; }
  Connection* previous() { return previous_; }

 private:
  Status find_failure() {
    TR_RETURN_IF_ERROR(verdict_());
    for (Connection* connection : {next_, previous_}) {
      failed_ = connection;
      TR_RETURN_IF_ERROR(connection->health());
    }
    failed_ = waiting_for_;
    if (Clock::now() > deadline_) return {trTimeout, "the deadline passed while the network was measured"};
    failed_ = nullptr;
    return {};
  }

  Connection *next_, *previous_, *waiting_for_;
  Connection* failed_ = nullptr;
  Clock::time_point deadline_;
  const std::function<Status()>& verdict_;
  Status failure_;
  double last_post_us_ = 0;
};

bool lap(Ring* ring, bool starts) {
  uint64_t token = 0;
  if (starts) return ring->send(0, &token, sizeof token, PayloadKind::kInline) && ring->receive();
  return ring->receive() && ring->send(0, &token, sizeof token, PayloadKind::kInline);
}

// Sends and receives at the same time, as the ranks of a ring do.
double measure_rate(Ring* ring) {
  std::vector<std::byte> data(kMessageBytes);
  const auto begin = Clock::now();
  Clock::time_point counted_from{}, last{};
  uint64_t sent = 0, received = 0;
  for (bool all_sent = false, all_here = false; !all_sent || !all_here;) {
    if (ring->has_failed()) return 0;
    if (!all_sent && ring->next()->can_post()) {
      const bool end = sent >= kMostBytes || Clock::now() - begin > kSendFor;
      if (!ring->send(end ? kEnd : 0, data.data(), kMessageBytes, PayloadKind::kUser)) return 0;
      sent += kMessageBytes;
      all_sent = end;
    }
    if (const Message* message = all_here ? nullptr : ring->previous()->front(); message != nullptr) {
      all_here = message->signature == kEnd;
      received += message->bytes;
      ring->previous()->pop();
      last = Clock::now();
      if (received <= kSkippedBytes) counted_from = last;
    }
  }
  if (!ring->flush() || received <= kSkippedBytes) return 0;
  return static_cast<double>(received - kSkippedBytes) / std::max(seconds(last - counted_from), 1e-6) / 1e9;
}

}  // namespace

Status measure_network(Connection* next, Connection* previous, bool starts, uint32_t hosts, Clock::time_point deadline,
                       const std::function<Status()>& verdict, NetworkMeasurement* measured, Connection** failed) {
  Ring ring(next, previous, deadline, verdict);
  const auto take_least = [](double* least, double value) {
    if (*least == 0 || value < *least) *least = value;
  };
  double best = 0;
  for (int i = 0; i < kWarmLaps + kLaps; ++i) {
    const auto begin = Clock::now();
    if (!lap(&ring, starts)) return *failed = ring.failed(), ring.failure();
    if (i < kWarmLaps) continue;
    take_least(&best, seconds(Clock::now() - begin));
    take_least(&measured->message_us, ring.last_post_us());
  }
  if (starts) measured->latency_us = best / hosts * 1e6;
  measured->gbps = measure_rate(&ring);
  const Status status = ring.failure();
  *failed = ring.failed();
  return status;
}

}  // namespace treering
