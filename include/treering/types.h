// SPDX-License-Identifier: Apache-2.0
/**
 * @file types.h
 * Versions, results, data types, operations, handles and settings. Included by treering.h.
 */
#ifndef TREERING_TYPES_H_
#define TREERING_TYPES_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TR_API __attribute__((visibility("default")))
#else
#define TR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TR_MAJOR 0
#define TR_MINOR 3
#define TR_PATCH 0
/** Version as one number: major * 10000 + minor * 100 + patch. */
#define TR_VERSION_CODE (TR_MAJOR * 10000 + TR_MINOR * 100 + TR_PATCH)

/** Outcome of a call. */
typedef enum {
  trSuccess = 0,
  trDeviceError = 1,     /**< a call of the GPU's driver failed; the message has its name and error */
  trSystemError = 2,     /**< a system call failed; the message has its name and errno */
  trInternalError = 3,   /**< a defect of the library */
  trInvalidArgument = 4, /**< an argument is wrong by itself; the message names it and its value */
  trInvalidUsage = 5,    /**< arguments that do not fit one another, the other ranks, or the state of the object */
  trRemoteError = 6,     /**< another rank died, was aborted or failed; the message names it */
  trInProgress = 7,      /**< the operation has not ended yet (trStreamQuery(), trCommGetAsyncError()) */
  trTimeout = 8,         /**< the communicator's deadline passed; the message names the rank that was waited for */
  trResultForceInt = 0x7fffffff /**< no result: makes every int from 0 a defined value of the type */
} trResult_t;

/** Type of the elements of a buffer. */
typedef enum {
  trInt8 = 0,
  trUint8 = 1,
  trInt32 = 2,
  trUint32 = 3,
  trInt64 = 4,
  trUint64 = 5,
  trFloat16 = 6, /**< IEEE 754 binary16; accumulated in float32 */
  trFloat32 = 7,
  trFloat64 = 8,
  trBfloat16 = 9,    /**< upper half of a float32; accumulated in float32 */
  trFloat8e4m3 = 10, /**< OCP 8-bit float, 4 exponent bits, no infinity (overflow gives NaN); accumulated in float32 */
  trFloat8e5m2 = 11, /**< OCP 8-bit float, 5 exponent bits, with infinities; accumulated in float32 */
  trComplex64 = 12,  /**< two float32: real, imaginary; sum, prod and avg only */
  trComplex128 = 13, /**< two float64 */
  trBool = 14,       /**< one byte, 0 is false, all else true; results are 0 or 1; and, or, xor only */
  trDataTypeForceInt = 0x7fffffff /**< no type: makes every int from 0 a defined value */
} trDataType_t;

/** Which operations a data type takes (::trRedOp_t). */
typedef enum {
  trKindInteger = 0,
  trKindFloat = 1,
  trKindComplex = 2,
  trKindBool = 3,
  trKindForceInt = 0x7fffffff /**< no kind: makes every int from 0 a defined value */
} trDataTypeKind_t;

/** What trGetDataTypeInfo() tells of a data type. Initialise with ::TR_DATA_TYPE_INFO_INITIALIZER. */
typedef struct {
  size_t size;           /**< sizeof(trDataTypeInfo_t) of the caller's header */
  const char* name;      /**< as in messages and in the tools: "int8", "half", "float"; a constant */
  size_t bytes;          /**< of an element */
  trDataTypeKind_t kind; /**< which operations it takes */
  int is_signed;         /**< 1: has negative values */
  int significant_bits;  /**< of integers without the sign; of floats with the hidden bit (trFloat32: 24); of complex
                            numbers those of a part; of trBool 1 */
  trDataType_t part;     /**< of complex numbers the type of the real and the imaginary part; else the type itself */
} trDataTypeInfo_t;

#define TR_DATA_TYPE_INFO_INITIALIZER \
  { sizeof(trDataTypeInfo_t), NULL, 0, trKindForceInt, 0, 0, trDataTypeForceInt }

/** How elements are combined. */
typedef enum {
  trSum = 0, /**< integers wrap */
  trProd = 1,
  trMax = 2,         /**< NaN propagates */
  trMin = 3,         /**< NaN propagates */
  trAvg = 4,         /**< sum divided by the number of ranks; integers truncate toward zero */
  trBitAnd = 5,      /**< integers */
  trBitOr = 6,       /**< integers */
  trBitXor = 7,      /**< integers */
  trLogicalAnd = 8,  /**< integers and trBool: 1 where all operands are not zero, else 0 */
  trLogicalOr = 9,   /**< integers and trBool */
  trLogicalXor = 10, /**< integers and trBool: 1 where an odd number of operands is not zero */
  /* Values from here on are made by trRedOpCreate...(). */
  trRedOpFirstCreated = 64,
  trRedOpForceInt = 0x7fffffff /**< no operation: makes every int from 0 a defined value */
} trRedOp_t;

#define TR_UNIQUE_ID_BYTES 128
/** Where the ranks of a communicator meet, and the secret that they authenticate with. Opaque; copied by
 * value. */
typedef struct {
  char internal[TR_UNIQUE_ID_BYTES];
} trUniqueId;

/** A collective, for trExplain() and trGetSelection(). The v-variants count as the collective that they vary. */
typedef enum {
  trCollAllReduce = 0,
  trCollReduce = 1,
  trCollBroadcast = 2,
  trCollAllGather = 3,
  trCollReduceScatter = 4,
  trCollAllToAll = 5,
  trCollGather = 6,
  trCollScatter = 7,
  trCollBarrier = 8,
  trCollForceInt = 0x7fffffff /**< no collective: makes every int from 0 a defined value */
} trCollective_t;

/** A communicator: one rank's handle. */
typedef struct trComm* trComm_t;
/** An ordered queue of asynchronous operations, driven by the library's progress thread. */
typedef struct trStream* trStream_t;

#define TR_CONFIG_MAGIC 0x74726367u
#define TR_CONFIG_UNDEF_INT INT_MIN
/**
 * Settings of one communicator. Initialise with ::TR_CONFIG_INITIALIZER and set what differs; a field left
 * undefined takes its value from the environment variable named with it, else the default (docs/options.md).
 * Ranks must agree on every field but `name`; a difference is an error at init that names the rank, the
 * setting and both values.
 */
typedef struct {
  size_t size;            /**< sizeof(trConfig_t) of the caller's header */
  uint32_t magic;         /**< ::TR_CONFIG_MAGIC */
  uint32_t version;       /**< ::TR_VERSION_CODE of the caller's header */
  int timeout_ms;         /**< deadline of every wait, 0 = none (TREERING_TIMEOUT, in seconds; default 300 s) */
  int wide_partials;      /**< 1: partial sums of 16-bit floats travel as float32 (TREERING_WIDE_PARTIALS; 0) */
  int channels;           /**< independent pipelines of a collective (TREERING_CHANNELS; 0 = chosen) */
  int staging_bytes;      /**< shared staging memory of each rank (TREERING_STAGING; 0 = chosen) */
  const char* algorithm;  /**< force algorithms: "ring" or "broadcast:chain,ring" (TREERING_ALGO; NULL = chosen) */
  const char* transports; /**< allowed transports, comma separated, `^` in front excludes (TREERING_TRANSPORTS) */
  const char* name;       /**< name of the communicator in messages */
  int deterministic;      /**< 1: results depend on inputs and ranks alone, bit for bit (TREERING_DETERMINISTIC; 0)
                      */
  int fusion_bytes;       /**< calls of a group are fused up to this many bytes (TREERING_FUSION; 0 = not at all) */
  int fusion_alignment;   /**< bytes to which each tensor of a fused call is aligned (TREERING_FUSION_ALIGNMENT)
                         */
  const char*
      wire; /**< float32 allreduces travel as "fp16", "bf16", "fp8-e4m3", "fp8-e5m2" (TREERING_WIRE; NULL = as they are) */
  int link_mbps;     /**< paces each rank's sends to so many Mbit/s, to try out slow links (TREERING_LINK_MBPS) */
  int device;        /**< the rank's GPU, -1 for none: see device.h (TREERING_DEVICE; -1) */
  int device_blocks; /**< multiprocessors of it that an operation may use, 0 = chosen (TREERING_DEVICE_BLOCKS; 0) */
  int device_piece_bytes; /**< GPU buffers go through the host in such pieces (TREERING_DEVICE_PIECE; 4 MiB) */
  const char*
      device_protocol; /**< protocols of kernels: "ll,simple", "^ll128" (TREERING_DEVICE_PROTOCOL; NULL = all) */
} trConfig_t;

#define TR_CONFIG_INITIALIZER                                                                                          \
  {                                                                                                                    \
    sizeof(trConfig_t), TR_CONFIG_MAGIC, TR_VERSION_CODE, TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT,                    \
        TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT, NULL, NULL, NULL, TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT,          \
        TR_CONFIG_UNDEF_INT, NULL, TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT, TR_CONFIG_UNDEF_INT, \
        NULL                                                                                                           \
  }

#ifdef __cplusplus
}
#endif

#endif /* TREERING_TYPES_H_ */
