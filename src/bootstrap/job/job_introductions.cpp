// SPDX-License-Identifier: Apache-2.0
// Questions to other ranks, and introductions: through the tree, or on a connection of their own.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "bootstrap/job/job.h"

namespace treering {
namespace {

constexpr uint32_t kDialAttempts = 8;
constexpr uint32_t kRefusals = 3;  // attempts that are left when a refusal counts: some 0.6 s after the first
constexpr auto kDialPause = std::chrono::milliseconds(20);  // twice as long each time
// How long one attempt takes. If nothing answers, the kernel asks again after 1 s, 3 s, 7 s ..., and the link by
// another attempt.
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
  const auto member = members_.find(answer.asking_rank);
  if (member == members_.end()) return;
  std::vector<uint32_t> due;
  member->second->change([&] {
    const Clock::time_point now = Clock::now();
    member->second->statuses[answer.rank] = {answer.bytes, now};
    auto& questions = member->second->questions;
    if (!questions) return;
    questions->answered(answer.rank, now);
    while (const auto next = questions->next(now)) due.push_back(*next);
  });
  // Not from within: of a rank of this process the answer comes at once.
  for (const uint32_t next : due)
    agent_->post([self = shared_from_this(), asking = answer.asking_rank, next] { self->ask(asking, next); });
}

void Job::introduce(uint32_t source, uint32_t peer, const Introduction& introduction) {
  auto member = members_.find(source);
  if (member == members_.end() || state_ == State::kRendezvous) return;
  const IntroductionMessage message{source, peer, introduction.bytes};
  if (!introduction.connects) return take_introduction(encode(message), own_.process);
  const std::string whom =
      peer >= tree_.ranks() ? "" : "no connection to " + tree_.describe(tree_.process_of(peer)) + ": ";
  auto report = [member = member->second, whom, peer, bytes = introduction.bytes](const Status& error, int fd) {
    const Status status = error.ok() ? error : Status(error.code(), whom + error.message());
    member->tell([=](const MemberEvents& events) {
      if (events.on_connected)
        events.on_connected(peer, bytes, status, fd);
      else if (fd >= 0)
        close(fd);
    });
  };
  if (peer >= tree_.ranks() || closed_)
    return report({trInvalidArgument, "an introduction to a rank that does not exist"}, -1);
  auto connecting = std::make_shared<Connecting>();
  *connecting = {message, introduction.way, introduction.again, attempt_ends(member->second->request.timeout_ms),
                 report};
  dial(connecting, kDialAttempts);
}

void Job::take_introduction(const std::string& bytes, uint32_t from) {
  IntroductionMessage message;
  if (state_ != State::kRunning || !decode(bytes, &message)) return;
  if (message.source >= tree_.ranks() || message.destination >= tree_.ranks()) return;
  const uint32_t holder = tree_.process_of(message.destination);
  if (holder != own_.process) return route(holder, bytes, from);
  auto member = members_.find(message.destination);
  if (member == members_.end()) return;
  member->second->tell([message](const MemberEvents& events) {
    if (events.on_introduced) events.on_introduced(message.source, message.bytes, -1);
  });
}

// A process that has too many connections at once drops some, before it has heard what they want.
void Job::dial(const std::shared_ptr<const Connecting>& connecting, uint32_t attempts) {
  const Place& target = tree_.place(tree_.process_of(connecting->message.destination));
  auto self = shared_from_this();
  auto slot = std::make_shared<std::shared_ptr<Dial>>();
  const auto again = [=] {
    self->agent_->after(kDialPause * (1 << (kDialAttempts - attempts)), [=] {
      if (self->closed_) return connecting->report({trRemoteError, "this rank has left"}, -1);
      self->dial(connecting, attempts - 1);
    });
  };
  auto dropped = [=](const std::string& reason) {
    if (attempts <= 1 || self->closed_) return connecting->report({trRemoteError, reason}, -1);
    again();
  };
  auto done = [=](const Status& status, bool gone, std::shared_ptr<Channel> channel) {
    self->dials_.erase(*slot);
    // Descriptors may be closed meanwhile.
    if (status.code() == trSystemError && attempts > kRefusals) return again();
    if (status.code() == trSystemError) self->fail_at_own_limit(status);
    // Where no address ever answered otherwise, further attempts are of no use; but a firewall may refuse for a moment.
    if (!status.ok() && gone && !connecting->again)
      return attempts > kRefusals ? again() : connecting->report({trSystemError, status.message()}, -1);
    if (!status.ok()) return connecting->report(status, -1);
    self->await_accept(channel, connecting, dropped);
  };
  *slot = Dial::start(agent_, find_candidates(own_, agent_->interfaces(), target, true, connecting->way), id_.job,
                      id_.secret, connecting->deadline, std::move(done));
  dials_.insert(*slot);
}

void Job::await_accept(const std::shared_ptr<Channel>& channel, const std::shared_ptr<const Connecting>& connecting,
                       const std::function<void(const std::string& reason)>& dropped) {
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
  events.frame = [end, connecting](const std::string& bytes, int fd) {
    if (fd >= 0) close(fd);
    IntroducedMessage ready;
    FailedMessage failed;
    const auto ended = end();
    if (!ended) return;
    if (decode(bytes, &ready)) return connecting->report({}, ended->release());
    const bool said = decode(bytes, &failed);
    ended->close();
    if (said && failed.code == trInvalidUsage) return connecting->report({trInvalidUsage, failed.text}, -1);
    connecting->report({trRemoteError, said ? failed.text : "it sent something unexpected"}, -1);
  };
  events.closed = [end, dropped](const std::string& reason) {
    if (end()) dropped(reason);
  };
  opening_.push_back({channel, 0});
  if (connecting->deadline != Clock::time_point::max())
    opening_.back().timer = agent_->after(connecting->deadline - Clock::now(), [end, connecting] {
      const auto ended = end();
      if (!ended) return;
      ended->close();
      connecting->report({trTimeout, "it accepted the connection and did not answer"}, -1);
    });
  channel->set_events(std::move(events));
  channel->send(encode(connecting->message));
}

void Job::take_connection(const std::shared_ptr<Channel>& channel, const std::string& bytes) {
  IntroductionMessage message;
  const bool known = decode(bytes, &message) && message.source < tree_.ranks() && !channel->local();
  auto member = members_.find(known ? message.destination : kNobody);
  if (member == members_.end() || members_left_.count(message.destination) != 0) {
    channel->send(encode(FailedMessage{trInvalidUsage, "the rank is not there (any more)"}));
    return channel->close_after_sending();
  }
  channel->send(encode(IntroducedMessage{}));
  if (channel->sending()) return channel->close();  // cannot be: it is the first thing on an empty connection
  const int fd = channel->release();
  member->second->tell([message, fd](const MemberEvents& events) {
    if (events.on_introduced)
      events.on_introduced(message.source, message.bytes, fd);
    else
      close(fd);
  });
}

}  // namespace treering
