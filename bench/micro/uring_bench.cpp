// SPDX-License-Identifier: Apache-2.0
// Sockets as the TCP transport uses them, polled and with epoll when nothing comes, beside io_uring in several ways,
// over 127.0.0.1: ping-pong of 8 B and messages of 1 MiB one way. The ways take turns, so that all meet the same noise;
// printed are the best tenth and the median of the rounds, and medians of the ratios to the first way in the same round
// and of the CPU time of the process, which the kernel's thread of SQPOLL belongs to.
#include <fmt/format.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "transport/tcp/pair.h"

namespace treering {
namespace {

constexpr uint32_t kPingBytes = 8, kPings = 400, kMessageBytes = 1 << 20, kMessages = 40;

void check(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

// One end of a connection. Made and used by one thread.
class End {
 public:
  virtual ~End() = default;
  // A small one may wait for receive() or flush(); its data stays as it is until then.
  virtual void send(const std::byte* data, size_t bytes) = 0;
  virtual void receive(std::byte* data, size_t bytes) = 0;
  virtual void flush() {}
};

constexpr uint32_t kForEver = UINT32_MAX;

// Looks so often in vain, yielding as waiting ranks do, and sleeps then.
class Polled final : public End {
 public:
  Polled(int fd, uint32_t looks) : fd_(fd), looks_(looks) {
    for (const bool room : {false, true}) {
      epoll_[room] = epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = (room ? EPOLLOUT : EPOLLIN | EPOLLRDHUP) | EPOLLET;
      check(epoll_ctl(epoll_[room], EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
    }
  }
  ~Polled() override { close(epoll_[0]), close(epoll_[1]); }
  void send(const std::byte* data, size_t bytes) override {
    move(true, bytes, [&](size_t done) { return ::send(fd_, data + done, bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL); });
  }
  void receive(std::byte* data, size_t bytes) override {
    move(false, bytes, [&](size_t done) { return recv(fd_, data + done, bytes - done, MSG_DONTWAIT); });
  }

 private:
  template <typename Call>
  void move(bool room, size_t bytes, Call call) {
    uint32_t vain = 0;
    for (size_t done = 0; done < bytes;) {
      if (const ssize_t moved = call(done); moved > 0) {
        done += static_cast<size_t>(moved);
        vain = 0;
      } else if (++vain <= looks_) {
        if (looks_ != kForEver) std::this_thread::yield();
      } else {
        epoll_event event;
        (void)epoll_wait(epoll_[room], &event, 1, 10);
        vain = 0;
      }
    }
  }
  int fd_, epoll_[2];
  uint32_t looks_;
};

enum class Uring { kWait, kMultishot, kSpin, kMultishotSpin, kSqpoll };

// A send goes to the kernel with the receive that follows it, in one call.
class Ring final : public End {
 public:
  Ring(int fd, Uring way) : fd_(fd), way_(way) {
    io_uring_params parameters{};
    parameters.flags =
        way == Uring::kSqpoll ? IORING_SETUP_SQPOLL : IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    parameters.sq_thread_idle = 1000;
    errno = -io_uring_queue_init_params(16, &ring_, &parameters);
    check(errno == 0, "io_uring_setup");
    if (multishot()) prepare_buffers();
  }
  ~Ring() override {
    io_uring_queue_exit(&ring_);
    std::free(buffers_);
  }
  void send(const std::byte* data, size_t bytes) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_send(entry, fd_, data, bytes, MSG_NOSIGNAL | MSG_WAITALL);
    io_uring_sqe_set_data64(entry, kSend);
    if (bytes > kPingBytes)
      for (sending_ = bytes; sending_ > 0;) turn();
    else
      entry->flags |= IOSQE_CQE_SKIP_SUCCESS;
  }
  void receive(std::byte* data, size_t bytes) override {
    if (multishot()) return receive_from_buffers(data, bytes);
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_recv(entry, fd_, data, bytes, MSG_WAITALL);
    io_uring_sqe_set_data64(entry, kReceive);
    for (receiving_ = bytes; receiving_ > 0;) turn();
  }
  void flush() override { (void)io_uring_submit(&ring_); }

 private:
  bool multishot() const { return way_ == Uring::kMultishot || way_ == Uring::kMultishotSpin; }

  static constexpr uint64_t kSend = 1, kReceive = 2;
  static constexpr unsigned kBuffers = 16, kBufferBytes = 4096;

  void prepare_buffers() {
    check(posix_memalign(&buffers_, 4096, (kBuffers + 1) * kBufferBytes) == 0, "memory");
    pool_ = static_cast<io_uring_buf_ring*>(buffers_);
    io_uring_buf_reg registration{};
    registration.ring_addr = reinterpret_cast<uint64_t>(pool_);
    registration.ring_entries = kBuffers;
    errno = -io_uring_register_buf_ring(&ring_, &registration, 0);
    check(errno == 0, "io_uring_register_buf_ring");
    io_uring_buf_ring_init(pool_);
    for (unsigned i = 0; i < kBuffers; ++i) give_buffer(i);
    arm();
  }
  std::byte* buffer(unsigned i) { return static_cast<std::byte*>(buffers_) + (i + 1) * kBufferBytes; }
  void give_buffer(unsigned i) {
    io_uring_buf_ring_add(pool_, buffer(i), kBufferBytes, static_cast<unsigned short>(i),
                          io_uring_buf_ring_mask(kBuffers), 0);
    io_uring_buf_ring_advance(pool_, 1);
  }
  void arm() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_recv_multishot(entry, fd_, nullptr, 0, 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->buf_group = 0;
    io_uring_sqe_set_data64(entry, kReceive);
  }
  void receive_from_buffers(std::byte* data, size_t bytes) {
    while (got_ < bytes) turn();
    std::memcpy(data, small_, bytes);
    got_ -= bytes;
    std::memmove(small_, small_ + bytes, got_);
  }

  // Gives the kernel what is prepared, and takes at least one completion, waiting for it as the way says.
  void turn() {
    io_uring_cqe* done = nullptr;
    if (way_ == Uring::kSqpoll) {
      (void)io_uring_submit(&ring_);
      while (io_uring_peek_cqe(&ring_, &done) != 0) {
      }
    } else if (way_ == Uring::kSpin || way_ == Uring::kMultishotSpin) {
      (void)io_uring_submit(&ring_);
      while (io_uring_peek_cqe(&ring_, &done) != 0) (void)io_uring_get_events(&ring_);
    } else {
      (void)io_uring_submit_and_wait(&ring_, 1);
    }
    while (io_uring_peek_cqe(&ring_, &done) == 0) complete(done), io_uring_cqe_seen(&ring_, done);
  }
  void complete(io_uring_cqe* done) {
    errno = done->res < 0 ? -done->res : ENODATA;
    check(done->res > 0, "io_uring");
    const auto bytes = static_cast<size_t>(done->res);
    if (done->user_data == kSend) {
      check(bytes == sending_, "a short send");
      sending_ = 0;
    } else if (multishot()) {
      const unsigned i = done->flags >> IORING_CQE_BUFFER_SHIFT;
      std::memcpy(small_ + got_, buffer(i), bytes);
      got_ += bytes;
      give_buffer(i);
      if ((done->flags & IORING_CQE_F_MORE) == 0) arm();
    } else {
      check(bytes == receiving_, "a short receive");
      receiving_ = 0;
    }
  }

  int fd_;
  Uring way_;
  io_uring ring_{};
  void* buffers_ = nullptr;
  io_uring_buf_ring* pool_ = nullptr;
  std::byte small_[kBufferBytes];
  size_t sending_ = 0, receiving_ = 0, got_ = 0;
};

using MakeEnd = std::function<std::unique_ptr<End>(int)>;
struct Way {
  const char* name;
  bool streams;  // else for small messages alone
  MakeEnd make;
  std::vector<double> us[2], ratio[2], cpu_us[2];  // of a ping, of a message
};

double cpu_us() {
  rusage use{};
  (void)getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

// Two threads, an end each, begin together. Microseconds, of the clock and of the CPUs.
std::pair<double, double> timed(const MakeEnd& make, const std::function<void(End*)>& here,
                                const std::function<void(End*)>& there) {
  const auto sockets = tcp_sockets();
  const int on = 1;
  for (int fd : {sockets.first, sockets.second}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::atomic<int> stage{0};
  std::thread thread([&] {
    auto end = make(sockets.second);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
    there(end.get());
    stage = 3;
    while (stage != 4) std::this_thread::yield();
  });
  auto end = make(sockets.first);
  while (stage != 1) std::this_thread::yield();
  const double cpu = cpu_us();
  const auto begin = std::chrono::steady_clock::now();
  stage = 2;
  here(end.get());
  while (stage != 3) std::this_thread::yield();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  const double used = cpu_us() - cpu;
  stage = 4;
  thread.join();
  end.reset();
  close(sockets.first), close(sockets.second);
  return {us, used};
}

std::pair<double, double> ping(const MakeEnd& make) {
  std::byte data[2][kPingBytes] = {};
  const auto [us, cpu] = timed(
      make,
      [&](End* end) {
        for (uint32_t i = 0; i < kPings; ++i) end->send(data[0], kPingBytes), end->receive(data[0], kPingBytes);
      },
      [&](End* end) {
        for (uint32_t i = 0; i < kPings; ++i) end->receive(data[1], kPingBytes), end->send(data[1], kPingBytes);
        end->flush();
      });
  return {us / kPings / 2, cpu / kPings / 2};
}

std::pair<double, double> stream(const MakeEnd& make) {
  static std::vector<std::byte> out(kMessageBytes, std::byte{1}), in(kMessageBytes);
  const auto [us, cpu] = timed(
      make,
      [&](End* end) {
        for (uint32_t i = 0; i < kMessages; ++i) end->send(out.data(), kMessageBytes);
        end->flush();
      },
      [&](End* end) {
        for (uint32_t i = 0; i < kMessages; ++i) end->receive(in.data(), kMessageBytes);
      });
  return {us / kMessages, cpu / kMessages};
}

// The best 1 / `parts`.
double quantile(std::vector<double> values, size_t parts) {
  const auto place = values.begin() + static_cast<long>(values.size() / parts);
  std::ranges::nth_element(values, place);
  return *place;
}

template <typename Kind>
Way ring_way(const char* name, bool streams, Kind kind) {
  return {name, streams, [kind](int fd) { return std::make_unique<Ring>(fd, kind); }, {}, {}, {}};
}

void run(int rounds) {
  // SQPOLL needs two cores more and takes seconds where others use them: a round in kSeldom.
  constexpr int kSeldom = 5;
  // As the executor and Backoff do: 100 looks, then sleep.
  std::vector<Way> ways;
  ways.push_back({"polled, then epoll", true, [](int fd) { return std::make_unique<Polled>(fd, 100); }, {}, {}, {}});
  ways.push_back({"polled for ever", true, [](int fd) { return std::make_unique<Polled>(fd, kForEver); }, {}, {}, {}});
  ways.push_back({"epoll at once", true, [](int fd) { return std::make_unique<Polled>(fd, 0); }, {}, {}, {}});
  ways.push_back(ring_way("io_uring, waits", true, Uring::kWait));
  ways.push_back(ring_way("io_uring, waits, multishot", false, Uring::kMultishot));
  ways.push_back(ring_way("io_uring, spins", true, Uring::kSpin));
  ways.push_back(ring_way("io_uring, spins, multishot", false, Uring::kMultishotSpin));
  ways.push_back(ring_way("io_uring, SQPOLL", true, Uring::kSqpoll));
  for (int round = 0; round < rounds; ++round) {
    for (const int kind : {0, 1}) {
      double first = 0;
      for (Way& way : ways) {
        if ((kind == 1 && !way.streams) || (&way == &ways.back() && round % kSeldom != 0)) continue;
        const auto [us, cpu] = kind == 0 ? ping(way.make) : stream(way.make);
        if (&way == ways.data()) first = us;
        way.us[kind].push_back(us);
        way.ratio[kind].push_back(us / first);
        way.cpu_us[kind].push_back(cpu);
      }
    }
  }
  for (const int kind : {0, 1}) {
    fmt::print("{}\n", kind == 0 ? "8 B, ping-pong, for one way" : "1 MiB messages, one way");
    for (const Way& way : ways)
      if (!way.us[kind].empty())
        fmt::print("  {:<28}{:9.2f} us  {:9.2f} us  {:5.2f}   CPU {:9.2f} us\n", way.name, quantile(way.us[kind], 10),
                   quantile(way.us[kind], 2), quantile(way.ratio[kind], 2), quantile(way.cpu_us[kind], 2));
  }
}

}  // namespace
}  // namespace treering

int main(int argc, char** argv) {
  utsname system{};
  (void)uname(&system);
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  fmt::print("Linux {}, {} rounds\n", system.release, rounds);
  treering::run(rounds);
}
