// SPDX-License-Identifier: Apache-2.0
// Control of the stand-in for libibverbs.so.1 that lives within one process: its queue pairs are connected with one another.
//
//   program ---- verbs.h ----> libibverbs.so.1 (this) <---- fake_verbs.h ---- test
//
// Invariants:
//  - Rules of verbs are checked as strictly as they are written; hardware is often more lenient. A handle that does not exist
//    ends the process with a message.
//  - What the rules leave open is drawn from the seed: when bytes land, in which order, and when a completion is seen. Bytes
//    have landed before a completion says so, and completions of one queue stay in order. With polling everything completes.
//  - In ThreadSanitizer's eyes only completions, ibv_dereg_mr and ibv_destroy_qp order the copies before what follows.
//  - Time is virtual: a poll is about a microsecond, a turn of the background thread a hundred.
//
// Functions return 0, or an errno: EINVAL for a device, port or queue pair that does not exist, EBUSY while devices are in use.
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// All settings as at the start, and counters at zero. Objects that are alive stay. EBUSY: devices stay, too.
int fake_verbs_reset(void);

// Else TREERING_TEST_SEED, else a new one, which is printed.
void fake_verbs_set_seed(uint64_t seed);
// 0: everything happens at once, within the call. 1 to 3: ever later and more mixed up; 3 also stalls queue pairs. 2 by default.
void fake_verbs_set_disorder(int level);

enum fake_verbs_progress {
  FAKE_VERBS_POLLING,  // work advances when some ibv_poll_cq is called
  FAKE_VERBS_ARMED,    // and by a background thread while a completion queue with a channel is armed (default)
  FAKE_VERBS_THREAD,   // and by a background thread at any time
};
void fake_verbs_set_progress(enum fake_verbs_progress mode);
// As `polls` polls would; 0: until nothing moves by itself. Whether work is left (that waits for receives, ports, time).
int fake_verbs_advance(int polls);
void fake_verbs_advance_clock(uint64_t nanoseconds);

// "fake0" and so on: two with a port each by default. RoCE v2: GID 0 link-local, GID 1 ::ffff:10.98.DEVICE.PORT.
int fake_verbs_set_devices(int count, int ports_of_each);
// Replaces what ibv_query_port says; with link layer InfiniBand, queue pairs are addressed by LID, too.
int fake_verbs_set_port_attr(int device, int port, const struct ibv_port_attr* attr);
// A GID of zeros removes the entry.
int fake_verbs_set_gid(int device, int port, int index, const union ibv_gid* gid, enum ibv_gid_type type);
// What ibv_device::ibdev_path says, for programs that look into sysfs.
int fake_verbs_set_sysfs(int device, const char* ibdev_path);
// Sends PORT_ERR or PORT_ACTIVE. What is sent through a port that is down waits, and then exceeds its retries.
int fake_verbs_set_port_up(int device, int port, int up);

struct fake_verbs_limits {
  uint32_t max_inline;     // 512
  uint32_t max_qp_wr;      // 16384
  uint32_t max_sge;        // 16
  uint32_t max_cqe;        // 1 << 20
  uint32_t max_qp;         // 1 << 16
  uint64_t memlock;        // bytes that may be registered at a time; UINT64_MAX
  uint32_t datagram_loss;  // of 1000 datagrams; 0
};
void fake_verbs_get_limits(struct fake_verbs_limits* limits);
void fake_verbs_set_limits(const struct fake_verbs_limits* limits);
void fake_verbs_set_memlock(uint64_t bytes);

// The nth call from now (1: the next) of a function, such as "ibv_create_qp" or "ibv_post_send", fails with `error`.
// ibv_poll_cq returns its negative.
void fake_verbs_fail_call(const char* function, int nth, int error);

// From the nth call from now on (1: the next) ibv_create_qp, or ibv_reg_mr however it is called, waits until it is released.
void fake_verbs_hold_calls(const char* function, int nth);
void fake_verbs_release_calls(void);
// How many calls wait.
int fake_verbs_held_calls(void);

enum fake_verbs_queue { FAKE_VERBS_SEND_QUEUE, FAKE_VERBS_RECEIVE_QUEUE };
// The nth work request from now of the queue (qp_num 0: of all of them) completes with `status`, and its queue pair is in error
// then. Whether the peer has got what a failed send carried is drawn; at disorder 0 it has not.
void fake_verbs_fail_completion(uint32_t qp_num, enum fake_verbs_queue queue, int nth, enum ibv_wc_status status);
// Into the error state, with IBV_EVENT_QP_FATAL.
int fake_verbs_break_qp(uint32_t qp_num);
// Nothing that this queue pair sends or completes moves until it is released.
int fake_verbs_hold_qp(uint32_t qp_num, int held);
// The lkey or rkey is as if it had never been.
int fake_verbs_invalidate_key(uint32_t key);
// ibv_destroy_qp leaves completions in the completion queue, as software devices do; 0 by default, as hardware's drivers do it.
void fake_verbs_keep_completions(int keep);

// Numbers of the queue pairs that are alive, oldest first. Returns how many there are; fills in `room` at most.
size_t fake_verbs_qp_numbers(uint32_t* numbers, size_t room);

// Devices that this thread opens from here on, and what is made of them, belong to `owner`, such as a rank (-1: none).
void fake_verbs_set_owner(int owner);
struct fake_verbs_qp {
  uint32_t number;
  uint32_t peer;  // the queue pair that it is connected with; 0: none yet
  int owner;
  int is_connected, is_in_error;
};
// The reliable queue pairs that are alive, oldest first, as above.
size_t fake_verbs_qps(struct fake_verbs_qp* qps, size_t room);
// Keys of the owner's regions that peers may write into, as above.
size_t fake_verbs_keys(int owner, uint32_t* keys, size_t room);

struct fake_verbs_counters {
  uint64_t sends_posted[16];  // by enum ibv_wr_opcode
  uint64_t inline_posted;     // of these
  uint64_t receives_posted;
  uint64_t bytes_landed;
  uint64_t bytes_watched;       // of these: in the memory of fake_verbs_watch_memory()
  uint64_t bytes_from_watched;  // ... and from there
  uint64_t completions;         // that were polled
  uint64_t failed_completions;  // of these
  uint64_t post_calls;          // of ibv_post_send
  uint64_t poll_calls;          // of ibv_poll_cq
  uint64_t notify_calls;        // of ibv_req_notify_cq
  uint64_t completion_events;   // that were put into channels
  uint64_t datagrams_dropped;
  uint64_t receives_awaited;    // messages that found no receive (RNR)
  uint64_t regions_registered;  // since the start
  uint64_t bytes_registered;    // now
  uint64_t qps_alive;           // now
  uint64_t nanoseconds;         // of the virtual clock
  uint64_t failed_calls;        // those that were to fail
  int failed_call_owner;        // whose thread made the last of them (fake_verbs_set_owner)
};
void fake_verbs_get_counters(struct fake_verbs_counters* counters);
// Counts what lands there, and what devices read there, from now on; no bytes: nothing is watched.
void fake_verbs_watch_memory(const void* begin, size_t bytes);

struct fake_verbs_objects {
  int lists, contexts, pds, mrs, channels, cqs, qps, ahs;
};
void fake_verbs_get_objects(struct fake_verbs_objects* objects);
// How many objects are alive; their kinds in words in `text`, "" for none.
int fake_verbs_left_over(char* text, size_t room);

#ifdef __cplusplus
}
#endif
