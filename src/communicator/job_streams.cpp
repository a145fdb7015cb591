// Questions to other ranks, and data streams.
#include <unistd.h>

#include "communicator/job.h"

namespace treering {

void Job::ask(uint32_t asking, uint32_t rank) {
  if (state_ != State::kRunning || rank >= roster_.process_of_rank.size()) return;
  take_question(encode(QuestionMessage{rank, own_.process, asking}), own_.process);
}

void Job::take_question(const std::string& bytes, uint32_t from) {
  QuestionMessage question;
  if (state_ != State::kRunning || !decode(bytes, &question) || question.rank >= roster_.process_of_rank.size()) return;
  const uint32_t holder = roster_.process_of_rank[question.rank];
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

void Job::open_stream(uint32_t source, uint32_t peer, uint32_t index) {
  auto member = members_.find(source);
  if (member == members_.end() || state_ == State::kMeeting) return;
  auto report = [member = member->second, peer, index](const Status& status, int fd) {
    member->tell([=](const MemberEvents& events) {
      if (events.on_outgoing)
        events.on_outgoing(peer, index, status, fd);
      else if (fd >= 0)
        close(fd);
    });
  };
  if (peer >= roster_.process_of_rank.size() || closed_)
    return report({trInvalidArgument, "a stream to a rank that does not exist"}, -1);
  const Place& target = roster_.places[roster_.process_of_rank[peer]];
  const std::string whom = "no connection to " + describe(target.process) + ": ";
  const auto timeout = member->second->request.timeout_ms;
  const auto deadline = timeout == 0 ? Clock::time_point::max() : Clock::now() + std::chrono::milliseconds(timeout);
  auto self = shared_from_this();
  auto slot = std::make_shared<std::shared_ptr<Dial>>();
  auto done = [self, slot, report, whom, source, peer, index](const Status& status, bool,
                                                              std::shared_ptr<Channel> channel) {
    self->streams_.erase(*slot);
    if (!status.ok()) return report({status.code(), whom + status.message()}, -1);
    Channel::Events events;
    events.frame = [channel, report, whom](const std::string& bytes, int fd) {
      if (fd >= 0) close(fd);
      StreamReadyMessage ready;
      FailedMessage failed;
      auto kept = channel;  // the events hold it until here
      if (decode(bytes, &ready)) return report({}, kept->release());
      const bool said = decode(bytes, &failed);
      kept->close();
      report({trRemoteError, whom + (said ? failed.text : "it sent something unexpected")}, -1);
    };
    events.closed = [report, whom](const std::string& reason) { report({trRemoteError, whom + reason}, -1); };
    channel->set_events(std::move(events));
    channel->send(encode(StreamMessage{source, peer, index}));
  };
  *slot = Dial::start(agent_, find_candidates(own_, agent_->interfaces(), target, true, index), id_.job, id_.secret,
                      deadline, std::move(done));
  streams_.insert(*slot);
}

void Job::take_stream(const std::shared_ptr<Channel>& channel, const std::string& bytes) {
  StreamMessage stream;
  const bool known = decode(bytes, &stream) && !channel->local();
  auto member = members_.find(known ? stream.destination : kNobody);
  if (member == members_.end() || members_left_.count(stream.destination) != 0) {
    channel->send(encode(FailedMessage{trRemoteError, "the rank is not there (any more)"}));
    return channel->close_after_sending();
  }
  channel->send(encode(StreamReadyMessage{}));
  if (channel->sending()) return channel->close();  // cannot be: it is the first thing on an empty connection
  const int fd = channel->release();
  member->second->tell([stream, fd](const MemberEvents& events) {
    if (events.on_incoming)
      events.on_incoming(stream.source, stream.index, fd);
    else
      close(fd);
  });
}

}  // namespace treering
