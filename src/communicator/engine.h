// Engine: runs the operations of streams, in one background thread a process, which sleeps while there are none.
//
//   stream A:  op 1 (comm X)   op 3 (comm Y)         an operation is started when it is the first of its stream and
//   stream B:  op 2 (comm X)                         the first of its communicator; all that are started advance in turn
//
// One mutex guards the queues; it is not held while operations advance.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "communicator/communicator.h"

namespace treering {

class Engine {
 public:
  using StreamId = uint64_t;

  static Engine& instance();

  StreamId create_stream();
  // Invalid ids give an error that says so.
  Status enqueue(StreamId stream, Communicator* communicator, const AllReduceArguments& arguments);
  bool knows(StreamId stream);
  // Waits until the stream is empty. Its first failure since the last call.
  Status synchronize(StreamId stream);
  // trInProgress while the stream has work.
  Status query(StreamId stream);
  Status destroy_stream(StreamId stream);

  // Waits until no stream holds an operation of the communicator.
  void wait_idle(Communicator* communicator);
  // Drops the operations of the communicator; those under way must have been made to fail before.
  void forget(Communicator* communicator);

 private:
  struct Request {
    Communicator* communicator;
    AllReduceArguments arguments;
    StreamId stream;
    bool started = false;
    Backoff backoff;  // its count of polls only: says when to look around
  };
  struct Stream {
    std::deque<std::shared_ptr<Request>> requests;
    Status failure;
  };

  void loop();
  std::vector<std::shared_ptr<Request>> runnable();
  bool step(Request& request, Status* status, bool* moved);
  void retire(const std::shared_ptr<Request>& request, Status status);

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::map<StreamId, Stream> streams_;
  std::map<Communicator*, std::deque<std::shared_ptr<Request>>> communicators_;
  StreamId next_stream_ = 1;
  bool running_ = false;
  Communicator* in_hand_ = nullptr;  // what the thread is advancing outside the mutex
};

}  // namespace treering
