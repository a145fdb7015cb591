// SPDX-License-Identifier: Apache-2.0
// What the cost model needs to know of the machine, measured in a few milliseconds while a communicator is created.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "algorithms/cost.h"
#include "core/clock.h"
#include "peers/area.h"

namespace treering {

// Bytes of the last-level cache; a guess where the system does not say.
size_t last_level_cache_bytes();

// Rates of this core: reduction of data in cache; and the last-level cache's size.
Machine measure_core();

// What passes between ranks 0 and 1, which call it at the same time on rank 0's and rank 1's area: the time of a cache
// line there and back, halved, and the rate at which bytes written by one are read by the other. Keeps the defaults
// when the partner does not answer within some milliseconds, and of figures that no cache can have made.
void measure_pair(bool first, const AreaView& rank0, const AreaView& rank1, Machine* machine);
// The same from the times themselves: a line there and back; that and `bytes` written there and read here.
void take_pair_times(double ping_s, double transfer_s, size_t bytes, Machine* machine);

// What the network between hosts does, as one rank of each measures it; 0: unknown.
struct NetworkMeasurement {
  double latency_us = 0;  // a small message, one way; on the rank that starts
  double message_us = 0;  // this rank's work for sending it
  double gbps = 0;        // 10^9 bytes a second that arrive from the host before this one
  double peak_gbps = 0;   // ... in the best part of that time

  // Whether the rate may be the link's: one that does not run most of the time, as its ends have no core, shows a small
  // part of it.
  bool is_plausible() const { return gbps == 0 || peak_gbps <= kMaxUneven * gbps; }
  // Keeps the better of two: what disturbs a measurement makes it slower alone.
  void take_better(const NetworkMeasurement& other);

 private:
  static constexpr double kMaxUneven = 3;
};
// A measurement that is not plausible is repeated, so many in all.
inline constexpr int kMaxNetworkMeasurements = 4;
// What all ranks measured: the slowest of each.
struct NetworkOfAll {
  NetworkMeasurement slowest;
  bool plausible = false;  // each of them is
};
using MeasureOwnLink = std::function<Status(NetworkMeasurement* measured)>;
using ExchangeBlobs = std::function<Status(const std::string& own, std::vector<std::string>* all)>;
// Called by all ranks. They have the same blobs, so that all of them repeat the measurement or none does.
Status measure_until_plausible(const MeasureOwnLink& measure, const ExchangeBlobs& exchange, NetworkOfAll* result);
// Called in every wait with the link that is waited for: ok, or why the measurement ends.
using WaitVerdict = std::function<Status(const Connection* waiting_for)>;
// Called at the same time by one rank of each of `hosts` hosts, which form a ring; one of them starts. Takes some tens
// of milliseconds. An error when the links do not work: messages may be under way then, so they are not fit for use.
// slot_bytes: of staging memory, for links that reach no other memory of this rank. `progress` is called in every wait and moves what waits on any link of the rank; true when nothing waits. *failed:
// the link that is broken or was waited for; nullptr when the error is `verdict`'s.
Status measure_network(Connection* next, Connection* previous, bool starts, uint32_t hosts, uint32_t slot_bytes,
                       Clock::time_point deadline, const std::function<bool()>& progress, const WaitVerdict& verdict,
                       NetworkMeasurement* measured, Connection** failed);

}  // namespace treering
