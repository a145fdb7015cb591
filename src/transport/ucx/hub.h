// SPDX-License-Identifier: Apache-2.0
// Hub: the worker of one rank, and its links to the peers.
//
//   links --- sends ---> worker ===== UCX ===== workers of the peers
//   links <-- arrive() --- hub <--- active messages, by the rank that sent them
//
// A link is made when either rank first has to do with the other: what comes early is kept in its places.
//
// Invariant: used by one thread at a time, but for depart(), which any thread may call.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/log.h"
#include "transport/ucx/link.h"
#include "transport/ucx/worker.h"

namespace treering::ucx {

struct HubOptions {
  uint32_t rank = 0, ranks = 1;
  uint32_t channels = 1;
  size_t place_bytes = 0;              // the longest payload
  const std::byte* staging = nullptr;  // of this rank
  // As error texts call it: "rank 3 (pid 17)".
  std::function<std::string(uint32_t rank)> peer_name;
  // TransportSetup::look, for reach() and finish(). A hub may outlive whom it asks: stop() does not call it.
  std::function<Status()> look = [] { return Status(); };
  void (*log)(LogLevel level, const std::string& text) = log_line;
};

class Hub : public std::enable_shared_from_this<Hub> {
 public:
  // With the last reference to it, what is still under way is dropped. Then it ends, at once or later (StuckHubs).
  static Status open(HubOptions options, std::shared_ptr<Hub>* opened);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // What the peers need to know of this rank; what one gave.
  std::string info() const;
  Status take_info(uint32_t peer, const std::string& info);

  // Whether this rank and the peer hear each other, tried until the deadline or until the creation fails. The peer tries it
  // at about the same time.
  Status reach(uint32_t peer, Clock::time_point deadline);
  // The connections to the peer; they keep the hub alive.
  PeerConnections connect(uint32_t peer);
  // The peer has left, after everything that it sent.
  void depart(uint32_t peer) { departed_[peer].store(true, std::memory_order_release); }
  bool has_departed(uint32_t peer) const { return departed_[peer].load(std::memory_order_acquire); }

  // Before the rank leaves: until all peers have what was sent to them, or the deadline.
  void finish(Clock::time_point deadline);
  // What is under way is dropped: no memory of the user is read once has_stopped(), which is asked again and again.
  void stop();
  bool has_stopped();
  // After stop(), again and again: whether the endpoints have ended that could not be closed then.
  bool end_stuck();

  int descriptor() const { return worker_->descriptor(); }
  void arm() { worker_->arm(); }

  // For the links.
  const HubOptions& options() const { return options_; }
  const RankInfo& peer_info(uint32_t peer) const { return infos_[peer]; }
  ucp_worker_h worker() const { return worker_->handle(); }
  void progress();
  // Until nothing comes any more.
  void drain();
  // Whether a rank that waits for something else is to call progress(), asked for each link in turn: where nothing else has
  // called it for kProgressesEvery.
  bool is_due();
  uint64_t progress_made() const { return progress_made_; }
  // The link has something to tell its peer once the worker has progressed.
  void settle_later() { any_owes_ = true; }

 private:
  explicit Hub(HubOptions options);
  static void end(Hub* hub);
  static ucs_status_t on_message(void* hub, const void* header, size_t header_bytes, void* data, size_t length,
                                 const ucp_am_recv_param_t* param);
  ucs_status_t arrive(const Header& header, void* data, size_t length, uint64_t attributes);
  Link& link(uint32_t peer);

  const HubOptions options_;
  const uint64_t key_;
  std::vector<RankInfo> infos_;               // of the peers; without an address: it has none
  std::vector<std::unique_ptr<Link>> links_;  // nullptr: none yet
  std::vector<std::atomic<bool>> departed_;
  std::unique_ptr<Worker> worker_;  // ends before the links, whose memory it writes into
  uint64_t progress_made_ = 1;
  // What is_due() knows.
  uint32_t asked_ = 0;
  uint64_t seen_ = 0;  // progress_made_
  Clock::time_point due_{};
  bool any_owes_ = false, has_warned_ = false, is_stopped_ = false;
  // Once is_stopped_: the last look, and how long UCX had for its end.
  Clock::time_point looked_;
  Clock::duration ended_for_{};
};

}  // namespace treering::ucx
