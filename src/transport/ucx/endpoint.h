// SPDX-License-Identifier: Apache-2.0
// Endpoint: this rank's end of what UCX has to a peer.
//
//   open() -> send(), send(), ... -> failed() or not -> close() -> ended()
//
// It is always one that reports the failure of its peer: UCX ends the process of a rank whose endpoint does not.
//
// Invariant: its address stays, and it outlives the worker, which calls back.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "core/status.h"
#include "transport/ucx/sending.h"

namespace treering::ucx {

class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  Status open(ucp_worker_h worker, const std::string& address);
  bool is_open() const { return handle_ != nullptr; }
  // Why it does not work any more, as UCX has told it; UCS_OK: it does.
  ucs_status_t failure() const { return failure_ != UCS_OK ? failure_ : static_cast<ucs_status_t>(under_way_.error); }
  // Sends that UCX is not done with.
  uint32_t under_way() const { return under_way_.count; }

  // Sends the note's header and the payload. Both stay as they are until the note is done, which a failure makes it,
  // too. Only when is_open().
  void send(Note* note, const void* payload, size_t bytes);

  // What is under way is dropped: UCX is done with it when ended(). What UCX was done with before still arrives.
  void close();
  bool ended();
  // It was to be closed before anything had arrived: UCX 1.13 would end the process ("got REQ message"). Once the peer's
  // host has answered, or UCX has given up, while the worker progresses, close_stuck() can close it.
  bool is_stuck() const { return stuck_ != nullptr; }
  void close_stuck();
  // Before the worker ends.
  void release();

 private:
  static void on_failure(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* note);

  bool may_close() const { return under_way_.count == 0 || under_way_.has_arrived || failure() != UCS_OK; }
  void close_now(ucp_ep_h handle);

  ucp_ep_h handle_ = nullptr, stuck_ = nullptr;  // at most one of them
  ucs_status_t failure_ = UCS_OK;
  UnderWay under_way_;
  void* closing_ = nullptr;  // request
};

}  // namespace treering::ucx
