// SPDX-License-Identifier: Apache-2.0
#include "metrics/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "core/clock.h"
#include "core/forked_sockets.h"
#include "metrics/http.h"

namespace treering {
namespace {

constexpr auto kRequestTimeout = std::chrono::seconds(2);  // a client that is slow holds up the next one
constexpr int kLookMs = 1000;                              // whether the program has closed the socket

bool wait_for_socket(int fd, short what, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd entry{fd, what, 0};
  return left > 0 && poll(&entry, 1, static_cast<int>(left)) > 0;
}

std::string read_request(int fd, Clock::time_point deadline) {
  std::string request;
  char part[1024];
  while (!is_whole_request(request) && request.size() < kMaxRequest && wait_for_socket(fd, POLLIN, deadline)) {
    const ssize_t bytes = recv(fd, part, sizeof part, MSG_DONTWAIT);
    if (bytes <= 0) break;
    request.append(part, static_cast<size_t>(bytes));
  }
  return request;
}

void send_all(int fd, const std::string& text, Clock::time_point deadline) {
  size_t done = 0;
  while (done < text.size() && wait_for_socket(fd, POLLOUT, deadline)) {
    const ssize_t bytes = send(fd, text.data() + done, text.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes <= 0) break;
    done += static_cast<size_t>(bytes);
  }
  (void)shutdown(fd, SHUT_WR);
}

}  // namespace

Status listen_on_loopback(uint32_t port, OpenFile* result) {
  const int fd = closed_in_children([] { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (fd < 0) return {trSystemError, fmt::format("no socket could be made: {}", std::strerror(errno))};
  const int on = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(fd, 16) == 0) {
    *result = OpenFile(fd);
    return {};
  }
  const int error = errno;
  close(fd);
  return {trSystemError, fmt::format("port {} of 127.0.0.1 cannot be had: {}", port, std::strerror(error))};
}

void serve_metrics(const OpenFile& socket, const std::function<std::string()>& make_metrics) {
  for (;;) {
    pollfd entry{socket.fd, POLLIN, 0};
    (void)poll(&entry, 1, kLookMs);
    if (!socket.is_same()) return;
    const int client = accept4(socket.fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const auto deadline = Clock::now() + kRequestTimeout;
    try {
      send_all(client, answer(read_request(client, deadline), make_metrics), deadline);
    } catch (const std::bad_alloc&) {  // this client gets nothing; the process goes on
    }
    close(client);
  }
}

}  // namespace treering
