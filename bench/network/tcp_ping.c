// SPDX-License-Identifier: Apache-2.0
/*
 * One-way latency of 8 bytes over a bare TCP connection: half of a round trip, mean of many.
 *
 *     tcp_ping listen ADDRESS            prints the port, serves one connection
 *     tcp_ping connect ADDRESS PORT N    prints two figures in us: both sides looking without a break; both asleep in recv()
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int fail(const char* what) {
  fprintf(stderr, "error: %s: %s\n", what, strerror(errno));
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* 8 bytes; 0 at the end of the connection. */
static int receive(int fd, char* data, int look) {
  for (size_t done = 0; done < 8;) {
    const ssize_t got = recv(fd, data + done, 8 - done, look ? MSG_DONTWAIT : 0);
    if (got == 0) return 0;
    if (got > 0) done += (size_t)got;
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail("recv");
  }
  return 1;
}

static void send8(int fd, const char* data) {
  if (send(fd, data, 8, MSG_NOSIGNAL) != 8) fail("send");
}

static struct sockaddr_in parse_address(const char* address, int port) {
  struct sockaddr_in result = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  if (inet_pton(AF_INET, address, &result.sin_addr) != 1) fail(address);
  return result;
}

/* A message that begins with 's' asks for an answer by a sleeping receiver from now on, 'l' by a looking one. */
static void answer(const char* address) {
  struct sockaddr_in own = parse_address(address, 0);
  socklen_t size = sizeof own;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (bind(listener, (struct sockaddr*)&own, sizeof own) || listen(listener, 1) ||
      getsockname(listener, (struct sockaddr*)&own, &size))
    fail(address);
  printf("%d\n", ntohs(own.sin_port));
  fflush(stdout);
  const int fd = accept(listener, NULL, NULL);
  if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("accept");
  char data[8] = "s";
  while (receive(fd, data, data[0] == 'l')) send8(fd, data);
}

static double ping(int fd, int count, char how) {
  char data[8] = {how};
  double begin_us = 0;
  for (int i = -count / 10 - 1; i < count; ++i) {
    if (i == 0) begin_us = now_us();
    send8(fd, data);
    if (!receive(fd, data, how == 'l')) fail("the other side has left");
  }
  return (now_us() - begin_us) / count / 2;
}

int main(int argc, char** argv) {
  alarm(60);
  if (argc == 3 && !strcmp(argv[1], "listen")) {
    answer(argv[2]);
    return 0;
  }
  if (argc != 5 || strcmp(argv[1], "connect") != 0 || atoi(argv[4]) < 1) {
    fprintf(stderr, "usage: tcp_ping listen ADDRESS | connect ADDRESS PORT N\n");
    return 2;
  }
  const struct sockaddr_in peer = parse_address(argv[2], atoi(argv[3]));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  if (connect(fd, (const struct sockaddr*)&peer, sizeof peer)) fail("connect");
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("setsockopt");
  const double looking = ping(fd, atoi(argv[4]), 'l');
  printf("%.3f %.3f\n", looking, ping(fd, atoi(argv[4]), 's'));
  return 0;
}
