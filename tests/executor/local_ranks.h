// SPDX-License-Identifier: Apache-2.0
// All ranks of a communicator driven by one thread over in-process connections or TCP, for the tests of
// src/executor: the order in which ranks advance is random (seeded), so that early, late and blocked ranks
// occur.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/algorithm.h"
#include "core/types.h"
#include "executor/execution.h"
#include "support/same_bytes.h"
#include "support/seed.h"
#include "transport/memory/mapped.h"
#include "transport/tcp/pair.h"

namespace treering {

using Bytes = std::vector<std::byte>;

// What a run is about; inputs[r] and outputs[r] are rank r's buffers (the same address for in place).
struct LocalJob {
  size_t count = 0;
  trDataType_t type = trFloat32;
  trRedOp_t op = trSum;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  size_t chunk_bytes = 0;
  std::vector<const void*> scales;  // of each rank's input; empty: none
  trDataType_t wire = trFloat32;    // 16-bit: what buffers of float32 travel as
  Collective collective = Collective::kAllReduce;
};

class LocalRanks {
 public:
  // slot_bytes: of each staging slot; tiny ones make many slices. tcp_streams: of each pair of ranks, 0: within the
  // process.
  LocalRanks(uint32_t ranks, uint32_t channels, size_t slot_bytes, bool wide_partials, uint32_t tcp_streams = 0)
      : ranks_(ranks), channels_(channels), statuses_(ranks), fifos_(size_t{ranks} * ranks * channels) {
    uint32_t peers = ranks - 1;
    size_t pool_bytes = std::max<size_t>(4, 2 * peers) * slot_bytes;
    for (uint32_t rank = 0; rank < ranks; ++rank) staging_.emplace_back(pool_bytes * channels + 64);
    for (uint32_t pair = 0; tcp_streams > 0 && pair < ranks * ranks; ++pair)
      tcp_.push_back(pair / ranks < pair % ranks ? std::make_unique<TcpPair>(tcp_streams) : nullptr);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      auto context = std::make_unique<ExecutorContext>();
      context->rank = rank;
      context->ranks = ranks;
      context->wide_partials = wide_partials;
      context->streaming_bytes = SIZE_MAX;
      context->status = &statuses_[rank];
      context->connections.resize(size_t{channels} * ranks);
      for (uint32_t channel = 0; channel < channels; ++channel) {
        context->pools[channel] = StagingPool(staging_of(rank), channel * pool_bytes, pool_bytes, peers);
        for (uint32_t peer = 0; peer < ranks; ++peer) {
          if (peer == rank) continue;
          connections_.push_back(tcp_.empty() ? connect_mapped(rank, peer, channel)
                                              : link(rank, peer)->connection(channel));
          context->add_connection(channel, peer, connections_.back().get());
          if (!tcp_.empty() && channel == 0) context->add_queue(peer, link(rank, peer).get());
        }
      }
      contexts_.push_back(std::move(context));
      executions_.push_back(std::make_unique<Execution>(contexts_.back().get()));
    }
  }

  uint32_t ranks() const { return ranks_; }
  void stream_from(size_t bytes) {
    for (auto& context : contexts_) context->streaming_bytes = bytes;
  }

  // Runs one operation to its end on all ranks; what went wrong, or nothing. `signature_of` may make ranks
  // differ.
  std::string run(const Algorithm& algorithm, const LocalJob& job, uint32_t pipeline_chunks, std::mt19937_64* random) {
    Plan plan = flat_plan(ranks_);
    std::vector<Program> programs(ranks_);
    ++operation_;
    std::vector<uint32_t> waiting(ranks_);
    std::iota(waiting.begin(), waiting.end(), 0);
    std::vector<bool> begun(ranks_, false);
    size_t idle = 0;
    auto last_move = std::chrono::steady_clock::now();
    while (!waiting.empty()) {
      size_t at = (*random)() % waiting.size();
      uint32_t rank = waiting[at];
      if (!begun[rank]) {
        begun[rank] = true;
        begin(algorithm, job, plan, pipeline_chunks, rank, &programs[rank]);
      }
      switch (executions_[rank]->advance()) {
        case Progress::kDiffers:
        case Progress::kFailed:
          return "rank " + std::to_string(rank) + ": " + executions_[rank]->status().message();
        case Progress::kDone:
          waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
          [[fallthrough]];
        case Progress::kMoved:
          idle = 0;
          break;
        case Progress::kBlocked:
          if (idle++ == 0) last_move = std::chrono::steady_clock::now();
          if (idle <= 10'000 * ranks_) break;
          // Turns of this thread do not move the kernel's part of a connection: a packet that was lost takes its time.
          if (tcp_.empty() || std::chrono::steady_clock::now() - last_move > std::chrono::seconds(20))
            return "deadlock: rank " + std::to_string(rank) + " waits for rank " +
                   std::to_string(executions_[rank]->peer());
          std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return {};
  }

  uint64_t steps(uint32_t rank) const { return executions_[rank]->steps(); }
  ExecutorContext& context(uint32_t rank) { return *contexts_[rank]; }
  Execution& execution(uint32_t rank) { return *executions_[rank]; }

  // Rank `rank` enters an operation.
  void begin(const Algorithm& algorithm, const LocalJob& job, const Plan& plan, uint32_t pipeline_chunks, uint32_t rank,
             Program* program, uint32_t signature = 0) {
    for (uint32_t channel = 0; channel < channels_; ++channel)
      program->channels.push_back(algorithm.build(plan, rank, Shape{channel, channels_, pipeline_chunks}));
    program->algorithm = &algorithm;
    program->input_used_once = algorithm.input_used_once;
    program->max_span = algorithm.work({.ranks = ranks_, .bytes = 1, .pipeline_chunks = pipeline_chunks}).max_span;
    Call call;
    call.operation = operation_;
    call.signature = signature != 0 ? signature : static_cast<uint32_t>(operation_ * 7919);
    call.layout.collective = &info_of(job.collective);
    call.layout.rank = rank;
    call.layout.ranks = ranks_;
    call.layout.count = job.count;
    call.input = View(job.inputs[rank]);
    call.output = View(job.outputs[rank]);
    call.in_place = job.inputs[rank] == job.outputs[rank];
    call.type = job.type;
    call.type_size = find_type(job.type)->size;
    call.op = job.op;
    call.chunk_bytes = job.chunk_bytes;
    if (!job.scales.empty()) call.scale = job.scales[rank];
    if (job.wire != trFloat32) {
      call.type = job.wire;
      call.type_size = find_type(job.wire)->size;
      call.wide_memory = true;
    }
    statuses_[rank].output_address = output_is_open(*program, call) ? reinterpret_cast<uint64_t>(job.outputs[rank]) : 0;
    statuses_[rank].operation = operation_;
    executions_[rank]->bind(*program, call);
  }

 private:
  std::unique_ptr<Connection> connect_mapped(uint32_t rank, uint32_t peer, uint32_t channel) {
    return connect_in_process(
        {fifo(rank, peer, channel), fifo(peer, rank, channel), staging_of(peer), &statuses_[peer]});
  }
  const std::shared_ptr<TcpLink>& link(uint32_t rank, uint32_t peer) {
    TcpOptions options;
    options.peer = peer;
    options.peer_name = "rank " + std::to_string(peer);
    options.channels = channels_;
    options.fragment_bytes = 700;  // messages are several
    options.staging = staging_of(rank);
    TcpPair& pair = *tcp_[std::min(rank, peer) * ranks_ + std::max(rank, peer)];
    return pair.link(rank < peer ? 0 : 1, options);
  }
  Fifo* fifo(uint32_t sender, uint32_t receiver, uint32_t channel) {
    return &fifos_[(size_t{sender} * ranks_ + receiver) * channels_ + channel];
  }
  std::byte* staging_of(uint32_t rank) {
    auto address = reinterpret_cast<uintptr_t>(staging_[rank].data());
    return staging_[rank].data() + (64 - address % 64) % 64;
  }

  uint32_t ranks_, channels_;
  uint64_t operation_ = 0;
  std::vector<RankStatus> statuses_;
  std::vector<Fifo> fifos_;
  std::vector<Bytes> staging_;
  std::vector<std::unique_ptr<TcpPair>> tcp_;  // [lower rank * ranks + higher rank]
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<ExecutorContext>> contexts_;
  std::vector<std::unique_ptr<Execution>> executions_;
};

// `count` random elements: integers of all bits, floats within [-8, 8) of any fraction.
inline Bytes random_elements(trDataType_t type, size_t count, std::mt19937_64* random) {
  const DataTypeInfo& info = *find_type(type);
  Bytes bytes(count * info.size + 1);     // never empty: an address of its own
  if (info.kind == TypeKind::kInteger) {  // in words: the sanitizers see fewer accesses
    SplitMix64 words((*random)());
    for (size_t at = 0; at < count * info.size; at += sizeof(uint64_t)) {
      const uint64_t word = words();
      std::memcpy(bytes.data() + at, &word, std::min(sizeof word, count * info.size - at));
    }
    return bytes;
  }
  std::uniform_real_distribution<double> real(-8, 8);
  for (size_t i = 0; i < count; ++i) {
    auto put = [&](auto value) {
      std::memcpy(bytes.data() + i * info.size, &value, std::min(info.size, sizeof value));
    };
    if (type == trComplex64)
      put(std::array{static_cast<float>(real(*random)), static_cast<float>(real(*random))});
    else if (type == trComplex128)
      put(std::array{real(*random), real(*random)});
    else if (type == trFloat64)
      put(real(*random));
    else if (type == trFloat32)
      put(static_cast<float>(real(*random)));
    else if (info.narrow_float) {
      float value = static_cast<float>(real(*random));
      const void* source = &value;
      void* destination = bytes.data() + i * info.size;
      ReduceCall call;
      call.type = type;
      call.sources = &source;
      call.source_count = 1;
      const uint8_t wide = kWideSource;
      call.source_flags = &wide;
      call.destinations = &destination;
      call.destination_count = 1;
      call.count = 1;
      reduce(call);
    } else
      put((*random)());
  }
  return bytes;
}

// Buffers of every rank for one job, in place or not.
struct JobBuffers {
  std::vector<Bytes> inputs, outputs;
  bool in_place;

  JobBuffers(uint32_t ranks, trDataType_t type, size_t count, bool in_place_, std::mt19937_64* random)
      : in_place(in_place_) {
    for (uint32_t rank = 0; rank < ranks; ++rank) inputs.push_back(random_elements(type, count, random));
    outputs = in_place ? inputs : std::vector<Bytes>(ranks, Bytes(inputs[0].size(), std::byte{0xEE}));
  }
  LocalJob job(size_t count, trDataType_t type, trRedOp_t op) {
    LocalJob made;
    made.count = count;
    made.type = type;
    made.op = op;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      made.outputs.push_back(outputs[rank].data());
      made.inputs.push_back(in_place ? outputs[rank].data() : inputs[rank].data());
    }
    return made;
  }
};

}  // namespace treering
