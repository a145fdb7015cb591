// SPDX-License-Identifier: Apache-2.0
// What programs hold handles of. Each object is the public struct of verbs.h and what stands behind it.
//
// A send goes through these stages, each drawn to happen now or later:
//
//   Qp::sends (posted) -> peer's Qp::incoming (on the wire; chunks land) -> delivered -> Qp::send_done (acknowledged) -> Cq
//                                                                      '-> peer's Qp::receive_done (with a receive) -> Cq
//
// Invariants: messages come into `incoming` in the order of `sends`, one only when the one before has its receive; they are
// delivered in order, and acknowledged in order. A Message whose sender is gone has a copy of its bytes.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace treering::fake_verbs {

struct Qp;

// A descriptor that is readable exactly while something is queued. Touched with the world's lock alone, but for wait().
class Readable {
 public:
  Readable();
  ~Readable();
  Readable(const Readable&) = delete;
  Readable& operator=(const Readable&) = delete;
  int fd() const { return fd_; }
  void set(bool ready);
  // Without the lock: false where the program made the descriptor non-blocking and nothing is there (EAGAIN), or on a signal.
  bool wait() const;

 private:
  int fd_;
  bool ready_ = false;
};

// What the program has open and mapped of a device: a file in memory, which /proc calls uverbs0 and so on.
class DeviceFile {
 public:
  explicit DeviceFile(const char* name);
  ~DeviceFile();
  DeviceFile(const DeviceFile&) = delete;
  DeviceFile& operator=(const DeviceFile&) = delete;
  int fd() const { return fd_; }
  // A page of it, as a driver maps a queue.
  void* map() const;
  static void unmap(void* page);

 private:
  int fd_;
};

struct Port {
  ibv_port_attr attr;
  std::vector<ibv_gid_entry> gids;  // an entry of zeros is none
};

struct Device : ibv_device {
  int index;
  std::vector<Port> ports;
};

struct Context : verbs_context {
  explicit Context(Device* device) : fake(device), file(device->dev_name) {}
  Device* fake;
  DeviceFile file;
  std::deque<ibv_async_event> events;
  Readable readable;
  int uses = 0;
  int owner = -1;
};

struct Pd : ibv_pd {
  int uses;
};

struct Mr : ibv_mr {
  uint64_t iova;
  unsigned access;
  char mark;  // orders copies before ibv_dereg_mr
};

struct Ah : ibv_ah {
  ibv_ah_attr attr;
};

struct Completion {
  ibv_wc wc;
  bool send;
  bool solicited;
  uint64_t slots;  // what its queue has freed once this has been polled
};

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
  Readable readable;
};

struct Cq : ibv_cq {
  enum class Arm { kNone, kSolicited, kNext };
  std::deque<Completion> entries;
  Arm arm;
  bool overrun;
  int uses;
  uint64_t comp_events, comp_acks, async_events, async_acks;  // given to the program; acknowledged by it
};

struct Receive {
  uint64_t wr_id;
  uint64_t index;
  std::vector<ibv_sge> sges;
};

struct Chunk {
  uint32_t offset, length;
};

struct Send;

struct Message {
  bool write = false, with_imm = false, solicited = false, datagram = false;
  uint32_t length = 0, imm = 0, rkey = 0, from = 0;
  uint64_t remote_addr = 0;
  std::vector<ibv_sge> sges;   // of the sender's memory
  std::vector<uint8_t> owned;  // instead of it: inline data, and where the sender has gone
  bool is_owned = false;
  char owned_mark = 0;        // orders the copy to there before the one from there
  std::vector<Chunk> chunks;  // what has not landed
  bool needs_receive = false;
  std::optional<Receive> receive;
  ibv_grh header = {};
  Qp* sender = nullptr;  // null: gone, or does not care
  Send* send = nullptr;
};

struct Send {
  enum class Stage { kPosted, kOnWire, kDelivered, kFailed };
  ibv_send_wr wr = {};
  uint64_t index = 0;
  uint32_t length = 0;
  bool signaled = false;
  std::vector<ibv_sge> sges;
  std::vector<uint8_t> inlined;
  bool is_inlined = false;
  Stage stage = Stage::kPosted;
  ibv_wc_status status = IBV_WC_SUCCESS;   // of kFailed
  ibv_wc_status planned = IBV_WC_SUCCESS;  // an injected one, once delivered
  bool counted = false;                    // by the injected failures
  ibv_ah_attr to = {};
  Message* message = nullptr;
};

struct Qp : ibv_qp {
  ibv_qp_state now;  // ibv_qp::state is what the program was told
  ibv_qp_cap cap;
  bool all_signaled, held, is_active;
  ibv_qp_attr attr;
  std::deque<Send> sends;
  std::deque<Receive> receives;
  std::deque<std::unique_ptr<Message>> incoming;
  std::deque<Completion> send_done, receive_done;  // not in the completion queue yet
  uint64_t sends_posted, sends_freed, receives_posted, receives_freed;
  std::optional<uint64_t> silent_since, unready_since;  // no answer; no receive
  uint64_t stalled_until;
  uint64_t async_events, async_acks;
  void* queue;                              // mapped
  char post_mark, send_mark, receive_mark;  // order the program's accesses and the copies

  bool receiving() const { return now == IBV_QPS_RTR || now == IBV_QPS_RTS; }
  bool idle() const { return sends.empty() && incoming.empty() && send_done.empty() && receive_done.empty(); }
};

}  // namespace treering::fake_verbs
