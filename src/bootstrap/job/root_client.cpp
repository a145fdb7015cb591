// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/root_client.h"

#include <sodium.h>
#include <unistd.h>

#include "core/log.h"

namespace treering {

void RootClient::start(Clock::time_point deadline) {
  times_.began = Clock::now();
  search_.emplace(job_.id, job_.own.network, times_.began, deadline);
  find();
}

void RootClient::find() {
  const UniqueId& id = job_.id;
  const std::optional<bool> ended = job_.agent->ended_rendezvous(id.job);
  if (ended && id.root_local != 0)  // that of MASTER_ADDR may be another process's next
    return events_.failed(RootSearch::ended_here(*ended));
  Place root;
  root.pid = id.root_pid;
  root.local = id.root_local;
  root.network = id.root_network;
  root.port = id.port;
  root.addresses = unpack_addresses(id.addresses, sizeof id.addresses);
  dial_ = job_.dial(root, search_->attempt_until(Clock::now()),
                    [this](const Status& status, DialEnd end, std::shared_ptr<SecureConnection> connection) {
                      dial_ = nullptr;
                      if (status.ok()) return join(std::move(connection));
                      if (const auto failure = search_->failed(status, end, Clock::now()))
                        return events_.failed(*failure);
                      if (const std::string news = search_->news(status, Clock::now()); !news.empty())
                        log_line(LogLevel::kWarn, news);
                      find_later(RootSearch::kRetry + std::chrono::milliseconds(randombytes_uniform(100)));
                    });
}

void RootClient::find_later(Clock::duration pause) {
  job_.after(pause, [this] {
    if (!job_.closed && job_.meets()) find();
  });
}

void RootClient::join(std::shared_ptr<SecureConnection> connection) {
  times_.found = Clock::now();
  SecureConnection::Events events;
  events.frame = [this, held = job_.hold()](const std::string& bytes, int fd) {
    if (fd >= 0) ::close(fd);
    answer_timer_.cancel();
    if (auto root = std::exchange(joining_, nullptr)) take_place(std::move(root), bytes);
  };
  const auto come_again = [this] {
    joining_ = nullptr;
    if (job_.own.process != kNobody || job_.closed) return;
    // A moment of too many arrivals; the search knows when to give up.
    find_later(RootSearch::kRetry + std::chrono::milliseconds(randombytes_uniform(100)));
  };
  events.closed = [this, held = job_.hold(), come_again](const std::string&) {
    answer_timer_.cancel();
    come_again();
  };
  // The network by which it came may drop all by now, and another one of the root's may not.
  answer_timer_.set(RootSearch::kAnswerTimeout, [this, come_again] {
    joining_->close();
    come_again();
  });
  connection->set_events(std::move(events));
  JoinMessage join;
  join.host = job_.agent->identity().host;
  join.place = job_.own;
  connection->send(encode(join));
  joining_ = std::move(connection);
}

void RootClient::take_place(std::shared_ptr<SecureConnection> connection, const std::string& bytes) {
  PlacedMessage message;
  FailedMessage failed;
  if (decode(bytes, &failed)) {
    connection->close();
    return events_.failed({static_cast<trResult_t>(failed.code), failed.text});
  }
  if (!decode(bytes, &message) || message.ancestors.empty()) {
    connection->close();
    return events_.failed({trInternalError, "the rendezvous root of the communicator sent something unexpected"});
  }
  times_.placed = Clock::now();
  // The numbers of interfaces do not travel.
  for (Address& address : message.own.addresses)
    for (const Address& mine : job_.agent->interfaces())
      if (mine.same_bytes(address)) address.scope = mine.scope;
  events_.placed(std::move(message), std::move(connection));
}

void RootClient::stop_dialing() {
  if (dial_) std::exchange(dial_, nullptr)->cancel();
}

void RootClient::close() {
  stop_dialing();
  answer_timer_.cancel();
  if (joining_) std::exchange(joining_, nullptr)->close();
}

}  // namespace treering
