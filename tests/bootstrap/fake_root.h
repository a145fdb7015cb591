// SPDX-License-Identifier: Apache-2.0
// A rendezvous root that proves to know the secret and then does what a test wants.
#pragma once

#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/agent.h"
#include "bootstrap/dial.h"
#include "bootstrap/frames.h"
#include "bootstrap/jobs.h"

namespace treering::testing {

// A rendezvous root on the agent of this process. It answers what it is told to answer and nothing else.
class FakeRoot {
 public:
  explicit FakeRoot(bool attaches) : attaches_(attaches) {
    EXPECT_TRUE(make_unique_id(&id_).ok());
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    place_.process = 0;
    place_.pid = static_cast<uint32_t>(getpid());
    place_.port = id_.port = ntohs(address.sin_port);
    place_.network = id_.root_network = identify_host("").network;
    EXPECT_TRUE(resolve_host("127.0.0.1", "", &place_.addresses).ok());
    pack_addresses(place_.addresses, id_.addresses, sizeof id_.addresses);
    id_.root_pid = place_.pid;
    Agent& agent = Agent::instance();
    EXPECT_TRUE(agent.call([&] { watch_ = agent.watch(listener_, EPOLLIN, [this](uint32_t) { accept_one(); }); }).ok());
  }
  ~FakeRoot() {
    Agent& agent = Agent::instance();
    (void)agent.call([&] {
      agent.unwatch(watch_, listener_);
      for (auto& connection : connections_) connection->close();
      connections_.clear();
    });
    close(listener_);
  }
  const UniqueId& id() const { return id_; }
  const Place& place() const { return place_; }
  const Place& member() const { return member_; }
  // The next connections are given up at once, by a reset or an end, as by a process that has too many.
  void drop_next(uint32_t connections) { drops_ = connections; }
  uint32_t drops_left() const { return drops_; }
  // Instead of the next answers to messages of a kind, the connection ends. Silently: the other side is not told, as
  // where a firewall resets this side alone.
  void break_next(uint32_t answers, Kind kind, bool silently) {
    broken_kind_ = kind;
    breaks_silently_ = silently;
    breaks_ = answers;
  }
  uint32_t breaks_left() const { return breaks_; }
  // The next requests to be a process's parent get no answer.
  void ignore_attaches(uint32_t requests) { ignored_ = requests; }
  uint32_t ignored_left() const { return ignored_; }
  uint32_t hellos_left() const { return ignored_hellos_; }
  // The next messages of these kinds are read, and nothing comes of them.
  void ignore_joins(uint32_t messages) { ignored_joins_ = messages; }
  void ignore_hellos(uint32_t messages) { ignored_hellos_ = messages; }
  // The process table, to the member.
  void send_process_table() {
    EXPECT_TRUE(Agent::instance().call([&] { parent_of_member_->send(encode(process_table_)); }).ok());
  }
  // Streams are answered from now on, but for the next ones, whose connections end instead.
  void answer_streams_but(uint32_t first) {
    dropped_streams_ = first;
    answers_streams_ = true;
  }
  uint32_t dropped_streams_left() const { return dropped_streams_; }
  uint32_t accepted() const { return accepted_; }
  uint32_t streams_asked() const { return streams_asked_; }
  // Rounds of exchanges whose blobs have come from the member.
  uint64_t last_round_heard() const { return last_round_heard_; }
  uint32_t attached() const { return attached_; }
  // The connection to the member ends.
  void drop_member() {
    EXPECT_TRUE(Agent::instance().call([&] { std::exchange(parent_of_member_, nullptr)->close(); }).ok());
  }
  void send(const std::string& bytes) {
    EXPECT_TRUE(Agent::instance().call([&] { parent_of_member_->send(bytes); }).ok());
  }

 private:
  void accept_one() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    ++accepted_;
    if (drops_ > 0) {
      const linger at_once{static_cast<int>(--drops_ % 2), 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      close(fd);
      return;
    }
    auto connection =
        SecureConnection::create(&Agent::instance(), fd, false,
                                 Handshake([this](const JobName&, uint64_t) -> const Secret* { return &id_.secret; }));
    SecureConnection::Events events;
    events.frame = [this, raw = connection.get()](const std::string& bytes, int) {
      if (breaks_ > 0 && kind_of(bytes) == broken_kind_) return break_off(raw);
      answer(raw, bytes);
    };
    connection->start(std::move(events));
    connections_.push_back(std::move(connection));
  }
  void break_off(SecureConnection* connection) {
    --breaks_;
    const int fd = connection->release(), on = 1;
    const linger none{1, 0};
    if (breaks_silently_)  // a socket under repair says nothing when it is closed
      EXPECT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on), 0) << std::strerror(errno);
    else
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
  }
  void answer(SecureConnection* connection, const std::string& bytes) {
    JoinMessage join;
    AttachMessage attach;
    HelloMessage hello;
    IntroductionMessage stream;
    BlobsMessage blobs;
    if (decode(bytes, &blobs)) {
      last_round_heard_ = blobs.round;
    } else if (decode(bytes, &stream)) {
      ++streams_asked_;
      if (!answers_streams_) return;
      if (dropped_streams_ == 0) return connection->send(encode(IntroducedMessage{}));
      --dropped_streams_;
      connection->close();
    } else if (decode(bytes, &join)) {
      if (ignored_joins_ > 0) return void(--ignored_joins_);
      PlacedMessage placed;
      placed.own = join.place;
      placed.own.process = 1;
      placed.own.parent = 0;
      placed.ancestors = {place_};
      member_ = placed.own;
      connection->send(encode(placed));
    } else if (attaches_ && decode(bytes, &attach)) {
      if (ignored_ > 0) return void(--ignored_);
      parent_of_member_ = connection;
      ++attached_;
      connection->send(encode(AttachedMessage{0}));
    } else if (attaches_ && decode(bytes, &hello)) {
      Place other = member_;  // another process, below the member
      other.process = 2;
      other.parent = 1;
      process_table_.segment_bytes = hello.segment_bytes;
      process_table_.places = {place_, member_, other};
      process_table_.process_of_rank = {0, 1, 2};
      if (ignored_hellos_ > 0) return void(--ignored_hellos_);
      connection->send(encode(process_table_));
    }
  }

  const bool attaches_;
  std::atomic<bool> answers_streams_{false}, breaks_silently_{false};
  std::atomic<uint64_t> last_round_heard_{0};
  std::atomic<uint32_t> attached_{0}, drops_{0}, breaks_{0}, ignored_{0}, dropped_streams_{0}, streams_asked_{0},
      accepted_{0}, ignored_joins_{0}, ignored_hellos_{0};
  std::atomic<Kind> broken_kind_{Kind::kJoin};
  int listener_ = -1;
  uint64_t watch_ = 0;
  UniqueId id_;
  Place place_, member_;
  ProcessTableMessage process_table_;
  SecureConnection* parent_of_member_ = nullptr;
  std::vector<std::shared_ptr<SecureConnection>> connections_;
};

// A process that is the member's child, number 2.
class FakeChild {
 public:
  using Frame = std::function<void(const std::string& bytes)>;
  // `round`: the last whose blobs it has. `frame`: on the agent's thread.
  FakeChild(const FakeRoot& root, uint64_t round, Frame frame) : frame_(std::move(frame)) {
    Agent& agent = Agent::instance();
    auto done = [this, round](const Status& status, DialEnd, std::shared_ptr<SecureConnection> connection) {
      if (!status.ok()) return;
      connection_ = std::move(connection);
      SecureConnection::Events events;
      events.frame = [this](const std::string& bytes, int) { frame_(bytes); };
      events.closed = [this](const std::string&) { closed_ = true; };
      connection_->set_events(std::move(events));
      connection_->send(encode(AttachMessage{2, true, round}));
      attached_ = true;
    };
    EXPECT_TRUE(agent
                    .call([&] {
                      dial_ =
                          Dial::start(&agent, find_candidates(root.place(), {}, root.member(), false, 0), root.id().job,
                                      root.id().secret, Clock::now() + std::chrono::seconds(10), std::move(done));
                    })
                    .ok());
  }
  ~FakeChild() {
    EXPECT_TRUE(Agent::instance()
                    .call([&] {
                      if (connection_) connection_->close();
                      connection_.reset(), dial_.reset();
                    })
                    .ok());
  }
  FakeChild(const FakeChild&) = delete;
  FakeChild& operator=(const FakeChild&) = delete;
  void send(const std::string& bytes) {
    EXPECT_TRUE(Agent::instance().call([&] { connection_->send(bytes); }).ok());
  }
  bool has_attached() const { return attached_; }
  bool is_dropped() const { return closed_; }

 private:
  const Frame frame_;
  std::atomic<bool> attached_{false}, closed_{false};
  std::shared_ptr<Dial> dial_;
  std::shared_ptr<SecureConnection> connection_;
};

}  // namespace treering::testing
