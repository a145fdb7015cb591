// SPDX-License-Identifier: Apache-2.0
// Worker: UCX for one rank of one communicator: a context and a worker. It reads the variables UCX_* of the environment.
//
// Invariant: used by one thread at a time.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "core/status.h"

namespace treering::ucx {

class Worker {
 public:
  // `ranks`: how many there are to reach; `longest`: the bytes of the longest payload.
  static Status open(uint32_t ranks, size_t longest, std::unique_ptr<Worker>* opened);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h handle() const { return worker_; }
  // What another worker needs to reach this one.
  const std::string& address() const { return address_; }
  // Moves what can be moved; calls back for what has come or ended. Not from within such a call. False: there was
  // nothing.
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  // Becomes readable when something has come, once arm() was called; -1: the transports in use cannot tell.
  int descriptor() const { return descriptor_; }
  void arm();

 private:
  Worker() = default;
  Status make(uint32_t ranks, size_t longest, bool wakes);
  void end();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int descriptor_ = -1;
};

// "UCX: what: Destination is unreachable"
Status ucx_error(const char* what, ucs_status_t status);

}  // namespace treering::ucx
