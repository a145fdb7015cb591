// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/send.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/forked_sockets.h"
#include "transport/tcp/kernel.h"

namespace treering {
namespace {
// The kernel may keep so many fragments unsent: with less it runs dry between two looks of this process (docs/tcp.md).
// A single stream gets as much in one fragment, as no other stream shares it.
constexpr uint32_t kUnsentFragments = 4;
// A stream is opened while others may fill the network: after so many fragments the shortest round trip is the path's.
constexpr uint32_t kPathShowsAfter = 64;
}  // namespace

TcpSender::TcpSender(uint32_t channels, uint32_t streams, uint32_t fragment_bytes, TcpZeroCopy zero_copy,
                     TcpCongestion congestion, const TcpTimeouts& timeouts, WaitSet* waits)
    : waits_(waits),
      congestion_(std::move(congestion)),
      timeouts_(timeouts),
      most_streams_(streams),
      fragment_bytes_(streams == 1 ? kUnsentFragments * fragment_bytes : fragment_bytes),
      unsent_bytes_(kUnsentFragments * fragment_bytes),
      credits_(channels),
      outbox_(channels),
      scheduler_(streams),
      zero_copy_(zero_copy) {
  streams_.reserve(streams + 2);
}

TcpSender::~TcpSender() {
  for (auto& stream : streams_) {
    if (stream->closed) continue;
    // The kernel would send what its memory becomes.
    if (stream->sends.empty())
      leave_to_kernel(stream->fd);
    else
      throw_away(stream->fd);
    end_stream(stream.get());
  }
}

void TcpSender::end_stream(Stream* stream) {
  if (waits_ != nullptr) waits_->forget(stream->fd);
  close(stream->fd);
  stream->closed = any_closed_ = true;
  if (!stream->replaced) open_ &= ~(uint64_t{1} << stream->index);
  if (!stream->shared()) scheduler_.close(stream->index);
}

void TcpSender::add_stream(uint32_t index, uint64_t key, int fd) {
  prepare_stream(fd, unsent_bytes_, timeouts_);
  if (waits_ != nullptr) waits_->add(fd, WaitSet::For::kRoom);
  bool again = index == 0 && shared_key_ != 0;
  for (auto& other : streams_) {
    if (other->index != index || other->closed || other->replaced) continue;
    open_ &= ~(uint64_t{1} << index);
    other->replaced = again = true;
    if (!other->busy) end_stream(other.get());
  }
  auto stream = std::make_unique<Stream>();
  stream->index = index;
  stream->key = key;
  stream->fd = fd;
  stream->zero_copy = index > 0 && zero_copy_.enable(fd);
  if (!congestion_.all.empty()) (void)set_congestion_control(fd, congestion_.all);
  if (index > 0) scheduler_.open(index);
  auto place = std::find_if(streams_.begin(), streams_.end(), [&](const auto& other) { return other->index >= index; });
  streams_.insert(place, std::move(stream));
  open_ |= uint64_t{1} << index;
  if (index > 0) return;
  shared_key_ = key;
  if (!again) return;
  // What the first of two has taken may not come any more: the peer closes it when it hears from the second.
  outbox_.lost(0);
  owe_all_credits();
}

void TcpSender::owe_all_credits() {
  for (Broken& broken : broken_) broken.told = false;
  if (!gives_credit_) return;
  for (Credit& credit : credits_) owed_ += !std::exchange(credit.owed, true);
  pending_ = true;
}

void TcpSender::lose_stream(uint32_t index, uint64_t key, const std::string& why) {
  for (auto& stream : streams_)
    if (stream->index == index && stream->key == key && !stream->closed) return lose(stream.get(), why);
}

void TcpSender::lose(Stream* stream, const std::string& why, TcpClock::time_point since) {
  // The other descriptor of the shared stream may still bring something.
  if (!stream->shared()) throw_away(stream->fd);
  (void)take_notices_of(stream);  // of what the kernel is done with, it tells now or never
  end_stream(stream);
  const bool had_message = stream->busy && stream->message != nullptr;
  stream->busy = false;
  // A frame at hand goes with the stream; a message that it is a part of is not through for that.
  if (!stream->replaced) outbox_.lost(stream->index);  // else it was lost when another took its place
  if (had_message) outbox_.take(stream->message);
  stream->sends.abandon([this](uint32_t place) {
    --unnoticed_;
    outbox_.lose_sight(place);
  });
  // Credits may have been lost with it, and are told again: to know them twice does no harm.
  if (stream->shared()) owe_all_credits();
  update_pending();
  if (stream->replaced) return;
  losses_.push_back({stream->index, stream->key, why, since});
}

void TcpSender::remove_closed() {
  any_closed_ = false;
  std::erase_if(streams_, [](const auto& stream) { return stream->closed; });
}

void TcpSender::look_at_path(Stream* stream) const {
  if (stream->shared() || !congestion_.all.empty() || congestion_.if_long.empty()) return;
  if (is_long_path(stream->fd, congestion_.long_us)) (void)set_congestion_control(stream->fd, congestion_.if_long);
}

void TcpSender::post(uint32_t channel, const Message& message, const void* payload) {
  const TcpOutgoing& posted = outbox_.post(channel, message, payload);
  if (!posted.small) wanted_streams_ = std::max(wanted_streams_, scheduler_.stripes(posted.bytes) ? most_streams_ : 1u);
  pending_ = true;
}

Status TcpSender::acknowledge(const TcpFrame& frame) {
  if (frame.type == TcpFrameType::kCredit) {
    const TcpOutgoing* came = outbox_.find(frame.channel, frame.message);  // nullptr: its place has another by now
    const uint64_t begin = came != nullptr ? came->begin : 0;
    if (!scheduler_.learn(skew_of(frame), begin, came != nullptr ? begin + came->bytes : begin))
      return {trSystemError,
              fmt::format("it tells about streams {} and {}; there are {}", frame.kind, frame.wide, most_streams_)};
  }
  if (!outbox_.acknowledge(frame.channel, frame.popped))
    return {trSystemError, "it acknowledges messages that were never sent"};
  return {};
}

void TcpSender::set_popped(uint32_t channel, uint32_t popped, bool now, const ArrivalSkew& skew) {
  Credit& credit = credits_[channel];
  credit.popped = popped;
  if (skew.late != 0) credit.skew = skew;
  if (!now || credit.owed || !gives_credit_) return;
  credit.owed = true;
  ++owed_;
  pending_ = true;
}

void TcpSender::tell_lost(uint32_t index, uint32_t attempt) {
  replaced(index, attempt);
  broken_.push_back({index, attempt, false});
  pending_ |= has_stream(0);
}

void TcpSender::replaced(uint32_t index, uint32_t attempt) {
  std::erase_if(broken_, [&](const Broken& broken) { return broken.index == index && broken.attempt < attempt; });
}

void TcpSender::forget_peer() {
  for (Credit& credit : credits_) credit.owed = false;
  owed_ = 0;
  gives_credit_ = false;
  broken_.clear();
  outbox_.forget_written();
  update_pending();
}

void TcpSender::load_frame(Stream* stream, const TcpFrame& frame) {
  std::memcpy(stream->head, &frame, sizeof frame);
  stream->head_bytes = sizeof frame;
  stream->message = nullptr;
  stream->payload = nullptr;
  stream->bytes = 0;
  stream->busy = true;
}

bool TcpSender::load_credit(Stream* stream) {
  for (uint32_t channel = 0; channel < credits_.size(); ++channel) {
    Credit& credit = credits_[channel];
    if (!credit.owed) continue;
    TcpFrame frame;
    frame.type = TcpFrameType::kCredit;
    frame.channel = static_cast<uint8_t>(channel);
    frame.popped = credit.told = credit.popped;
    set_skew(std::exchange(credit.skew, {}), &frame);
    load_frame(stream, frame);
    credit.owed = false;
    --owed_;
    return true;
  }
  return false;
}

bool TcpSender::load_broken(Stream* stream) {
  for (Broken& broken : broken_) {
    if (broken.told) continue;
    TcpFrame frame;
    frame.type = TcpFrameType::kLost;
    frame.kind = static_cast<uint8_t>(broken.index);
    frame.message = broken.attempt;
    load_frame(stream, frame);
    return broken.told = true;
  }
  return false;
}

void TcpSender::load_fragment(Stream* stream) {
  TcpOutgoing& outgoing = *outbox_.first(stream->shared());
  Credit& credit = credits_[outgoing.frame.channel];
  const uint32_t left = outgoing.bytes - outgoing.given;
  const uint32_t length = stream->shared()
                              ? std::min(fragment_bytes_, left)
                              : scheduler_.fragment_bytes(stream->index, outgoing.bytes, left, fragment_bytes_);
  if (outgoing.given == 0) outgoing.begin = scheduler_.given();
  if (!stream->shared()) scheduler_.gave(stream->index, outgoing.bytes, length);
  if (stream->fragments < kPathShowsAfter && ++stream->fragments == kPathShowsAfter) look_at_path(stream);
  TcpFrame frame = outgoing.frame;
  frame.offset = outgoing.given;
  frame.length = length;
  frame.popped = credit.told = credit.popped;
  load_frame(stream, frame);
  stream->payload = outgoing.payload + outgoing.given;
  stream->bytes = length;
  if (length > 0 && length <= kInlineBytes) {
    std::memcpy(stream->head + sizeof frame, stream->payload, length);
    stream->head_bytes += length;
    stream->bytes = 0;
  }
  stream->message = &outgoing;
  outbox_.give(&outgoing, length, stream->index);
  if (std::exchange(credit.owed, false)) --owed_;
}

// Gives the stream its next frame; false when there is none.
bool TcpSender::load(Stream* stream) {
  if (stream->closed || stream->replaced) return false;
  stream->done = 0;
  stream->refused = false;
  if (stream->shared()) {
    if (owed_ > 0 && load_credit(stream)) return true;
    if (!broken_.empty() && load_broken(stream)) return true;
  }
  if (outbox_.empty(stream->shared())) return false;
  load_fragment(stream);
  return true;
}

void TcpSender::finish_frame(Stream* stream) {
  stream->busy = false;
  if (stream->replaced) end_stream(stream);
  if (stream->message != nullptr) outbox_.take(stream->message);
}

// What the kernel needs no longer.
Status TcpSender::take_notices() {
  if (unnoticed_ == 0) return {};
  for (auto& stream : streams_) TR_RETURN_IF_ERROR(take_notices_of(stream.get()));
  return {};
}

Status TcpSender::take_notices_of(Stream* stream) {
  ZeroCopyNotice notice;
  while (!stream->closed && !stream->sends.empty() && take_zero_copy_notice(stream->fd, &notice)) {
    zero_copy_.completed(notice.last - notice.first + 1, notice.copied);
    const bool known = stream->sends.complete(notice.first, notice.last, [this](uint32_t place) {
      --unnoticed_;
      outbox_.let_go(place);
    });
    if (!known)
      return {trInternalError, fmt::format("the kernel has done sends {} to {} of stream {}, which it was not given",
                                           notice.first, notice.last, stream->index)};
  }
  return {};
}

// Whether what is left of the payload is large enough, and the kernel can leave it where it is.
bool TcpSender::goes_uncopied(const Stream& stream) const {
  if (leaves_ || !zero_copy_.wants() || !stream.zero_copy || stream.refused || stream.sends.full()) return false;
  return stream.head_bytes + stream.bytes - std::max(stream.done, stream.head_bytes) >= kZeroCopyBytes;
}

ssize_t TcpSender::give(Stream* stream, bool uncopied) {
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
  const bool head = stream->done < stream->head_bytes;
  if (head) parts[message.msg_iovlen++] = {stream->head + stream->done, stream->head_bytes - stream->done};
  const size_t done = std::max(stream->done, stream->head_bytes) - stream->head_bytes;
  if (done < stream->bytes && !(head && uncopied))
    parts[message.msg_iovlen++] = {const_cast<std::byte*>(stream->payload) + done, stream->bytes - done};
  // The next frame's header takes the place of this one, which is therefore copied, by a call of its own.
  if (uncopied) flags |= head ? MSG_MORE : MSG_ZEROCOPY;
  const ssize_t sent = sendmsg(stream->fd, &message, flags);
  if (sent > 0 && uncopied && !head) {
    stream->sends.add(TcpOutbox::place_of(*stream->message));
    ++stream->message->held;
    ++unnoticed_;
    zero_copy_.sent();
  }
  return sent;
}

Status TcpSender::write(Stream* stream, bool* whole) {
  *whole = false;
  for (bool again = true; again;) {
    const bool uncopied = goes_uncopied(*stream), head = stream->done < stream->head_bytes;
    const ssize_t sent = give(stream, uncopied);
    if (sent < 0 && uncopied && !head && ZeroCopyUse::is_refusal(errno)) {
      zero_copy_.refused();
      stream->refused = true;
      continue;
    }
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS) return {};
      const int error = errno;
      lose(stream, fmt::format("sending: {} (errno {})", std::strerror(error), error));
      return {};
    }
    stream->taken += static_cast<uint64_t>(sent);
    stream->done += static_cast<size_t>(sent);
    again = uncopied && head && stream->done == stream->head_bytes;  // the payload follows a header that left alone
  }
  if (stream->done == stream->head_bytes + stream->bytes) {
    *whole = true;
    finish_frame(stream);
  }
  return {};
}

void TcpSender::update_pending() {
  pending_ = !outbox_.empty(true) || !outbox_.empty(false) || owed_ > 0 || unnoticed_ > 0;
  for (const auto& stream : streams_) pending_ |= stream->busy;
  if (has_stream(0))
    for (const Broken& broken : broken_) pending_ |= !broken.told;
}

TcpSender::Stream* TcpSender::find(uint32_t index) {
  return std::find_if(streams_.begin(), streams_.end(),
                      [&](const auto& each) { return each->index == index && !each->closed; })
      ->get();
}

Status TcpSender::flush_small() {
  for (auto& stream : streams_)
    for (bool whole = stream->shared(); whole && (stream->busy || load(stream.get()));)
      TR_RETURN_IF_ERROR(write(stream.get(), &whole));
  return {};
}

Status TcpSender::flush_large() {
  bool whole = false;
  for (auto& stream : streams_)
    if (!stream->shared() && stream->busy) TR_RETURN_IF_ERROR(write(stream.get(), &whole));
  while (!outbox_.empty(false)) {
    const uint32_t next =
        scheduler_.next(outbox_.first(false)->bytes, [this](uint32_t index) { return !find(index)->busy; });
    if (next == 0) break;
    Stream* stream = find(next);
    if (!load(stream)) break;
    TR_RETURN_IF_ERROR(write(stream, &whole));
  }
  return {};
}

Status TcpSender::flush() {
  if (any_closed_) remove_closed();
  TR_RETURN_IF_ERROR(take_notices());
  TR_RETURN_IF_ERROR(flush_small());
  TR_RETURN_IF_ERROR(flush_large());
  update_pending();
  return {};
}

bool TcpSender::stands_still(Stream* stream, TcpClock::time_point now) const {
  TcpStall::Facts facts;
  return look_at_stream(stream->fd, stream->taken, &facts) && stream->stall.look(facts, now, timeouts_.stall);
}

Status TcpSender::look(TcpClock::time_point now, Stalled stalled) {
  if (any_closed_) remove_closed();
  has_stalled_ = false;
  TR_RETURN_IF_ERROR(take_notices());
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream* stream = streams_[i].get();
    if (stream->closed) continue;
    if (stands_still(stream, now)) {
      has_stalled_ = true;
      if (stalled == Stalled::kKeep) continue;
      lose(stream, fmt::format("what was sent has not been acknowledged for {:g} s", seconds(timeouts_.stall)),
           stream->stall.since());
      continue;
    }
    if (stream->shared()) continue;  // the receiver reads it
    int error = 0;
    const StreamEnd end = find_end(stream->fd, &error);
    if (end == StreamEnd::kSomethingThere)
      return {trSystemError, fmt::format("it sent something on stream {}, which goes to it", stream->index)};
    if (end == StreamEnd::kClosed) lose(stream, "the other end was closed");
    if (end == StreamEnd::kBroken) lose(stream, fmt::format("{} (errno {})", std::strerror(error), error));
  }
  return {};
}

void TcpSender::say_goodbye() {
  leaves_ = true;
  TcpFrame goodbye;
  goodbye.type = TcpFrameType::kGoodbye;
  for (const auto& stream : streams_) {
    // Where a frame waits that an operation which failed has left, the peer hears it by the rendezvous.
    if (!stream->shared() || stream->closed || stream->busy || stream->said_goodbye) continue;
    load_frame(stream.get(), goodbye);
    stream->done = 0;
    const auto sent = static_cast<size_t>(std::max<ssize_t>(give(stream.get(), false), 0));
    stream->taken += sent;
    stream->done += sent;
    stream->said_goodbye = sent > 0;
    stream->busy = sent > 0 && sent < stream->head_bytes;
  }
  update_pending();
}

bool TcpSender::has_arrived() const {
  if (wants_shared() || wants_large() || unnoticed_ > 0) return false;
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    const int goodbye = stream->said_goodbye ? int{sizeof(TcpFrame)} : 0;
    return stream->closed || (!stream->busy && unacknowledged_bytes(stream->fd) <= goodbye);
  });
}

TcpClock::duration TcpSender::since_answer() const {
  TcpClock::duration longest{};
  if (wants_shared() || wants_large() || unnoticed_ > 0) return TcpClock::duration::max();
  for (const auto& stream : streams_) {
    if (stream->closed) continue;
    if (stream->busy) return TcpClock::duration::max();
    TcpStall::Facts facts;
    if (look_at_stream(stream->fd, stream->taken, &facts) && facts.under_way)
      longest = std::max<TcpClock::duration>(longest, facts.since_answer);
  }
  return longest;
}

void TcpSender::finish() {
  say_goodbye();
  for (const auto& stream : streams_) {
    if (!stream->shared() || stream->closed) continue;
    leave_to_kernel(stream->fd);
    (void)shutdown(stream->fd, SHUT_WR);
  }
}

int TcpSender::duplicate_shared() const {
  for (const auto& stream : streams_)
    if (stream->shared() && !stream->closed)
      return closed_in_children([fd = stream->fd] { return fcntl(fd, F_DUPFD_CLOEXEC, 0); });
  return -1;
}

bool TcpSender::delivered() const {
  for (const auto& stream : streams_) {
    if (!stream->shared() || stream->closed) continue;
    // What the peer's kernel has not acknowledged: nothing, or the end that finish() sent; a peer that has ended the
    // stream too reads no more.
    pollfd end{stream->fd, 0, 0};
    if (unacknowledged_bytes(stream->fd) > 1 && poll(&end, 1, 0) == 0) return false;
  }
  return true;
}

}  // namespace treering
