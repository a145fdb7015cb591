// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/tree_connections.h"

#include <algorithm>

namespace treering {
namespace {

constexpr auto kSendingTimeout = std::chrono::seconds(2);

}  // namespace

void TreeConnections::add_parent(uint32_t process, std::shared_ptr<SecureConnection> connection) {
  end(process);  // of a child: its message that it has moved may yet be on its way
  tree_.attach_to(process);
  connections_[process] = std::move(connection);
  listen_to(process);
}

void TreeConnections::add_child(uint32_t process, std::shared_ptr<SecureConnection> connection) {
  end(process);
  tree_.add_child(process);
  connections_[process] = std::move(connection);
  listen_to(process);
}

void TreeConnections::listen_to(uint32_t neighbour) {
  SecureConnection::Events events;
  events.frame = [this, held = job_.hold(), neighbour](const std::string& bytes, int fd) {
    events_.message(neighbour, bytes, fd);
  };
  events.closed = [this, held = job_.hold(), neighbour](const std::string& reason) { on_closed(neighbour, reason); };
  connections_.at(neighbour)->set_events(std::move(events));
}

void TreeConnections::on_closed(uint32_t process, const std::string& reason) {
  const auto link = connections_.find(process);
  if (link == connections_.end() || job_.closed) return;
  const FailureDetector::Broken broken{reason, Clock::now(), link->second->peer_pid(), tree_.is_parent(process),
                                       !SecureConnection::was_closed(reason)};
  end(process);
  events_.broken(process, broken);
}

std::shared_ptr<SecureConnection> TreeConnections::take(uint32_t process) {
  tree_.remove(process);
  return connections_.extract(process).mapped();
}

void TreeConnections::end(uint32_t process) {
  if (connections_.count(process) == 0) return;
  const auto connection = take(process);
  connection->set_events({});
  connection->close();
}

void TreeConnections::part_from_parent(uint32_t new_top) {
  if (tree_.has_parent()) part_from(take(tree_.parent()), new_top);
}

// The other side closes the connection, when it has read why: if this one did, what the other has sent meanwhile would
// reset the connection when the network heals, which looks like a death.
void TreeConnections::part_from(std::shared_ptr<SecureConnection> connection, uint32_t new_top) {
  connection->send(encode(MovingMessage{tree_.own(), new_top}));
  keep_until_closed(std::move(connection), {});
}

void TreeConnections::keep_until_closed(std::shared_ptr<SecureConnection> connection, SecureConnection::Events events) {
  events.closed = [this, held = job_.hold(), raw = connection.get()](const std::string&) {
    std::erase_if(former_, [raw](const auto& former) { return former.get() == raw; });
  };
  connection->set_events(std::move(events));
  former_.insert(std::move(connection));
}

void TreeConnections::close() {
  for (const auto& connection : std::exchange(former_, {})) connection->close();
  if (tree_.has_parent()) send(tree_.parent(), encode(MovingMessage{tree_.own(), kNobody}));
  for (uint32_t neighbour : tree_.neighbours()) {
    const auto connection = take(neighbour);
    connection->set_events({});
    connection->close_after_sending();
  }
}

void TreeConnections::send_to_children(const std::string& bytes) {
  for (uint32_t child : tree_.children()) send(child, bytes);
}

void TreeConnections::send_to_neighbours(const std::string& bytes, uint32_t but) {
  for (uint32_t neighbour : tree_.neighbours())
    if (neighbour != but) send(neighbour, bytes);
}

void TreeConnections::route(uint32_t process, const std::string& bytes, uint32_t from) {
  if (const uint32_t hop = tree_.next_hop(process, from); hop != kNobody) send(hop, bytes);
}

void TreeConnections::after_sending(std::function<void()> task) {
  look_after_sending(Clock::now() + kSendingTimeout, std::move(task));
}

void TreeConnections::look_after_sending(Clock::time_point limit, std::function<void()> task) {
  const bool sending =
      std::any_of(connections_.begin(), connections_.end(), [](const auto& link) { return link.second->sending(); });
  if (!sending || Clock::now() > limit) return task();
  job_.after(std::chrono::milliseconds(1), [this, limit, task = std::move(task)] { look_after_sending(limit, task); });
}

}  // namespace treering
