// SPDX-License-Identifier: Apache-2.0
// torch.distributed's operations, as the library has them.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>

#include "tensors.h"
#include "treering/treering.h"

namespace treering::pytorch {

// The calls of `add` run as one group of the library, which fuses small allreduces.
template <typename Function>
trResult_t as_group(Function add) {
  if (const trResult_t result = trGroupStart(); result != trSuccess) return result;
  const trResult_t added = add();
  const trResult_t ended = trGroupEnd();
  return added != trSuccess ? added : ended;
}

// SUM, MAX and BOR of bool are "or", PRODUCT, MIN and BAND are "and", as with NCCL.
class Reduction {
 public:
  // TypeError where the operation and the tensor's type do not go together.
  Reduction(const char* call, const c10d::ReduceOp& op, const at::Tensor& tensor);

  // Calls `use` with the operation. One with a factor belongs to a communicator, and is made for the call alone.
  template <typename Function>
  trResult_t with(trComm_t comm, Function use) const {
    if (!factor_.defined()) return use(operation_);
    trRedOp_t made = trSum;
    const trResult_t result = trRedOpCreatePreMulSum(&made, factor_.data_ptr(), type_, comm);
    if (result != trSuccess) return result;
    const trResult_t used = use(made);
    trRedOpDestroy(made, comm);
    return used;
  }

 private:
  trRedOp_t operation_ = trSum;
  trDataType_t type_ = trFloat32;
  at::Tensor factor_;  // one element of the tensor's type
};

}  // namespace treering::pytorch
