// SPDX-License-Identifier: Apache-2.0
// Collectives that move data and compute nothing.
#include "backend.h"
#include "tensors.h"

namespace treering::pytorch {
namespace {

using c10d::OpType;

// Counts and displacements of the blocks that lie along the first axis of `tensor`.
void fill_splits(const char* name, const char* argument, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                 size_t ranks, size_t per_element, std::vector<size_t>* counts) {
  TORCH_CHECK_VALUE(splits.empty() || splits.size() == ranks, name, ": ", argument, "_split_sizes has ", splits.size(),
                    " entries; ", ranks, " are wanted, one for each rank");
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % static_cast<int64_t>(ranks) == 0, name, ": ", argument, " has shape ", tensor.sizes(),
                      "; a first axis is wanted that the ", ranks, " ranks divide, or ", argument, "_split_sizes");
    counts->assign(ranks, static_cast<size_t>(tensor.numel()) / ranks * per_element);
    return;
  }
  int64_t sum = 0;
  const size_t row = rows == 0 ? 0 : static_cast<size_t>(tensor.numel() / rows) * per_element;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, name, ": ", argument, "_split_sizes has ", split, "; sizes from 0 are wanted");
    sum += split;
    counts->push_back(static_cast<size_t>(split) * row);
  }
  TORCH_CHECK_VALUE(sum == rows, name, ": ", argument, "_split_sizes add up to ", sum, "; ", rows,
                    " are wanted, the first axis of ", argument);
}

const Tensors& only_list(const char* name, const char* argument, const std::vector<Tensors>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, name, ": ", argument, " are ", lists.size(), " lists of tensors; one is wanted");
  return lists[0];
}

}  // namespace

WorkPointer Backend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  const char* name = "all_gather_into_tensor";
  const Elements in = elements_of(name, "input_tensor", input, Use::kMoves);
  const Elements out = elements_of(name, "output_tensor", output, Use::kMoves);
  check_same_type(name, input, output);
  check_count(name, "output_tensor", output, input.numel() * size_, "a block as large as input_tensor for each rank");
  return run(
      {"treering:all_gather_into_tensor", OpType::_ALLGATHER_BASE, options.asyncOp, options.timeout, {input}, {output}},
      [=](trComm_t comm, trStream_t stream) {
        return trAllGather(in.data, out.data, in.count, in.type, comm, stream);
      });
}

WorkPointer Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "all_gather_into_tensor_coalesced: there are ", outputs.size(),
                    " outputs and ", inputs.size(), " inputs; as many are wanted");
  std::vector<WorkPointer> works;
  for (size_t i = 0; i < outputs.size(); ++i) works.push_back(_allgather_base(outputs[i], inputs[i], options));
  return c10::make_intrusive<JoinedWork>(std::move(works));
}

WorkPointer Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const char* name = "all_gather";
  const at::Tensor& input = only_one(name, "tensor", inputs);
  const Tensors& list = only_list(name, "tensor_list", outputs);
  const Elements in = elements_of(name, "tensor", input, Use::kMoves);
  const Blocks out = blocks_of(name, "tensor_list", list, static_cast<size_t>(size_), input);
  check_count(name, c10::str("tensor_list[", rank_, "]"), list[static_cast<size_t>(rank_)], input.numel(),
              "as many as tensor has");
  return run({"treering:all_gather", OpType::ALLGATHER, options.asyncOp, options.timeout, {input}, list, true},
             [=](trComm_t comm, trStream_t stream) {
               return trAllGatherV(in.data, in.count, out.base, out.counts.data(), out.displacements.data(), in.type,
                                   comm, stream);
             });
}

WorkPointer Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& options) {
  const auto ranks = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(outputs.size() == ranks, "all_gather_coalesced: output_tensor_lists has ", outputs.size(),
                    " lists; ", ranks, " are wanted, one for each rank");
  std::vector<WorkPointer> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> list(1);
    for (const Tensors& of_rank : outputs) {
      TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "all_gather_coalesced: a list of output_tensor_lists has ",
                        of_rank.size(), " tensors; ", inputs.size(), " are wanted, as input_tensor_list has");
      list[0].push_back(of_rank[i]);
    }
    Tensors input{inputs[i]};
    works.push_back(allgather(list, input, options));
  }
  return c10::make_intrusive<JoinedWork>(std::move(works));
}

WorkPointer Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  const char* name = "gather_single";
  const Elements in = elements_of(name, "tensor", input, Use::kMoves);
  check_root(name, "dst", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  Elements out;
  if (rank_ == root) {
    out = elements_of(name, "gather_tensor", output, Use::kMoves);
    check_same_type(name, input, output);
    check_count(name, "gather_tensor", output, input.numel() * size_, "a block as large as tensor for each rank");
  }
  return run({"treering:gather_single", OpType::GATHER, options.asyncOp, options.timeout, {input}, {output}},
             [=](trComm_t comm, trStream_t stream) {
               return trGather(in.data, out.data, in.count, in.type, root, comm, stream);
             });
}

WorkPointer Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const char* name = "gather";
  const at::Tensor& input = only_one(name, "tensor", inputs);
  const Elements in = elements_of(name, "tensor", input, Use::kMoves);
  check_root(name, "dst", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  Blocks out;
  Tensors list;
  if (rank_ == root) {
    list = only_list(name, "gather_list", outputs);
    out = blocks_of(name, "gather_list", list, static_cast<size_t>(size_), input);
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(), name,
                      ": gather_list has tensors on a rank that is not dst; none are wanted there");
  }
  return run({"treering:gather", OpType::GATHER, options.asyncOp, options.timeout, {input}, list, true},
             [=](trComm_t comm, trStream_t stream) {
               return trGatherV(in.data, in.count, out.base, out.counts.data(), out.displacements.data(), in.type, root,
                                comm, stream);
             });
}

WorkPointer Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const char* name = "scatter";
  const at::Tensor& output = only_one(name, "tensor", outputs);
  const Elements out = elements_of(name, "tensor", output, Use::kMoves);
  check_root(name, "src", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  Blocks in;
  Tensors list;
  if (rank_ == root) {
    list = only_list(name, "scatter_list", inputs);
    in = blocks_of(name, "scatter_list", list, static_cast<size_t>(size_), output);
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(), name,
                      ": scatter_list has tensors on a rank that is not src; none are wanted there");
  }
  return run({"treering:scatter", OpType::SCATTER, options.asyncOp, options.timeout, list, {output}},
             [=](trComm_t comm, trStream_t stream) {
               return trScatterV(in.base, in.counts.data(), in.displacements.data(), out.data, out.count, out.type,
                                 root, comm, stream);
             });
}

WorkPointer Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                   std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  const char* name = "all_to_all_single";
  const Elements in = elements_of(name, "input", input, Use::kMoves);
  const Elements out = elements_of(name, "output", output, Use::kMoves);
  check_same_type(name, input, output);
  const auto ranks = static_cast<size_t>(size_);
  std::vector<size_t> sent, received;
  fill_splits(name, "input", input, input_splits, ranks, in.per_element, &sent);
  fill_splits(name, "output", output, output_splits, ranks, out.per_element, &received);
  return run({"treering:all_to_all_single", OpType::ALLTOALL_BASE, options.asyncOp, options.timeout, {input}, {output}},
             [=](trComm_t comm, trStream_t stream) {
               return trAllToAllV(in.data, sent.data(), nullptr, out.data, received.data(), nullptr, in.type, comm,
                                  stream);
             });
}

WorkPointer Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const char* name = "all_to_all";
  const auto ranks = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(!inputs.empty(), name, ": input_tensor_list has no tensors; ", ranks, " are wanted");
  const Blocks in = blocks_of(name, "input_tensor_list", inputs, ranks, inputs[0]);
  const Blocks out = blocks_of(name, "output_tensor_list", outputs, ranks, inputs[0]);
  const trDataType_t type = elements_of(name, "input_tensor_list[0]", inputs[0], Use::kMoves).type;
  return run({"treering:all_to_all", OpType::ALLTOALL, options.asyncOp, options.timeout, inputs, outputs},
             [=](trComm_t comm, trStream_t stream) {
               return trAllToAllV(in.base, in.counts.data(), in.displacements.data(), out.base, out.counts.data(),
                                  out.displacements.data(), type, comm, stream);
             });
}

}  // namespace treering::pytorch
