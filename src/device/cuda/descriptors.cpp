// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/descriptors.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "core/unix_sockets.h"

namespace treering::cuda {
namespace {

using Secret = std::array<uint8_t, 16>;
constexpr timeval kSocketTimeout{5, 0};  // of each receive and send

Status failed(const char* what) { return {trSystemError, fmt::format("{}: {}", what, std::strerror(errno))}; }

socklen_t address_of(const Secret& name, sockaddr_un* address) {
  std::string text = "treering-descriptors-";
  for (uint8_t byte : name) text += fmt::format("{:02x}", byte);
  return abstract_address(text, address);
}

void limit_waits(int connection) {
  for (int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    setsockopt(connection, SOL_SOCKET, option, &kSocketTimeout, sizeof kSocketTimeout);
}

// One byte, and with it the descriptor, unless it is -1.
bool send_descriptor(int connection, int descriptor) {
  const char byte = descriptor >= 0 ? 1 : 0;
  return send_with_descriptor(connection, &byte, 1, descriptor, 0) == 1;
}

int receive_descriptor(int connection) {
  char byte = 0;
  std::deque<int> descriptors;
  if (receive_with_descriptors(connection, &byte, 1, 0, &descriptors) != 1 || descriptors.empty()) return -1;
  for (size_t more = 1; more < descriptors.size(); ++more) close(descriptors[more]);
  return descriptors[0];
}

// One a process, made when something is first offered; its thread runs until the process ends.
class Server {
 public:
  Status offer(int descriptor, DescriptorTicket* ticket) {
    std::lock_guard lock(mutex_);
    TR_RETURN_IF_ERROR(start());
    if (getrandom(ticket->secret.data(), ticket->secret.size(), 0) != static_cast<ssize_t>(ticket->secret.size()))
      return failed("getrandom");
    ticket->socket = name_;
    offered_[ticket->secret] = descriptor;
    return {};
  }
  void forget(const Secret& secret) {
    std::lock_guard lock(mutex_);
    const auto found = offered_.find(secret);
    if (found == offered_.end()) return;
    close(found->second);
    offered_.erase(found);
  }

 private:
  Status start() {
    if (owner_ == getpid()) return {};
    if (getrandom(name_.data(), name_.size(), 0) != static_cast<ssize_t>(name_.size())) return failed("getrandom");
    const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address;
    const socklen_t bytes = address_of(name_, &address);
    if (listening < 0 || bind(listening, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
        listen(listening, 64) != 0) {
      const Status status = failed("a Unix socket for descriptors of GPU memory");
      if (listening >= 0) close(listening);
      return status;
    }
    owner_ = getpid();
    std::thread([this, listening] { serve(listening); }).detach();
    return {};
  }
  void serve(int listening) {
    for (;;) {
      const int connection = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        usleep(10'000);  // no descriptors left, perhaps for a moment
        continue;
      }
      limit_waits(connection);
      Secret secret;
      if (is_of_this_user(connection) &&
          recv(connection, secret.data(), secret.size(), MSG_WAITALL) == static_cast<ssize_t>(secret.size())) {
        std::lock_guard lock(mutex_);
        const auto found = offered_.find(secret);
        (void)send_descriptor(connection, found == offered_.end() ? -1 : found->second);  // the other side says so
      }
      close(connection);
    }
  }

  std::mutex mutex_;
  std::map<Secret, int> offered_;
  Secret name_{};
  pid_t owner_ = 0;  // the process whose thread serves
};

Server& server() {
  static auto* made = new Server;
  return *made;
}

}  // namespace

Status offer_descriptor(int descriptor, DescriptorTicket* ticket) { return server().offer(descriptor, ticket); }
void forget_descriptor(const DescriptorTicket& ticket) { server().forget(ticket.secret); }

Status fetch_descriptor(const DescriptorTicket& ticket, int* descriptor) {
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connection < 0) return failed("socket");
  limit_waits(connection);
  sockaddr_un address;
  const socklen_t bytes = address_of(ticket.socket, &address);
  Status status;
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), bytes) != 0)
    status = failed("connect to the exporting process (its network namespace must be this one's)");
  else if (!is_of_this_user(connection))
    status = {trSystemError, "the exporting process is another user's"};
  else if (send(connection, ticket.secret.data(), ticket.secret.size(), MSG_NOSIGNAL) !=
           static_cast<ssize_t>(ticket.secret.size()))
    status = failed("send to the exporting process");
  else if ((*descriptor = receive_descriptor(connection)) < 0)
    status = {trSystemError, "the exporting process has no such memory, or does not answer"};
  close(connection);
  return status;
}

}  // namespace treering::cuda
