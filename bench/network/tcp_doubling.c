// SPDX-License-Identifier: Apache-2.0
/*
 * Recursive doubling of 8 bytes over bare TCP connections, without any library: what the hosts' kernels and cores leave
 * of the one-way latency when all hosts send at once. One process on each of a power of two of hosts, each with a core
 * of its own:
 *
 *     tcp_doubling HOST ADDRESS,ADDRESS,... PORT N    host 0 prints the mean of N calls in us; every host checks every sum
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kMaxHosts = 64, kMaxSteps = 6 };

static int fail(const char* what) {
  fprintf(stderr, "error: %s: %s\n", what, strerror(errno));
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static struct sockaddr_in parse_address(const char* address, int port) {
  struct sockaddr_in result = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  if (inet_pton(AF_INET, address, &result.sin_addr) != 1) fail(address);
  return result;
}

static int new_socket(void) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  return fd;
}

static void without_delay(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("setsockopt");
}

/* Until the peer listens; alarm() ends what takes too long. */
static int dial(const char* address, int port) {
  const struct sockaddr_in peer = parse_address(address, port);
  for (;;) {
    const int fd = new_socket();
    if (connect(fd, (const struct sockaddr*)&peer, sizeof peer) == 0) return fd;
    if (errno != ECONNREFUSED && errno != EINTR) fail(address);
    close(fd);
    usleep(1000);
  }
}

static void exchange(int fd, const void* sent, void* received) {
  if (send(fd, sent, 8, MSG_NOSIGNAL) != 8) fail("send");
  for (size_t done = 0; done < 8;) {
    const ssize_t got = recv(fd, (char*)received + done, 8 - done, MSG_DONTWAIT);
    if (got == 0) {
      fprintf(stderr, "error: a peer has left\n");
      exit(1);
    }
    if (got > 0) done += (size_t)got;
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail("recv");
  }
}

static uint64_t sum_of_all(const int* fds, int steps, uint64_t own) {
  for (int step = 0; step < steps; ++step) {
    uint64_t other;
    exchange(fds[step], &own, &other);
    own += other;
  }
  return own;
}

/* The connections to host ^ 1, host ^ 2, ...: the lower host dials, and says who it is. */
static int meet(int host, char** addresses, int hosts, int port, int* fds) {
  struct sockaddr_in own = parse_address(addresses[host], port);
  const int listener = new_socket(), on = 1;
  if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      bind(listener, (struct sockaddr*)&own, sizeof own) || listen(listener, kMaxSteps))
    fail("listen");
  int steps = 0, to_accept = 0;
  for (; 1 << steps < hosts; ++steps) {
    const int peer = host ^ 1 << steps;
    if (peer < host) {
      ++to_accept;
      continue;
    }
    const char number = (char)steps;
    fds[steps] = dial(addresses[peer], port);
    without_delay(fds[steps]);
    if (send(fds[steps], &number, 1, MSG_NOSIGNAL) != 1) fail("send");
  }
  while (to_accept-- > 0) {
    char number;
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0 || recv(fd, &number, 1, 0) != 1 || number < 0 || number >= steps) fail("accept");
    without_delay(fd);
    fds[(int)number] = fd;
  }
  close(listener);
  return steps;
}

int main(int argc, char** argv) {
  char* addresses[kMaxHosts];
  int hosts = 0, fds[kMaxSteps];
  if (argc == 5)
    for (char* one = strtok(argv[2], ","); one && hosts < kMaxHosts; one = strtok(NULL, ",")) addresses[hosts++] = one;
  const int host = argc == 5 ? atoi(argv[1]) : -1, count = argc == 5 ? atoi(argv[4]) : 0;
  if (hosts < 2 || (hosts & (hosts - 1)) || host < 0 || host >= hosts || atoi(argv[3]) < 1 || count < 1) {
    fprintf(stderr, "usage: tcp_doubling HOST ADDRESS,ADDRESS,... PORT N (2, 4, 8, ... addresses)\n");
    return 2;
  }
  alarm(60);
  const int steps = meet(host, addresses, hosts, atoi(argv[3]), fds);
  const uint64_t expected = (uint64_t)hosts * (uint64_t)(hosts - 1) / 2;
  double begin_us = 0;
  for (int i = -count / 10 - 1; i < count; ++i) {
    if (i == 0) begin_us = now_us();
    if (sum_of_all(fds, steps, (uint64_t)host + (uint64_t)i) != expected + (uint64_t)hosts * (uint64_t)i) {
      fprintf(stderr, "error: a wrong sum in call %d\n", i);
      return 1;
    }
  }
  if (host == 0) printf("%.3f\n", (now_us() - begin_us) / count);
  return 0;
}
