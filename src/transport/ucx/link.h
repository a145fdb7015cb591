// SPDX-License-Identifier: Apache-2.0
// Link: this rank and one peer, whose endpoint the connections of all channels share.
//
//   post()  -> an active message: header, payload from where it lies
//   arrive() <- from UCX: the header puts it into its place; the payload is kept as UCX has it, or lands in a place
//   pop()   -> a credit, with the next message of the channel, or by itself for every kTellEvery-th message
//
//   kGood --- endpoint failed --> kEnding --- UCX is done with all sends --> failed: health() tells
//     '------ and the peer has left ------> its messages can still be read; what is posted is dropped
//
// Invariants: what a peer has sent is checked before it is used; no memory of the user is read by UCX any more once
// health() is an error, unless UCX does not end what is under way within kEndsWithin; the hub outlives its links.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <memory>
#include <chrono>
#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/connection.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/incoming.h"
#include "transport/ucx/sending.h"
#include "transport/ucx/wire.h"

namespace treering::ucx {

class Hub;

// Sends of an endpoint that is closed at once end within moments.
inline constexpr auto kEndsWithin = std::chrono::milliseconds(500);
// More time between two looks does not count: the thread did something else.
inline constexpr auto kMaxBetweenLooks = std::chrono::milliseconds(50);

class Link final : public SendQueue {
 public:
  Link(Hub* hub, uint32_t peer);
  ~Link() override;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // The endpoint, if it is not there yet.
  Status open();
  // This rank needs the peer: from here on a failure of the endpoint is one of the link.
  void start();

  // From within the worker's progress: what the peer has sent.
  ucs_status_t arrive(const Header& header, void* data, size_t length, uint64_t attributes);
  // After the worker's progress.
  void settle();

  bool flush() override;
  Status health() const override { return health_; }
  bool can_post(uint32_t channel);
  void post(uint32_t channel, const Message& message);
  uint64_t released(uint32_t channel);
  const Message* front(uint32_t channel);
  void pop(uint32_t channel);

  // Whether both hear each other: asked until then, while the worker progresses.
  bool reaches();
  // Why they never will.
  Status unreachable() const;
  // Nothing will be posted or read any more. True when the peer has all, or cannot have it; asked until then.
  bool finish();
  // What is under way is dropped: UCX is done with it once ended().
  void stop();
  bool ended() { return endpoint_.is_stuck() || (endpoint_.ended() && endpoint_.under_way() == 0); }
  // The endpoint could not be closed (Endpoint::is_stuck()); the worker progresses: whether it has ended since then.
  bool is_stuck() const { return endpoint_.is_stuck(); }
  bool end_stuck() {
    endpoint_.close_stuck();
    return !is_stuck() && ended();
  }
  // Before the worker ends: nothing is read any more.
  void release();

 private:
  // Where a payload arrives, and how it is given back.
  struct Place {
    Link* link = nullptr;
    uint32_t channel = 0;
    uint64_t number = 0;
    void* held = nullptr;  // UCX's memory
    std::unique_ptr<std::byte[]> memory;
    alignas(8) std::byte inline_copy[kInlineBytes];
  };
  struct Channel {
    Sending sending;
    Incoming incoming;
    Note credit;
    Place places[kFifoDepth];
    uint64_t looked = 0;  // Hub::progress_made() when it was last looked for messages
  };

  static void on_landed(void* request, ucs_status_t status, size_t length, void* place);
  ucs_status_t take_message(const Header& header, void* data, size_t length, uint64_t attributes);
  ucs_status_t take_payload(Place* place, const Header& header, void* data, size_t length, uint64_t attributes);
  ucs_status_t land(Place* place, void* data, size_t length);
  std::byte* memory_of(Place* place) const;
  // What is wrong with what the peer sent: from within the worker's progress, where no endpoint is closed.
  void refuse(const Status& why);

  bool is_good() const { return health_.ok() && !is_ending_; }
  bool has_left() const;
  bool owes() const;
  void poll();
  void push();
  void address(Header* header, Type type) const;
  void send_owed();
  void send_credits();
  void fail(const Status& status);
  void look_at_endpoint();
  void look_for_end();

  Hub* const hub_;
  const uint32_t peer_;
  std::string name_;  // of the peer
  Endpoint endpoint_;
  std::vector<Channel> channels_;
  // By type, of what belongs to no channel.
  std::array<Note, kTypes> notes_;
  std::array<bool, kTypes> owed_{}, told_{}, came_{};  // to the peer; from it
  bool owes_credits_ = false;
  bool wants_push_ = false;  // a large message was posted since the last
  bool is_started_ = false, is_ending_ = false;
  bool may_open_ = true;        // the endpoint: once
  bool has_lost_peer_ = false;  // ... which has left: nothing is sent any more
  Status health_, failure_;     // ... which health() becomes when is_ending_ ends
  Status refusal_;
  Clock::time_point ending_since_{}, left_since_{}, farewell_since_{}, awaits_peer_since_{};
};

}  // namespace treering::ucx
