// SPDX-License-Identifier: Apache-2.0
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/clock.h"
#include "peers/measure.h"

namespace treering {
namespace {

constexpr int kWarmLaps = 2, kLaps = 8;
constexpr size_t kMessageBytes = 64 << 10;
constexpr uint64_t kMaxBytes = 4 << 20;
constexpr uint64_t kSkippedBytes = 1 << 20;  // what queues and token buckets let through at once
constexpr uint64_t kPartBytes = 512 << 10;
constexpr auto kSendFor = std::chrono::milliseconds(100);
constexpr uint32_t kEnd = 1;  // signature of the last message

class Ring {
 public:
  Ring(Connection* next, Connection* previous, Clock::time_point deadline, const std::function<bool()>& progress,
       const WaitVerdict& verdict)
      : next_(next), previous_(previous), deadline_(deadline), progress_(progress), verdict_(verdict) {}

  // The one way to wait here: serves both neighbours, as each of the ring's ranks waits for another one's progress.
  // False when there is a reason to stop.
  bool wait_for(Connection* connection) {
    progress_();
    if (failure_.ok()) failure_ = find_failure(connection);
    if (!failure_.ok()) return false;
    sched_yield();
    return true;
  }
  // The first; it stays.
  const Status& failure() const { return failure_; }
  Connection* failed() const { return failed_; }

  bool send_token(const uint64_t& token) {
    Message message;
    message.bytes = sizeof token;
    message.data = &token;
    return send(message);
  }
  bool send(const Message& message) {
    while (!next_->can_post())
      if (!wait_for(next_)) return false;
    const auto begin = Clock::now();
    next_->post(message);
    last_post_us_ = 1e6 * seconds(Clock::now() - begin);
    return true;
  }
  // What the last post took.
  double last_post_us() const { return last_post_us_; }
  bool receive() {
    while (previous_->front() == nullptr)
      if (!wait_for(previous_)) return false;
    previous_->pop();
    return true;
  }
  // Nothing of this rank is under way any more, what it tells the neighbours included.
  bool flush() {
    for (Connection* connection : {next_, previous_})
      while (!progress_() || !connection->has_released(connection->posted()))
        if (!wait_for(connection)) return false;
    return true;
  }
  Connection* next() { return next_; }
  Connection* previous() { return previous_; }

 private:
  Status find_failure(Connection* waiting_for) {
    TR_RETURN_IF_ERROR(verdict_(waiting_for));
    for (Connection* connection : {next_, previous_}) {
      failed_ = connection;
      TR_RETURN_IF_ERROR(connection->health());
    }
    failed_ = waiting_for;
    if (Clock::now() > deadline_) return {trTimeout, "the deadline passed while the network was measured"};
    failed_ = nullptr;
    return {};
  }

  Connection *next_, *previous_;
  Connection* failed_ = nullptr;
  Clock::time_point deadline_;
  const std::function<bool()>& progress_;
  const WaitVerdict& verdict_;
  Status failure_;
  double last_post_us_ = 0;
};

bool lap(Ring* ring, bool starts) {
  uint64_t token = 0;
  if (starts) return ring->send_token(token) && ring->receive();
  return ring->receive() && ring->send_token(token);
}

// The rate of what arrives, over all and in its best part.
class Rate {
 public:
  void received(uint64_t bytes) {
    const auto now = Clock::now();
    bytes_ += bytes;
    last_ = now;
    if (bytes_ <= kSkippedBytes) {
      begin_ = part_begin_ = now;
      counted_from_ = part_from_ = bytes_;
    } else if (bytes_ - part_from_ >= kPartBytes) {
      peak_ = std::max(peak_, rate(bytes_ - part_from_, now - part_begin_));
      part_begin_ = now;
      part_from_ = bytes_;
    }
  }
  // Stores the rates, unless too few bytes have come.
  void take(NetworkMeasurement* measured) const {
    if (bytes_ <= kSkippedBytes) return;
    measured->gbps = rate(bytes_ - counted_from_, last_ - begin_);
    measured->peak_gbps = std::max(peak_, measured->gbps);
  }

 private:
  static double rate(uint64_t bytes, Clock::duration time) {
    return static_cast<double>(bytes) / std::max(seconds(time), 1e-6) / 1e9;
  }
  uint64_t bytes_ = 0, counted_from_ = 0, part_from_ = 0;
  Clock::time_point begin_, part_begin_, last_;
  double peak_ = 0;
};

// Sends and receives at the same time, as the ranks of a ring do.
void measure_rate(Ring* ring, uint32_t slot_bytes, NetworkMeasurement* measured) {
  // After a failure the link still sends what it took, so the bytes outlive this call.
  static std::byte data[kMessageBytes];
  const Region none;
  Message part;
  part.bytes = kMessageBytes;
  if (const auto address = ring->next()->reference({data, sizeof data, &none, true})) {
    part.kind = PayloadKind::kUser;
    part.user = *address;
  } else {  // whatever lies in the first slot
    part.kind = PayloadKind::kStaging;
    part.bytes = std::min<uint32_t>(kMessageBytes, slot_bytes);
  }
  const auto begin = Clock::now();
  Rate rate;
  uint64_t sent = 0;
  for (bool all_sent = false, all_here = false; !all_sent || !all_here;) {
    bool moved = false;
    if (!all_sent && ring->next()->can_post()) {
      const bool end = sent >= kMaxBytes || Clock::now() - begin > kSendFor;
      part.signature = end ? kEnd : 0;
      if (!ring->send(part)) return;
      sent += part.bytes;
      all_sent = end;
      moved = true;
    }
    if (const Message* message = all_here ? nullptr : ring->previous()->front(); message != nullptr) {
      all_here = message->signature == kEnd;
      rate.received(message->bytes);
      ring->previous()->pop();
      moved = true;
    }
    if (!moved && !ring->wait_for(all_sent ? ring->previous() : ring->next())) return;
  }
  if (ring->flush()) rate.take(measured);
}

Status combine(const std::vector<std::string>& blobs, NetworkOfAll* result) {
  *result = {{}, true};
  NetworkMeasurement& slowest = result->slowest;
  for (const std::string& blob : blobs) {
    NetworkMeasurement of_rank;
    if (blob.size() != sizeof of_rank) return {trInternalError, "a malformed measurement of the network"};
    std::memcpy(static_cast<void*>(&of_rank), blob.data(), sizeof of_rank);
    result->plausible &= of_rank.is_plausible();
    slowest.latency_us = std::max(slowest.latency_us, of_rank.latency_us);
    slowest.message_us = std::max(slowest.message_us, of_rank.message_us);
    if (of_rank.gbps > 0) slowest.gbps = slowest.gbps == 0 ? of_rank.gbps : std::min(slowest.gbps, of_rank.gbps);
  }
  return {};
}

}  // namespace

void NetworkMeasurement::take_better(const NetworkMeasurement& other) {
  const auto least = [](double* kept, double value) {
    if (value > 0 && (*kept == 0 || value < *kept)) *kept = value;
  };
  least(&latency_us, other.latency_us);
  least(&message_us, other.message_us);
  if (other.gbps <= gbps) return;
  gbps = other.gbps;
  peak_gbps = other.peak_gbps;
}

Status measure_until_plausible(const MeasureOwnLink& measure, const ExchangeBlobs& exchange, NetworkOfAll* result) {
  NetworkMeasurement own;
  *result = {};
  for (int i = 0; i < kMaxNetworkMeasurements && !result->plausible; ++i) {
    NetworkMeasurement again;
    TR_RETURN_IF_ERROR(measure(&again));
    own.take_better(again);
    std::vector<std::string> blobs;
    TR_RETURN_IF_ERROR(exchange(std::string(reinterpret_cast<const char*>(&own), sizeof own), &blobs));
    TR_RETURN_IF_ERROR(combine(blobs, result));
  }
  return {};
}

Status measure_network(Connection* next, Connection* previous, bool starts, uint32_t hosts, uint32_t slot_bytes,
                       Clock::time_point deadline, const std::function<bool()>& progress, const WaitVerdict& verdict,
                       NetworkMeasurement* measured, Connection** failed) {
  Ring ring(next, previous, deadline, progress, verdict);
  const auto take_least = [](double* least, double value) {
    if (*least == 0 || value < *least) *least = value;
  };
  double best = 0;
  for (int i = 0; i < kWarmLaps + kLaps; ++i) {
    const auto begin = Clock::now();
    if (!lap(&ring, starts)) {
      *failed = ring.failed();
      return ring.failure();
    }
    if (i < kWarmLaps) continue;
    take_least(&best, seconds(Clock::now() - begin));
    take_least(&measured->message_us, ring.last_post_us());
  }
  if (starts) measured->latency_us = best / hosts * 1e6;
  measure_rate(&ring, slot_bytes, measured);
  *failed = ring.failed();
  return ring.failure();
}

}  // namespace treering
