// SPDX-License-Identifier: Apache-2.0
// The backend of a process group of torch.distributed: its calls, made into calls of the library.
//
// reductions.cpp has operations, tensors.cpp looks at tensors, link.cpp runs what comes out of both, lanes.cpp sends and
// receives. Lists of tensors
// are blocks of one buffer, which begins where the first of them lies: nothing is copied.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compression.h"
#include "lanes.h"
#include "link.h"
#include "work.h"

namespace treering::pytorch {

using c10d::Work;
using WorkPointer = c10::intrusive_ptr<Work>;
using Tensors = std::vector<at::Tensor>;

class Backend final : public c10d::Backend {
 public:
  Backend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
          const std::string& name);
  ~Backend() override;

  const std::string getBackendName() const override { return "treering"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  // The sum of sparse tensors; runs at once.
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  // Averages each tensor in place; compressions may be null.
  WorkPointer average(Tensors tensors, const std::vector<std::shared_ptr<Compression>>& compressions);
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  // Sets a shorter timeout for later calls. ValueError if it is longer than the one that the group was made with.
  void setTimeout(std::chrono::milliseconds timeout) override;
  // Through the store, so that the group stays usable. Names all ranks that have not come, always.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;

  // The coalescing manager: the works of the calls between the two become one.
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;

  // What is under way ends with an error, on all ranks where it is not over on each.
  void shutdown() override { close("the group was destroyed"); }
  void abort() override;

  // At the end of the process, while the interpreter is still there.
  static void close_all();

 private:
  WorkPointer run(Call call, const Link::Issue& issue);
  WorkPointer reduce_scatter(Call call, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op);
  WorkPointer post(Call call, int peer, Lane::Way way, Tensors& tensors, int tag);
  // The work belongs to what the coalescing manager joins, if there is one.
  WorkPointer noted(WorkPointer work);
  std::string monitor(uint64_t number, std::chrono::milliseconds timeout);
  std::string missing_ranks(uint64_t number, std::chrono::milliseconds timeout);
  void check_root(const char* call, const char* argument, int64_t root) const;
  void close(const char* why);

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> sequence_{0};
  uint64_t monitored_ = 0;  // barriers
  std::unique_ptr<Link> link_;
  std::unique_ptr<Lanes> lanes_;
  std::mutex coalescing_mutex_;
  bool is_coalescing_ = false;
  std::vector<WorkPointer> coalesced_;
};

}  // namespace treering::pytorch
