// SPDX-License-Identifier: Apache-2.0
#include "transport/unix/unix_transport.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>

namespace treering::testing {
namespace {

constexpr auto kAgain = std::chrono::seconds(1);
constexpr auto kDrainTimeout = std::chrono::seconds(5);  // what a rank that leaves has posted still goes out

socklen_t fill(sockaddr_un* address, const std::string& name) {
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, name.data(), name.size());  // abstract: it begins with a zero byte
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
}

// What a rank says on a new socket.
struct Hello {
  uint32_t rank, channel;
};

class UnixTransport final : public Transport, public IntroductionTaker {
 public:
  UnixTransport(TransportSetup setup, bool holds) : setup_(std::move(setup)), holds_(holds), names_(setup_.ranks) {
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    socklen_t length = sizeof(sa_family_t);
    address.sun_family = AF_UNIX;  // the kernel chooses the name
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener_, SOMAXCONN) != 0)
      return;
    length = sizeof address;
    if (getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0)
      name_.assign(address.sun_path, length - offsetof(sockaddr_un, sun_path));
  }
  ~UnixTransport() override {
    close(listener_);
    for (const auto& [key, connection] : awaited_) connection->set_progress({});  // connections outlive their transport
    for (const auto& [hello, fd] : early_) close(fd);
  }

  Status prove(uint32_t) override {
    return name_.empty() ? Status(trSystemError, "no Unix socket can be had") : Status();
  }
  IntroductionTaker* introduction_taker() override { return this; }
  void introduced(uint32_t peer, const std::string& name, int) override {
    std::lock_guard lock(mutex_);
    names_[peer] = name;
  }
  void connected(uint32_t, const std::string&, const Status&, int) override {}
  void departed(uint32_t) override {}

  PeerConnections connect(uint32_t peer, PairAbilities) override {
    PeerConnections made;
    auto queue = std::make_shared<UnixQueue>();
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel) {
      auto connection = std::make_unique<UnixConnection>(-1, setup_.own.staging(), "rank " + std::to_string(peer));
      connection->wake(setup_.waits);
      if (holds_) connection->hold();
      awaited_[{peer, channel}] = connection.get();
      connection->set_progress([this] { connect_all(); });
      queue->add(connection.get());
      made.channels.push_back(std::move(connection));
    }
    made.queue = std::move(queue);
    connect_all();
    return made;
  }

 private:
  // An introduction may be lost.
  void introduce_again(uint32_t peer) {
    const auto now = std::chrono::steady_clock::now();
    auto [last, is_first] = introduced_.try_emplace(peer, now);
    if (!is_first && now - last->second < kAgain) return;
    last->second = now;
    setup_.introducer->introduce(peer, {.bytes = name_});
  }
  std::string name_of(uint32_t peer) {
    std::lock_guard lock(mutex_);
    return names_[peer];
  }
  using Key = std::pair<uint32_t, uint32_t>;  // peer, channel

  // The name of a peer that has not introduced itself is empty.
  int dial(uint32_t peer, const std::string& name, uint32_t channel) const {
    if (setup_.rank > peer || name.empty()) return -1;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    const socklen_t length = fill(&address, name);
    const Hello hello{setup_.rank, channel};
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
      close(fd);
      return -1;
    }
    return fd;
  }
  // A socket may come before this rank has to do with the peer.
  void connect_all() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      Hello hello{};
      if (recv(fd, &hello, sizeof hello, MSG_WAITALL) == sizeof hello)
        early_[{hello.rank, hello.channel}] = fd;
      else
        close(fd);
    }
    for (auto at = awaited_.begin(); at != awaited_.end();) {
      const auto found = early_.find(at->first);
      const auto [peer, channel] = at->first;
      const int socket = found != early_.end() ? found->second : dial(peer, name_of(peer), channel);
      if (found != early_.end()) early_.erase(found);
      if (socket < 0) {
        if (setup_.rank > peer) introduce_again(peer);
        ++at;
        continue;
      }
      at->second->take_socket(socket);
      at = awaited_.erase(at);
    }
  }

  const TransportSetup setup_;
  const bool holds_;
  int listener_ = -1;
  std::string name_;
  std::map<uint32_t, std::chrono::steady_clock::time_point> introduced_;
  std::mutex mutex_;
  std::vector<std::string> names_;  // of the listeners of peers, as they introduced themselves
  std::map<Key, UnixConnection*> awaited_;
  std::map<Key, int> early_;
};

}  // namespace

UnixConnection::~UnixConnection() {
  const auto until = std::chrono::steady_clock::now() + kDrainTimeout;
  while (socket_ >= 0 && health_.ok() && !flush() && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  if (socket_ < 0) return;
  if (waits_) waits_->forget(socket_);
  close(socket_);
}

void UnixConnection::take_socket(int socket) {
  socket_ = socket;
  if (waits_) waits_->add(socket_, WaitSet::For::kInput);
}

void UnixConnection::wake(std::shared_ptr<WaitSet> waits) {
  waits_ = std::move(waits);
  if (socket_ >= 0) take_socket(socket_);
}

bool UnixConnection::can_post() {
  if (!health_.ok()) return false;
  if (posted_ - popped_by_peer_ >= kFifoDepth) receive();
  return health_.ok() && posted_ - popped_by_peer_ < kFifoDepth;
}

void UnixConnection::post(const Message& message) {
  Header header;
  header.message = message;
  header.is_message = true;
  const void* payload = nullptr;
  if (message.kind == PayloadKind::kInline) payload = message.data;
  if (message.kind == PayloadKind::kStaging) payload = staging_ + message.user.offset;
  if (message.kind == PayloadKind::kUser) payload = reinterpret_cast<const void*>(message.user.offset);
  append(header, payload, payload == nullptr ? 0 : message.bytes);
  ++posted_;
}

const Message* UnixConnection::front() {
  if (arrived_.empty()) receive();
  if (arrived_.empty()) return nullptr;
  Received& first = arrived_.front();
  first.message.data = first.payload.data();
  return &first.message;
}

void UnixConnection::pop() {
  arrived_.pop_front();
  Header header;
  header.popped = ++popped_;
  append(header, nullptr, 0);
}

bool UnixConnection::flush() {
  send_queued();
  return out_.empty();
}

void UnixConnection::append(const Header& header, const void* payload, size_t bytes) {
  out_.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (bytes > 0) out_.append(static_cast<const char*>(payload), bytes);
  if (!holds_) send_queued();
}

void UnixConnection::send_queued() {
  if (socket_ < 0 && progress_) progress_();
  if (socket_ < 0 || out_.empty()) return;
  const ssize_t sent = send(socket_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) out_.clear();  // a peer that has left misses nothing
}

void UnixConnection::receive() {
  if (!holds_) send_queued();
  char buffer[64 << 10];
  ssize_t got = -1;
  while (socket_ >= 0 && (got = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT)) > 0)
    in_.append(buffer, static_cast<size_t>(got));
  size_t at = 0;
  for (Header header; in_.size() - at >= sizeof header;) {
    std::memcpy(static_cast<void*>(&header), in_.data() + at, sizeof header);
    const bool carries = header.is_message && header.message.kind != PayloadKind::kDelivered;
    const size_t bytes = carries ? header.message.bytes : 0;
    if (in_.size() - at < sizeof header + bytes) break;
    if (header.is_message)
      arrived_.push_back({header.message, in_.substr(at + sizeof header, bytes)});
    else
      popped_by_peer_ = header.popped;
    at += sizeof header + bytes;
  }
  in_.erase(0, at);
  if (got == 0 && arrived_.empty()) lose("has closed the connection");
}

void UnixConnection::lose(const std::string& why) {
  if (health_.ok()) health_ = {trRemoteError, peer_name_ + " " + why};
}

std::unique_ptr<Transport> open_unix(const TransportSetup& setup) {
  return std::make_unique<UnixTransport>(setup, false);
}

TransportRow unix_row() {
  TransportRow row{};
  row.name = row.short_name = "unix";
  row.wire_version = 1;
  row.scope = Scope::kHost;
  row.open = open_unix;
  return row;
}

TransportRow held_unix_row() {
  TransportRow row = unix_row();
  row.scope = Scope::kAnywhere;
  row.open = [](const TransportSetup& setup) -> std::unique_ptr<Transport> {
    return std::make_unique<UnixTransport>(setup, true);
  };
  return row;
}

}  // namespace treering::testing
