// SPDX-License-Identifier: Apache-2.0
// A few "GPUs" on one machine: ranks with FIFOs between all of them in the memory of the machine.
#pragma once

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
#include "core/types.h"
#include "device/machine.h"
#include "gpu/bind.h"

namespace treering::cuda {

using Bytes = std::vector<std::byte>;

struct GpuSettings {
  uint32_t ranks = 2;
  uint32_t channels = 1;
  uint32_t depth = 4;
  uint32_t threads = 2;
  size_t slot_bytes = 1024;
  uint32_t delays = 0;  // seed, or none
  size_t min_slice_bytes = 256;
};

struct GpuJob {
  const Algorithm* algorithm = nullptr;
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  uint32_t root = 0;
  size_t count = 0;
  trDataType_t type = trInt32;
  trRedOp_t op = trSum;
  Bytes scale;                          // an element, or nothing
  const std::byte* scale_at = nullptr;  // ... in memory of the machine
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  // Sizes of each input and output in memory of this process. 0: they are memory of the machine.
  size_t input_bytes = 0, output_bytes = 0;
};

// A job with all that its launch needs, which may be repeated.
struct Prepared {
  std::vector<DeviceCall> calls;
  trDataType_t type = trInt32;
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  std::vector<Allocation> memory;
};

class Gpus {
 public:
  Gpus(Machine* machine, const GpuSettings& settings)
      : machine_(*machine), s_(settings), fifos_(size_t{s_.ranks} * s_.channels * s_.ranks) {
    if (s_.channels > kMaxDeviceChannels)
      throw std::invalid_argument(std::to_string(s_.channels) + " channels; a kernel has at most " +
                                  std::to_string(kMaxDeviceChannels));
    const size_t fifos = size_t{s_.ranks} * s_.ranks * s_.channels;
    s_.slot_bytes = (s_.slot_bytes + 127) / 128 * 128;
    slots_ = Allocation(machine, fifos * s_.depth * s_.slot_bytes);
    ll_ = Allocation(machine, fifos * s_.depth * ll_bytes(kLlSlotBytes));
    ll128_ = Allocation(machine, fifos * s_.depth * ll128_bytes(kLl128SlotBytes));
    flags_ = Allocation(machine, fifos * s_.depth * 8);
    consumed_ = Allocation(machine, fifos * 8);
    kernel_fifos_ = Allocation(machine, fifos_.size() * sizeof(PeerFifos));
    statuses_ = Allocation(machine, s_.ranks * sizeof(DeviceStatus), true);
    for (uint32_t channel = 0; channel < s_.channels; ++channel)
      for (uint32_t rank = 0; rank < s_.ranks; ++rank)
        for (uint32_t peer = 0; peer < s_.ranks; ++peer) connect(channel, rank, peer);
  }

  const GpuSettings& settings() const { return s_; }
  PeerFifos& fifos(uint32_t rank, uint32_t channel, uint32_t peer) {
    return fifos_[(size_t{rank} * s_.channels + channel) * s_.ranks + peer];
  }
  DeviceStatus& status(uint32_t rank) { return reinterpret_cast<DeviceStatus*>(statuses_.data())[rank]; }

  // Empty when it ran, else why it did not.
  std::string run(const GpuJob& job) {
    Prepared prepared;
    if (std::string failure = prepare(job, &prepared); !failure.empty()) return failure;
    GpuJob placed = job;
    std::vector<Allocation> buffers = place_buffers(&placed);
    fill(placed, &prepared);
    const std::string failure = launch(prepared);
    if (!buffers.empty())
      for (uint32_t rank = 0; rank < s_.ranks; ++rank)
        machine_.copy(job.outputs[rank], placed.outputs[rank], job.output_bytes);
    return failure;
  }

  // All but the buffers. "the messages do not fit" where another protocol has to be taken.
  std::string prepare(const GpuJob& job, Prepared* prepared) {
    const size_t size = find_type(job.type)->size;
    prepared->type = job.type == trBool ? trUint8 : job.type;
    prepared->protocol = job.protocol;
    for (uint32_t rank = 0; rank < s_.ranks; ++rank) {
      Program program;
      compile(job, rank, &program);
      DeviceCall& call = prepared->calls.emplace_back();
      Layout layout;
      layout.collective = &info_of(job.algorithm->collective);
      layout.rank = rank;
      layout.ranks = s_.ranks;
      layout.root = job.root;
      layout.count = job.count;
      if (!bind_device_call(program, layout, size, job.protocol, s_.slot_bytes, s_.min_slice_bytes, &call))
        return "the messages do not fit";
      Allocation image(&machine_, program_image(program, 0).size());
      const Bytes bytes = program_image(program, reinterpret_cast<uint64_t>(image.data()));
      machine_.copy(image.data(), bytes.data(), bytes.size());
      call.programs = reinterpret_cast<const DeviceProgram*>(image.data());
      call.scratch_bytes = device_scratch_bytes(program, call, size);
      Allocation scratch(&machine_, call.scratch_bytes * s_.channels + 16);
      call.scratch = scratch.data();
      prepared->memory.push_back(std::move(image));
      prepared->memory.push_back(std::move(scratch));
    }
    fill(job, prepared);
    return {};
  }
  // The buffers of the job, for the next launch.
  void fill(const GpuJob& job, Prepared* prepared) {
    for (uint32_t rank = 0; rank < s_.ranks; ++rank) fill(job, rank, &prepared->calls[rank]);
  }

  std::string launch(const Prepared& prepared) {
    upload_fifos();
    std::string failure =
        machine_.launch(prepared.calls, prepared.type, prepared.protocol, s_.threads, s_.delays, meanwhile);
    download_fifos();
    for (uint32_t rank = 0; rank < s_.ranks && failure.empty(); ++rank)
      if (status(rank).failure != 0)
        failure = "rank " + std::to_string(rank) + " failed: " + std::to_string(status(rank).failure);
    return failure;
  }
  // Between launches the counters of the FIFOs lie in fifos_; kernels have them in memory of the machine.
  void upload_fifos() { machine_.copy(kernel_fifos_.data(), fifos_.data(), fifos_.size() * sizeof(PeerFifos)); }
  void download_fifos() { machine_.copy(fifos_.data(), kernel_fifos_.data(), fifos_.size() * sizeof(PeerFifos)); }

  // What the lanes point to is memory of the machine. Every lane is a row, those of the channels interleaved.
  Prepared prepare_lanes(const std::vector<std::vector<DeviceLane>>& lanes) {
    Prepared prepared;
    prepared.type = trUint8;
    for (uint32_t rank = 0; rank < s_.ranks; ++rank) {
      const size_t count = lanes[rank].size(), bytes = count * sizeof(DeviceLane);
      Allocation list(&machine_, bytes + count * sizeof(DeviceRow));
      machine_.copy(list.data(), lanes[rank].data(), bytes);
      std::vector<DeviceRow> rows;
      for (size_t i = 0; i < count; ++i) rows.push_back({reinterpret_cast<const DeviceLane*>(list.data()) + i, 1});
      machine_.copy(list.data() + bytes, rows.data(), count * sizeof(DeviceRow));
      DeviceCall& call = prepared.calls.emplace_back();
      call.rank = rank;
      call.ranks = s_.ranks;
      call.channels = s_.channels;
      fill({}, rank, &call);
      call.rows = reinterpret_cast<const DeviceRow*>(list.data() + bytes);
      call.rows_of_channel = static_cast<uint32_t>(count / s_.channels);
      prepared.memory.push_back(std::move(list));
    }
    return prepared;
  }
  std::string run_lanes(const std::vector<std::vector<DeviceLane>>& lanes) { return launch(prepare_lanes(lanes)); }

  // Every rank's signature, for the next run; else all have the same.
  std::vector<uint32_t> signatures;
  // Runs while the launch is under way.
  std::function<void()> meanwhile;

 private:
  size_t fifo(uint32_t channel, uint32_t from, uint32_t to) const {
    return (size_t{channel} * s_.ranks + from) * s_.ranks + to;
  }
  uint64_t* words(const Allocation& allocation, size_t at) const {
    return reinterpret_cast<uint64_t*>(allocation.data()) + at;
  }
  void connect(uint32_t channel, uint32_t rank, uint32_t peer) {
    const size_t out = fifo(channel, rank, peer), in = fifo(channel, peer, rank);
    const size_t ll = s_.depth * ll_bytes(kLlSlotBytes) / 8, ll128 = s_.depth * ll128_bytes(kLl128SlotBytes) / 8;
    PeerFifos& l = fifos(rank, channel, peer);
    l = PeerFifos{};
    l.out_slots = slots_.data() + out * s_.depth * s_.slot_bytes;
    l.out_ll = words(ll_, out * ll);
    l.out_ll128 = words(ll128_, out * ll128);
    l.out_flags = words(flags_, out * s_.depth);
    l.out_consumed = words(consumed_, out);
    l.in_slots = slots_.data() + in * s_.depth * s_.slot_bytes;
    l.in_ll = words(ll_, in * ll);
    l.in_ll128 = words(ll128_, in * ll128);
    l.in_flags = words(flags_, in * s_.depth);
    l.in_consumed = words(consumed_, in);
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
    call->fifos = reinterpret_cast<PeerFifos*>(kernel_fifos_.data()) + size_t{rank} * s_.channels * s_.ranks;
    call->status = &status(rank);
    call->input = job.inputs.empty() ? nullptr : job.inputs[rank];
    call->output = job.outputs.empty() ? nullptr : job.outputs[rank];
    call->all_channels = s_.channels;
    call->depth = s_.depth;
    call->slot_bytes = s_.slot_bytes;
    call->signature = signatures.empty() ? 0x1234 : signatures[rank];
    call->op = job.op;
    call->divisor = job.op == trAvg ? s_.ranks : 1;
    call->scaled = !job.scale.empty() || job.scale_at != nullptr;
    call->scale_at = job.scale_at;
    std::copy(job.scale.begin(), job.scale.end(), call->scale);
  }
  // Copies of the buffers in memory of the machine, where kernels do not use that of this process; aligned alike.
  std::vector<Allocation> place_buffers(GpuJob* job) {
    std::vector<Allocation> made;
    if (machine_.uses_host_memory() || job->output_bytes == 0) return made;
    for (uint32_t rank = 0; rank < s_.ranks; ++rank) {
      const bool in_place = job->inputs[rank] == job->outputs[rank];
      const auto place = [&](const std::byte* from, size_t bytes) {
        const size_t offset = reinterpret_cast<uintptr_t>(from) % 16;
        std::byte* to = made.emplace_back(&machine_, bytes + 16).data() + offset;
        machine_.copy(to, from, bytes);
        return to;
      };
      job->outputs[rank] = place(job->outputs[rank], job->output_bytes);
      job->inputs[rank] = in_place ? job->outputs[rank] : place(job->inputs[rank], job->input_bytes);
    }
    return made;
  }

  Machine& machine_;
  GpuSettings s_;
  std::vector<PeerFifos> fifos_;
  Allocation slots_, ll_, ll128_, flags_, consumed_, kernel_fifos_, statuses_;
};

}  // namespace treering::cuda
