/* sim.h - a device that computes no data: it records every launch with its FLOPs and bytes, and estimates its time.
 *
 * Device memory is a range of addresses that no process may read.  The allocator is the pool of a CUDA device
 * (dev/mapped.h) below the capacity of the machine, so memory runs out as it does there.  Large pinned memory is backed
 * by pages only where the host writes.  Ops check their operands and are recorded; copies move no data.  Values that
 * the host reads back are zeros, except for small arrays that it copied to the device itself and the counts of experts,
 * which are those of a balanced routing.  So a program that decides nothing else from device values runs as it does on
 * a GPU.
 *
 * A stream has a clock, and so has the host.  Streams overlap, and share the device as estimate.h says.  A launch
 * begins when its stream and the host are there, and lasts for the gap of its kernels and the time that the rates of
 * the machine give (estimate.h).  An event is the time of its stream. The host's clock advances only when the host
 * waits.  Enqueueing costs no time.  Each clock has three readings, for the low, middle and high rates of the machine.
 *
 * Equal programs make equal records.  A device belongs to one thread.  One rank only: nothing simulates collectives.
 */
#ifndef VFM_SIM_SIM_H
#define VFM_SIM_SIM_H

#include "dev/dev.h"
#include "sim/machine.h"

enum vfm_sim_class {
	VFM_SIM_GEMM,      /* matrix products */
	VFM_SIM_ATTENTION, /* attention, forward and backward */
	VFM_SIM_MEMORY,    /* everything else that runs on the device */
	VFM_SIM_OPTIMIZER, /* norm of the gradient, clipping, update of the weights */
	VFM_SIM_TRANSFER,  /* copies between host and device */
	VFM_SIM_CLASSES
};
const char *vfm_sim_class_name(enum vfm_sim_class c); /* "gemm" */

struct vfm_sim_launch {
	enum vfm_sim_class class;
	const char *op;      /* "gemm"; "zero", "copy", "to_host", "to_device" */
	const char *shape;   /* "[8192,4096] x:bf16 y:bf16": first operand, dtypes of all; equal texts, equal address */
	int stream;          /* 0: the compute stream */
	bool graph;          /* within a captured graph */
	int kernels;         /* that a CUDA device launches for it; 0 for transfers and for ops without rows */
	double flops, bytes; /* as ops.h counts them */
	double begin[VFM_ESTIMATES]; /* seconds on the clock of the stream */
	double work[VFM_ESTIMATES];  /* seconds of its kernels */
	double gap[VFM_ESTIMATES];   /* seconds before its kernels */
};

/* Opens a device.  Copies *m. */
struct vfm_dev *vfm_sim_open(const struct vfm_machine *m, struct vfm_err *err);

/* d is a device of vfm_sim_open.  The launches since the last clear, in the order of the calls; valid until the next
 * call of the device. */
const struct vfm_sim_launch *vfm_sim_launches(const struct vfm_dev *d, size_t *n);
void vfm_sim_clear(struct vfm_dev *d);
/* Returns the time of the host, in seconds since open. */
double vfm_sim_time(const struct vfm_dev *d, enum vfm_estimate e);

#endif
