// SPDX-License-Identifier: Apache-2.0
// The sum of sparse tensors: every rank gets the entries of all, and adds them.
//
// How many entries a rank has, the others hear first. The sum is that of the ranks in their order, so all have the same.
#include "backend.h"
#include "tensors.h"

namespace treering::pytorch {

WorkPointer Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const char* name = "all_reduce";
  at::Tensor tensor = only_one(name, "tensors", tensors);
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), name, ": tensor is on ", tensor.device(),
                    "; a tensor of the CPU is wanted: treering does not take tensors of other devices yet");
  TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM, name,
                    ": op is not SUM; of sparse tensors SUM alone is wanted");
  const at::Tensor own = tensor.coalesce();
  const at::Tensor indices = own.indices().contiguous(), entries = own.values().contiguous();
  elements_of(name, "tensor.values()", entries, Use::kComputes);

  c10d::AllgatherOptions waiting;
  waiting.asyncOp = false;
  at::Tensor count = at::scalar_tensor(own._nnz(), at::kLong).reshape({1});
  at::Tensor counts = at::empty({size_}, at::kLong);
  _allgather_base(counts, count, waiting);

  // The columns of the indices as rows, so that the entries of a rank lie together.
  std::vector<Tensors> all_indices(1), all_entries(1);
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t of_rank = counts[rank].item<int64_t>();
    all_indices[0].push_back(at::empty({of_rank, indices.size(0)}, at::kLong));
    std::vector<int64_t> shape = entries.sizes().vec();
    shape[0] = of_rank;
    all_entries[0].push_back(at::empty(shape, entries.options()));
  }
  Tensors index_rows{indices.t().contiguous()}, own_entries{entries};
  allgather(all_indices, index_rows, waiting);
  allgather(all_entries, own_entries, waiting);
  const at::Tensor sum =
      at::sparse_coo_tensor(at::cat(all_indices[0]).t(), at::cat(all_entries[0]), tensor.sizes(), tensor.options())
          .coalesce();
  tensor.copy_(sum);
  auto work = c10::make_intrusive<CollectiveWork>(
      rank_,
      Call{"treering:all_reduce", c10d::OpType::_ALLREDUCE_SPARSE, options.asyncOp, options.timeout, {}, tensors});
  work->end(nullptr);
  return noted(work);
}

}  // namespace treering::pytorch
