// SPDX-License-Identifier: Apache-2.0
// Allreduce of gloo over verbs, without PyTorch, for bench/rdma: halving and doubling below 256 KiB, else a ring in
// chunks, in place. These are gloo's algorithms of fixed buffers; its functions of 2018 and later need transports that
// ibverbs is not.
//
//   gloo_ibverbs_driver RANK RANKS FOLDER DEVICE GID --points ... --in-place      the ranks meet in FOLDER
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <memory>

extern "C" {
#include "measure.h"
}

namespace {

constexpr size_t kRingFrom = (256 << 10) / sizeof(float);

struct Ranks {
  std::shared_ptr<gloo::Context> context;
  std::unique_ptr<gloo::Algorithm> barrier, max, allreduce;
  double value = 0;
  float* buffer = nullptr;  // of the last call, and its size
  size_t count = 0;
};

void call(void* opaque, const float*, float* recv, size_t count) {
  auto* ranks = static_cast<Ranks*>(opaque);
  if (ranks->buffer != recv || ranks->count != count) {
    const std::vector<float*> buffers{recv};
    const auto elements = static_cast<int>(count);
    if (count < kRingFrom)
      ranks->allreduce = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(ranks->context, buffers, elements);
    else
      ranks->allreduce = std::make_unique<gloo::AllreduceRingChunked<float>>(ranks->context, buffers, elements);
    ranks->buffer = recv;
    ranks->count = count;
  }
  ranks->allreduce->run();
}

void barrier(void* opaque) { static_cast<Ranks*>(opaque)->barrier->run(); }

double largest(void* opaque, double value) {
  auto* ranks = static_cast<Ranks*>(opaque);
  ranks->value = value;
  ranks->max->run();
  return ranks->value;
}

int run(int argc, char** argv) {
  const int rank = atoi(argv[1]), size = atoi(argv[2]);
  const struct points points = parse_arguments(argc - 5, argv + 5);
  if (!points.in_place || points.collective != kAllReduce) usage_error("give --in-place, and allreduce", argv[0]);
  Ranks ranks;
  gloo::rendezvous::FileStore store(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  auto device = gloo::transport::ibverbs::CreateDevice({.name = argv[4], .port = 1, .index = atoi(argv[5])});
  context->setTimeout(std::chrono::seconds(points.deadline_s));
  context->connectFullMesh(store, device);
  ranks.context = context;
  ranks.barrier = std::make_unique<gloo::BarrierAllToAll>(context);
  ranks.max = std::make_unique<gloo::AllreduceHalvingDoubling<double>>(context, std::vector<double*>{&ranks.value}, 1,
                                                                       gloo::ReductionFunction<double>::max);
  struct library library = {
      .rank = rank, .ranks = size, .call = call, .barrier = barrier, .max = largest, .context = &ranks};
  std::vector<float> send(buffer_bytes(&points, size) / sizeof(float)), recv(send.size());
  measure_all(&library, &points, send.data(), recv.data());
  barrier(&ranks);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: gloo_ibverbs_driver RANK RANKS FOLDER DEVICE GID --points ... --in-place\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "error: gloo: %s\n", error.what());
    return 1;
  }
}
