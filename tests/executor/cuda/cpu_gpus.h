// A few "GPUs" on the CPU: ranks whose memories are arrays of this process, linked all to all.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/algorithm.h"
#include "core/types.h"
#include "executor/cuda/bind.h"
#include "executor/cuda/cpu_kernels.h"

namespace treering::cuda {

using Bytes = std::vector<std::byte>;

struct GpuSettings {
  uint32_t ranks = 2;
  uint32_t channels = 1;
  uint32_t depth = 4;
  uint32_t threads = 2;
  size_t slot_bytes = 1024;
  uint32_t delays = 0;  // seed, or none
};

struct GpuJob {
  const Algorithm* algorithm = nullptr;
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  uint32_t root = 0;
  size_t count = 0;
  trDataType_t type = trInt32;
  trRedOp_t op = trSum;
  Bytes scale;  // an element, or nothing
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
};

class CpuGpus {
 public:
  explicit CpuGpus(const GpuSettings& settings)
      : s_(settings), links_(size_t{s_.ranks} * s_.channels * s_.ranks), statuses_(s_.ranks) {
    const size_t fifos = size_t{s_.ranks} * s_.ranks * s_.channels;
    simple_.assign(fifos * s_.depth * s_.slot_bytes + 16, std::byte{0});
    ll_.assign(fifos * s_.depth * ll_bytes(kLlSlotBytes) / 8, 0);
    ll128_.assign(fifos * s_.depth * ll128_bytes(kLl128SlotBytes) / 8, 0);
    flags_.assign(fifos * s_.depth, 0);
    consumed_.assign(fifos, 0);
    for (uint32_t channel = 0; channel < s_.channels; ++channel)
      for (uint32_t rank = 0; rank < s_.ranks; ++rank)
        for (uint32_t peer = 0; peer < s_.ranks; ++peer) connect(channel, rank, peer);
  }

  Link& link(uint32_t rank, uint32_t channel, uint32_t peer) {
    return links_[(size_t{rank} * s_.channels + channel) * s_.ranks + peer];
  }
  DeviceStatus& status(uint32_t rank) { return statuses_[rank]; }

  // Empty when it ran, else why it did not.
  std::string run(const GpuJob& job) {
    std::vector<Program> programs(s_.ranks);
    std::vector<Bytes> images(s_.ranks), scratches(s_.ranks);
    std::vector<DeviceCall> calls(s_.ranks);
    const size_t size = find_type(job.type)->size;
    for (uint32_t rank = 0; rank < s_.ranks; ++rank) {
      compile(job, rank, &programs[rank]);
      images[rank] = program_image(programs[rank], 0);  // its size; then with the addresses that it has there
      const Bytes image = program_image(programs[rank], reinterpret_cast<uint64_t>(images[rank].data()));
      std::copy(image.begin(), image.end(), images[rank].begin());
      DeviceCall& call = calls[rank] = DeviceCall{};
      Layout layout;
      layout.collective = &info_of(job.algorithm->collective);
      layout.rank = rank;
      layout.ranks = s_.ranks;
      layout.root = job.root;
      layout.count = job.count;
      if (!bind_device_call(programs[rank], layout, size, job.protocol, s_.slot_bytes, 256, &call))
        return "the messages do not fit";
      call.scratch_bytes = device_scratch_bytes(programs[rank], call, size);
      scratches[rank].resize(call.scratch_bytes * s_.channels + 16);
      call.scratch = aligned(scratches[rank].data());
      call.programs = reinterpret_cast<const DeviceProgram*>(images[rank].data());
      fill(job, rank, &call);
    }
    return launch(calls, job.type == trBool ? trUint8 : job.type, job.protocol);
  }

  std::string run_lanes(const std::vector<std::vector<DeviceLane>>& lanes) {
    std::vector<DeviceCall> calls(s_.ranks);
    for (uint32_t rank = 0; rank < s_.ranks; ++rank) {
      DeviceCall& call = calls[rank] = DeviceCall{};
      call.rank = rank;
      call.ranks = s_.ranks;
      call.channels = s_.channels;
      call.lanes = lanes[rank].data();
      call.lane_count = static_cast<uint32_t>(lanes[rank].size());
      fill({}, rank, &call);
      call.lanes = lanes[rank].data();
    }
    return launch(calls, trUint8, DeviceProtocol::kSimple);
  }

  // Every rank's signature, for the next run; else all have the same.
  std::vector<uint32_t> signatures;
  // Runs while the launch is under way.
  std::function<void()> meanwhile;

 private:
  static std::byte* aligned(std::byte* p) { return p + (16 - reinterpret_cast<uintptr_t>(p) % 16) % 16; }
  size_t fifo(uint32_t channel, uint32_t from, uint32_t to) const {
    return (size_t{channel} * s_.ranks + from) * s_.ranks + to;
  }
  void connect(uint32_t channel, uint32_t rank, uint32_t peer) {
    const size_t out = fifo(channel, rank, peer), in = fifo(channel, peer, rank);
    std::byte* slots = aligned(simple_.data());
    Link& l = link(rank, channel, peer);
    l = Link{};
    l.out_slots = slots + out * s_.depth * s_.slot_bytes;
    l.out_ll = ll_.data() + out * s_.depth * ll_bytes(kLlSlotBytes) / 8;
    l.out_ll128 = ll128_.data() + out * s_.depth * ll128_bytes(kLl128SlotBytes) / 8;
    l.out_flags = flags_.data() + out * s_.depth;
    l.out_consumed = &consumed_[out];
    l.in_slots = slots + in * s_.depth * s_.slot_bytes;
    l.in_ll = ll_.data() + in * s_.depth * ll_bytes(kLlSlotBytes) / 8;
    l.in_ll128 = ll128_.data() + in * s_.depth * ll128_bytes(kLl128SlotBytes) / 8;
    l.in_flags = flags_.data() + in * s_.depth;
    l.in_consumed = &consumed_[in];
  }
  void compile(const GpuJob& job, uint32_t rank, Program* program) const {
    const Plan plan = flat_plan(s_.ranks);
    const uint32_t pipeline = job.algorithm->pipelined ? 2 : 1;
    for (uint32_t channel = 0; channel < s_.channels; ++channel)
      program->channels.push_back(job.algorithm->build(plan, rank, Shape{channel, s_.channels, pipeline, job.root}));
    program->algorithm = job.algorithm;
    program->max_span = job.algorithm->work({.ranks = s_.ranks, .bytes = 1, .pipeline_chunks = pipeline}).max_span;
  }
  void fill(const GpuJob& job, uint32_t rank, DeviceCall* call) {
    call->links = &link(rank, 0, 0);
    call->status = &statuses_[rank];
    call->input = job.inputs.empty() ? nullptr : job.inputs[rank];
    call->output = job.outputs.empty() ? nullptr : job.outputs[rank];
    call->depth = s_.depth;
    call->slot_bytes = s_.slot_bytes;
    call->signature = signatures.empty() ? 0x1234 : signatures[rank];
    call->op = job.op;
    call->divisor = job.op == trAvg ? s_.ranks : 1;
    call->scaled = !job.scale.empty();
    std::copy(job.scale.begin(), job.scale.end(), call->scale);
  }
  std::string launch(const std::vector<DeviceCall>& calls, trDataType_t type, DeviceProtocol protocol) {
    std::vector<std::thread> gpus;
    for (const DeviceCall& call : calls)
      gpus.emplace_back([&, seed = s_.delays] { launch_on_cpu(call, type, protocol, s_.threads, seed); });
    if (meanwhile) meanwhile();
    for (std::thread& gpu : gpus) gpu.join();
    for (uint32_t rank = 0; rank < s_.ranks; ++rank)
      if (statuses_[rank].failure != 0)
        return "rank " + std::to_string(rank) + " failed: " + std::to_string(statuses_[rank].failure);
    return {};
  }

  GpuSettings s_;
  std::vector<Link> links_;
  std::vector<DeviceStatus> statuses_;
  Bytes simple_;
  std::vector<uint64_t> ll_, ll128_, flags_, consumed_;
};

}  // namespace treering::cuda
