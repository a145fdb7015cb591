// SPDX-License-Identifier: Apache-2.0
// CallRegions: which buffers of a call peers may use where they lie: memory that the user registered, and ordinary
// memory that calls use again (peers/watched_buffers.h).
#pragma once

#include "communicator/calls/operation.h"
#include "executor/execution.h"
#include "peers/peer_table.h"
#include "transport/region.h"

namespace treering {

class CallRegions {
 public:
  // What is given outlives it. `exports`: where peers look up this rank's regions.
  CallRegions(ExecutorContext* context, PeerTable* peers, RegionExports exports)
      : context_(context), peers_(peers), exports_(exports) {}

  // Also for calls that look up no buffer: what was freed before them is registered no longer.
  void begin_call() {
    if (WatchedBuffers* const watched = peers_->watched_buffers(); watched != nullptr) watched->begin_call();
  }
  // Those of the operation's buffers, segments or lanes.
  void find(const Operation& operation, Call* call);
  // Tells peers that are reached by links, and give this rank final values, where they may write them.
  void show_output(const Operation& operation, const Program& program, const Call& call) const;

 private:
  Region publish(const void* buffer, size_t bytes, WatchedBuffers* watched);
  void find_of_segments(const Operation& operation, WatchedBuffers* watched, Call* call);
  size_t buffer_bytes(const Operation& operation, bool output, const Call& call) const;

  ExecutorContext* context_;
  PeerTable* peers_;
  RegionExports exports_;
};

}  // namespace treering
