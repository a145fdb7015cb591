// SPDX-License-Identifier: Apache-2.0
/**
 * @file device.h
 * GPUs: buffers in their memory and CUDA streams. Included by treering.h. A program that calls each function:
 * docs/examples/device.c.
 *
 * A rank whose trConfig_t::device names a GPU may pass memory of that GPU wherever a collective or a send or
 * receive takes a buffer; with host memory in the same call, and with ranks that have no GPU in the same
 * communicator. Where all ranks have GPUs, a collective with a NULL stream uses memory of a GPU on every rank or
 * on none: else the calls differ. With a NULL stream such a call blocks; with a stream of trStreamFromCuda() it
 * returns at once and runs in the order of the CUDA stream. trExchangeStart(), trSparseAllReduce() and double
 * buffering take memory of the host alone.
 *
 * Calls may be captured into a CUDA graph after one call of the same kind and size has run; a graph is not launched
 * after its communicator was destroyed.
 */
#ifndef TREERING_DEVICE_H_
#define TREERING_DEVICE_H_

#include "treering/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** @name GPUs */ /** @{ */

/**
 * Number of GPUs that this process can use; 0 where there is none. ::trDeviceError, and 0, where the CUDA driver shows
 * some that cannot be used: it is too old, or the library has no CUDA support.
 */
TR_API trResult_t trDeviceCount(int* count);
/** The calling thread's current device, as CUDA has it; an error where there is no GPU. */
TR_API trResult_t trDeviceCurrent(int* device);
/**
 * A handle for the CUDA stream `cuda_stream` (a cudaStream_t; NULL: the default stream) of GPU `device`. The same
 * stream gives the same handle. trStreamDestroy() releases the handle, and leaves the CUDA stream to its owner.
 */
TR_API trResult_t trStreamFromCuda(trStream_t* stream, int device, void* cuda_stream);
/** Allocates `size` zeroed bytes on GPU `device` that other processes of this machine can open. */
TR_API trResult_t trDeviceMemAlloc(void** ptr, size_t size, int device);
/** Frees memory of trDeviceMemAlloc(). No operation may be using it. NULL is ignored. */
TR_API trResult_t trDeviceMemFree(void* ptr);
/** Copies between memory of the host and of GPUs, and waits for the end; behind what the stream holds already. */
TR_API trResult_t trDeviceMemCopy(void* to, const void* from, size_t size, trStream_t stream);
/**
 * trRedOpCreatePreMulSum() with a scalar that is read where it lies, by each operation when it begins to run, in the
 * order of its stream; nothing waits for it before. Every launch of a graph reads it anew. `scalar` is in memory of the
 * communicator's GPU, or of the host: on a CUDA stream pinned or managed, because other memory may be read by the
 * call already. From then on until the operation has ended it must stay and not change; so it does not lie in recvbuf.
 * Ranks may differ in where theirs lie; but in calls with a NULL stream on buffers of the host alone it is in memory of
 * a GPU on all ranks of a communicator of GPUs, or on none.
 */
TR_API trResult_t trRedOpCreatePreMulSumDevice(trRedOp_t* op, const void* scalar, trDataType_t datatype, trComm_t comm);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* TREERING_DEVICE_H_ */
