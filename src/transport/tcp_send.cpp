#include "transport/tcp_send.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/forked_sockets.h"

namespace treering {
namespace {
// The kernel may keep so many pieces unsent: with less it runs dry between two looks of this process (docs/tcp.md). A single
// stream gets as much in one piece, as there is nobody to share with.
constexpr uint32_t kUnsentPieces = 4;
// A stream is opened while others may fill the network: after so many pieces the shortest round trip is the path's.
constexpr uint32_t kPathShowsAfter = 64;
}  // namespace

TcpSender::TcpSender(uint32_t channels, uint32_t streams, uint32_t piece_bytes, TcpZeroCopy zero_copy,
                     TcpCongestion congestion, TcpWaitSet* waits)
    : waits_(waits),
      congestion_(std::move(congestion)),
      most_streams_(streams),
      piece_bytes_(streams == 1 ? kUnsentPieces * piece_bytes : piece_bytes),
      unsent_bytes_(kUnsentPieces * piece_bytes),
      channels_(channels),
      division_(streams),
      zero_copy_(zero_copy) {
  for (Queue* queue : {&small_, &large_}) queue->channels.resize(size_t{channels} * kFifoDepth);
  streams_.reserve(streams + 2);
}

TcpSender::~TcpSender() {
  for (auto& stream : streams_)
    if (!stream->closed) end_stream(stream.get());
}

void TcpSender::end_stream(Stream* stream) {
  if (waits_ != nullptr) waits_->forget(stream->fd);
  close(stream->fd);
  stream->closed = true;
  if (!stream->shared()) division_.close(stream->index);
}

void TcpSender::add_stream(uint32_t index, int fd) {
  const int on = 1;
  const auto most_unsent = static_cast<int>(unsent_bytes_);
  // Improvements; a stream without them works.
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most_unsent, sizeof most_unsent);
  if (waits_ != nullptr) waits_->add(fd, TcpWaitSet::For::kRoom);
  if (index == 0 && !streams_.empty() && streams_.front()->shared()) {
    streams_.front()->replaced = true;
    if (!streams_.front()->busy && !streams_.front()->closed) end_stream(streams_.front().get());
  }
  auto stream = std::make_unique<Stream>();
  stream->index = index;
  stream->fd = fd;
  stream->zero_copy = index > 0 && zero_copy_.enable(fd);
  if (!congestion_.all.empty()) (void)set_congestion_control(fd, congestion_.all);
  if (index > 0) division_.open(index);
  auto place = std::find_if(streams_.begin(), streams_.end(), [&](const auto& other) { return other->index >= index; });
  streams_.insert(place, std::move(stream));
}

void TcpSender::look_at_path(Stream* stream) const {
  if (stream->shared() || !congestion_.all.empty() || congestion_.if_long.empty()) return;
  if (is_long_path(stream->fd, congestion_.long_us)) (void)set_congestion_control(stream->fd, congestion_.if_long);
}

void TcpSender::post(uint32_t channel, const Message& message, const void* payload) {
  Channel& to = channels_[channel];
  Outgoing& outgoing = to.messages[to.posted % kFifoDepth];
  outgoing.frame = {};
  outgoing.frame.kind = static_cast<uint8_t>(message.kind);
  outgoing.frame.wide = message.wide;
  outgoing.frame.channel = static_cast<uint8_t>(channel);
  outgoing.frame.message = to.posted++;
  outgoing.frame.signature = message.signature;
  outgoing.frame.bytes = message.bytes;
  outgoing.frame.due_us = message.due_us;
  outgoing.frame.whole = message.whole <= UINT32_MAX ? static_cast<uint32_t>(message.whole) : 0;
  outgoing.bytes = tcp_payload(message.kind, message.bytes);
  outgoing.payload = static_cast<const std::byte*>(payload);
  if (message.kind == PayloadKind::kInline && outgoing.bytes > 0) {
    std::memcpy(outgoing.copy, payload, outgoing.bytes);
    outgoing.payload = outgoing.copy;
  }
  outgoing.given = outgoing.under_way = outgoing.held = 0;
  outgoing.all_given = false;
  outgoing.small = outgoing.bytes <= kSharedStreamBytes;
  (outgoing.small ? small_ : large_).push(static_cast<uint8_t>(channel));
  if (!outgoing.small)
    wanted_streams_ = std::max(wanted_streams_, division_.divides(outgoing.bytes) ? most_streams_ : 1u);
  pending_ = true;
}

Status TcpSender::acknowledge(const TcpFrame& frame) {
  Channel& to = channels_[frame.channel];
  const uint32_t more = frame.popped - to.acknowledged;
  if (frame.type == TcpFrameType::kCredit) {
    const Outgoing& came = to.messages[frame.message % kFifoDepth];
    const bool known = came.frame.message == frame.message;  // its place may have another message by now
    if (!division_.learn(lateness(frame), came.begin, known ? came.begin + came.bytes : came.begin))
      return {trSystemError,
              fmt::format("it tells about streams {} and {}; there are {}", frame.kind, frame.wide, most_streams_)};
  }
  if (more > UINT32_MAX / 2) return {};  // overtaken by a later one on another stream
  if (more > to.written - to.acknowledged) return {trSystemError, "it acknowledges messages that were never sent"};
  to.acknowledged = frame.popped;
  return {};
}

void TcpSender::set_popped(uint32_t channel, uint32_t popped, bool now, const TcpLateness& lateness) {
  Channel& from = channels_[channel];
  from.popped = popped;
  if (lateness.late != 0) from.lateness = lateness;
  if (!now || from.owes_credit || !gives_credit_) return;
  from.owes_credit = true;
  ++owed_;
  pending_ = true;
}

void TcpSender::forget_credits() {
  for (Channel& channel : channels_) channel.owes_credit = false;
  owed_ = 0;
  gives_credit_ = false;
  update_pending();
}

void TcpSender::load_credit(Stream* stream, uint32_t channel) {
  TcpFrame frame;
  frame.type = TcpFrameType::kCredit;
  frame.channel = static_cast<uint8_t>(channel);
  frame.popped = channels_[channel].popped;
  set_lateness(std::exchange(channels_[channel].lateness, {}), &frame);
  std::memcpy(stream->head, &frame, sizeof frame);
  stream->head_bytes = sizeof frame;
  stream->message = nullptr;
  stream->payload = nullptr;
  stream->bytes = 0;
}

TcpSender::Outgoing* TcpSender::first_of(const Queue& queue) {
  Channel& to = channels_[queue.channels[queue.begin % queue.channels.size()]];
  // The first of the channel, among those of this queue, that streams have not got the whole of.
  uint32_t number = to.handed_over;
  while (to.messages[number % kFifoDepth].all_given || to.messages[number % kFifoDepth].small != (&queue == &small_))
    ++number;
  return &to.messages[number % kFifoDepth];
}

void TcpSender::load_piece(Stream* stream, Queue* queue) {
  const uint32_t channel = queue->channels[queue->begin % queue->channels.size()];
  Channel& to = channels_[channel];
  Outgoing& outgoing = *first_of(*queue);
  const uint32_t left = outgoing.bytes - outgoing.given;
  const uint32_t length = stream->shared() ? std::min(piece_bytes_, left)
                                           : division_.piece_bytes(stream->index, outgoing.bytes, left, piece_bytes_);
  if (outgoing.given == 0) outgoing.begin = division_.given();
  if (!stream->shared()) division_.gave(stream->index, outgoing.bytes, length);
  if (stream->pieces < kPathShowsAfter && ++stream->pieces == kPathShowsAfter) look_at_path(stream);
  TcpFrame frame = outgoing.frame;
  frame.offset = outgoing.given;
  frame.length = length;
  frame.popped = to.popped;
  std::memcpy(stream->head, &frame, sizeof frame);
  stream->head_bytes = sizeof frame;
  stream->payload = outgoing.payload + outgoing.given;
  stream->bytes = length;
  if (length > 0 && length <= kInlineBytes) {
    std::memcpy(stream->head + sizeof frame, stream->payload, length);
    stream->head_bytes += length;
    stream->bytes = 0;
  }
  stream->message = &outgoing;
  stream->channel = channel;
  outgoing.given += length;
  ++outgoing.under_way;
  if (outgoing.given == outgoing.bytes) {
    outgoing.all_given = true;
    ++queue->begin;
  }
  to.told = to.popped;
  if (to.owes_credit) {
    to.owes_credit = false;
    --owed_;
  }
}

// Gives the stream its next frame; false when there is none.
bool TcpSender::load(Stream* stream) {
  if (stream->closed || stream->replaced) return false;
  stream->done = 0;
  stream->refused = false;
  if (owed_ > 0 && stream->shared()) {
    for (uint32_t channel = 0; channel < channels_.size(); ++channel) {
      if (!channels_[channel].owes_credit) continue;
      load_credit(stream, channel);
      channels_[channel].told = channels_[channel].popped;
      channels_[channel].owes_credit = false;
      --owed_;
      return stream->busy = true;
    }
  }
  Queue& queue = stream->shared() ? small_ : large_;
  if (queue.empty()) return false;
  load_piece(stream, &queue);
  return stream->busy = true;
}

void TcpSender::finish_frame(Stream* stream) {
  stream->busy = false;
  if (stream->replaced) end_stream(stream);
  if (stream->message == nullptr) return;
  --stream->message->under_way;
  Channel& to = channels_[stream->channel];
  for (; to.written != to.posted; ++to.written) {
    const Outgoing& next = to.messages[to.written % kFifoDepth];
    if (!next.all_given || next.under_way > 0) break;
  }
  hand_over(&to);
}

void TcpSender::hand_over(Channel* to) {
  for (; to->handed_over != to->written; ++to->handed_over) {
    Outgoing& next = to->messages[to->handed_over % kFifoDepth];
    if (next.held > 0) break;
    next.all_given = false;
  }
}

// What the kernel needs no longer.
Status TcpSender::take_notices() {
  if (unnoticed_ == 0) return {};
  for (auto& stream : streams_) {
    ZeroCopyNotice notice;
    while (!stream->closed && !stream->sends.empty() && take_zero_copy_notice(stream->fd, &notice)) {
      zero_copy_.completed(notice.last - notice.first + 1, notice.copied);
      const bool known = stream->sends.complete(notice.first, notice.last, [this](uint32_t place) {
        Channel& to = channels_[place / kFifoDepth];
        --to.messages[place % kFifoDepth].held;
        --unnoticed_;
        hand_over(&to);
      });
      if (!known)
        return {trInternalError, fmt::format("the kernel has done sends {} to {} of stream {}, which it was not given",
                                             notice.first, notice.last, stream->index)};
    }
  }
  return {};
}

Status TcpSender::write_failed(Stream* stream, int error) {
  const Status failure(trRemoteError,
                       fmt::format("sending on stream {}: {} (errno {})", stream->index, std::strerror(error), error));
  end_stream(stream);
  stream->busy = false;
  const bool credit = stream->message == nullptr;
  if (!credit || has_messages()) return failure;
  // A peer that has left needs no credits: the link decides.
  credit_failure_ = failure;
  return {};
}

// Whether what is left of the payload is large enough, and the kernel can leave it where it is.
bool TcpSender::goes_uncopied(const Stream& stream) const {
  if (!zero_copy_.wants() || !stream.zero_copy || stream.refused || stream.sends.full()) return false;
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
    stream->sends.add(stream->channel * kFifoDepth + stream->message->frame.message % kFifoDepth);
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
      return write_failed(stream, errno);
    }
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
  pending_ = !small_.empty() || !large_.empty() || owed_ > 0 || unnoticed_ > 0;
  for (const auto& stream : streams_) pending_ |= stream->busy;
}

bool TcpSender::has_messages() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.written != channel.posted; });
}

// What waits has a stream that is open, or one that is still to come.
Status TcpSender::check_streams() const {
  for (const bool shared : {true, false}) {
    if ((shared ? small_ : large_).empty()) continue;
    size_t all = 0, closed = 0;
    for (const auto& stream : streams_)
      if (stream->shared() == shared && !stream->replaced) ++all, closed += stream->closed;
    if (all > 0 && closed == all) return {trRemoteError, "sending: it has closed the streams"};
  }
  return {};
}

TcpSender::Stream* TcpSender::find(uint32_t index) {
  return std::find_if(streams_.begin(), streams_.end(), [&](const auto& each) { return each->index == index; })->get();
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
  while (!large_.empty()) {
    const uint32_t next =
        division_.next(first_of(large_)->bytes, [this](uint32_t index) { return !find(index)->busy; });
    if (next == 0) break;
    Stream* stream = find(next);
    if (!load(stream)) break;
    TR_RETURN_IF_ERROR(write(stream, &whole));
  }
  return {};
}

Status TcpSender::flush() {
  TR_RETURN_IF_ERROR(check_streams());
  TR_RETURN_IF_ERROR(take_notices());
  TR_RETURN_IF_ERROR(flush_small());
  TR_RETURN_IF_ERROR(flush_large());
  update_pending();
  return {};
}

Status TcpSender::probe() {
  for (auto& stream : streams_) {
    if (stream->closed) continue;
    char byte;
    const ssize_t got = recv(stream->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    if (got > 0 && stream->shared()) continue;
    if (got > 0) return {trSystemError, fmt::format("it sent something on stream {}, which goes to it", stream->index)};
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    const std::string why = got == 0 ? "it has closed the stream" : std::strerror(errno);
    return {trRemoteError,
            fmt::format("waiting on stream {}: {} (errno {})", stream->index, why, got == 0 ? 0 : errno)};
  }
  return {};
}

void TcpSender::finish() {
  for (const auto& stream : streams_)
    if (stream->shared() && !stream->closed) (void)shutdown(stream->fd, SHUT_WR);
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
    int bytes = 0;
    pollfd end{stream->fd, 0, 0};
    if (ioctl(stream->fd, SIOCOUTQ, &bytes) == 0 && bytes > 1 && poll(&end, 1, 0) == 0) return false;
  }
  return true;
}

}  // namespace treering
