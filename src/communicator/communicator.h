// SPDX-License-Identifier: Apache-2.0
// Communicator: one rank's view of a group of ranks: how it reaches the others, what it does for each size, and the
// operation that it is in.
//
//   create():  see Creation
//   a call:    check -> begin() -> advance() until done, with watch() while nothing moves
//
// Invariants: operations are numbered from 1 in the order in which they begin; at most one is active; after a failure
// every later call returns the same verdict. Used by one thread at a time: the streams' engine while `queued` is not 0,
// else the caller. failure() may be asked meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "communicator/calls/lanes.h"
#include "communicator/calls/operation.h"
#include "communicator/calls/reductions.h"
#include "communicator/gpu_side.h"
#include "communicator/idle_links.h"
#include "communicator/parts.h"
#include "communicator/subsets.h"

namespace treering {

class Communicator {
 public:
  static Status create(uint32_t ranks, const trUniqueId& id, uint32_t rank, const Config& config,
                       std::unique_ptr<Communicator>* communicator, const CreationTerms& terms = {});
  // A communicator of one rank: it meets no other rank and shares nothing.
  static Status create_alone(const Config& config, std::unique_ptr<Communicator>* communicator);
  ~Communicator();

  // Splits, shrinks and grows it.
  Subsets& subsets() { return subsets_; }

  uint32_t rank() const { return parts_.context.rank; }
  uint32_t ranks() const { return parts_.context.ranks; }
  uint32_t hosts() const { return parts_.schedules->machine().hosts; }
  const Config& config() const { return parts_.config; }

  // Whether the operation makes sense by itself; begin() takes it for granted. Completes it (in_place, reduction).
  Status check(Operation* operation);

  // Runs one operation to its end in the calling thread.
  Status run(const Operation& operation);

  // The same in parts, for a thread that drives several communicators. The operation outlives its end.
  Status begin(const Operation& operation);
  // Never kDiffers, which becomes a failure.
  Progress advance();
  // To be called now and then while advance() is blocked; fails the operation when there is a reason to.
  Status poll_failures();
  bool active() const { return active_; }
  // This rank has no memory for its part of `call` (nullptr: the active operation), which others wait for. The
  // communicator fails; this rank's own error.
  Status run_out_of_memory(const char* call);
  // The same, and what is active ends: nothing of the caller's memory is used any more.
  Status end_without_memory(const char* call);

  // The first failure of any rank, or ok.
  Status failure() const;
  // The same for a user who asks: one that another rank is telling at this moment is waited for.
  Status settled_failure() const;
  // The failure that all ranks share. Safe while another thread is inside a call.
  Status verdict() const { return parts_.watch->verdict(); }
  // Whether it has failed or is about to. Safe as well.
  bool is_failing() const { return !parts_.watch->known_failure().ok(); }
  // Makes every rank's operations fail. Safe while another thread is inside a call.
  void abort(const std::string& reason);
  // Waits until nothing that is under way uses the user's memory any more: the rank leaves, and has operations. No other
  // thread is in a call.
  void end_links();
  // Whether its end now, with no thread inside a call, leaves something undone: of this rank, or of a GPU that waits
  // for it.
  bool is_needed() const;

  const CallSelection& selection() const { return *parts_.selection; }
  // "shm+tcp": by which transports its ranks reach one another.
  std::string transports() const { return parts_.peer_table->transports(); }
  // A message from one rank to another.
  double predict_transfer(size_t bytes) const {
    const Machine& machine = parts_.schedules->machine();
    return machine.alpha_us + static_cast<double>(bytes) / (1e3 * machine.exchange_gbps);
  }
  // For what the library itself must know of all ranks; blocks.
  Status allgather_bytes(Purpose purpose, const void* own, size_t bytes, std::byte* all);
  // The lanes of transfers that are to run at once. A rank's transfers with itself must match.
  Status make_lanes(const std::vector<Transfer>& transfers, const char* function, std::shared_ptr<LaneSet>* lanes) {
    return treering::make_lanes(transfers, function, rank(), parts_.schedules.get(), lanes);
  }
  // Whether transfers can go as eager messages, which need no lanes.
  bool are_eager(const std::vector<Transfer>& transfers) const {
    return treering::are_eager(transfers, parts_.call->most_eager_transfer(), rank(), ranks());
  }

  // Operations made by the user.
  Reductions& reductions() { return reductions_; }
  // Whether a call on these buffers would be zero-copy.
  bool is_direct(const void* input, const void* output, size_t bytes) const;
  // How a thread waits for this rank's operations.
  Backoff backoff() const;
  // What a thread that waits for this rank's operations can sleep on; nullptr where all ranks share memory, which is
  // polled.
  const std::shared_ptr<WaitSet>& waits() const { return parts_.waits; }
  const Plan& plan() const { return parts_.schedules->plan(); }
  // Ranks, -1 for none, in one of the trees of allreduce.
  void tree_neighbours(bool second, int* parent, int* children) const {
    treering::tree_neighbours(plan(), rank(), second, parent, children);
  }

  // From any thread: makes a failure of all ranks (`deadline`: of what the GPU waits for); a rank whose process has
  // ended.
  void fail_everywhere(const Status& status, std::optional<Clock::time_point> deadline = {}) {
    parts_.watch->propose(status, deadline);
  }
  bool find_dead(uint32_t* peer) const { return parts_.watch->peers().find_dead(peer); }
  bool has_left(uint32_t peer) const { return parts_.watch->peers().has_left(peer); }
  // Asks whether all other ranks, or those of other processes, have destroyed their communicators and closed what they
  // had open of this one's GPU, or died; for after this one's end. Empty where that is not seen.
  enum class Whose { kAll, kOtherProcesses };
  std::function<bool()> peers_left(Whose whose) const;
  // Tells the others that this rank has closed what it had open of their GPUs; for after its end.
  std::function<void()> tell_closed() const;
  uint64_t own_process() const { return parts_.info(parts_.context.rank).process_token; }

  // See PeerStates.
  std::string describe(uint32_t peer) const { return parts_.watch->peers().describe(peer); }
  std::vector<uint32_t> lost_ranks() const { return parts_.watch->peers().lost_ranks(); }
  std::string late_gpus(uint64_t collective) const { return parts_.watch->peers().late_gpus(collective); }
  // A collective that this rank gives to its GPU as a kernel; shown to the others. Its number, from 1.
  uint64_t count_device_collective() {
    return parts_.context.status->device_collectives.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  uint64_t device_collectives() const {
    return parts_.context.status->device_collectives.load(std::memory_order_relaxed);
  }
  // This rank's GPU, or nullptr. Set and cleared only while no thread uses the communicator.
  GpuSide* gpu_side() const { return gpu_side_; }
  void set_gpu_side(GpuSide* side) { gpu_side_ = side; }
  // Whether any rank has one.
  bool any_device() const { return parts_.any_device; }
  // Whether collectives of other ranks' GPUs wait for this one's.
  bool is_awaited_by_gpus() const { return parts_.watch->peers().is_awaited_by_gpus(); }
  // This rank's GPU has memory of others open beyond the end of the communicator; tell_closed() says when it has not.
  void leave_with_memory() { left_with_memory_ = parts_.memory.is_shared(); }

  // How many operations wait in streams. The engine counts them.
  uint32_t queued() const { return queued_.load(std::memory_order_acquire); }
  void count_queued(int more) { queued_.fetch_add(static_cast<uint32_t>(more)); }
  std::vector<Transfer> spare_transfers;  // memory of the last call's, for the next

 private:
  Communicator();
  void finish();
  Status start(const Operation& operation);
  // Ok while what was under way still uses the user's memory: poll_end() then, which poll_failures() does.
  Status fail(Status status);
  Status poll_end();
  bool has_ended() const { return has_failed_.load(std::memory_order_relaxed) && !links_end_; }
  Progress doubt();
  void stop_without_memory(const char* call = nullptr);
  void activate();
  void deactivate();
  static constexpr const char* kBetweenCalls = "the work on its connections between calls";
  template <typename Serve>
  void serve_between_calls(const Serve& serve);
  void serve_idle_links();
  void serve_links();
  bool has_lost_descriptors();

  CommunicatorParts parts_;
  Subsets subsets_;
  Reductions reductions_;
  bool active_ = false;
  LinkTurn link_turn_;                        // while active_
  bool links_lack_memory_ = false;            // one has failed so between calls; with the turn
  bool in_doubt_ = false;                     // the operation does not go on: that it fails is certain, but not yet why
  std::atomic<int64_t> descriptors_seen_{0};  // by has_lost_descriptors(), a time of the kernel's coarse clock
  std::atomic<bool> has_failed_{false};       // set once failure_ is, which then stays
  bool links_end_ = false;                    // after a failure: not yet
  Status failure_;
  std::atomic<uint32_t> queued_{0};
  GpuSide* gpu_side_ = nullptr;
  bool left_with_memory_ = false;
};

}  // namespace treering
