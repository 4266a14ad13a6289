/* estimate.h - the kernels that a CUDA device launches for an op, and their time at the rates of a machine.
 *
 *	GEMM                      max(tiles in waves + exposed epilogue, bytes)
 *	convolution               the products of its blocks of pixels, and their im2col
 *	attention                 max(FLOPs at the rate of head dim and length, bytes)
 *	other ops                 bytes at the bandwidth of the machine's kernels
 *	each kernel               at least the machine's shortest time
 *	operands in host memory   at least their bytes at the bandwidth of PCIe
 *
 * Two streams may run at a time (struct vfm_sim_room).  An op that is confined to some multiprocessors moves bytes at
 * their bandwidth.  Meanwhile products use the other multiprocessors, attention runs at the same fraction of its rate,
 * and all ops use the rest of the bandwidth.  Gaps in one stream, and units that the other stream leaves idle, bring no
 * gain.
 */
#ifndef VFM_DEVICE_SIM_ESTIMATE_H
#define VFM_DEVICE_SIM_ESTIMATE_H

#include "device/ops/ops.h"
#include "device/sim/sim.h"

struct vfm_sim_cost {
	enum vfm_sim_class class;
	int kernels;
	double flops, bytes; /* from vfm_cost_X */
	double work[VFM_ESTIMATES];
};

enum vfm_sim_class vfm_sim_class_of(enum vfm_op_id op);

/* The part of the device that an op can use. */
struct vfm_sim_room {
	int64_t units;               /* multiprocessors that it is confined to; 0: not confined */
	int64_t taken;               /* multiprocessors that products leave free for other streams */
	bool shared[VFM_ESTIMATES];  /* the other streams are active, on `taken` multiprocessors */
	double moved[VFM_ESTIMATES]; /* bytes per second of device memory that they move meanwhile */
};

/* pcie: bytes of operands in host memory, in the larger direction.  VFM_EUSAGE: the machine lacks the rate. */
int vfm_sim_cost_of(const struct vfm_machine *m, const struct vfm_sim_room *room, enum vfm_op_id op, const void *args,
	double pcie, struct vfm_sim_cost *out, struct vfm_err *err);

/* An op of a CPU, at the measured rates of the nearest sizes (estimate_cpu.c). */
struct vfm_sim_cpu_work {
	char op[24]; /* as in struct vfm_cpu_rate */
	enum vfm_dtype dtype;
	double size[3];
	double work; /* FLOPs or bytes */
};
/* Returns the key of an op in the rates of a CPU, and its work; for attention, that of sample 0. */
struct vfm_sim_cpu_work vfm_sim_cpu_work_of(enum vfm_op_id op, const void *args);
/* Returns 10^9 FLOPs or bytes per second, interpolated between the rates of the op and dtype, or else of the op with
 * any dtype; 0 if there is none. */
double vfm_sim_cpu_rate(const struct vfm_machine *m, const struct vfm_sim_cpu_work *w);
/* Returns the key of a collective of `ranks` ranks.  kind is "all_reduce", "all_gather", "reduce_scatter",
 * "all_to_all", "broadcast", "exchange" (both ranks send) or "send".  bytes, of the whole operand or a message, is
 * raised to at least VFM_SIM_COLL_LEAST. */
enum { VFM_SIM_COLL_LEAST = 64 };
struct vfm_sim_cpu_work vfm_sim_cpu_coll_of(const char *kind, enum vfm_dtype dtype, double bytes, int ranks);
/* Sets *s to the seconds of the collective.  VFM_EUSAGE: the machine has no rates of such collectives. */
int vfm_sim_cpu_coll_s(const struct vfm_machine *m, const struct vfm_sim_cpu_work *w, double *s, struct vfm_err *err);
/* Sets out->work. */
void vfm_sim_cpu_time(const struct vfm_machine *m, enum vfm_op_id op, const void *args, struct vfm_sim_cost *out);

/* A product [m,k] x [k,n]. */
struct vfm_sim_product {
	double m, n, k;
	double bytes;   /* of all operands */
	double results; /* bytes of results: each is written once, and read once if it is added to */
};
double vfm_sim_gemm_s(const struct vfm_machine *m, const struct vfm_sim_room *room, const struct vfm_rate_range *rate,
	const struct vfm_sim_product *p, enum vfm_estimate e);

#endif
