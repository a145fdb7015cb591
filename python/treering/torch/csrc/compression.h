// SPDX-License-Identifier: Apache-2.0
// Sums of float32 that travel in a narrower type, for the hooks of DistributedDataParallel.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "treering/treering.h"

namespace treering::pytorch {

// How the gradient of one parameter travels, and what rounding has taken from it so far.
class Compression {
 public:
  // wire: "fp16", "bf16", "fp8-e4m3" or "fp8-e5m2"; ValueError for another one. With feedback it takes 8 bytes a value,
  // of up to `count` values.
  Compression(const std::string& wire, bool error_feedback, int64_t count);
  trCompression_t get() const { return made_.get(); }

 private:
  struct Destroy {
    void operator()(trCompression_t made) const { trCompressionDestroy(made); }
  };
  std::unique_ptr<trCompression, Destroy> made_;
};

// The average of each tensor over the ranks, in place, as one unit of work. A tensor without a compression travels as
// it is.
c10::intrusive_ptr<c10d::Work> average(const c10::intrusive_ptr<c10d::Backend>& backend,
                                       std::vector<at::Tensor> tensors,
                                       const std::vector<std::shared_ptr<Compression>>& compressions);

}  // namespace treering::pytorch
