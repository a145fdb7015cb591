// SPDX-License-Identifier: Apache-2.0
// SecureConnection: a connection between two processes: connecting, the handshake (handshake.h), then frames, encrypted and in
// order.
//
//   | length, 4 bytes | ciphertext and tag (ChaCha20-Poly1305; nonce = number of the frame; one key each way) |
//
// A descriptor may travel with a frame between processes of one machine. Never reads more than the frame at hand, so
// that the socket can be released for plain data after any frame. On the agent's thread alone; callbacks may close it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/handshake.h"
#include "core/clock.h"

namespace treering {

class Agent;

class SecureConnection : public std::enable_shared_from_this<SecureConnection> {
 public:
  struct Events {
    std::function<void()> ready;                                  // the other side has proved itself
    std::function<void(const std::string& bytes, int fd)> frame;  // fd (>= 0) is the callee's to close
    std::function<void(const std::string& reason)> closed;        // by the other side, or an error; never by close()
  };

  // Takes the socket, non-blocking, connected or connecting.
  static std::shared_ptr<SecureConnection> create(Agent* agent, int fd, bool local, Handshake handshake);
  ~SecureConnection();
  // Whether `closed` told that the other side gave the connection up without a word.
  static bool was_dropped(const std::string& reason);
  // Whether it told of an end that the other side, or the end of its process, sent in order.
  static bool was_closed(const std::string& reason);
  SecureConnection(const SecureConnection&) = delete;
  SecureConnection& operator=(const SecureConnection&) = delete;

  void start(Events events);
  void set_events(Events events);
  void send(const std::string& bytes, int fd = -1);
  void close();
  // What was sent goes out first, if the other side takes it soon.
  void close_after_sending();
  // Gives the socket away, once all is sent.
  int release();

  const JobName& job() const { return handshake_.job(); }
  bool local() const { return local_; }  // a Unix socket
  // To a process of the same user. A secret that was agreed on may be known to others, who get no memory by it.
  bool takes_descriptors() const { return takes_descriptors_; }
  // The pid of the process at the other end of a Unix socket; 0: it is not of this pid namespace, or the socket is
  // TCP's.
  pid_t peer_pid() const { return peer_pid_; }
  bool open() const { return state_ == State::kOpen; }
  bool sending() const { return !out_.empty(); }
  Clock::time_point heard() const { return heard_; }
  void forgive_silence() { heard_ = Clock::now(); }

 private:
  enum class State { kConnecting, kHandshake, kOpen, kClosed };
  struct Out {
    std::string bytes;
    size_t sent = 0;
    int fd = -1;
  };

  SecureConnection(Agent* agent, int fd, bool local, Handshake handshake);
  void on_events(uint32_t events);
  void flush();
  void receive();
  bool receive_some();  // false: there is no more for now
  void take_message();
  void take_frame();
  void queue(std::string bytes, int fd);
  void fail(const std::string& reason);
  void update_watch();
  void drop_descriptors();

  Agent* agent_;
  int fd_;
  const bool local_, takes_descriptors_;
  const pid_t peer_pid_;
  Handshake handshake_;
  State state_ = State::kConnecting;
  std::shared_ptr<Events> events_;
  uint64_t watch_ = 0;
  bool watching_output_ = false;
  std::string in_;
  size_t wanted_ = 0;
  bool has_length_ = false;
  std::deque<Out> out_;
  std::deque<int> descriptors_;  // received, not yet taken
  uint64_t sent_frames_ = 0, received_frames_ = 0;
  Clock::time_point heard_ = Clock::now();
};

}  // namespace treering
