// SPDX-License-Identifier: Apache-2.0
// Engine: runs what streams hold, in one background thread a process, which sleeps while there is nothing.
//
//   stream A:  op 1 (comm X)   wait e     op 3 (comm Y)     an operation is started when it is the first of its stream
//   stream B:  op 2 (comm X)   record e   callback          and the first of its communicator; all that are started
//                                                           advance in turn
//
// A Task is one entry of a stream. Queues are chains of tasks, so a task that exists already (a persistent operation)
// is given to a stream without an allocation. One mutex guards streams, events and queues; it is not held while
// operations advance or callbacks run.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "communicator/communicator.h"

namespace treering {

using StreamId = uint64_t;  // 0: none
using EventId = uint64_t;

// A moment in a stream. Guarded by the engine's mutex.
struct Mark {
  bool complete = false;
};

struct Task {
  enum class Kind : uint8_t { kOperation, kRecord, kWait, kCallback };
  Kind kind = Kind::kOperation;
  bool owned = true;                     // the engine deletes it when it has ended
  const class Engine* engine = nullptr;  // that it was given to last: a forked child's is another one
  bool queued = false;
  bool started = false;
  StreamId stream = 0;
  Communicator* communicator = nullptr;  // kOperation
  Operation operation;
  EventId event = 0;           // kRecord: 0 = of no event
  std::shared_ptr<Mark> mark;  // kRecord, kWait; of a kOperation: until it is complete, passing ones go before it
  bool passes = false;         // a kOperation
  trCallback callback = nullptr;
  void* context = nullptr;
  Backoff backoff;  // its count of polls only: says when to look around
  Task* next_in_stream = nullptr;
  Task* next_on_communicator = nullptr;
};

class Engine {
 public:
  // A forked child has its own, without streams and events: what the parent's hold is the parent's, so a child that was
  // told that they are idle would take what is under way for done.
  static Engine& instance();

  StreamId create_stream();
  // Ok, or why it is no stream of this process.
  Status check_stream(StreamId stream);
  // Gives the task to its stream. Invalid ids give an error that says so.
  Status enqueue(Task* task);
  Status enqueue(StreamId stream, Communicator* communicator, Operation operation);
  // Waits until the stream is empty. Its first failure since the last call.
  Status synchronize(StreamId stream);
  // trInProgress while the stream has work.
  Status query(StreamId stream);
  Status destroy_stream(StreamId stream);
  Status add_callback(StreamId stream, trCallback callback, void* context);
  // Waits until the task is in no stream.
  void wait(const Task& task);
  bool is_queued(const Task& task);

  EventId create_event();
  Status record(EventId event, StreamId stream);
  Status wait_event(StreamId stream, EventId event);
  Status query_event(EventId event);
  Status synchronize_event(EventId event);
  Status event_descriptor(EventId event, int* descriptor);
  Status destroy_event(EventId event);
  // An event whose mark is something outside of streams, until open_gate() ends the wait and the event.
  EventId create_gate();
  // An operation behind the gate in its stream; until that is open, those of enqueue_passing() go before it.
  Status enqueue_passable(StreamId stream, Communicator* communicator, Operation operation, EventId gate);
  Status enqueue_passing(StreamId stream, Communicator* communicator, Operation operation);
  void open_gate(EventId gate);
  // What is given to `later` from now on begins after all that `earlier` holds now.
  Status order(StreamId earlier, StreamId later);

  // Waits until no stream holds an operation of the communicator.
  void wait_idle(Communicator* communicator);
  // Before a communicator ends: drops its operations; those under way must have been made to fail before.
  void forget(Communicator* communicator);

 private:
  struct Stream {
    Task* first = nullptr;
    Task* last = nullptr;
    Status failure;
  };
  // The operations of a communicator, in the order in which they run. It stays until forget(): what is given to a
  // stream again and again allocates nothing.
  struct Queue {
    Task* first = nullptr;
    Task* last = nullptr;
  };
  struct Event {
    std::shared_ptr<Mark> last;  // nullptr: never recorded
    int descriptor = -1;         // eventfd, made when asked for
    bool complete() const { return last == nullptr || last->complete; }
  };

  Engine() = default;
  static Engine* make_first();
  static void begin_fork();
  static void end_fork_in_parent();
  static void end_fork_in_child();
  Status ensure_thread();
  static Status refuse(Communicator* communicator, const Status& reason);  // an operation that it would have
  void loop();
  bool run_marks(std::unique_lock<std::mutex>* lock);
  bool run_callback(std::unique_lock<std::mutex>* lock, Task* task);
  Task* startable(Communicator* communicator);
  bool step(Task* task, Status* status, bool* moved);
  void retire(Task* task, Status status);
  void complete(EventId event, const std::shared_ptr<Mark>& mark);
  Status enqueue_operation(StreamId stream, Communicator* communicator, Operation operation, std::shared_ptr<Mark> gate,
                           bool passes);
  Status enqueue_mark(Task::Kind kind, StreamId stream, EventId event, std::shared_ptr<Mark> mark);
  Status unknown_stream(StreamId stream) const;
  Status unknown_event(EventId event) const;
  Status inherited(const char* what, uint64_t id) const;

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::map<StreamId, Stream> streams_;
  std::map<EventId, Event> events_;
  std::unordered_map<const Communicator*, Queue> queues_;
  std::vector<Communicator*> active_;        // with tasks
  std::vector<Communicator*> batch_;         // those whose turn it is, while the thread advances them
  std::vector<Communicator*> larger_batch_;  // room for all of them; takes the place of batch_ where that has not
  size_t tasks_ = 0;                         // in all streams
  uint64_t next_id_ = 1;
  std::set<uint64_t> inherited_;  // streams and events of the process that forked this one
  bool has_thread_ = false;
  size_t forgetting_ = 0;            // threads in forget()
  Communicator* in_hand_ = nullptr;  // what the thread is advancing outside the mutex
};

}  // namespace treering
