// SPDX-License-Identifier: Apache-2.0
// QueuePair: a reliable connection (RC) to one peer, with a completion queue of its own for sends and receives.
//
//   create() INIT, receives posted ---> connect() RTR, RTS ---> write() ... ---> stop() ERR
//
// Receives have no buffers: each takes one immediate. Sends are counted in work requests. Some completions are asked
// for, and one of them says that all work requests up to it are done:
//
//   work requests  1  2  3  4  5  6
//   signaled                ^        completion 4: done() is 4
//
// Invariant: what was posted never exceeds what the queues were made for; can_write() says whether there is room.
// Used by one thread at a time, but for connect() and stop(), which another thread may call meanwhile: the device
// itself orders changes of state and polls.
#pragma once

#include <infiniband/verbs.h>

#include <functional>
#include <memory>

#include "transport/verbs/devices/device.h"
#include "transport/verbs/sending.h"

namespace treering::verbs {

struct QueueSizes {
  uint32_t sends = 16;     // work requests
  uint32_t receives = 16;  // immediates that may arrive before they are polled
};

class QueuePair {
 public:
  static Status create(const Device& device, const QueueSizes& sizes, uint32_t inline_bytes,
                       std::unique_ptr<QueuePair>* made);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return pair_->qp_num; }
  uint32_t first_packet() const { return first_packet_; }
  Status connect(const Rail& own, const RailEnd& peer, const PathOptions& options);
  // No work request that was posted, here or by the peer, is carried out any more. Any thread.
  void stop();

  bool can_write(uint32_t requests) const { return posted_ - done_ + requests <= sizes_.sends; }
  // Memory of the peer.
  struct Target {
    uint64_t address = 0;
    uint32_t key = 0;
  };
  // Writes `header` to `place`, with `payload` behind it or before to `output`, if that has an address, and tells
  // `immediate`.
  Status write(const Source& header, const Source& payload, const Target& place, const Target& output,
               uint32_t immediate, bool signaled);
  // Writes a fragment of a payload and tells `immediate`; a completion follows.
  Status write_fragment(const Source& fragment, const Target& place, uint32_t immediate);
  // Tells an immediate alone.
  Status tell(uint32_t immediate);
  // Asks for a completion of all that was posted; nothing is written.
  Status mark(uint64_t place, uint32_t key);

  uint64_t posted() const { return posted_; }
  uint64_t done() const { return done_; }

  // Takes completions: on_immediate for each that has come. The first error ends it, but for requests that were flushed.
  template <typename OnImmediate>
  Status poll(OnImmediate on_immediate) {
    ibv_wc completions[kPolled];
    for (;;) {
      const int count = ibv_poll_cq(completions_, kPolled, completions);
      if (count < 0) return {trSystemError, "ibv_poll_cq failed"};
      for (int i = 0; i < count; ++i) {
        const ibv_wc& completion = completions[i];
        if (completion.status == IBV_WC_WR_FLUSH_ERR) {
          is_flushed_ = true;
          continue;
        }
        if (completion.status != IBV_WC_SUCCESS) return failure_of(completion);
        if (completion.wr_id == kReceive) {
          if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0)
            return {trSystemError, "it sent something without an immediate; do all ranks run the same version?"};
          ++taken_;
          on_immediate(completion.imm_data);
        } else {
          done_ = completion.wr_id;
        }
      }
      if (taken_ >= kRefilled)
        if (Status refilled = refill(); !refilled.ok()) return refilled;
      if (count < kPolled) return {};
    }
  }
  // Requests were flushed: it is in the error state.
  bool is_flushed() const { return is_flushed_; }
  // Asks for an event when the next completion comes.
  void arm() { (void)ibv_req_notify_cq(completions_, 0); }

 private:
  static constexpr int kPolled = 16;
  static constexpr uint32_t kRefilled = 8;
  static constexpr uint64_t kReceive = ~uint64_t{0};

  QueuePair() = default;
  Status to_init(const Device& device) const;
  Status post_receives(uint32_t count);
  Status refill();
  Status post(ibv_send_wr* first, uint32_t requests);
  static Status failure_of(const ibv_wc& completion);

  QueueSizes sizes_;
  uint32_t inline_bytes_ = 0;
  uint32_t first_packet_ = 0;
  ibv_cq* completions_ = nullptr;
  ibv_qp* pair_ = nullptr;
  uint64_t posted_ = 0, done_ = 0, signaled_ = 0;
  bool is_flushed_ = false;
  uint32_t taken_ = 0;  // receives to be posted again
};

}  // namespace treering::verbs
