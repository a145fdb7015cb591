// SPDX-License-Identifier: Apache-2.0
// EagerPath: the fast path for blocks that are one small message each. It does what the schedules "direct" and
// "one-shot" and the lanes do (a test compares them), without what larger messages need: no slices, no channels, no
// steps.
//
//   sends      | peer, bytes, where |  -> one message each: in the descriptor, or in a slot
//   receives   | peer, bytes, where |  <- one message each, copied; or combined in the order of the ranks
//
// The messages are those of the schedule, so a rank that runs the schedule itself understands them.
#pragma once

#include <vector>

#include "executor/execution.h"

namespace treering {

class EagerPath {
 public:
  static constexpr size_t kMaxBytes = 16384;       // of a block
  static constexpr size_t kMaxMappedBytes = 4096;  // ... where peers may read buffers in place, which it does not

  explicit EagerPath(ExecutorContext* context);

  // For a collective whose parts have at most `most_bytes(context)` each. `call` outlives the operation.
  void start(const Call* call);
  // For sends and receives that the caller adds. At most one of each with a peer.
  void start_pairs(const Call* call);
  void add_send(uint32_t peer, const void* data, size_t bytes);
  void add_receive(uint32_t peer, void* data, size_t bytes);

  Progress advance();
  // The peer that the last kBlocked waited for, whose call differed, or whose payload could not be had.
  uint32_t peer() const { return waiting_for_; }
  const Status& status() const { return status_; }                      // kFailed: why
  const std::optional<TransferSizes>& sizes() const { return sizes_; }  // kDiffers
  static size_t most_bytes(const ExecutorContext& context) {
    return std::min(kMaxBytes, context.pools[0].slot_bytes());
  }

 private:
  struct EagerMessage {
    uint32_t peer;
    uint32_t bytes;
    uint32_t signature;
    std::byte* data;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Route {
    uint32_t peer;
    uint32_t part;
  };
  void find_routes();
  uint32_t part_between(uint32_t source, uint32_t destination) const;
  std::byte* input_of(uint32_t part) const;
  std::byte* output_of(uint32_t part) const;
  Connection* connection(uint32_t peer) const { return context_->connection(0, peer); }
  Progress advance_messages();
  Progress blocked();
  bool send(const EagerMessage& eager);
  Progress receive_all();
  bool take(const EagerMessage& eager, const Message& message);
  void combine();

  ExecutorContext* context_;
  const Call* call_ = nullptr;
  const CollectiveInfo* routed_ = nullptr;  // what the routes are of
  uint32_t routed_root_ = 0;
  bool same_data_ = false;  // same_for_all_, of the routes
  std::vector<Route> send_routes_, receive_routes_;
  bool reduces_ = false;
  bool same_for_all_ = false;  // all sends have the same data: one slot serves them
  int slot_ = StagingPool::kNone;
  std::vector<EagerMessage> sends_, receives_;
  size_t next_send_ = 0, next_receive_ = 0;
  uint32_t waiting_for_ = 0;
  Status status_;
  std::optional<TransferSizes> sizes_;
  bool pairs_ = false;
  std::vector<const void*> sources_;  // of a reduction, in the order of the ranks
};

}  // namespace treering
