// SPDX-License-Identifier: Apache-2.0
// Broadcast, reductions and barrier.
#include "backend.h"
#include "reductions.h"
#include "tensors.h"

namespace treering::pytorch {
namespace {

using c10d::OpType;

}  // namespace

WorkPointer Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const char* name = "broadcast";
  const Elements x = elements_of(name, "tensor", only_one(name, "tensors", tensors), Use::kMoves);
  check_root(name, "src", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  return run({"treering:broadcast", OpType::BROADCAST, options.asyncOp, options.timeout, tensors, tensors},
             [=](trComm_t comm, trStream_t stream) {
               return trBroadcast(x.data, x.data, x.count, x.type, root, comm, stream);
             });
}

WorkPointer Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const char* name = "all_reduce";
  const at::Tensor& tensor = only_one(name, "tensors", tensors);
  if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
  const Reduction reduction(name, options.reduceOp, tensor);
  const Elements x = elements_of(name, "tensor", tensor, Use::kComputes);
  return run({"treering:all_reduce", OpType::ALLREDUCE, options.asyncOp, options.timeout, tensors, tensors},
             [=](trComm_t comm, trStream_t stream) {
               return reduction.with(
                   comm, [&](trRedOp_t op) { return trAllReduce(x.data, x.data, x.count, x.type, op, comm, stream); });
             });
}

WorkPointer Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const char* name = "all_reduce_coalesced";
  TORCH_CHECK_VALUE(!tensors.empty(), name, ": there are no tensors");
  const Reduction reduction(name, options.reduceOp, tensors[0]);
  std::vector<Elements> all;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_same_type(name, tensors[i], tensors[0]);
    all.push_back(elements_of(name, c10::str("tensors[", i, "]"), tensors[i], Use::kComputes));
  }
  return run({"treering:all_reduce_coalesced", OpType::ALLREDUCE_COALESCED, options.asyncOp, options.timeout, tensors,
              tensors},
             [=](trComm_t comm, trStream_t stream) {
               return reduction.with(comm, [&](trRedOp_t op) {
                 return as_group([&] {
                   trResult_t result = trSuccess;
                   for (size_t i = 0; i < all.size() && result == trSuccess; ++i)
                     result = trAllReduce(all[i].data, all[i].data, all[i].count, all[i].type, op, comm, stream);
                   return result;
                 });
               });
             });
}

WorkPointer Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const char* name = "reduce";
  const at::Tensor& tensor = only_one(name, "tensors", tensors);
  const Reduction reduction(name, options.reduceOp, tensor);
  const Elements x = elements_of(name, "tensor", tensor, Use::kComputes);
  check_root(name, "dst", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  return run({"treering:reduce", OpType::REDUCE, options.asyncOp, options.timeout, tensors, tensors},
             [=](trComm_t comm, trStream_t stream) {
               return reduction.with(comm, [&](trRedOp_t op) {
                 return trReduce(x.data, x.data, x.count, x.type, op, root, comm, stream);
               });
             });
}

WorkPointer Backend::reduce_scatter(Call call, const at::Tensor& output, const at::Tensor& input,
                                    const c10d::ReduceOp& op) {
  const char* name = call.name();
  const Reduction reduction(name, op, input);
  const Elements in = elements_of(name, "input", input, Use::kComputes);
  const Elements out = elements_of(name, "output", output, Use::kComputes);
  check_same_type(name, input, output);
  check_count(name, "input", input, output.numel() * size_, "a block as large as output for each rank");
  call.inputs = {input};
  call.outputs = {output};
  return run(std::move(call), [=](trComm_t comm, trStream_t stream) {
    return reduction.with(comm, [&](trRedOp_t made) {
      return trReduceScatter(in.data, out.data, out.count, out.type, made, comm, stream);
    });
  });
}

WorkPointer Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& options) {
  return reduce_scatter(
      {"treering:reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, options.asyncOp, options.timeout, {}, {}},
      output, input, options.reduceOp);
}

WorkPointer Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& options) {
  const char* name = "reduce_scatter";
  const at::Tensor& output = only_one(name, "output", outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, name, ": input_list are ", inputs.size(), " lists; one is wanted");
  // The blocks must follow one another: the library reads them as one input.
  const size_t blocks = inputs[0].size();
  TORCH_CHECK_VALUE(blocks == static_cast<size_t>(size_), name, ": input_list has ", blocks, " tensors; ", size_,
                    " are wanted, one for each rank");
  std::vector<at::Tensor> flat;
  for (size_t i = 0; i < blocks; ++i) {
    const at::Tensor& block = inputs[0][i];
    elements_of(name, c10::str("input_list[", i, "]"), block, Use::kComputes);
    check_same_type(name, block, output);
    check_count(name, c10::str("input_list[", i, "]"), block, output.numel(), "as many as output has");
    flat.push_back(block.reshape({-1}));
  }
  return reduce_scatter({"treering:reduce_scatter", OpType::REDUCE_SCATTER, options.asyncOp, options.timeout, {}, {}},
                        output, at::cat(flat), options.reduceOp);
}

WorkPointer Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "reduce_scatter_tensor_coalesced: there are ", outputs.size(),
                    " outputs and ", inputs.size(), " inputs; as many are wanted");
  std::vector<WorkPointer> works;
  for (size_t i = 0; i < outputs.size(); ++i) works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  return c10::make_intrusive<JoinedWork>(std::move(works));
}

WorkPointer Backend::barrier(const c10d::BarrierOptions& options) {
  return run({"treering:barrier", OpType::BARRIER, options.asyncOp, options.timeout, {}, {}},
             [](trComm_t comm, trStream_t stream) { return trBarrier(comm, stream); });
}

}  // namespace treering::pytorch
