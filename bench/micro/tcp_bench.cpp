// SPDX-License-Identifier: Apache-2.0
// The TCP transport beside bare sockets, over 127.0.0.1: ping-pong of small messages and one-way streams. Rounds of
// both take turns, so that both meet the same noise; the rounds are short, and the best tenth of them is what is
// printed, so that other work on the machine counts little.
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "transport/linked.h"
#include "transport/tcp/pair.h"

namespace treering {
namespace {

constexpr int kRounds = 80;
constexpr double kMaxUs = 8e6;  // of one comparison, on a machine that is busy
constexpr uint32_t kPings = 200, kMessages = 40;

double us_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Microseconds of `own` while another thread runs `other`.
double timed(const std::function<void()>& own, const std::function<void()>& other) {
  std::atomic<bool> ready{false};
  std::thread thread([&] {
    ready = true;
    other();
  });
  while (!ready) {
  }
  const auto begin = std::chrono::steady_clock::now();
  own();
  const double us = us_since(begin);
  thread.join();
  return us;
}

void send_whole(int fd, const std::byte* data, size_t bytes) {
  for (size_t done = 0; done < bytes;)
    if (const ssize_t sent = send(fd, data + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL); sent > 0)
      done += static_cast<size_t>(sent);
}
void receive_whole(int fd, std::byte* data, size_t bytes) {
  for (size_t done = 0; done < bytes;)
    if (const ssize_t got = recv(fd, data + done, bytes - done, MSG_DONTWAIT); got > 0)
      done += static_cast<size_t>(got);
}

struct Bare {
  std::pair<int, int> there = tcp_sockets(), back = tcp_sockets();
  std::vector<std::byte> out = std::vector<std::byte>(1 << 20), in = out;
  Bare() {
    const int on = 1;
    for (int fd : {there.first, back.first}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  double ping(uint32_t bytes) {
    return timed(
               [&] {
                 for (uint32_t i = 0; i < kPings; ++i)
                   send_whole(there.first, out.data(), bytes), receive_whole(back.second, in.data(), bytes);
               },
               [&] {
                 std::vector<std::byte> data(bytes);
                 for (uint32_t i = 0; i < kPings; ++i)
                   receive_whole(there.second, data.data(), bytes), send_whole(back.first, data.data(), bytes);
               }) /
           kPings / 2;
  }
  double stream(uint32_t bytes) {
    return timed(
        [&] {
          for (uint32_t i = 0; i < kMessages; ++i) receive_whole(there.second, in.data(), bytes);
        },
        [&] {
          for (uint32_t i = 0; i < kMessages; ++i) send_whole(there.first, out.data(), bytes);
        });
  }
};

struct Links {
  TcpPair pair;
  Linked side[2];
  std::vector<std::byte> out = std::vector<std::byte>(1 << 20);

  Links(uint32_t streams, uint32_t fragment_bytes, TcpZeroCopy zero_copy = TcpOptions().zero_copy) : pair(streams) {
    for (int i = 0; i < 2; ++i) {
      TcpOptions options;
      options.peer_name = "peer";
      options.fragment_bytes = fragment_bytes;
      options.zero_copy = zero_copy;
      side[i] = linked(pair.link(i, options), 0);
    }
  }
  void post(int from, uint32_t bytes) {
    Message message;
    message.bytes = bytes;
    message.kind = bytes <= kInlineBytes ? PayloadKind::kInline : PayloadKind::kUser;
    message.data = out.data();
    message.user = {0, reinterpret_cast<uint64_t>(out.data())};
    while (!side[from]->can_post()) {
    }
    side[from]->post(message);
  }
  void take(int at) {
    while (side[at]->front() == nullptr) {
    }
    side[at]->pop();
  }
  double ping(uint32_t bytes) {
    return timed(
               [&] {
                 for (uint32_t i = 0; i < kPings; ++i) post(0, bytes), take(0);
               },
               [&] {
                 for (uint32_t i = 0; i < kPings; ++i) take(1), post(1, bytes);
               }) /
           kPings / 2;
  }
  double stream(uint32_t bytes) {
    return timed(
        [&] {
          for (uint32_t i = 0; i < kMessages; ++i) take(1);
        },
        [&] {
          for (uint32_t i = 0; i < kMessages; ++i) post(0, bytes);
          while (!side[0].flushed()) {
          }
        });
  }
};

void compare(const std::string& what, const char* unit, bool more_is_better, const std::function<double()>& bare,
             const std::function<double()>& linked, const char* first = "bare", const char* second = "treering") {
  std::vector<double> ours, theirs;
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds && (round < 3 || us_since(begin) < kMaxUs); ++round)
    theirs.push_back(bare()), ours.push_back(linked());
  const auto best = [&](std::vector<double>* values) {
    std::sort(values->begin(), values->end());
    const size_t tenth = values->size() / 10;
    return (*values)[more_is_better ? values->size() - 1 - tenth : tenth];
  };
  const double theirs_best = best(&theirs), ours_best = best(&ours);
  fmt::print("{:<34} {} {:8.2f} {}   {} {:8.2f} {}   {:.2f}\n", what, first, theirs_best, unit, second, ours_best, unit,
             ours_best / theirs_best);
}

}  // namespace
}  // namespace treering

int main() {
  using namespace treering;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (uint32_t streams : {1u, 4u})
    for (uint32_t bytes : {8u, 256u, 4096u}) {
      Bare bare;
      Links linked(streams, TcpOptions().fragment_bytes);
      compare(
          fmt::format("ping {} B, {} streams", bytes, streams), "us", false, [&] { return bare.ping(bytes); },
          [&] { return linked.ping(bytes); });
    }
  for (auto [streams, fragment] : {std::pair{1u, 128u}, {1u, 64u}, {2u, 128u}, {4u, 128u}}) {
    const uint32_t bytes = 512 << 10;
    Bare bare;
    Links linked(streams, fragment << 10);
    const double total = double{kMessages} * bytes / 1000;
    compare(
        fmt::format("512 KiB, {} streams, {} K fragments", streams, fragment), "GB/s", true,
        [&] { return total / bare.stream(bytes); }, [&] { return total / linked.stream(bytes); });
  }
  // Loopback copies although it is asked not to: what asking costs, always and until a link has found out.
  for (const uint32_t streams : {1u, 4u}) {
    const uint32_t bytes = 512 << 10;
    Links copied(streams, 128 << 10, TcpZeroCopy::kNever), asked(streams, 128 << 10, TcpZeroCopy::kAlways);
    const double total = double{kMessages} * bytes / 1000;
    compare(
        fmt::format("512 KiB, {} streams", streams), "GB/s", true, [&] { return total / copied.stream(bytes); },
        [&] { return total / asked.stream(bytes); }, "copied", "asked not to");
    const auto first_messages = [&](TcpZeroCopy wish) {
      Links fresh(streams, 128 << 10, wish);
      return fresh.stream(bytes);
    };
    compare(
        fmt::format("first {} messages, {} streams", kMessages, streams), "us", false,
        [&] { return first_messages(TcpZeroCopy::kNever); }, [&] { return first_messages(TcpZeroCopy::kWhereItPays); },
        "copied", "as it pays");
  }
}
