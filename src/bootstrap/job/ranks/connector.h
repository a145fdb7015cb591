// SPDX-License-Identifier: Apache-2.0
// Connector: introductions that come with a socket. Each is the first message of a connection that it asks for; when
// the other rank has answered, the socket is given away.
//
//   connect()   ConnectAttempts -- Dial --> IntroductionMessage --> IntroducedMessage | FailedMessage --> on_connected
//   accept()                                '--> on_introduced of the rank, if it is here
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/job/job_context.h"
#include "bootstrap/job/process_tree.h"
#include "bootstrap/job/ranks/connect_attempts.h"
#include "bootstrap/job/ranks/members.h"
#include "transport/introduction.h"

namespace treering {

class Connector {
 public:
  // `at_own_limit`: this process can open no connection.
  Connector(const JobContext& job, const ProcessTree& tree, const Members& members,
            std::function<void(const Status&)> at_own_limit)
      : job_(job), tree_(tree), members_(members), at_own_limit_(std::move(at_own_limit)) {}

  // From a rank of this process.
  void connect(const std::shared_ptr<Member>& member, uint32_t peer, const Introduction& introduction);
  // `bytes`: the first message of a connection that has proved itself.
  void accept(const std::shared_ptr<SecureConnection>& connection, const std::string& bytes) const;
  void close();

 private:
  struct Connecting {
    IntroductionMessage message;
    uint32_t way;
    ConnectAttempts attempts;
    std::function<void(const Status& status, int fd)> report;
  };
  struct Opening {
    std::shared_ptr<SecureConnection> connection;
    uint64_t timer;
  };
  void dial(const std::shared_ptr<Connecting>& connecting);
  void end_attempt(const std::shared_ptr<Connecting>& connecting, const ConnectAttempts::Next& next);
  void await_accept(const std::shared_ptr<SecureConnection>& connection, const std::shared_ptr<Connecting>& connecting);
  // nullptr: it has ended already.
  std::shared_ptr<SecureConnection> end_opening(const SecureConnection* connection);

  const JobContext& job_;
  const ProcessTree& tree_;
  const Members& members_;
  const std::function<void(const Status&)> at_own_limit_;
  std::set<std::shared_ptr<Dial>> dials_;
  std::vector<Opening> opening_;  // connections whose rank has not answered yet
};

}  // namespace treering
