// SPDX-License-Identifier: Apache-2.0
// Questions to other ranks, and data streams.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "bootstrap/job/job.h"

namespace treering {
namespace {

constexpr uint32_t kStreamAttempts = 8;
constexpr uint32_t kRefusals = 3;  // attempts that are left when a refusal counts: some 0.6 s after the first
constexpr auto kStreamPause = std::chrono::milliseconds(20);  // twice as long each time
// Of one attempt: where nothing answers the kernel asks again after 1 s, 3 s, 7 s ..., and the link by another attempt.
constexpr auto kMinAttempt = std::chrono::seconds(2), kLongestAttempt = std::chrono::seconds(30);

Clock::time_point attempt_ends(int timeout_ms) {
  const std::chrono::milliseconds timeout(timeout_ms);
  if (timeout_ms == 0) return Clock::now() + kLongestAttempt;
  return Clock::now() + std::clamp<Clock::duration>(timeout / 4, kMinAttempt, kLongestAttempt);
}

}  // namespace

void Job::ask(uint32_t asking, uint32_t rank) {
  if (state_ != State::kRunning || rank >= tree_.ranks()) return;
  take_question(encode(QuestionMessage{rank, own_.process, asking}), own_.process);
}

void Job::take_question(const std::string& bytes, uint32_t from) {
  QuestionMessage question;
  if (state_ != State::kRunning || !decode(bytes, &question) || question.rank >= tree_.ranks()) return;
  const uint32_t holder = tree_.process_of(question.rank);
  if (holder != own_.process) return route(holder, bytes, from);
  auto member = members_.find(question.rank);
  if (member == members_.end() || !member->second->events.status) return;
  take_answer(encode(AnswerMessage{question.rank, question.asking_process, question.asking_rank,
                                   member->second->events.status()}),
              own_.process);
}

void Job::take_answer(const std::string& bytes, uint32_t from) {
  AnswerMessage answer;
  if (!decode(bytes, &answer)) return;
  if (answer.asking_process != own_.process) return route(answer.asking_process, bytes, from);
  if (auto member = members_.find(answer.asking_rank); member != members_.end())
    member->second->change([&] { member->second->statuses[answer.rank] = {answer.bytes, Clock::now()}; });
}

void Job::open_stream(uint32_t source, uint32_t peer, PeerStreamId id) {
  auto member = members_.find(source);
  if (member == members_.end() || state_ == State::kMeeting) return;
  const std::string whom =
      peer >= tree_.ranks() ? "" : "no connection to " + tree_.describe(tree_.process_of(peer)) + ": ";
  auto report = [member = member->second, whom, peer, id](const Status& error, int fd) {
    const Status status = error.ok() ? error : Status(error.code(), whom + error.message());
    member->tell([=](const MemberEvents& events) {
      if (events.on_outgoing)
        events.on_outgoing(peer, id, status, fd);
      else if (fd >= 0)
        close(fd);
    });
  };
  if (peer >= tree_.ranks() || closed_)
    return report({trInvalidArgument, "a stream to a rank that does not exist"}, -1);
  dial_stream({source, peer, id.index, id.attempt}, attempt_ends(member->second->request.timeout_ms), report,
              kStreamAttempts);
}

// A process that has too many connections at once drops some, before it has heard what they want.
void Job::dial_stream(const StreamMessage& stream, Clock::time_point deadline, const StreamReport& report,
                      uint32_t attempts) {
  const Place& target = tree_.place(tree_.process_of(stream.destination));
  // The shared one goes with the first of the others. Each attempt tries another one first.
  const uint32_t interface = (stream.index == 0 ? 0 : stream.index - 1) + stream.attempt;
  auto self = shared_from_this();
  auto slot = std::make_shared<std::shared_ptr<Dial>>();
  const auto again = [=] {
    self->agent_->after(kStreamPause * (1 << (kStreamAttempts - attempts)), [=] {
      if (self->closed_) return report({trRemoteError, "this rank has left"}, -1);
      self->dial_stream(stream, deadline, report, attempts - 1);
    });
  };
  auto dropped = [=](const std::string& reason) {
    if (attempts <= 1 || self->closed_) return report({trRemoteError, reason}, -1);
    again();
  };
  auto done = [=](const Status& status, bool gone, std::shared_ptr<Channel> channel) {
    self->streams_.erase(*slot);
    // Descriptors may be closed meanwhile.
    if (status.code() == trSystemError && attempts > kRefusals) return again();
    if (status.code() == trSystemError) self->fail_at_own_limit(status);
    // Where no address ever answered otherwise, further attempts are of no use; but a firewall may refuse for a moment.
    if (!status.ok() && gone && stream.attempt == 0)
      return attempts > kRefusals ? again() : report({trSystemError, status.message()}, -1);
    if (!status.ok()) return report(status, -1);
    self->await_stream(channel, stream, deadline, report, dropped);
  };
  *slot = Dial::start(agent_, find_candidates(own_, agent_->interfaces(), target, true, interface), id_.job, id_.secret,
                      deadline, std::move(done));
  streams_.insert(*slot);
}

void Job::await_stream(const std::shared_ptr<Channel>& channel, const StreamMessage& stream, Clock::time_point deadline,
                       const StreamReport& report, const std::function<void(const std::string& reason)>& dropped) {
  auto self = shared_from_this();
  // Not while the job ends: finish() has closed it.
  auto end = [self, raw = channel.get()]() -> std::shared_ptr<Channel> {
    auto at = std::find_if(self->opening_.begin(), self->opening_.end(),
                           [&](const Opening& each) { return each.channel.get() == raw; });
    if (at == self->opening_.end()) return nullptr;
    if (at->timer != 0) self->agent_->cancel(at->timer);
    auto ended = std::move(at->channel);
    self->opening_.erase(at);
    return ended;
  };
  Channel::Events events;
  events.frame = [end, report](const std::string& bytes, int fd) {
    if (fd >= 0) close(fd);
    StreamReadyMessage ready;
    FailedMessage failed;
    const auto ended = end();
    if (!ended) return;
    if (decode(bytes, &ready)) return report({}, ended->release());
    const bool said = decode(bytes, &failed);
    ended->close();
    if (said && failed.code == trInvalidUsage) return report({trInvalidUsage, failed.text}, -1);
    report({trRemoteError, said ? failed.text : "it sent something unexpected"}, -1);
  };
  events.closed = [end, dropped](const std::string& reason) {
    if (end()) dropped(reason);
  };
  opening_.push_back({channel, 0});
  if (deadline != Clock::time_point::max())
    opening_.back().timer = agent_->after(deadline - Clock::now(), [end, report] {
      const auto ended = end();
      if (!ended) return;
      ended->close();
      report({trTimeout, "it accepted the connection and did not answer"}, -1);
    });
  channel->set_events(std::move(events));
  channel->send(encode(stream));
}

void Job::take_stream(const std::shared_ptr<Channel>& channel, const std::string& bytes) {
  StreamMessage stream;
  const bool known = decode(bytes, &stream) && !channel->local();
  auto member = members_.find(known ? stream.destination : kNobody);
  if (member == members_.end() || members_left_.count(stream.destination) != 0) {
    channel->send(encode(FailedMessage{trInvalidUsage, "the rank is not there (any more)"}));
    return channel->close_after_sending();
  }
  channel->send(encode(StreamReadyMessage{}));
  if (channel->sending()) return channel->close();  // cannot be: it is the first thing on an empty connection
  const int fd = channel->release();
  member->second->tell([stream, fd](const MemberEvents& events) {
    if (events.on_incoming)
      events.on_incoming(stream.source, {stream.index, stream.attempt}, fd);
    else
      close(fd);
  });
}

}  // namespace treering
