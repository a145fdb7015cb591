// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "core/forked_sockets.h"
#include "core/process.h"
#include "transport/tcp/receive.h"
#include "transport/tcp/resume.h"
#include "transport/tcp/send.h"

namespace treering {
namespace {

using Clock = TcpClock;

// Each pop of a larger message is told by a frame of its own, which costs little beside them. For smaller ones it is
// the kTellEvery-th, and a message that goes the other way tells it for nothing. All that may be sent without a copy is
// among the larger ones: where its stream breaks the sender waits for the news that it was popped.
constexpr uint32_t kToldAtOnceBytes = kZeroCopyBytes;
// What a peer that has left sent before may be on its way: so long it is waited for while nothing comes.
constexpr auto kDrainTimeout = std::chrono::seconds(10);
// A link that waits in vain looks at the clock every so many times, and every so long at its streams.
constexpr uint32_t kLookPeriod = 16;
constexpr auto kLookEvery = std::chrono::milliseconds(20);
// One that need not read reads all the same, every so many times that it is asked: the peer may wait for that.
constexpr uint32_t kReadPeriod = 64;

class Link final : public TcpLink, public std::enable_shared_from_this<Link> {
 public:
  Link(TcpOptions options, StreamSource* source)
      : options_(std::move(options)),
        source_(source),
        timeouts_(options_.deadline),
        sender_(options_.channels, options_.streams, options_.fragment_bytes, options_.zero_copy, options_.congestion,
                timeouts_, options_.waits.get()),
        receiver_(options_.channels, options_.max_message_bytes, options_.waits.get()),
        final_(options_.streams + 1),
        redials_(options_.streams + 1),
        attempts_(options_.streams + 1) {}
  ~Link() override {
    finish();
    const bool matters = health_.ok() && !abandoned_;
    while (matters && !sender_.delivered() && Clock::now() - departure_.began() < TcpDeparture::kAnswersWithin)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (matters && options_.drain && !sender_.delivered())
      if (const int fd = sender_.duplicate_shared(); fd >= 0) options_.drain(fd);
    for (const Delivery& delivery : inbox_)
      if (delivery.fd >= 0) close(delivery.fd);
  }

  void deliver_outgoing(PeerStreamId stream, Status status, int fd) override {
    deliver({true, stream, std::move(status), fd});
  }
  void deliver_incoming(PeerStreamId stream, int fd) override { deliver({false, stream, {}, fd}); }
  void deliver_departure() override { departed_.store(true, std::memory_order_release); }
  void deliver_end() override { ended_.store(true, std::memory_order_release); }
  bool may_finish() override {
    if (!health_.ok() || abandoned_ || ended_.load(std::memory_order_acquire)) return true;
    if (!departure_.has_begun()) {
      departure_.begin(Clock::now());
      first_key_ = sender_.shared_key();
      sender_.say_goodbye();
    }
    poll();
    look_at_streams();
    if (!health_.ok() || has_left()) return true;
    return departure_.is_over({sender_.has_arrived(), sender_.since_answer()}, Clock::now(), timeouts_.leave);
  }
  void finish() override {
    if (std::exchange(finished_, true)) return;
    if (!departure_.has_begun()) departure_.begin(Clock::now());
    source_ = nullptr;
    sender_.finish();
  }
  void abandon() override { abandoned_ = true; }
  std::unique_ptr<Connection> connection(uint32_t channel) override;
  size_t receive_memory() const override { return receiver_.memory(); }
  uint64_t zero_copy_sends() const override { return sender_.zero_copy_sends(); }

  Status health() const override { return health_; }

  std::optional<Clock::time_point> away_since() const override {
    Clock::time_point away{};
    if (!sender_.has_stream(0) && (sender_.wants_shared() || awaits_shared_)) {
      away = redials_[0].away_since();
    } else if (sender_.wants_large() && !has_large()) {
      for (uint32_t index = 1; index <= sender_.wanted_streams(); ++index)
        away = std::max(away, redials_[index].away_since());
    }
    if (away == Clock::time_point()) return {};
    return std::max(away, heard_);
  }

  bool can_post(uint32_t channel) {
    if (!health_.ok()) return false;
    if (sender_.has_room(channel)) return true;
    poll();
    if (sender_.has_room(channel)) return health_.ok();
    look_after_streams();
    look_for_end();
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
    send_pending();
  }

  // The peer's count of messages has 32 bits; `posted` is at most kFifoDepth ahead. A link that has failed
  // answers, too: what was released before is out of the way.
  uint64_t released(uint32_t channel, uint64_t posted) {
    if (sender_.pending() && health_.ok()) send_pending();
    if (sender_.released(channel) != static_cast<uint32_t>(posted) && health_.ok()) {
      poll();
      if (health_.ok()) sender_.release(channel, Clock::now());
    }
    return posted - (static_cast<uint32_t>(posted) - sender_.released(channel));
  }

  const Message* front(uint32_t channel) {
    if (const Message* message = receiver_.front(channel); message != nullptr) return message;
    if (!health_.ok()) return nullptr;
    poll();
    const Message* message = receiver_.front(channel);
    if (message != nullptr) return message;
    look_after_streams();
    look_for_end();
    return nullptr;
  }

  void pop(uint32_t channel) {
    const bool large = receiver_.front(channel)->bytes >= kToldAtOnceBytes;
    const ArrivalSkew skew = receiver_.skew(channel);
    receiver_.pop(channel);
    const uint32_t popped = receiver_.popped(channel);
    const bool now = large || popped - sender_.told(channel) >= kTellEvery;
    sender_.set_popped(channel, popped, now, skew);
    if (now && health_.ok()) send_pending();
  }

  bool flush() override {
    if (!sender_.pending() && !has_mail_.load(std::memory_order_relaxed)) {
      if (!health_.ok() || !may_be_needed() || ++flushes_ % kReadPeriod != 0) return true;
      poll();
    }
    if (!health_.ok()) return false;
    look_after_streams();
    // What the peer's kernel has no room for stays in this rank's memory: two ranks that wait for that must both read.
    // After a break both may have what the other waits for: room, or the news that all has been popped.
    if (sender_.sends_in_place() || is_waiting_for_stream() || ++flushes_ % kReadPeriod == 0)
      poll();
    else
      send_pending();
    return !sender_.pending();
  }

  void serve_idle() override {
    if (!health_.ok()) return;
    if (!has_mail_.load(std::memory_order_relaxed) && !sender_.pending() && !may_be_needed()) return;
    poll();
    look_at_streams();
  }

 private:
  struct Delivery {
    bool outgoing;
    PeerStreamId stream;
    Status status;
    int fd;
  };

  void deliver(Delivery delivery) {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(delivery));
    has_mail_.store(true, std::memory_order_release);
  }

  // Though this rank neither sends nor waits for a message. A stream may have broken that carried what the peer has not
  // acknowledged: this rank alone can send it again. And after a break the peer may send again what was popped here. No
  // call waits for that, but the peer cannot go on before the kernels have room for all of it.
  bool may_be_needed() const { return sender_.has_unacknowledged() || receiver_.has_resumed(); }

  void fail(const Status& status) {
    if (health_.ok()) health_ = {status.code(), fmt::format("TCP with {}: {}", options_.peer_name, status.message())};
  }
  void note(const Status& status) {
    if (!status.ok()) fail(status);
  }

  void take_mail() {
    std::vector<Delivery> inbox;
    {
      std::lock_guard lock(mutex_);
      has_mail_.store(false, std::memory_order_relaxed);
      inbox.swap(inbox_);
    }
    for (Delivery& delivery : inbox) {
      const auto [index, attempt] = delivery.stream;
      const uint32_t most = delivery.outgoing ? options_.streams : kMaxTcpStreams;
      if (!delivery.status.ok()) {
        take_refusal(index, delivery.status);
      } else if (index > most) {
        fail({trSystemError, fmt::format("stream {} was opened, which there is not", index)});
        close(delivery.fd);
      } else {
        (void)fcntl(delivery.fd, F_SETFL, fcntl(delivery.fd, F_GETFL) | O_NONBLOCK);
        if (delivery.outgoing)
          take_outgoing(index, attempt, delivery.fd);
        else
          take_incoming(index, attempt, delivery.fd);
      }
    }
    count_large();
  }

  void take_refusal(uint32_t index, const Status& status) {
    if (index > options_.streams) return;
    redials_[index].failed(Clock::now(), status.message());
    if (status.code() == trInvalidUsage) {
      departed_.store(true, std::memory_order_release);
    } else if (status.code() != trRemoteError && status.code() != trTimeout) {
      final_[index] = status;
    }
  }

  void take_outgoing(uint32_t index, uint32_t attempt, int fd) {
    redials_[index].opened(Clock::now());
    std::fill(final_.begin(), final_.end(), Status());
    if (index == 0) return take_shared(key_of_shared(attempt, options_.keeps_shared), fd);
    if (attempt == attempts_[index] && !sender_.has_stream(index)) return sender_.add_stream(index, attempt, fd);
    close(fd);
  }

  void take_incoming(uint32_t index, uint32_t attempt, int fd) {
    if (index == 0) {
      attempts_[0] = std::max(attempts_[0], attempt);
      return take_shared(key_of_shared(attempt, !options_.keeps_shared), fd);
    }
    if (!receiver_.add_stream(index, attempt, fd)) return refuse_second(fd);
    sender_.replaced(index, attempt);
  }

  // Its opener lost the first before it heard that it was taken, and comes again with another attempt.
  static void refuse_second(int fd) { close(fd); }

  // If both ranks opened one at the same attempt, that of the rank that keeps its own is the later one. No key is 0.
  static uint64_t key_of_shared(uint32_t attempt, bool of_keeper) { return 2 * (uint64_t{attempt} + 1) + of_keeper; }

  void take_shared(uint64_t key, int fd) {
    if (!receiver_.add_stream(0, key, fd)) return refuse_second(fd);
    const int newest = receiver_.newest_shared(&key);
    if (newest >= 0 && (!sender_.has_stream(0) || key > sender_.shared_key())) send_on(key, newest);
  }

  void send_on(uint64_t key, int fd) {
    const int copy = closed_in_children([fd] { return fcntl(fd, F_DUPFD_CLOEXEC, 0); });
    if (copy < 0 && errno == EMFILE)
      return fail({trSystemError, options_.own_name + ": " + no_descriptor_left().message()});
    if (copy < 0) return fail({trSystemError, fmt::format("a descriptor for stream 0: {}", std::strerror(errno))});
    sender_.add_stream(0, key, copy);
    redials_[0].rest();
  }

  // What waits has no stream.
  bool is_waiting_for_stream() const {
    if (sender_.wants_shared() && !sender_.has_stream(0)) return true;
    return sender_.wants_large() && !has_large();
  }
  // What waits has no stream, and never gets one: of those for large messages one is enough.
  Status why_none_comes() const {
    if (sender_.wants_shared() && !sender_.has_stream(0) && !final_[0].ok()) return final_[0];
    if (!sender_.wants_large() || has_large() || sender_.wanted_streams() == 0) return {};
    const auto begin = final_.begin() + 1, end = begin + sender_.wanted_streams();
    return std::all_of(begin, end, [](const Status& status) { return !status.ok(); }) ? *begin : Status();
  }
  bool has_large() const {
    for (uint32_t i = 1; i <= options_.streams; ++i)
      if (sender_.has_stream(i)) return true;
    return false;
  }
  // Some stream is to be asked for, or something has happened to one.
  bool is_unsettled() const {
    if (sender_.has_losses() || receiver_.has_losses()) return true;
    if (!sender_.has_stream(0) && (sender_.wants_shared() || awaits_shared_)) return true;
    return opened_large_ < sender_.wanted_streams() && sender_.wants_large();
  }
  bool has_left() const { return goodbye_ || departed_.load(std::memory_order_acquire); }

  void settle() {
    const Clock::time_point now = Clock::now();
    for (const TcpLoss& loss : receiver_.take_losses()) {
      if (loss.index == 0)
        sender_.lose_stream(0, loss.key, loss.why);
      else if (!has_left())
        sender_.tell_lost(loss.index, static_cast<uint32_t>(loss.key));
    }
    for (const TcpLoss& loss : sender_.take_losses()) {
      redials_[loss.index].lost(now, loss.why, loss.since);
      if (loss.index == 0) receiver_.note_half_dead(loss.key);
    }
    uint64_t key = 0;
    if (const int fd = sender_.has_stream(0) ? -1 : receiver_.newest_shared(&key); fd >= 0) send_on(key, fd);
    if (has_left()) return part_from_peer();
    if (const Status final = why_none_comes(); !final.ok()) return fail(final);
    if (sender_.has_stream(0) || !(sender_.wants_shared() || awaits_shared_))
      redials_[0].rest();
    else
      ask(0, now);
    for (uint32_t index = 1; index <= sender_.wanted_streams(); ++index)
      if (!sender_.has_stream(index) && sender_.wants_large())
        ask(index, now);
      else
        redials_[index].rest();
    count_large();
  }

  void count_large() {
    opened_large_ = 0;
    for (uint32_t index = 1; index <= sender_.wanted_streams(); ++index)
      opened_large_ += sender_.has_stream(index) || redials_[index].asked();
  }

  void ask(uint32_t index, Clock::time_point now) {
    TcpRedial& redial = redials_[index];
    if (redial.over(now, timeouts_.redial, heard_) && (index == 0 || !has_large()))
      return fail({trTimeout, fmt::format("stream {}: {}", index, redial.story(now))});
    if (!redial.should_ask(now)) return;
    if (redial.ever_asked() || (index == 0 && sender_.shared_key() != 0)) ++attempts_[index];
    redial.ask(now);
    if (source_ != nullptr) source_->open_stream(options_.peer, {index, attempts_[index]});
  }

  // It needs no credits, and has taken what it wanted of what was written; what was not is not needed any more.
  void part_from_peer() {
    if (!is_waiting_for_stream()) return;
    sender_.forget_peer();
    if (!is_waiting_for_stream()) return;
    const uint32_t index = sender_.wants_large() ? 1 : 0;
    const std::string story = redials_[index].story(Clock::now());
    fail({trRemoteError, "it has left, and does not take what was sent to it" + (story.empty() ? "" : ": " + story)});
  }

  void send_pending() {
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    if (is_unsettled()) settle();
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    note(sender_.flush());
    if (sender_.has_losses()) settle();
  }

  Status take_frame(const TcpFrame& frame) {
    if (frame.type == TcpFrameType::kGoodbye) {
      goodbye_ = true;
    } else if (frame.type == TcpFrameType::kLost) {
      if (frame.kind > options_.streams)
        return {trSystemError, fmt::format("it lost stream {}; there are {}", frame.kind, options_.streams)};
      sender_.lose_stream(frame.kind, frame.message, "it is broken at the other end");
    } else {
      return sender_.acknowledge(frame);
    }
    return {};
  }

  void poll() {
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    note(receiver_.read([this](const TcpFrame& frame) { return take_frame(frame); }));
    if (receiver_.take_repeated()) sender_.owe_all_credits();
    if (receiver_.has_losses() || sender_.has_losses()) settle();
    if (sender_.pending() && health_.ok()) send_pending();
  }

  // The caller waits in vain.
  void look_after_streams() {
    if (++vain_ % kLookPeriod == 0) look_at_streams();
  }

  void look_at_streams() {
    if (!health_.ok()) return;
    const Clock::time_point now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kLookEvery;
    if (std::exchange(heard_bytes_, receiver_.received()) != receiver_.received()) heard_ = now;
    // A rank that leaves closes no stream before another network has proved to work: the kernel may still deliver.
    const bool keep = departure_.has_begun() && sender_.shared_key() == first_key_;
    note(sender_.look(now, keep ? TcpSender::Stalled::kKeep : TcpSender::Stalled::kLose));
    if (keep && sender_.has_stalled()) ask(0, now);
    if (is_unsettled()) send_pending();
  }

  // ... for the peer: is it still there? What it sent before it left is still to be read.
  void look_for_end() {
    if (!departed_.load(std::memory_order_acquire)) {
      // Without a stream nothing comes, and the peer may not know that it is gone.
      awaits_shared_ = receiver_.has_ended_some() && !sender_.has_stream(0) && !goodbye_;
      if (awaits_shared_ && health_.ok()) settle();
      return;
    }
    if (receiver_.has_streams() && !receiver_.ended()) return await_drained();
    // What it opened was delivered before the news that it left.
    if (has_mail_.load(std::memory_order_relaxed)) take_mail();
    if (receiver_.ended()) return fail({trRemoteError, "it has closed its streams: it has left or ended"});
    if (!receiver_.has_streams()) fail({trRemoteError, "it has left without opening a stream"});
  }

  void await_drained() {
    const uint64_t received = receiver_.received();
    if (silent_ == Clock::time_point() || received != received_) {
      silent_ = Clock::now();
      received_ = received;
    } else if (Clock::now() - silent_ > kDrainTimeout) {
      fail({trRemoteError, "it has left, and not all that it sent before has arrived: the connection was interrupted"});
    }
  }

  TcpOptions options_;
  StreamSource* source_;  // nullptr once it is finished
  TcpTimeouts timeouts_;
  TcpSender sender_;
  TcpReceiver receiver_;
  Status health_;
  std::vector<Status> final_;       // by the stream's number: why it cannot be opened any more
  std::vector<TcpRedial> redials_;  // by the stream's number
  std::vector<uint32_t> attempts_;  // the last; of the shared stream, of either rank
  uint32_t opened_large_ = 0;       // or asked for
  bool awaits_shared_ = false;      // messages of the peer are waited for, and it has no stream
  bool goodbye_ = false;            // of the peer
  Clock::time_point silent_{}, next_look_{};
  Clock::time_point heard_{};                // the look that found that something had come
  uint64_t received_ = 0, heard_bytes_ = 0;  // at silent_, at heard_
  uint32_t vain_ = 0, flushes_ = 0;
  bool abandoned_ = false, finished_ = false;
  TcpDeparture departure_;
  uint64_t first_key_ = 0;  // of the shared stream, when it began

  std::atomic<bool> departed_{false}, ended_{false};
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
  uint64_t released() override { return released_ = link_->released(channel_, posted_); }

  const Message* front() override { return link_->front(channel_); }
  void pop() override { link_->pop(channel_); }
  Status fetch(const Message&, size_t, void*, size_t) override {
    return {trInternalError, "payloads that came by TCP are not fetched"};
  }

  std::optional<UserAddress> reference(const UserMemory& memory) const override {
    return UserAddress{0, reinterpret_cast<uint64_t>(memory.data)};
  }
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
