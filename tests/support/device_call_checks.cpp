// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "support/device_rank_checks.h"
#include "support/processes.h"

namespace treering::testing {
namespace {

// Differs in every element; sums stay exact.
int value(int rank, size_t i) { return rank * 1'000'003 + static_cast<int>(i); }

using Expected = std::function<int(int rank, size_t i)>;
void expect_all(const DeviceRanks& ranks, const std::vector<Buffer>& buffers, const Expected& expected,
                const char* what) {
  for (int r : ranks.local())
    ASSERT_TRUE(buffers[r].all_equal([&](size_t i) { return expected(r, i); })) << what << ", rank " << r;
}

void check_collectives_of(DeviceRanks& ranks, size_t count, bool blocking) {
  const int n = ranks.count(), root = n - 1;
  const size_t all_count = count * static_cast<size_t>(n);
  const auto source = [&](size_t i) { return static_cast<int>(i / std::max<size_t>(count, 1)); };
  const auto block = [&](int r) { return static_cast<size_t>(r) * count; };
  const auto sum = [&](size_t i) { return value(0, i) * n + 1'000'003 * (n * (n - 1) / 2); };
  const auto gathered = [&](int, size_t i) { return value(source(i), i % count); };
  const auto own = ranks.buffers(count, value), all = ranks.buffers(all_count, value);
  const auto out = ranks.buffers(count), more = ranks.buffers(all_count);

  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(own[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
  });
  expect_all(
      ranks, out, [&](int, size_t i) { return sum(i); }, "allreduce");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trReduce(own[r].data(), out[r].data(), count, trInt32, trMin, root, comm, stream);
  });
  expect_all(
      ranks, out, [&](int r, size_t i) { return r == root ? value(0, i) : sum(i); }, "reduce");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trBroadcast(own[r].data(), out[r].data(), count, trInt32, root, comm, stream);
  });
  expect_all(
      ranks, out, [&](int, size_t i) { return value(root, i); }, "broadcast");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllGather(own[r].data(), more[r].data(), count, trInt32, comm, stream);
  });
  expect_all(ranks, more, gathered, "allgather");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trReduceScatter(all[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
  });
  expect_all(
      ranks, out, [&](int r, size_t i) { return sum(block(r) + i); }, "reduce-scatter");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllToAll(all[r].data(), more[r].data(), count, trInt32, comm, stream);
  });
  const auto exchanged = [&](int r, size_t i) { return value(source(i), block(r) + i % count); };
  expect_all(ranks, more, exchanged, "alltoall");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trGather(own[r].data(), more[r].data(), count, trInt32, root, comm, stream);
  });
  expect_all(
      ranks, more, [&](int r, size_t i) { return r == root ? gathered(r, i) : exchanged(r, i); }, "gather");
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trScatter(all[r].data(), out[r].data(), count, trInt32, 0, comm, stream);
  });
  expect_all(
      ranks, out, [&](int r, size_t i) { return value(0, block(r) + i); }, "scatter");
}

// In [-1, 1), and different for every rank and element.
float float_value(uint32_t rank, size_t i) {
  auto bits = static_cast<uint32_t>(i * 2654435761u + rank * 0x9e3779b9u);
  bits ^= bits >> 15;
  bits *= 0x2c1b3c6du;
  return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
}

constexpr size_t kPart = size_t{1} << 20;  // elements that are made and compared at a time

// The sum of float_value in float64, and how far rounding to float32 after each addition may lead from it.
void check_floats(const DeviceRanks& ranks, const std::vector<Buffer>& out, size_t count) {
  const auto n = static_cast<uint32_t>(ranks.count());
  std::vector<double> sum(std::min(count, kPart)), bound(sum.size());
  std::vector<float> got(sum.size());
  for (size_t first = 0; first < count; first += kPart) {
    const size_t part = std::min(kPart, count - first);
    for (size_t i = 0; i < part; ++i) {
      sum[i] = bound[i] = 0;
      for (uint32_t r = 0; r < n; ++r) {
        const double x = float_value(r, first + i);
        sum[i] += x;
        bound[i] += std::abs(x) * n * 0x1p-24;
      }
    }
    for (int r : ranks.local()) {
      out[r].read(first, part, got.data());
      for (size_t i = 0; i < part; ++i)
        ASSERT_LE(std::abs(got[i] - sum[i]), bound[i])
            << count * sizeof(float) << " bytes, rank " << r << " element " << first + i;
    }
  }
}

// False where the memory does not suffice.
bool make_floats(const DeviceRanks& ranks, size_t count, std::vector<Buffer>* in, std::vector<Buffer>* out) {
  std::vector<float> values(std::min(count, kPart));
  for (int r = 0; r < ranks.count(); ++r) {
    if (!ranks.is_local(r)) {
      in->emplace_back();
      out->emplace_back();
      continue;
    }
    const Buffer& made = in->emplace_back(Buffer::if_it_fits(ranks.device(r), count));
    out->push_back(Buffer::if_it_fits(ranks.device(r), count));
    if (made.data() == nullptr || out->back().data() == nullptr) return false;
    for (size_t first = 0; first < count; first += kPart) {
      const size_t part = std::min(kPart, count - first);
      for (size_t i = 0; i < part; ++i) values[i] = float_value(static_cast<uint32_t>(r), first + i);
      made.write(first, part, values.data());
    }
  }
  return true;
}

void check_one_byte(DeviceRanks& ranks, bool blocking) {
  const int n = ranks.count();
  const auto in = ranks.buffers(1, [](int rank, size_t) { return 100 + rank; }), out = ranks.buffers(1);
  ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(in[r].data(), out[r].data(), 1, trUint8, trSum, comm, stream);
  });
  // The other three bytes stay.
  const int sum = (100 * n + n * (n - 1) / 2) % 256;
  expect_all(
      ranks, out, [&](int, size_t) { return sum; }, "one byte");
}

}  // namespace

std::vector<Place> possible(const std::vector<Place>& places, int gpus) {
  std::vector<Place> found;
  for (const Place& place : places)
    if (*std::max_element(place.devices.begin(), place.devices.end()) < gpus) found.push_back(place);
  return found;
}

int count_gpus_elsewhere(std::string* why_not) {
  RankProcesses asking(1, [](int, const trUniqueId&) -> int {
    int count = 0, current = 0;
    TR_CHECK(trDeviceCount(&count));
    if (count == 0) TR_CHECK(trDeviceCurrent(&current));
    say(std::to_string(count));
    return 0;
  });
  const RankResult result = asking.wait(0, std::chrono::seconds(120));
  *why_not = result.output;
  return result.exit_code == 0 ? std::stoi(result.output) : 0;
}

trConfig_t with_small_pieces(int bytes, bool fixed_order) {
  trConfig_t config = TR_CONFIG_INITIALIZER;
  config.device_piece_bytes = bytes;
  config.deterministic = fixed_order ? 1 : 0;
  return config;
}

void check_collectives(DeviceRanks& ranks, const std::vector<size_t>& counts) {
  for (size_t count : counts)
    for (bool blocking : {false, true}) {
      SCOPED_TRACE("count " + std::to_string(count) + (blocking ? " blocking" : " on streams"));
      ASSERT_NO_FATAL_FAILURE(check_collectives_of(ranks, count, blocking));
    }
}

void check_in_place(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  const size_t all_count = count * static_cast<size_t>(n);
  const auto source = [&](size_t i) { return static_cast<int>(i / count); };
  auto own = ranks.buffers(count, value), all = ranks.buffers(all_count, value);
  const auto block = [&](int r) { return all[r].data() + static_cast<size_t>(r) * count; };
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(own[r].data(), own[r].data(), count, trInt32, trMax, comm, stream);
  });
  expect_all(
      ranks, own, [&](int, size_t i) { return value(n - 1, i); }, "allreduce");
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllGather(block(r), all[r].data(), count, trInt32, comm, stream);
  });
  const auto gathered = [&](size_t i) { return value(source(i), i); };
  expect_all(
      ranks, all, [&](int, size_t i) { return gathered(i); }, "allgather");
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trReduceScatter(all[r].data(), block(r), count, trInt32, trSum, comm, stream);
  });
  for (int r : ranks.local()) {
    std::vector<int> got(count);
    all[r].read(static_cast<size_t>(r) * count, count, got.data());
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(got[i], n * gathered(static_cast<size_t>(r) * count + i)) << "rank " << r << " element " << i;
  }
  all = ranks.buffers(all_count, value);
  ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllToAll(all[r].data(), all[r].data(), count, trInt32, comm, stream);
  });
  expect_all(
      ranks, all, [&](int r, size_t i) { return value(source(i), static_cast<size_t>(r) * count + i % count); },
      "alltoall");
}

void check_transfers(DeviceRanks& ranks, const std::vector<size_t>& counts) {
  const int n = ranks.count();
  for (size_t count : counts)
    for (bool blocking : {false, true}) {
      SCOPED_TRACE("count " + std::to_string(count) + (blocking ? " blocking" : " on streams"));
      auto in = ranks.buffers(count, value), out = ranks.buffers(count);
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        return trSendRecv(in[r].data(), count, (r + 1) % n, out[r].data(), count, (r + n - 1) % n, trInt32, comm,
                          stream);
      });
      expect_all(
          ranks, out, [&](int r, size_t i) { return value((r + n - 1) % n, i); }, "send and receive");
      // Collected by the group: from each to each, itself among them.
      const size_t all_count = count * static_cast<size_t>(n);
      auto all = ranks.buffers(all_count, value), more = ranks.buffers(all_count);
      ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
        trResult_t result = trSuccess;
        for (int peer = 0; peer < n && result == trSuccess; ++peer) {
          const size_t at = static_cast<size_t>(peer) * count;
          result = trSend(all[r].data() + at, count, trInt32, peer, comm, stream);
          if (result == trSuccess) result = trRecv(more[r].data() + at, count, trInt32, peer, comm, stream);
        }
        return result;
      });
      expect_all(
          ranks, more,
          [&](int r, size_t i) {
            return value(static_cast<int>(i / count), static_cast<size_t>(r) * count + i % count);
          },
          "group");
    }
}

// Rank r's blocks have r + 1 to `most` elements, with gaps behind them that stay as they were.
void check_variable_counts(DeviceRanks& ranks, size_t most) {
  const int n = ranks.count();
  const auto un = static_cast<size_t>(n);
  std::vector<size_t> counts, offsets, packed;
  for (size_t r = 0, total = 0; r < un; total += counts[r], ++r) {
    counts.push_back(r + 1 == un ? most : r + 1);
    offsets.push_back(r * (most + 7));
    packed.push_back(total);
  }
  const size_t all_count = un * (most + 7), sum_count = packed.back() + counts.back();
  const auto source = [&](size_t i) { return i / (most + 7); };
  const auto in_gap = [&](size_t i) { return i % (most + 7) >= counts[source(i)]; };
  for (bool blocking : {false, true}) {
    SCOPED_TRACE(blocking ? "blocking" : "on streams");
    auto own = ranks.buffers(most, value), out = ranks.buffers(all_count);
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllGatherV(own[r].data(), counts[r], out[r].data(), counts.data(), offsets.data(), trInt32, comm,
                          stream);
    });
    const auto gathered = [&](int r, size_t i) {
      return in_gap(i) ? r + 1 : value(static_cast<int>(source(i)), i % (most + 7));
    };
    expect_all(ranks, out, gathered, "allgatherv");
    out = ranks.buffers(all_count);
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      return trGatherV(own[r].data(), counts[r], out[r].data(), counts.data(), offsets.data(), trInt32, 0, comm,
                       stream);
    });
    expect_all(
        ranks, out, [&](int r, size_t i) { return r == 0 ? gathered(r, i) : r + 1; }, "gatherv");
    // Rank r sends counts[d] elements to rank d, and so receives counts[r] from each.
    auto all = ranks.buffers(all_count, value);
    out = ranks.buffers(all_count);
    const auto to_all = [&](int r) { return std::vector<size_t>(un, counts[r]); };
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllToAllV(all[r].data(), counts.data(), offsets.data(), out[r].data(), to_all(r).data(), offsets.data(),
                         trInt32, comm, stream);
    });
    expect_all(
        ranks, out,
        [&](int r, size_t i) {
          const size_t at = i % (most + 7);
          return at < counts[r] ? value(static_cast<int>(source(i)), offsets[r] + at) : r + 1;
        },
        "alltoallv");
    auto part = ranks.buffers(most);
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      return trScatterV(all[r].data(), counts.data(), offsets.data(), part[r].data(), counts[r], trInt32, 0, comm,
                        stream);
    });
    expect_all(
        ranks, part, [&](int r, size_t i) { return i < counts[r] ? value(0, offsets[r] + i) : r + 1; }, "scatterv");
    auto sums = ranks.buffers(sum_count, value);
    part = ranks.buffers(most);
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      return trReduceScatterV(sums[r].data(), part[r].data(), counts.data(), trInt32, trMax, comm, stream);
    });
    expect_all(
        ranks, part, [&](int r, size_t i) { return i < counts[r] ? value(n - 1, packed[r] + i) : r + 1; },
        "reduce-scatterv");
  }
}

void check_groups(DeviceRanks& ranks) {
  const int n = ranks.count();
  for (bool blocking : {false, true}) {
    auto small = ranks.buffers(100), large = ranks.buffers(70'001), more = ranks.buffers(1000);
    ranks.run(blocking, [&](int r, trComm_t comm, trStream_t stream) {
      for (auto* buffers : {&small, &large, &more}) {
        Buffer& b = (*buffers)[r];
        const trResult_t result = trAllReduce(b.data(), b.data(), b.count(), trInt32, trSum, comm, stream);
        if (result != trSuccess) return result;
      }
      return trSuccess;
    });
    for (auto* buffers : {&small, &large, &more})
      expect_all(
          ranks, *buffers, [&](int, size_t) { return n * (n + 1) / 2; }, "group");
  }
}

void check_host_buffers(DeviceRanks& ranks, size_t count) {
  const int n = ranks.count();
  auto device = ranks.buffers(count, value), host = ranks.buffers(count, value, true);
  const auto sum = [&](int, size_t i) { return value(0, i) * n + 1'000'003 * (n * (n - 1) / 2); };
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    const auto &in = r % 2 == 0 ? host : device, &out = r % 2 == 0 ? device : host;
    return trAllReduce(in[r].data(), out[r].data(), count, trInt32, trSum, comm, stream);
  });
  for (int r : ranks.local())
    ASSERT_TRUE((r % 2 == 0 ? device : host)[r].all_equal([&](size_t i) { return sum(r, i); })) << "rank " << r;
  host = ranks.buffers(count, value, true);
  ranks.run(true, [&](int r, trComm_t comm, trStream_t stream) {
    return trAllReduce(host[r].data(), host[r].data(), count, trInt32, trSum, comm, stream);
  });
  expect_all(ranks, host, sum, "host alone");
}

void check_sizes(DeviceRanks& ranks, size_t most) {
  for (bool blocking : {false, true}) ASSERT_NO_FATAL_FAILURE(check_one_byte(ranks, blocking));
  size_t largest = 0;
  for (size_t bytes :
       {size_t{4}, size_t{20}, size_t{1000}, size_t{4096}, size_t{65540}, size_t{1} << 20, (size_t{4} << 20) + 12,
        size_t{16} << 20, size_t{64} << 20, size_t{256} << 20, size_t{1} << 30}) {
    if (bytes > most) break;
    const size_t count = bytes / sizeof(float);
    std::vector<Buffer> in, out;
    if (!make_floats(ranks, count, &in, &out)) {
      std::printf("the memory goes up to %zu bytes\n", largest);
      break;
    }
    ranks.run(false, [&](int r, trComm_t comm, trStream_t stream) {
      return trAllReduce(in[r].data(), out[r].data(), count, trFloat32, trSum, comm, stream);
    });
    ASSERT_NO_FATAL_FAILURE(check_floats(ranks, out, count));
    largest = bytes;
  }
  EXPECT_GE(largest, std::min(most, size_t{1} << 20));
}

}  // namespace treering::testing
