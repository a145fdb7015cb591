// SPDX-License-Identifier: Apache-2.0
// Collective: what must hold before and after, as one table row each.
//
// The data of a collective is cut into parts. Every rank that contributes to a part gives its operand of it from its
// input buffer; every rank that stores the part ends with the combination of all contributions in its output buffer.
// (One contributor: the result is its operand, unchanged.) Verifier, executor and tests all read these rows.
//
//   kOne     allreduce, reduce, broadcast, barrier     one part: the whole buffer
//   kRanks   allgather, reduce-scatter, gather, ...    part p: the block of rank p
//   kPairs   alltoall                                  part s * ranks + d: from rank s to rank d
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "algorithms/host_device.h"

namespace treering {

enum class Collective : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
};
inline constexpr size_t kCollectiveCount = 9;

enum class Parts : uint8_t { kOne, kRanks, kPairs };

// Where the block of a part lies in a buffer of equal blocks.
enum class BlockIndex : uint8_t {
  kAlone,          // the buffer is one block
  kByPart,         // a block for every part
  kBySource,       // kPairs: a block for every rank that sends
  kByDestination,  // ... or receives
};
TR_HOST_DEVICE inline uint32_t block_index(BlockIndex index, uint32_t part, uint32_t ranks) {
  switch (index) {
    case BlockIndex::kByPart:
      return part;
    case BlockIndex::kBySource:
      return part / ranks;
    case BlockIndex::kByDestination:
      return part % ranks;
    case BlockIndex::kAlone:
      break;
  }
  return 0;
}

// What a part is asked about.
struct PartOf {
  uint32_t rank;  // the asking rank
  uint32_t part;
  uint32_t ranks;
  uint32_t root;  // rooted collectives
};

struct CollectiveInfo {
  Collective collective;
  const char* name;  // "allreduce"
  Parts parts;
  bool rooted;
  bool reduces;                        // combines with an operation; else the data moves unchanged
  bool has_data;                       // takes buffers; else it only makes the ranks wait
  bool (*contributes)(const PartOf&);  // precondition: the rank's input has the part
  bool (*stores)(const PartOf&);       // postcondition: the rank's output gets the part
  // Where the part lies in the rank's buffers when all parts have `count` elements: at index * count.
  BlockIndex input_index;
  BlockIndex output_index;

  uint32_t part_count(uint32_t ranks) const {
    if (parts == Parts::kOne) return 1;
    return parts == Parts::kRanks ? ranks : ranks * ranks;
  }
  // Every rank's buffer, combined, on every rank: two calls, end to end, are one; a smaller type may travel.
  bool combines_whole_buffers() const { return has_data && reduces && !rooted && parts == Parts::kOne; }
  // The root stores a block of every rank; the root gives each rank a block.
  bool gathers() const { return rooted && holds_all(output_index); }
  bool scatters() const { return rooted && holds_all(input_index); }
  // Whether the buffer with that index has a block for every part (kRanks), or one alone.
  static bool holds_all(BlockIndex index) { return index == BlockIndex::kByPart; }
  // The part whose input lies where the output of `part` lies when a call is in place.
  uint32_t in_place_part(uint32_t part, uint32_t ranks) const {
    return parts == Parts::kPairs ? part % ranks * ranks + part / ranks : part;
  }
};

std::span<const CollectiveInfo> collectives();
inline const CollectiveInfo& info_of(Collective collective) { return collectives()[static_cast<size_t>(collective)]; }
// nullptr for an unknown name. Case, "-" and "_" do not count (core/names.h).
const CollectiveInfo* find_collective(std::string_view name);

}  // namespace treering
