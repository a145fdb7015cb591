// SPDX-License-Identifier: Apache-2.0
// What communicators with GPUs must do, as checks that run on the stand-in and on GPUs (gpu_program.h), for all ranks
// in one process and for each in a process of its own. Errors are gtest's.
#pragma once

#include <string>
#include <vector>

#include "support/device_ranks.h"

namespace treering::testing {

// Where ranks are; -1 is a rank without a GPU.
struct Place {
  const char* name;
  std::vector<int> devices;
};
inline std::string name_of(const Place& place) { return place.name; }
inline void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }
// Those of `places` that need no more than `gpus`.
std::vector<Place> possible(const std::vector<Place>& places, int gpus);

// The number of GPUs, asked for by another process: this one may fork afterwards. `why_not`: if it is 0.
int count_gpus_elsewhere(std::string* why_not);

// Pieces of staged operations that are small enough for several.
inline constexpr int kSmallPiece = 64 << 10;
trConfig_t with_small_pieces(int bytes = kSmallPiece, bool fixed_order = false);

// device_call_checks.cpp: results, blocking and on streams.
void check_collectives(DeviceRanks& ranks, const std::vector<size_t>& counts);
void check_in_place(DeviceRanks& ranks, size_t count);
void check_transfers(DeviceRanks& ranks, const std::vector<size_t>& counts);
void check_variable_counts(DeviceRanks& ranks, size_t most);
void check_groups(DeviceRanks& ranks);
// Buffers of the host, in calls with and without memory of a GPU.
void check_host_buffers(DeviceRanks& ranks, size_t count);
// Allreduces of 1 B up to `most` bytes, as far as the memory goes, against a reference in float64.
void check_sizes(DeviceRanks& ranks, size_t most);

// device_stream_checks.cpp: order, graphs, ends.
void check_order(DeviceRanks& ranks, size_t count);
void check_graphs(DeviceRanks& ranks, size_t count);
void check_graphs_of_transfers(DeviceRanks& ranks, size_t count);
// Sends in one stream and receives in another, of one group.
void check_transfers_on_two_streams(DeviceRanks& ranks, size_t count);
void check_graphs_on_two_streams(DeviceRanks& ranks, size_t count);
// Launches of a graph and calls, on the same stream and on another.
void check_graphs_beside_calls(DeviceRanks& ranks, size_t count);
void check_two_communicators(DeviceRanks& ranks, size_t count);
// What streams hold is done before the communicators end.
void check_end(DeviceRanks& ranks, size_t count);
// The last rank never comes, and aborts. `meet` returns when all processes have come to it; empty: there are no others.
void check_abort(DeviceRanks& ranks, size_t count, const std::function<void()>& meet = {});
// For ranks of one process that all have GPUs.
void check_abort_beside_graphs(DeviceRanks& ranks, size_t count);
// The same with a second communicator: one thread aborts one after the other.
void check_aborts_of_two_communicators(DeviceRanks& ranks, size_t count);
// The last rank never comes; of communicators with a short deadline.
void check_deadline(DeviceRanks& ranks);

}  // namespace treering::testing
