// SPDX-License-Identifier: Apache-2.0
/**
 * @file treering.h
 * Treering: collective communication for ranks that are processes or threads.
 *
 * A communicator joins `nranks` ranks. Every rank calls the same collectives in the same order on it. Buffers
 * are memory of the host, or of the rank's GPU (device.h). Every function returns a ::trResult_t; the message behind
 * the last failure of the calling thread (or of a communicator) is had from trGetLastError(). Every wait has a
 * deadline.
 *
 * @code
 * // Made by one rank, handed to the others by any means (file, socket, fork):
 * trUniqueId id;
 * trGetUniqueId(&id);
 * trComm_t comm;
 * trCommInitRank(&comm, nranks, id, rank);
 * trAllReduce(send, recv, count, trFloat32, trSum, comm, NULL);
 * trCommDestroy(comm);
 * @endcode
 */
#ifndef TREERING_TREERING_H_
#define TREERING_TREERING_H_

#include "treering/async.h"
#include "treering/collectives.h"
#include "treering/communicator.h"
#include "treering/device.h"
#include "treering/sparse.h"
#include "treering/types.h"

#endif /* TREERING_TREERING_H_ */
