// SPDX-License-Identifier: Apache-2.0
// Context: a device's context is the calling thread's current one while an object of this class lives.
//
// Meanwhile the thread may call functions that a stream capture elsewhere in the process would forbid (allocating,
// loading a module): none of them goes to a capturing stream.
#pragma once

#include "device/cuda/driver.h"

namespace treering::cuda {

class ContextGuard {
 public:
  ContextGuard(const Driver& driver, CUcontext context) : driver_(driver), result_(driver.cuCtxPushCurrent(context)) {
    if (result_ == CUDA_SUCCESS) driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  ~ContextGuard() {
    if (result_ != CUDA_SUCCESS) return;
    driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    CUcontext popped;
    driver_.cuCtxPopCurrent(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

  CUresult result() const { return result_; }

 private:
  const Driver& driver_;
  CUstreamCaptureMode capture_mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // afterwards the one that was before
  const CUresult result_;
};

}  // namespace treering::cuda
