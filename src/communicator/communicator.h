// SPDX-License-Identifier: Apache-2.0
// Communicator: one rank's view of a group of ranks: how it reaches the others, what it does for each size, and the
// operation that it is in.
//
//   create():  meet (membership) -> share memory (area) -> prove links -> measure -> plan and schedules
//   a call:    check -> begin() -> advance() until done, with watch() while nothing moves
//
// Invariants: operations are numbered from 1 in the order in which they begin; at most one is active; after a failure
// every later call returns the same verdict. Used by one thread at a time: the streams' engine while `queued` is not 0,
// else the caller. failure() may be asked meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/membership.h"
#include "communicator/calls/active_call.h"
#include "communicator/calls/lanes.h"
#include "communicator/calls/operation.h"
#include "communicator/calls/reductions.h"
#include "communicator/calls/schedule_cache.h"
#include "communicator/calls/call_selection.h"
#include "communicator/gpu_side.h"
#include "communicator/idle_links.h"
#include "communicator/notice_exchange.h"
#include "core/config.h"
#include "executor/backoff.h"
#include "failure/watch.h"
#include "peers/group_memory.h"
#include "peers/introductions.h"
#include "peers/peer_table.h"

namespace treering {

class PhaseTimes;
struct NetworkMeasurement;

class Communicator {
 public:
  static Status create(uint32_t ranks, const trUniqueId& id, uint32_t rank, const Config& config,
                       std::unique_ptr<Communicator>* communicator, const CreationTerms& terms = {});
  // A communicator of one rank: it meets no other rank and shares nothing.
  static Status create_alone(const Config& config, std::unique_ptr<Communicator>* communicator);
  // This rank's part of the ranks that pass the same colour, ordered by key and rank; nothing for a negative colour.
  Status split(int color, int key, const Config& config, std::unique_ptr<Communicator>* communicator);
  // Makes the communicator of those ranks, in that order, which alone call it; an error on all that see another set.
  // Uses only their status, so that it works after a failure.
  Status shrink(const std::vector<uint32_t>& members, const Config& config,
                std::unique_ptr<Communicator>* communicator);
  // These ranks and new ones, `total` in all, which meet at the id that one of these gives.
  Status grow(uint32_t total, const trUniqueId* id, const Config& config, std::unique_ptr<Communicator>* communicator);
  ~Communicator();

  uint32_t rank() const { return context_.rank; }
  uint32_t ranks() const { return context_.ranks; }
  uint32_t hosts() const { return schedules_->machine().hosts; }
  const Config& config() const { return config_; }

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
  Status verdict() const { return watch_->verdict(); }
  // Whether it has failed or is about to. Safe as well.
  bool is_failing() const { return !watch_->known_failure().ok(); }
  // Makes every rank's operations fail. Safe while another thread is inside a call.
  void abort(const std::string& reason);
  // Waits until nothing that is under way uses the user's memory any more: the rank leaves, and has operations. No other
  // thread is in a call.
  void end_links();
  // Whether its end now, with no thread inside a call, leaves something undone: of this rank, or of a GPU that waits
  // for it.
  bool is_needed() const;

  const CallSelection& selection() const { return *selection_; }
  // "shm+tcp": by which transports its ranks reach one another.
  std::string transports() const { return peer_table_->transports(); }
  // A message from one rank to another.
  double predict_transfer(size_t bytes) const {
    const Machine& machine = schedules_->machine();
    return machine.alpha_us + static_cast<double>(bytes) / (1e3 * machine.exchange_gbps);
  }
  // For what the library itself must know of all ranks; blocks.
  Status allgather_bytes(Purpose purpose, const void* own, size_t bytes, std::byte* all);
  // The lanes of transfers that are to run at once. A rank's transfers with itself must match.
  Status make_lanes(const std::vector<Transfer>& transfers, const char* function, std::shared_ptr<LaneSet>* lanes) {
    return treering::make_lanes(transfers, function, rank(), schedules_.get(), lanes);
  }
  // Whether transfers can go as eager messages, which need no lanes.
  bool are_eager(const std::vector<Transfer>& transfers) const {
    return treering::are_eager(transfers, call_->most_eager_transfer(), rank(), ranks());
  }

  // Operations made by the user.
  Reductions& reductions() { return reductions_; }
  // Whether a call on these buffers would be zero-copy.
  bool is_direct(const void* input, const void* output, size_t bytes) const;
  // How a thread waits for this rank's operations.
  Backoff backoff() const;
  // What a thread that waits for this rank's operations can sleep on; nullptr where all ranks share memory, which is
  // polled.
  const std::shared_ptr<WaitSet>& waits() const { return waits_; }
  const Plan& plan() const { return schedules_->plan(); }
  // Ranks, -1 for none, in one of the trees of allreduce.
  void tree_neighbours(bool second, int* parent, int* children) const {
    treering::tree_neighbours(plan(), rank(), second, parent, children);
  }

  // From any thread: makes a failure of all ranks (`deadline`: of what the GPU waits for); a rank whose process has
  // ended.
  void fail_everywhere(const Status& status, std::optional<Clock::time_point> deadline = {}) {
    watch_->propose(status, deadline);
  }
  bool find_dead(uint32_t* peer) const { return watch_->peers().find_dead(peer); }
  bool has_left(uint32_t peer) const { return watch_->peers().has_left(peer); }
  // Asks whether all other ranks, or those of other processes, have destroyed their communicators and closed what they
  // had open of this one's GPU, or died; for after this one's end. Empty where that is not seen.
  enum class Whose { kAll, kOtherProcesses };
  std::function<bool()> peers_left(Whose whose) const;
  // Tells the others that this rank has closed what it had open of their GPUs; for after its end.
  std::function<void()> tell_closed() const;
  uint64_t own_process() const { return rank_info(context_.rank).process_token; }

  // See PeerStates.
  std::string describe(uint32_t peer) const { return watch_->peers().describe(peer); }
  std::vector<uint32_t> lost_ranks() const { return watch_->peers().lost_ranks(); }
  std::string late_gpus(uint64_t collective) const { return watch_->peers().late_gpus(collective); }
  // A collective that this rank gives to its GPU as a kernel; shown to the others. Its number, from 1.
  uint64_t count_device_collective() {
    return context_.status->device_collectives.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  uint64_t device_collectives() const { return context_.status->device_collectives.load(std::memory_order_relaxed); }
  // This rank's GPU, or nullptr. Set and cleared only while no thread uses the communicator.
  GpuSide* gpu_side() const { return gpu_side_; }
  void set_gpu_side(GpuSide* side) { gpu_side_ = side; }
  // Whether any rank has one.
  bool any_device() const { return any_device_; }
  // Whether collectives of other ranks' GPUs wait for this one's.
  bool is_awaited_by_gpus() const { return watch_->peers().is_awaited_by_gpus(); }
  // This rank's GPU has memory of others open beyond the end of the communicator; tell_closed() says when it has not.
  void leave_with_memory() { left_with_memory_ = memory_.is_shared(); }

  // How many operations wait in streams. The engine counts them.
  uint32_t queued() const { return queued_.load(std::memory_order_acquire); }
  void count_queued(int more) { queued_.fetch_add(static_cast<uint32_t>(more)); }
  std::vector<Transfer> spare_transfers;  // memory of the last call's, for the next

 private:
  Communicator() = default;
  Status finish_creation(const std::string& job, TransportSet allowed, const CreationTerms& terms, PhaseTimes* times);
  OpenTransports open_transports(TransportSet allowed);
  Status exchange_infos(const std::string& job, const OpenTransports& opened, Membership::Blobs* blobs);
  Status link(const std::string& job, TransportSet allowed, const CreationTerms& terms, PhaseTimes* times);
  bool needs_job() const;
  void watch_events();
  void introduce(uint32_t peer, Introduction introduction);
  Status agree_on_network(const Plan& plan, const CreationTerms& terms, Machine* machine);
  Status measure_own_link(const std::vector<uint32_t>& leaders, const CreationTerms& terms,
                          NetworkMeasurement* measured);
  Status plan_schedules(Machine machine, Plan plan);
  void prepare_executor(const std::string& job);
  const RankInfo& rank_info(uint32_t rank) const { return (*infos_)[rank]; }
  void finish();
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
  bool has_descriptors() const { return membership_ == nullptr || membership_->has_descriptors(); }
  bool has_lost_descriptors();
  Status create_of(uint32_t ranks, const std::vector<uint32_t>& members, uint32_t giver, const trUniqueId& id,
                   const char* function, const Config& config, std::unique_ptr<Communicator>* result);
  Status exchange_sealed(Purpose purpose, const char* function, const SplitInfo& own, std::vector<SplitInfo>* infos);

  Status agree_and_shrink(const std::vector<uint32_t>& members, const Config& config,
                          std::unique_ptr<Communicator>* result);
  Status agree_and_grow(uint32_t total, const trUniqueId* id, const Config& config,
                        std::unique_ptr<Communicator>* communicator);

  Config config_;
  GroupMemory memory_;
  RankInfos infos_;
  std::shared_ptr<WaitSet> waits_ = std::make_shared<WaitSet>();
  Introductions introductions_{
      [this](uint32_t peer, Introduction introduction) { introduce(peer, std::move(introduction)); },
      [this](uint32_t peer) { return membership_ ? membership_->peers()[peer].interfaces : 0; }};
  std::unique_ptr<PeerTable> peer_table_;
  ExecutorContext context_;
  std::unique_ptr<ScheduleCache> schedules_;
  std::unique_ptr<CallSelection> selection_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<NoticeExchange> notices_;
  std::unique_ptr<ActiveCall> call_;
  Reductions reductions_;
  bool active_ = false;
  LinkTurn link_turn_;              // while active_
  bool links_lack_memory_ = false;  // one has failed so between calls; with the turn
  bool in_doubt_ = false;           // the operation does not go on: that it fails is certain, but not yet why
  std::array<unsigned char, 32> split_key_{};  // known to the ranks alone
  WaitPolicy wait_policy_;
  uint32_t host_ranks_ = 0;                   // of the host that has most
  std::atomic<int64_t> descriptors_seen_{0};  // by has_lost_descriptors(), a time of the kernel's coarse clock
  std::atomic<bool> has_failed_{false};       // set once failure_ is, which then stays
  bool links_end_ = false;                    // after a failure: not yet
  Status failure_;
  Status shrink_failure_;  // of the last shrink
  std::atomic<uint32_t> queued_{0};
  GpuSide* gpu_side_ = nullptr;
  bool any_device_ = false;
  bool left_with_memory_ = false;
  // Only while needs_job(). The last member: its events use the others.
  std::unique_ptr<Membership> membership_;
};

}  // namespace treering
