#include "transport/tcp.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "core/forked_sockets.h"
#include "transport/tcp_receive.h"
#include "transport/tcp_send.h"

namespace treering {
namespace {

using Clock = std::chrono::steady_clock;

// Every so many polls for room without success a link looks whether its peer is still there.
constexpr uint32_t kProbePeriod = 256;
// Of larger messages every pop is told by a frame of its own, which costs little beside them; of smaller ones it is the
// kTellEvery-th, and a message that goes the other way tells it for nothing.
constexpr uint32_t kToldAtOnceBytes = 64 << 10;
// A kernel acknowledges within 40 ms and a round trip. Where it does not in this time somebody else waits for it.
constexpr auto kAcknowledgedWithin = std::chrono::milliseconds(200);
// What a peer that has left sent before may be on its way: so long it is waited for while nothing comes.
constexpr auto kLastWords = std::chrono::seconds(10);
// The news that the peer has left, or a stream that it opened, may still be on its way from the thread that accepts: so
// long the end of a stream, or a credit that cannot go, is no failure.
constexpr auto kLateNews = std::chrono::seconds(2);

class Link final : public TcpLink, public std::enable_shared_from_this<Link> {
 public:
  Link(TcpOptions options, StreamSource* source)
      : options_(std::move(options)),
        source_(source),
        sender_(options_.channels, options_.streams, options_.piece_bytes, options_.zero_copy, options_.congestion,
                options_.waits.get()),
        receiver_(options_.channels, options_.max_message_bytes, options_.waits.get()) {}
  ~Link() override {
    finish();
    const bool matters = health_.ok() && !abandoned_;
    while (matters && !sender_.delivered() && Clock::now() - finished_ < kAcknowledgedWithin)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (matters && options_.see_off && !sender_.delivered())
      if (const int fd = sender_.duplicate_shared(); fd >= 0) options_.see_off(fd);
    for (const Delivery& delivery : inbox_)
      if (delivery.fd >= 0) close(delivery.fd);
  }

  void deliver_outgoing(uint32_t index, Status status, int fd) override {
    deliver({true, index, std::move(status), fd});
  }
  void deliver_incoming(uint32_t index, int fd) override { deliver({false, index, {}, fd}); }
  void deliver_departure() override { departed_.store(true, std::memory_order_release); }
  void finish() override {
    if (finished_ != Clock::time_point()) return;
    finished_ = Clock::now();
    sender_.finish();
  }
  void abandon() override { abandoned_ = true; }
  std::unique_ptr<Connection> connection(uint32_t channel) override;
  size_t receive_memory() const override { return receiver_.memory(); }
  uint64_t zero_copy_sends() const override { return sender_.zero_copy_sends(); }

  const Status& health() const { return health_; }
  bool read_status(RankStatusSnapshot* snapshot) { return options_.read_status && options_.read_status(snapshot); }

  bool can_post(uint32_t channel) {
    if (!health_.ok()) return false;
    if (sender_.has_room(channel)) return true;
    poll();
    if (sender_.has_room(channel)) return health_.ok();
    look_for_end();
    if (health_.ok() && ++vain_polls_ % kProbePeriod == 0) note(sender_.probe());
    return false;
  }

  void post(uint32_t channel, const Message& message) {
    if (!health_.ok()) return;
    const void* payload = message.data;
    if (message.kind == PayloadKind::kStaging) payload = options_.staging + message.user.offset;
    if (message.kind == PayloadKind::kUser) payload = reinterpret_cast<const void*>(message.user.offset);
    if (message.kind == PayloadKind::kUser && message.user.region != 0)
      return fail({trInternalError, "a message refers to a registered region by its number, which TCP does not know"});
    if (tcp_payload(message.kind, message.bytes) > options_.max_message_bytes)
      return fail({trInternalError, fmt::format("a message of {} bytes; at most {} were agreed on", message.bytes,
                                                options_.max_message_bytes)});
    sender_.post(channel, message, payload);
    flush();
  }

  // The peer's count of messages has 32 bits; `posted` is at most kFifoDepth ahead.
  uint64_t consumed(uint32_t channel, uint64_t posted, uint64_t known) {
    if (sender_.pending()) flush();
    if (!health_.ok()) return known;
    return posted - (static_cast<uint32_t>(posted) - sender_.handed_over(channel));
  }

  const Message* front(uint32_t channel) {
    if (const Message* message = receiver_.front(channel); message != nullptr) return message;
    if (!health_.ok()) return nullptr;
    poll();
    const Message* message = receiver_.front(channel);
    if (message == nullptr) look_for_end();
    return message;
  }

  void pop(uint32_t channel) {
    const bool large = receiver_.front(channel)->bytes >= kToldAtOnceBytes;
    const TcpLateness lateness = receiver_.lateness(channel);
    receiver_.pop(channel);
    const uint32_t popped = receiver_.popped(channel);
    const bool now = large || popped - sender_.told(channel) >= kTellEvery;
    sender_.set_popped(channel, popped, now, lateness);
    if (now && health_.ok()) flush();
  }

  bool flushed() {
    if (!sender_.pending()) return true;
    if (!health_.ok()) return false;
    // What the peer's kernel has no room for stays in this rank's memory: two ranks that wait for that must both read.
    if (sender_.sends_in_place())
      poll();
    else
      flush();
    return !sender_.pending();
  }

 private:
  struct Delivery {
    bool outgoing;
    uint32_t index;
    Status status;
    int fd;
  };

  void deliver(Delivery delivery) {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(delivery));
    has_mail_.store(true, std::memory_order_release);
  }

  void fail(const Status& status) {
    if (health_.ok()) health_ = {status.code(), fmt::format("TCP with {}: {}", options_.peer_name, status.message())};
  }
  void note(const Status& status) {
    if (!status.ok()) fail(status);
  }

  void take_mail() {
    std::lock_guard lock(mutex_);
    has_mail_.store(false, std::memory_order_relaxed);
    for (Delivery& delivery : inbox_) {
      const uint32_t most = delivery.outgoing ? options_.streams : kMostTcpStreams;
      uint64_t* seen = delivery.outgoing ? &outgoing_seen_ : &incoming_seen_;
      if (!delivery.status.ok()) {
        if (open_failure_.ok()) open_failure_ = std::move(delivery.status);
      } else if (delivery.index > most || (*seen >> delivery.index & 1) != 0) {
        fail({trSystemError, fmt::format("stream {} was opened twice, or there is no such stream", delivery.index)});
        close(delivery.fd);
      } else {
        *seen |= uint64_t{1} << delivery.index;
        (void)fcntl(delivery.fd, F_SETFL, fcntl(delivery.fd, F_GETFL) | O_NONBLOCK);
        if (delivery.index == 0)
          take_shared(delivery.outgoing, delivery.fd);
        else if (delivery.outgoing)
          sender_.add_stream(delivery.index, delivery.fd);
        else
          receiver_.add_stream(delivery.index, delivery.fd);
      }
    }
    inbox_.clear();
  }

  // Both ranks read all of stream 0 that there are, and send on one: the first, then that of `keeps_shared`.
  void take_shared(bool outgoing, int fd) {
    const bool other = ((outgoing ? incoming_seen_ : outgoing_seen_) & 1) != 0;
    if (outgoing && other && !options_.keeps_shared) {  // the peer's is in use
      close(fd);
      return;
    }
    const bool sends = outgoing || !has_shared_ || !options_.keeps_shared;
    if (!outgoing && other && sends) receiver_.drop_shared();  // its own: the peer sends on this one
    receiver_.add_stream(0, fd);
    if (!sends) return;
    has_shared_ = true;
    const int copy = closed_in_children([fd] { return fcntl(fd, F_DUPFD_CLOEXEC, 0); });
    if (copy < 0) return fail({trSystemError, fmt::format("a descriptor for stream 0: {}", std::strerror(errno))});
    sender_.add_stream(0, copy);
  }

  void flush() {
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    if (sender_.wants_shared() && !has_shared_) {
      has_shared_ = asked_shared_ = true;
      source_->open_stream(options_.peer, 0);
    }
    while (asked_ < sender_.wanted_streams()) source_->open_stream(options_.peer, ++asked_);
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    if (!open_failure_.ok() || !sender_.credit_failure().ok()) judge_lost_stream();
    note(sender_.flush());
  }

  // A peer that has left needs no credits, and what it sent before is still to be read; one that is there waits for them.
  void judge_lost_stream() {
    const Status& reason = open_failure_.ok() ? sender_.credit_failure() : open_failure_;
    if (sender_.has_messages()) return fail(reason);
    if (departed_.load(std::memory_order_acquire)) return sender_.forget_credits();
    if (lost_ == Clock::time_point()) lost_ = Clock::now();
    if (Clock::now() - lost_ > kLateNews) fail(reason);
  }

  void poll() {
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    note(receiver_.read([this](const TcpFrame& frame) { return sender_.acknowledge(frame); }));
    if (sender_.pending() && health_.ok()) flush();
  }

  // The caller waits for the peer in vain: is it still there? Only its own streams tell whoever waits for messages: those
  // towards it may be closed while what it sent before is still under way.
  void look_for_end() {
    const bool shared_comes = asked_shared_ && (outgoing_seen_ & 1) == 0 && open_failure_.ok();
    if (receiver_.ended() && !shared_comes) return look_for_late_streams();
    if (!departed_.load(std::memory_order_acquire)) return;
    if (receiver_.has_streams()) return await_last_words();
    // What it opened was delivered before the news that it left.
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    if (!receiver_.has_streams()) fail({trRemoteError, "it has left without opening a stream"});
  }

  void await_last_words() {
    const uint64_t received = receiver_.received();
    if (silent_ == Clock::time_point() || received != received_) {
      silent_ = Clock::now();
      received_ = received;
    } else if (Clock::now() - silent_ > kLastWords) {
      fail({trRemoteError, "it has left, and not all that it sent before has arrived: the connection was interrupted"});
    }
  }

  void look_for_late_streams() {
    const bool departed = departed_.load(std::memory_order_acquire);
    if (ended_ == Clock::time_point()) ended_ = Clock::now();
    if (!departed && Clock::now() - ended_ < kLateNews) return;
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    if (receiver_.ended()) fail({trRemoteError, "it has closed its streams: it has left or ended"});
    ended_ = {};
  }

  TcpOptions options_;
  StreamSource* source_;
  TcpSender sender_;
  TcpReceiver receiver_;
  Status health_, open_failure_;
  uint32_t asked_ = 0;                              // streams of large messages
  bool has_shared_ = false, asked_shared_ = false;  // has: asked for, or come
  uint64_t outgoing_seen_ = 0, incoming_seen_ = 0;
  Clock::time_point ended_{}, lost_{}, finished_{}, silent_{};  // since when
  uint64_t received_ = 0;                                       // at silent_
  uint32_t vain_polls_ = 0;
  bool abandoned_ = false;

  std::atomic<bool> departed_{false};
  std::atomic<bool> has_mail_{false};
  std::mutex mutex_;
  std::vector<Delivery> inbox_;
};

class TcpConnection final : public Connection {
 public:
  TcpConnection(std::shared_ptr<Link> link, uint32_t channel) : link_(std::move(link)), channel_(channel) {}

  bool can_post() override { return link_->can_post(channel_); }
  void post(const Message& message) override {
    ++posted_;
    link_->post(channel_, message);
  }
  uint64_t consumed() override { return consumed_ = link_->consumed(channel_, posted_, consumed_); }

  const Message* front() override { return link_->front(channel_); }
  void pop() override { link_->pop(channel_); }
  Status fetch(const Message&, size_t, void*, size_t) override {
    return {trInternalError, "payloads that came by TCP are not fetched"};
  }

  bool reaches_plain_memory() const override { return true; }
  bool buffers() const override { return channel_ == 0; }
  bool flushed() override { return link_->flushed(); }
  bool maps_regions() const override { return false; }
  void* map_peer(UserAddress, size_t) override { return nullptr; }
  bool reads_status() const override { return false; }
  bool read_status(RankStatusSnapshot* snapshot) override { return link_->read_status(snapshot); }
  Status health() const override { return link_->health(); }
  const char* transport_name() const override { return "tcp"; }

 private:
  std::shared_ptr<Link> link_;
  uint32_t channel_;
};

std::unique_ptr<Connection> Link::connection(uint32_t channel) {
  return std::make_unique<TcpConnection>(shared_from_this(), channel);
}

}  // namespace

std::shared_ptr<TcpLink> TcpLink::make(TcpOptions options, StreamSource* source) {
  return std::make_shared<Link>(std::move(options), source);
}

}  // namespace treering
