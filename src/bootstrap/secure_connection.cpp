// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/secure_connection.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bootstrap/agent.h"
#include "core/unix_sockets.h"

namespace treering {
namespace {

constexpr uint32_t kMaxFrameBytes = 64 << 20;
constexpr size_t kReadAtOnce = 256 << 10;
constexpr size_t kTagBytes = crypto_aead_chacha20poly1305_ietf_ABYTES;
constexpr auto kDrainTimeout = std::chrono::seconds(2);

using AeadNonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

AeadNonce nonce_of(uint64_t number) {
  AeadNonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  return nonce;
}

constexpr const char* kClosed = "the other side closed the connection";

const unsigned char* as_bytes(const char* text) { return reinterpret_cast<const unsigned char*>(text); }

}  // namespace

bool SecureConnection::was_dropped(const std::string& reason) {
  return reason == kClosed || reason == std::strerror(ECONNRESET) || reason == std::strerror(EPIPE);
}

bool SecureConnection::was_closed(const std::string& reason) { return reason == kClosed; }

std::shared_ptr<SecureConnection> SecureConnection::create(Agent* agent, int fd, bool local, Handshake handshake) {
  return std::shared_ptr<SecureConnection>(new SecureConnection(agent, fd, local, std::move(handshake)));
}

SecureConnection::SecureConnection(Agent* agent, int fd, bool local, Handshake handshake)
    : agent_(agent),
      fd_(fd),
      local_(local),
      takes_descriptors_(local && is_of_this_user(fd)),
      peer_pid_(local ? peer_of(fd).pid : 0),
      handshake_(std::move(handshake)) {}

SecureConnection::~SecureConnection() { close(); }

void SecureConnection::set_events(Events events) {
  if (state_ != State::kClosed) events_ = std::make_shared<Events>(std::move(events));
}

void SecureConnection::start(Events events) {
  set_events(std::move(events));
  auto self = weak_from_this();
  watching_output_ = true;  // writable: connected
  watch_ = agent_->watch(fd_, EPOLLIN | EPOLLOUT, [self](uint32_t ready) {
    if (auto connection = self.lock()) connection->on_events(ready);
  });
}

void SecureConnection::on_events(uint32_t events) {
  if (state_ == State::kConnecting) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return fail(std::strerror(error));
    if ((events & (EPOLLOUT | EPOLLIN)) == 0) return;
    state_ = State::kHandshake;
    wanted_ = handshake_.wanted();
    if (std::string opening = handshake_.opening(); !opening.empty()) queue(std::move(opening), -1);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive();
  if (state_ != State::kClosed && (events & EPOLLOUT) != 0) flush();
  if (state_ != State::kClosed) update_watch();
}

void SecureConnection::update_watch() {
  if (watch_ == 0 || watching_output_ == !out_.empty()) return;
  watching_output_ = !out_.empty();
  agent_->rewatch(watch_, fd_, EPOLLIN | (watching_output_ ? EPOLLOUT : 0u));
}

void SecureConnection::queue(std::string bytes, int fd) {
  out_.push_back({std::move(bytes), 0, fd});
  flush();
  if (state_ != State::kClosed) update_watch();
}

void SecureConnection::send(const std::string& bytes, int fd) {
  if (state_ != State::kOpen) {
    if (fd >= 0) ::close(fd);
    return;
  }
  const auto length = static_cast<uint32_t>(bytes.size() + kTagBytes);
  std::string frame(sizeof length + length, '\0');
  std::memcpy(frame.data(), &length, sizeof length);
  const AeadNonce nonce = nonce_of(sent_frames_++);
  crypto_aead_chacha20poly1305_ietf_encrypt(reinterpret_cast<unsigned char*>(frame.data()) + sizeof length, nullptr,
                                            as_bytes(bytes.data()), bytes.size(), as_bytes(frame.data()), sizeof length,
                                            nullptr, nonce.data(), handshake_.sending_key().data());
  queue(std::move(frame), fd);
}

void SecureConnection::flush() {
  while (!out_.empty() && state_ != State::kClosed) {
    Out& out = out_.front();
    const ssize_t sent =
        send_with_descriptor(fd_, out.bytes.data() + out.sent, out.bytes.size() - out.sent, out.fd, MSG_DONTWAIT);
    if (sent <= 0) return;  // full: epoll says when; broken: the reading side notices
    if (out.fd >= 0) ::close(out.fd);
    out.fd = -1;
    out.sent += static_cast<size_t>(sent);
    if (out.sent == out.bytes.size()) out_.pop_front();
  }
}

void SecureConnection::receive() {
  auto self = shared_from_this();
  for (size_t budget = kReadAtOnce; state_ != State::kClosed;) {
    const size_t before = in_.size();
    if (!receive_some()) return;
    const size_t got = in_.size() - before;
    if (in_.size() == wanted_) take_message();
    if (got >= budget) return;  // the others' turn; epoll will say that there is more
    budget -= got;
  }
}

bool SecureConnection::receive_some() {
  char buffer[16384];
  const bool takes = takes_descriptors_ && state_ == State::kOpen;  // none before authentication
  const ssize_t got = receive_with_descriptors(fd_, buffer, std::min(sizeof buffer, wanted_ - in_.size()), MSG_DONTWAIT,
                                               takes ? &descriptors_ : nullptr);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    fail(got == 0 ? kClosed : std::strerror(errno));
    return false;
  }
  in_.append(buffer, static_cast<size_t>(got));
  heard_ = Clock::now();
  return true;
}

// `in_` is a whole message of the handshake, the length of a frame, or a frame.
void SecureConnection::take_message() {
  if (state_ == State::kOpen) return take_frame();
  const std::string message = std::move(in_);
  in_.clear();
  std::string reply;
  const Handshake::Progress progress = handshake_.step(message, &reply);
  if (!reply.empty()) queue(std::move(reply), -1);
  if (progress == Handshake::Progress::kRefused) return fail(handshake_.reason());
  wanted_ = handshake_.wanted();
  if (progress == Handshake::Progress::kMore || state_ == State::kClosed) return;
  state_ = State::kOpen;
  wanted_ = sizeof(uint32_t);
  auto events = events_;
  if (events && events->ready) events->ready();
}

void SecureConnection::take_frame() {
  if (!has_length_) {
    uint32_t length = 0;
    std::memcpy(&length, in_.data(), sizeof length);
    if (length < kTagBytes || length > kMaxFrameBytes) return fail("a frame of an impossible length");
    has_length_ = true;
    wanted_ += length;
    return;
  }
  std::string bytes(in_.size() - sizeof(uint32_t) - kTagBytes, '\0');
  const AeadNonce nonce = nonce_of(received_frames_++);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(reinterpret_cast<unsigned char*>(bytes.data()), nullptr, nullptr,
                                                as_bytes(in_.data()) + sizeof(uint32_t), in_.size() - sizeof(uint32_t),
                                                as_bytes(in_.data()), sizeof(uint32_t), nonce.data(),
                                                handshake_.receiving_key().data()) != 0)
    return fail("a frame that was changed on its way");
  in_.clear();
  has_length_ = false;
  wanted_ = sizeof(uint32_t);
  int fd = -1;
  if (!descriptors_.empty()) {
    fd = descriptors_.front();
    descriptors_.pop_front();
  }
  auto events = events_;
  if (events && events->frame)
    events->frame(bytes, fd);
  else if (fd >= 0)
    ::close(fd);
}

void SecureConnection::fail(const std::string& reason) {
  if (state_ == State::kClosed) return;
  auto self = shared_from_this();
  auto events = events_;
  close();
  if (events && events->closed) events->closed(reason);
}

void SecureConnection::drop_descriptors() {
  for (int fd : descriptors_) ::close(fd);
  descriptors_.clear();
  for (Out& out : out_)
    if (out.fd >= 0) ::close(out.fd);
  out_.clear();
}

void SecureConnection::close() {
  if (int fd = release(); fd >= 0) ::close(fd);
}

int SecureConnection::release() {
  if (state_ == State::kClosed) return -1;
  state_ = State::kClosed;
  if (watch_ != 0) agent_->unwatch(watch_, fd_);
  drop_descriptors();
  events_ = nullptr;  // they may hold this connection
  return std::exchange(fd_, -1);
}

void SecureConnection::close_after_sending() {
  if (out_.empty() || state_ != State::kOpen) return close();
  auto self = shared_from_this();
  set_events({});
  auto deadline = Clock::now() + kDrainTimeout;
  auto look = std::make_shared<std::function<void()>>();
  *look = [self, deadline, look, agent = agent_] {
    if (self->out_.empty() || self->state_ != State::kOpen || Clock::now() > deadline) {
      self->close();
      auto done = std::move(*look);  // it holds itself
      return;
    }
    agent->after(std::chrono::milliseconds(5), *look);
  };
  agent_->after(std::chrono::milliseconds(1), *look);
}

}  // namespace treering
