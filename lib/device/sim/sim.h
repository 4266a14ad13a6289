/* sim.h - a device that computes no data: it records every launch with its FLOPs and bytes, and estimates its time.
 *
 * Device memory is a range of addresses that no process may read.  The pool of a CUDA device (device/dev/mapped.h)
 * allocates it, below the capacity of the machine.  Ops check their operands and are recorded; copies move no data.
 * The host reads back zeros, except from small arrays that it copied to the device itself, and from counts of experts,
 * which are those of a balanced routing or of vfm_sim_set_routing.
 *
 * Each stream has a clock, and so has the host; sim_time.c describes how they advance.  Each clock has three readings,
 * for the low, middle and high rates of the machine.
 *
 * Several ranks are coroutines of a thread (world.h), each with its own device.  Their collectives begin once all have
 * arrived, and take the time that comm/device/comm_sim.h computes.  Equal programs make equal records.  A device
 * belongs to one thread.
 */
#ifndef VFM_DEVICE_SIM_SIM_H
#define VFM_DEVICE_SIM_SIM_H

#include "device/dev/dev.h"
#include "device/sim/machine.h"
#include "device/sim/world.h"

enum vfm_sim_class {
	VFM_SIM_GEMM,      /* matrix products */
	VFM_SIM_ATTENTION, /* attention, forward and backward */
	VFM_SIM_MEMORY,    /* everything else that runs on the device */
	VFM_SIM_OPTIMIZER, /* norm of the gradient, clipping, update of the weights */
	VFM_SIM_TRANSFER,  /* copies between host and device */
	VFM_SIM_COMM,      /* collectives */
	VFM_SIM_CLASSES
};
const char *vfm_sim_class_name(enum vfm_sim_class c); /* "gemm" */

struct vfm_sim_launch {
	uint8_t class;   /* enum vfm_sim_class */
	bool graph;      /* within a captured graph */
	bool uneven;     /* a collective of ranks that do unequal work (comm/device/comm_sim.h) */
	int16_t stream;  /* 0: the compute stream */
	int32_t kernels; /* number that a CUDA device launches; 0 for transfers and for ops without rows */
	const char *op;  /* "gemm"; "zero", "copy", "to_host", "to_device" */
	/* "[8192,4096] x:bf16 y:bf16": first operand, dtypes of all; equal strings have equal addresses */
	const char *shape;
	double flops, bytes;         /* as device/ops/ops.h counts them */
	double begin[VFM_ESTIMATES]; /* seconds on the clock of the stream */
	float work[VFM_ESTIMATES];   /* seconds of its kernels */
	float gap[VFM_ESTIMATES];    /* seconds before its kernels */
	float wait[VFM_ESTIMATES];   /* seconds that a collective waits for the other ranks, after the gap */
};

/* Opens a device.  Copies *m.  w: the ranks of the job, including this one (world.h); NULL: this is the only one. */
struct vfm_dev *vfm_sim_open(const struct vfm_machine *m, struct vfm_sim_world *w, struct vfm_err *err);

/* Sets how unequally tokens choose experts: the exponent of Zipf's law (vfm_sim_route); 0, the default: equally.
 * Experts that choose tokens always have equal work. */
void vfm_sim_set_routing(struct vfm_dev *d, double skew);

/* A meeting of simulated ranks (world.h), where a collective begins. */
struct vfm_sim_invitation {
	uint64_t group, number;
	int n, place;
};
/* Enqueues a collective; *l has op, shape, bytes and work.  It begins once the other ranks have arrived at all n
 * meetings; with n 0, as soon as its stream reaches it. */
void vfm_sim_collective(
	struct vfm_stream *s, const struct vfm_sim_launch *l, const struct vfm_sim_invitation *v, int n);
/* Sets the bytes per second that collectives move over the slowest link of this device while ops overlap them. */
void vfm_sim_link_busy(struct vfm_dev *d, const double rate[VFM_ESTIMATES]);
enum { VFM_SIM_KNOWN_MAX = 4096 }; /* bytes of an array whose contents are known */
/* Records that a collective moved src to dst: known contents of src are then known for dst. */
void vfm_sim_moved(struct vfm_dev *d, void *dst, const void *src, size_t bytes);
/* Copies the known contents of device memory to the host, and zeros for the rest; know makes contents known. */
void vfm_sim_known(const struct vfm_dev *d, void *host, const void *src, size_t bytes);
void vfm_sim_know(struct vfm_dev *d, void *dst, const void *host, size_t bytes);
/* Returns the device's single copy of a string. */
const char *vfm_sim_text(struct vfm_dev *d, const char *text);

/* Device memory for the libraries (libraries.h): scratch, from the pool, is part of mem_peak; outside is not from the
 * pool and includes the machine's context.  pool_peak: maximum bytes of the pool's chunks that were in use, completely
 * or in part. */
struct vfm_sim_held {
	int64_t scratch, outside, pool_peak;
};
struct vfm_sim_held vfm_sim_held(const struct vfm_dev *d);
/* Returns the bytes of pinned host memory that are allocated. */
double vfm_sim_pinned_bytes(const struct vfm_dev *d);
/* Allocates bytes for a library outside the pool.  VFM_EENV: the device has too few. */
int vfm_sim_take_outside(struct vfm_dev *d, int64_t bytes, const char *what, struct vfm_err *err);

/* The description of every simulated device (dev->descr). */
extern const char vfm_sim_descr[];

/* Returns the launches since the last clear, in the order of the calls; valid until the next call of the device.  d is
 * a device of vfm_sim_open. */
const struct vfm_sim_launch *vfm_sim_launches(const struct vfm_dev *d, size_t *n);
/* Ends a step, and waits for its work on all streams.  The time during which other streams overlap a launch is taken
 * from the previous step, since it is known only once a step has passed.  In the first step, a stream overlaps a launch
 * if it is active when the launch begins. */
void vfm_sim_clear(struct vfm_dev *d);
/* Returns the time of the host, in seconds since open. */
void vfm_sim_host_now(const struct vfm_dev *d, double at[VFM_ESTIMATES]);
void vfm_sim_host_until(struct vfm_dev *d, const double at[VFM_ESTIMATES]); /* the host waits until then */
/* Advances the streams as far as the other ranks allow.  Call it before the host waits for these ranks
 * (vfm_sim_world_wait), since they may wait for a collective behind others in a stream of this device. */
void vfm_sim_progress(struct vfm_dev *d);

#endif
