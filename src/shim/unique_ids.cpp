// SPDX-License-Identifier: Apache-2.0
#include "shim/unique_ids.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "shim/entry.h"
#include "shim/log.h"
#include "shim/variables.h"

namespace treering::nccl {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(trUniqueId));

constexpr char kAddressMagic[8] = {'n', 'c', 'c', 'l', 'a', 'd', 'd', 'r'};
constexpr size_t kAddressBytes = NCCL_UNIQUE_ID_BYTES - sizeof kAddressMagic;
constexpr auto kRetry = std::chrono::milliseconds(50);
constexpr int kHelloTimeoutMs = 5000, kLookMs = 1000;

// What a rank says to rank 0.
struct Hello {
  char magic[8];
  int32_t ranks, rank;
};

struct Socket {
  int fd = -1;
  ~Socket() {
    if (fd >= 0) close(fd);
  }
};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// "1.2.3.4:5", "[::1]:5", "host:5"
Status look_up(const std::string& text, AddressList* list) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      host.empty() ? EAI_NONAME : getaddrinfo(host.c_str(), text.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0)
    return {trInvalidArgument, fmt::format("NCCL_COMM_ID is '{}': {}; give host:port, ipv4:port or [ipv6]:port", text,
                                           gai_strerror(error))};
  list->reset(found);
  return {};
}

Status failed(const char* what, const std::string& address) {
  return {trSystemError, fmt::format("NCCL_COMM_ID={}: {}: {}", address, what, std::strerror(errno))};
}

bool send_whole(int fd, const void* data, size_t bytes) {
  return send(fd, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);  // less than any socket's buffer
}

// A wait that ends, and says meanwhile what it is for.
class Wait {
 public:
  // 0: without an end, as NCCL's.
  explicit Wait(int timeout_ms) : timeout_ms_(timeout_ms) {}

  bool is_over() const { return timeout_ms_ > 0 && Clock::now() >= begin_ + std::chrono::milliseconds(timeout_ms_); }
  std::string length() const { return fmt::format("{:g} s", seconds(std::chrono::milliseconds(timeout_ms_))); }
  // Milliseconds for poll(): at most `most`.
  int until(int most) const {
    if (timeout_ms_ <= 0) return most;
    const auto left = begin_ + std::chrono::milliseconds(timeout_ms_) - Clock::now();
    const auto rounded_up = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
    return static_cast<int>(std::clamp<int64_t>(rounded_up, 0, most));
  }
  // Whether it is time for a line.
  bool is_long() {
    if (Clock::now() < next_line_) return false;
    next_line_ += kLines;
    return true;
  }

 private:
  static constexpr auto kLines = std::chrono::seconds(10);
  const int timeout_ms_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_line_ = begin_ + kLines;
};

bool receive_whole(int fd, void* data, size_t bytes, const Wait& wait) {
  for (size_t at = 0; at < bytes;) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, wait.until(kHelloTimeoutMs)) <= 0) return false;
    const ssize_t got = recv(fd, static_cast<char*>(data) + at, bytes - at, 0);
    if (got <= 0) return false;
    at += static_cast<size_t>(got);
  }
  return true;
}

std::string missing_text(const std::set<int32_t>& met, int ranks) {
  constexpr size_t kMaxNamed = 8;
  std::vector<int> missing;
  for (int rank = 1; rank < ranks; ++rank)
    if (met.count(rank) == 0) missing.push_back(rank);
  const size_t named = std::min(missing.size(), kMaxNamed);
  return fmt::format("missing: rank {}{} of {} ranks",
                     fmt::join(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(named), ", rank "),
                     missing.size() > named ? fmt::format(" and {} more", missing.size() - named) : "", ranks);
}

// Rank 0: hands the id to every other rank that calls.
Status serve(const std::string& address, const addrinfo& where, int ranks, const trUniqueId& id, Wait wait) {
  Socket listener{socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  const int yes = 1;
  if (listener.fd < 0) return failed("socket", address);
  setsockopt(listener.fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener.fd, where.ai_addr, where.ai_addrlen) != 0) return failed("bind", address);
  if (listen(listener.fd, SOMAXCONN) != 0) return failed("listen", address);
  std::set<int32_t> met;
  while (met.size() + 1 < static_cast<size_t>(ranks)) {
    if (wait.is_over())
      return {trTimeout, fmt::format("NCCL_COMM_ID={}: the ranks did not meet within {}; {}", address, wait.length(),
                                     missing_text(met, ranks))};
    if (wait.is_long()) log_warn(fmt::format("NCCL_COMM_ID={}: rank 0 waits; {}", address, missing_text(met, ranks)));
    pollfd entry{listener.fd, POLLIN, 0};
    if (poll(&entry, 1, wait.until(kLookMs)) <= 0) continue;
    Socket peer{accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC)};
    Hello hello{};
    if (peer.fd < 0 && errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) return failed("accept", address);
    if (peer.fd < 0 || !receive_whole(peer.fd, &hello, sizeof hello, wait)) continue;
    if (std::memcmp(hello.magic, kAddressMagic, sizeof hello.magic) != 0) continue;
    if (hello.ranks != ranks)
      return {trInvalidUsage, fmt::format("NCCL_COMM_ID={}: nranks differs: rank 0 gave {}, rank {} gave {}", address,
                                          ranks, hello.rank, hello.ranks)};
    if (send_whole(peer.fd, &id, sizeof id)) met.insert(hello.rank);
  }
  return {};
}

// 0, or errno.
int connect_within(int fd, const addrinfo& where, const Wait& wait) {
  if (connect(fd, where.ai_addr, where.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{fd, POLLOUT, 0};
  if (poll(&entry, 1, wait.until(kHelloTimeoutMs)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

// The other ranks: rank 0 may come later.
Status call_on(const std::string& address, const addrinfo& where, int ranks, int rank, trUniqueId* id, Wait wait) {
  Hello hello{};
  std::memcpy(hello.magic, kAddressMagic, sizeof hello.magic);
  hello.ranks = ranks;
  hello.rank = rank;
  for (;; std::this_thread::sleep_for(kRetry)) {
    Socket link{socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (link.fd < 0) return failed("socket", address);
    const int error = connect_within(link.fd, where, wait);
    if (error == 0 && send_whole(link.fd, &hello, sizeof hello) && receive_whole(link.fd, id, sizeof *id, wait))
      return {};
    const char* const why = error == 0 ? "it takes the call and does not answer" : std::strerror(error);
    if (wait.is_over())
      return {trTimeout,
              fmt::format("NCCL_COMM_ID={}: rank {} did not reach rank 0 there within {}: {}; missing: rank 0", address,
                          rank, wait.length(), why)};
    if (wait.is_long()) log_warn(fmt::format("NCCL_COMM_ID={}: rank {} waits for rank 0: {}", address, rank, why));
  }
}

}  // namespace

Status make_id(ncclUniqueId* id) {
  *id = ncclUniqueId{};
  const std::string address = variable("NCCL_COMM_ID");
  if (!address.empty()) {
    AddressList list(nullptr, &freeaddrinfo);
    TR_RETURN_IF_ERROR(look_up(address, &list));
    if (address.size() >= kAddressBytes)
      return {trInvalidArgument,
              fmt::format("NCCL_COMM_ID has {} characters; at most {}", address.size(), kAddressBytes - 1)};
    std::memcpy(id->internal, kAddressMagic, sizeof kAddressMagic);
    std::memcpy(id->internal + sizeof kAddressMagic, address.c_str(), address.size());
    return {};
  }
  trUniqueId made;
  TR_RETURN_IF_ERROR(status_of(trGetUniqueId(&made)));
  std::memcpy(id, &made, sizeof made);
  return {};
}

Status resolve_id(const ncclUniqueId& id, int ranks, int rank, int timeout_ms, trUniqueId* resolved) {
  if (std::memcmp(id.internal, kAddressMagic, sizeof kAddressMagic) != 0) {
    std::memcpy(resolved, &id, sizeof id);
    return {};
  }
  const std::string address(id.internal + sizeof kAddressMagic,
                            strnlen(id.internal + sizeof kAddressMagic, kAddressBytes));
  AddressList list(nullptr, &freeaddrinfo);
  TR_RETURN_IF_ERROR(look_up(address, &list));
  if (rank != 0) return call_on(address, *list, ranks, rank, resolved, Wait(timeout_ms));
  TR_RETURN_IF_ERROR(status_of(trGetUniqueId(resolved)));
  return serve(address, *list, ranks, *resolved, Wait(timeout_ms));
}

}  // namespace treering::nccl
