// SPDX-License-Identifier: Apache-2.0
// TreeConnections: the connections of a process to its neighbours in the tree of a job, and those that it has left
// behind until the other side closes them. It keeps the parent and the children of the ProcessTree in step with them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "bootstrap/job/failure_detector.h"
#include "bootstrap/job/job_context.h"
#include "bootstrap/job/process_tree.h"

namespace treering {

class TreeConnections {
 public:
  struct Events {
    std::function<void(uint32_t from, const std::string& bytes, int fd)> message;  // fd is the callee's to close
    // The connection ended by itself; the process is no neighbour any more.
    std::function<void(uint32_t process, const FailureDetector::Broken& broken)> broken;
  };
  TreeConnections(const JobContext& job, ProcessTree& tree, Events events)
      : job_(job), tree_(tree), events_(std::move(events)) {}

  void add_parent(uint32_t process, std::shared_ptr<SecureConnection> connection);
  void add_child(uint32_t process, std::shared_ptr<SecureConnection> connection);
  // This process has another parent now, or is the top `new_top` itself, or has no parent (kNobody).
  void part_from_parent(uint32_t new_top);
  void part_from(std::shared_ptr<SecureConnection> connection, uint32_t new_top);
  // A connection beside the tree, until the other side closes it.
  void keep_until_closed(std::shared_ptr<SecureConnection> connection, SecureConnection::Events events);
  void end(uint32_t process);
  void close();

  // `fd`: travels along; -1: none.
  void send(uint32_t neighbour, const std::string& bytes, int fd = -1) { connections_.at(neighbour)->send(bytes, fd); }
  void send_to_children(const std::string& bytes);
  void send_to_neighbours(const std::string& bytes, uint32_t but = kNobody);
  // Towards a process, by what is known of the parents of all; never back to `from`.
  void route(uint32_t process, const std::string& bytes, uint32_t from);
  // Once the children's connections have taken everything, or have had the time for it.
  void after_sending(std::function<void()> task);

  bool takes_descriptors(uint32_t neighbour) const { return connections_.at(neighbour)->takes_descriptors(); }
  Clock::time_point heard(uint32_t neighbour) const { return connections_.at(neighbour)->heard(); }
  void forgive_silence(uint32_t neighbour) { connections_.at(neighbour)->forgive_silence(); }
  bool has(uint32_t neighbour) const { return connections_.count(neighbour) != 0; }

 private:
  void listen_to(uint32_t neighbour);
  void on_closed(uint32_t process, const std::string& reason);
  std::shared_ptr<SecureConnection> take(uint32_t process);
  void look_after_sending(Clock::time_point limit, std::function<void()> task);

  const JobContext& job_;
  ProcessTree& tree_;
  const Events events_;
  std::map<uint32_t, std::shared_ptr<SecureConnection>> connections_;
  std::set<std::shared_ptr<SecureConnection>> former_;  // and those of processes that tell of the verdict
};

}  // namespace treering
