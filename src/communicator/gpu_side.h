// SPDX-License-Identifier: Apache-2.0
// GpuSide: what a communicator needs of its rank's GPU. It does not own it: a slot owns both (api/handles.h).
#pragma once

namespace treering {

class GpuSide {
 public:
  // Makes what a kernel has found a failure of the communicator.
  virtual void find_failure() = 0;
  // Ends what is under way, from any thread.
  virtual void abort() = 0;
  // Whether peers' GPUs may wait for something that is not counted as a call of this rank.
  virtual bool is_needed() const = 0;

 protected:
  ~GpuSide() = default;
};

}  // namespace treering
