// Bootstrap: a rank's side of the meeting (root_service.h): authenticate, receive the shared memory, allgather blobs.
#pragma once

#include <vector>

#include "communicator/local_socket.h"
#include "communicator/unique_id.h"

namespace treering {

class Bootstrap {
 public:
  Bootstrap() = default;
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  // Meets the other ranks. *segment receives a memfd of `segment_bytes` that all ranks get, or -1 when the root's
  // process could not make one. timeout_ms 0 = no deadline.
  Status meet(const UniqueId& id, uint32_t rank, uint32_t ranks, int timeout_ms, uint64_t segment_bytes,
              const std::string& settings, int* segment);

  // Gives this rank's blob and receives every rank's, in rank order.
  Status allgather(const std::string& blob, std::vector<std::string>* all);

 private:
  Status receive_frame(uint32_t* kind, std::string* body, int* descriptor);

  int socket_ = -1;
  uint32_t ranks_ = 0;
  Clock::time_point deadline_;
};

}  // namespace treering
