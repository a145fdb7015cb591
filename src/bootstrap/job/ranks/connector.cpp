// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/ranks/connector.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace treering {

void Connector::connect(const std::shared_ptr<Member>& member, uint32_t peer, const Introduction& introduction) {
  const std::string whom =
      peer >= tree_.ranks() ? "" : "no connection to " + tree_.describe(tree_.process_of(peer)) + ": ";
  auto report = [member, whom, peer, bytes = introduction.bytes](const Status& error, int fd) {
    const Status status = error.ok() ? error : Status(error.code(), whom + error.message());
    member->tell([=](const MemberEvents& events) {
      if (events.on_connected)
        events.on_connected(peer, bytes, status, fd);
      else if (fd >= 0)
        ::close(fd);
    });
  };
  if (peer >= tree_.ranks() || job_.closed)
    return report({trInvalidArgument, "an introduction to a rank that does not exist"}, -1);
  const IntroductionMessage message{member->request.rank, peer, introduction.bytes};
  const ConnectAttempts attempts(introduction.again, member->request.timeout_ms, Clock::now());
  dial(std::make_shared<Connecting>(Connecting{message, introduction.way, attempts, report}));
}

void Connector::dial(const std::shared_ptr<Connecting>& connecting) {
  const Place& target = tree_.place(tree_.process_of(connecting->message.destination));
  auto slot = std::make_shared<std::shared_ptr<Dial>>();
  auto done = [=, this](const Status& status, DialEnd end, const std::shared_ptr<SecureConnection>& connection) {
    dials_.erase(*slot);
    if (status.ok()) return await_accept(connection, connecting);
    end_attempt(connecting, connecting->attempts.not_reached(status, end == DialEnd::kRefused));
  };
  *slot = job_.dial(target, connecting->attempts.deadline(), std::move(done), true, connecting->way);
  dials_.insert(*slot);
}

void Connector::end_attempt(const std::shared_ptr<Connecting>& connecting, const ConnectAttempts::Next& next) {
  if (next.at_own_limit) at_own_limit_(next.failure);
  if (!next.pause) return connecting->report(next.failure, -1);
  job_.after(*next.pause, [this, connecting] {
    if (job_.closed) return connecting->report({trRemoteError, "this rank has left"}, -1);
    dial(connecting);
  });
}

// The end of the job may have closed it meanwhile.
std::shared_ptr<SecureConnection> Connector::end_opening(const SecureConnection* connection) {
  const auto at = std::find_if(opening_.begin(), opening_.end(),
                               [&](const Opening& each) { return each.connection.get() == connection; });
  if (at == opening_.end()) return nullptr;
  job_.agent->cancel(at->timer);
  auto ended = std::move(at->connection);
  opening_.erase(at);
  return ended;
}

void Connector::await_accept(const std::shared_ptr<SecureConnection>& connection,
                             const std::shared_ptr<Connecting>& connecting) {
  SecureConnection::Events events;
  events.frame = [this, held = job_.hold(), raw = connection.get(), connecting](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    IntroducedMessage ready;
    FailedMessage failed;
    const auto ended = end_opening(raw);
    if (!ended) return;
    if (decode(bytes, &ready)) return connecting->report({}, ended->release());
    const bool said = decode(bytes, &failed);
    ended->close();
    if (said && failed.code == trInvalidUsage) return connecting->report({trInvalidUsage, failed.text}, -1);
    connecting->report({trRemoteError, said ? failed.text : "it sent something unexpected"}, -1);
  };
  events.closed = [this, held = job_.hold(), raw = connection.get(), connecting](const std::string& reason) {
    if (!end_opening(raw)) return;
    if (job_.closed) return connecting->report({trRemoteError, reason}, -1);
    end_attempt(connecting, connecting->attempts.dropped(reason));
  };
  const uint64_t timer =
      job_.after(connecting->attempts.deadline() - Clock::now(), [this, raw = connection.get(), connecting] {
        const auto ended = end_opening(raw);
        if (!ended) return;
        ended->close();
        connecting->report({trTimeout, "it accepted the connection and did not answer"}, -1);
      });
  opening_.push_back({connection, timer});
  connection->set_events(std::move(events));
  connection->send(encode(connecting->message));
}

void Connector::accept(const std::shared_ptr<SecureConnection>& connection, const std::string& bytes) const {
  IntroductionMessage message;
  const bool known = decode(bytes, &message) && message.source < tree_.ranks() && !connection->local();
  const auto member = known ? members_.find(message.destination) : nullptr;
  if (!member || members_.has_left(message.destination)) {
    connection->send(encode(FailedMessage{trInvalidUsage, "the rank is not there (any more)"}));
    return connection->close_after_sending();
  }
  connection->send(encode(IntroducedMessage{}));
  if (connection->sending()) return connection->close();  // cannot be: it is the first thing on an empty connection
  const int fd = connection->release();
  member->tell([message, fd](const MemberEvents& events) {
    if (events.on_introduced)
      events.on_introduced(message.source, message.bytes, fd);
    else
      ::close(fd);
  });
}

void Connector::close() {
  for (const auto& dial : std::exchange(dials_, {})) dial->cancel();
  for (const Opening& opening : std::exchange(opening_, {})) {
    job_.agent->cancel(opening.timer);
    opening.connection->close();
  }
}

}  // namespace treering
