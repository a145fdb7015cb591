// SPDX-License-Identifier: Apache-2.0
#include "core/tcp_sockets.h"

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

namespace treering {
namespace {

constexpr const char* kUnpaced = "reno";    // the one that kernels cannot be without, and unprivileged users may take
constexpr size_t kNameBytes = 16;           // TCP_CA_NAME_MAX
constexpr int kRtoMaxMs = 44;               // Linux 6.15; older headers do not know it
constexpr int kControlTimeoutMs = 600'000;  // those above look for silence themselves
constexpr int kKeepaliveSeconds = 1;
constexpr int kMaxRequests = 120, kUsualRequests = 6;  // for a connection: some two minutes either way

int new_socket() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return fd >= 0 ? fd : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

}  // namespace

void prepare_control(int fd) {
  const int on = 1;
  const auto timeout_ms = static_cast<unsigned>(kControlTimeoutMs);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &kMaxRequests, sizeof kMaxRequests) != 0)
    return;
  // Only with that timeout: else a few questions without an answer end the connection.
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepaliveSeconds, sizeof kKeepaliveSeconds);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepaliveSeconds, sizeof kKeepaliveSeconds);
  set_keepalive(fd, true);
  if (!set_longest_resend(fd, 1000))
    (void)setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &kUsualRequests, sizeof kUsualRequests);
}

void set_keepalive(int fd, bool on) {
  const int value = on ? 1 : 0;
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value);
}

bool set_longest_resend(int fd, int ms) { return setsockopt(fd, IPPROTO_TCP, kRtoMaxMs, &ms, sizeof ms) == 0; }

Status check_congestion_control(const std::string& name) {
  const int fd = new_socket();
  if (fd < 0) return {trSystemError, fmt::format("no TCP socket: {}", std::strerror(errno))};
  const bool known = set_congestion_control(fd, name);
  const int error = errno;
  close(fd);
  if (known) return {};
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  std::string allowed;
  std::getline(file, allowed);
  return {trInvalidArgument, fmt::format("the kernel refuses '{}' ({}); this process may take: {}", name,
                                         std::strerror(error), allowed.empty() ? kUnpaced : allowed)};
}

std::string congestion_control(int fd) {
  char name[kNameBytes + 1] = "";
  socklen_t length = kNameBytes;
  return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 ? name : "";
}

bool set_congestion_control(int fd, const std::string& name) {
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

const std::string& system_bbr() {
  // Never destroyed: threads may ask while the process exits.
  static const auto* const name = [] {
    const int fd = new_socket();
    if (fd < 0) return new std::string();
    const std::string found = congestion_control(fd);
    close(fd);
    return new std::string(found.starts_with("bbr") ? found : "");
  }();
  return *name;
}

void begin_unpaced(int fd) {
  if (!system_bbr().empty()) (void)set_congestion_control(fd, kUnpaced);
}

bool is_long_path(int fd, uint32_t long_us) {
  tcp_info info;
  socklen_t length = sizeof info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         length >= offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt && info.tcpi_min_rtt >= long_us;
}

}  // namespace treering
