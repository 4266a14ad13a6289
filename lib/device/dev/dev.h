/* dev.h - a device: memory, streams, events, and the op table that runs on it.
 *
 * Backends implement `struct vfm_dev_table`: cpu (always built, the reference), cuda (a plugin) and sim (no data; it
 * records and estimates).
 *
 * A stream runs its work in the order in which the host enqueued it.  The host may run ahead of an asynchronous device,
 * so device memory must stay allocated until the stream has passed its last use; freeing is stream-ordered.
 *
 * A device and its streams belong to one host thread; only this thread allocates, frees, enqueues and waits.  Any
 * thread may call event_passed.
 *
 * Memory is allocated and freed in the order of the compute stream.  If another stream uses memory,
 *   - that stream must wait for an event recorded after the allocation
 *   - the compute stream must wait for an event recorded after that use before it frees the memory */
#ifndef VFM_DEVICE_DEV_DEV_H
#define VFM_DEVICE_DEV_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_ops; /* device/ops/ops.h */
struct vfm_dev;
struct vfm_stream;
struct vfm_event;
struct vfm_stalls;
struct vfm_upload;

struct vfm_dev_table {
	const char *name; /* "cpu" */
	const struct vfm_ops *ops;

	/* Returns 64-byte aligned device memory with undefined contents, and a unique address even for 0 bytes.  The
	 * error contains `what` if the memory does not fit.  free is stream-ordered with respect to s. */
	void *(*alloc)(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err);
	void (*free)(struct vfm_stream *s, void *p, size_t bytes);

	/* Returns pinned host memory that the device can address.  Copies from and to it do not block the host, and ops
	 * may use it (slowly).  Any thread may access it.  Call free_host only after all streams have passed its last
	 * use. */
	void *(*alloc_host)(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err);
	void (*free_host)(struct vfm_dev *d, void *p, size_t bytes);

	/* Copies between host and device; either end may be device memory.
	 *
	 * - to_device, on the compute stream: the device stages `host`, so the caller may reuse it after the call.  On
	 *   other streams, and for pinned memory, `host` must stay unchanged until the stream has passed.
	 * - to_host: the data is valid once the stream has passed.  The call does not block the host if `host` is
	 *   pinned. */
	int (*to_device)(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);
	int (*to_host)(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err);
	/* dst: memory of alloc or alloc_host */
	int (*zero)(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err);

	/* async: a stream that overlaps the compute stream, for communication and copies.  On a CPU the compute stream
	 * runs its work immediately; the others accept only host_call, copies and events. */
	struct vfm_stream *(*stream_new)(struct vfm_dev *d, bool async, struct vfm_err *err);
	/* All work on s must be done.  Afterwards no stream may wait for its events, and event_passed returns true for
	 * them.  No-op for NULL. */
	void (*stream_free)(struct vfm_stream *s);
	/* Blocks the host until s has passed; returns the first failure of its work. */
	int (*stream_sync)(struct vfm_stream *s, struct vfm_err *err);
	/* Calls fn(arg) on the host in stream order, or immediately on a synchronous stream.  arg is copied (at most
	 * 256 bytes).  After a failure the stream skips later work, and event_wait and stream_sync return the error. */
	int (*host_call)(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
		struct vfm_err *err);

	struct vfm_event *(*event_new)(struct vfm_dev *d, struct vfm_err *err);
	/* Like event_new; the event also records a time.  It must have passed before it is freed. */
	struct vfm_event *(*event_new_timed)(struct vfm_dev *d, struct vfm_err *err);
	void (*event_free)(struct vfm_event *e);
	int (*event_record)(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);
	/* Makes s wait for all work enqueued before the last record of e; no-op if e was never recorded.  The host
	 * waits only if s is synchronous.  Returns a failure of the stream of e, or makes s fail. */
	int (*event_wait)(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);

	/* Blocks the host until the last record of e has passed; returns a failure of its stream. */
	int (*event_sync)(struct vfm_event *e, struct vfm_err *err);
	/* Returns whether the last record has passed, without waiting; true for a failed stream.  Any thread may call
	 * this while no thread records or frees e. */
	bool (*event_passed)(struct vfm_event *e);
	/* Returns the seconds from a to b in *s; both events must be timed, recorded and passed. */
	int (*event_elapsed)(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err);

	/* Graph capture; optional, both or neither.  Between the two calls, work is captured instead of run: work on
	 * the compute stream s, and on streams that wait for s within the capture and that s then waits for.  graph_end
	 * launches the captured work as one graph on s.  With run = false, or if graph_end fails, the captured work
	 * never runs.  Arguments are captured by value.  Between captures only the executable graph is kept, which
	 * makes the next capture cheap.
	 *
	 * A capture may allocate and free memory.  The following calls fail within a capture:
	 *
	 * - waiting on the host for s
	 * - host_call
	 * - copies from or to pageable memory
	 * - waiting for an outside event that has not passed
	 *
	 * Events recorded within a capture are not valid outside.  After a failed capture the caller enqueues the work
	 * again, eagerly; vfm_dev.graph_first tells it whether only a first use was the cause. */
	int (*graph_begin)(struct vfm_stream *s, struct vfm_err *err);
	int (*graph_end)(struct vfm_stream *s, bool run, struct vfm_err *err);

	/* Frees the copies that ops keep of held tensors (device/ops/tensor.h); optional. */
	void (*drop_copies)(struct vfm_stream *s);
	/* Returns the freed memory that the pool keeps, and workspaces, to the system; optional.  Blocks the host until
	 * the compute stream s has passed its last use.  No-op within a capture. */
	void (*trim)(struct vfm_stream *s);

	/* Returns the seconds of the clock of this device's times; optional.  NULL: the host's clock, vfm_now.  A
	 * simulated device has its own clock, which advances while the host waits for it. */
	double (*now)(struct vfm_dev *d);

	void (*dev_free)(struct vfm_dev *d);
};

/* A setting that is not in use and would save memory, and the estimated bytes. */
struct vfm_dev_saving {
	char how[64];
	int64_t bytes;
	bool more_ranks; /* needs twice as many ranks */
};
/* Called within a failed allocation.  Writes at most n savings in any order and returns their number. */
struct vfm_dev_oom_hints {
	int (*savings)(void *ctx, struct vfm_dev_saving *v, int n); /* NULL: none */
	void *ctx;
	const char *plan; /* the plan of train.recompute=auto that did not fit; NULL: none */
};

/* Collectives that may overlap the work enqueued now on the compute stream: of layers (net/mesh/overlap.h), of weights
 * and of gradients (net/nn/param.h). */
enum { VFM_COMM_LAYERS = 1, VFM_COMM_WEIGHTS = 2, VFM_COMM_GRADS = 4 };

/* Ops on another stream that overlap those of the compute stream, on their own compute units.  The backend sets units
 * and flops_per_byte.  The host does not know when such ops end.  Backends therefore leave their units free for the
 * number of FLOPs that the compute stream runs meanwhile.  The code that enqueues such ops adds to flops or
 * gather_flops, and resets these to 0 when the compute stream waits for the ops. */
struct vfm_dev_side {
	int units;             /* compute units for these ops (vfm_stream.units); 0: the device runs one op at a time */
	double flops_per_byte; /* FLOPs of the compute stream while these ops move a byte; 0: do not count */
	int taken;             /* units of the ops that run */
	double flops;          /* remaining for these ops */
	double gather_flops;   /* remaining for all-gathers that comm_busy does not cover; on comm_units */
};

/* Backends embed these structs as their first member. */
struct vfm_dev {
	const struct vfm_dev_table *t;
	int64_t mem_now, mem_peak; /* allocated bytes */
	int64_t versions;          /* the last result of vfm_dev_version */
	const char *poison;        /* see vfm_dev_poison */
	double wait_s;   /* seconds that the host waited for asynchronous streams; exposed on a synchronous device */
	double behind_s; /* seconds that the host waited for the compute stream of an asynchronous device */
	struct vfm_stalls *stalls; /* measures stalls of the compute stream (stall.h); NULL: not measured */
	bool graph_first;  /* a failed capture contained a first use; a capture works once the use has run eagerly */
	bool async;        /* the host runs ahead, and streams overlap one another */
	bool no_data;      /* memory has no contents, so values need not be written before a step */
	bool host_memory;  /* ops can read ordinary host memory */
	int64_t slow_attn; /* attention calls that fell back from the vendor library to our slower kernels */
	int64_t slow_gemm; /* GEMMs whose product or epilogue the vendor library refused */
	int64_t heuristic_gemm; /* GEMMs whose algorithm the vendor library recommended, without timing */
	int64_t tuned;          /* ops whose implementation was timed or checked at their first use */
	unsigned comm_busy;     /* VFM_COMM_…, set and cleared by the code that starts and awaits the collectives */
	int comm_units; /* compute units that these collectives may occupy and the backend leaves free; 0: none */
	/* identifies the layer that routes tokens to experts; a device without data derives the routing from it */
	uint64_t routing;
	struct vfm_dev_side side;
	struct vfm_dev_oom_hints oom_hints; /* set and cleared by the owner of the memory */
	int64_t mem_compactions;            /* times that the pool waited for the device in order to move free memory */
	int64_t mem_total;                  /* capacity in bytes; 0: unknown */
	double host_rate;                   /* bytes/s (vfm_dev_host_rate); 0: unknown */
	int64_t host_total; /* bytes of host memory for a simulated device; 0: unknown, or a real device */
	/* Set by the owner of a plan: the bytes of mem_total that the pool reserves before it moves free memory
	 * (mapped.h); 0: all. */
	int64_t mem_limit;
	int64_t mem_reserved; /* bytes reserved from the system by the pool; 0: unknown */
	char name[64];        /* "NVIDIA H200", "cpu"; the key of spec/cost/hw.h */
	char descr[128];      /* "2 threads, avx512_bf16" */
};
struct vfm_stream {
	struct vfm_dev *dev;
	int units; /* compute units that adamw may occupy, set after stream_new; 0: all */
	/* runs on a host thread that can address all device memory: accepts host_call, copies, events; no ops */
	bool host_only;
	struct vfm_upload *upload; /* collects vfm_dev_upload (upload.h); NULL: no upload is open */
};

/* Allocate and free device memory and count it.  Only these functions may call t->alloc and t->free. */
void *vfm_dev_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err);
void vfm_dev_free(struct vfm_stream *s, void *p, size_t bytes);
/* As vfm_dev_alloc for a measurement: does not count in mem_peak.  Returns NULL, which is not an error, if the memory
 * does not fit. */
void *vfm_dev_borrow(struct vfm_stream *s, size_t bytes, const char *what);
/* Makes work enqueued on s from now on run after the work that is on `leader` now.  Does not block the host.  No-op if
 * both are the same stream.  *e is NULL at first, then an event that the caller owns (event_free) and passes again.
 * Does not affect earlier waits for it. */
int vfm_stream_follow(struct vfm_stream *s, struct vfm_stream *leader, struct vfm_event **e, struct vfm_err *err);

/* Returns the compute units that other work may occupy while ops enqueued now on the compute stream run. */
static inline int vfm_dev_units_taken(const struct vfm_dev *d)
{
	bool comm = d->comm_busy || d->side.gather_flops > 0;

	return (comm ? d->comm_units : 0) + (d->side.flops > 0 ? d->side.taken : 0);
}
/* Returns whether this work is counted.  After each op on the compute stream, vfm_dev_side_pass subtracts its FLOPs. */
static inline bool vfm_dev_side_counts(const struct vfm_dev *d)
{
	return d->side.flops > 0 || d->side.gather_flops > 0;
}
static inline void vfm_dev_side_pass(struct vfm_dev *d, double flops)
{
	d->side.flops -= flops;
	d->side.gather_flops -= flops;
}

/* Returns the seconds of the device's clock (see now). */
double vfm_dev_now(struct vfm_dev *d);
/* Returns whether times are predicted by a simulated clock; such a device holds no data. */
static inline bool vfm_dev_predicts(const struct vfm_dev *d)
{
	return d->t->now != NULL;
}

/* Returns a number that no tensor on this device has as its version yet (device/ops/tensor.h). */
int64_t vfm_dev_version(struct vfm_dev *d);
/* Frees the copies that ops keep of held tensors.  Call it before such tensors are freed, and do not use their versions
 * again.  No-op on devices without copies. */
void vfm_dev_drop_copies(struct vfm_stream *s);
/* Returns freed memory to the system, so that another device of this process or another process can have it: a pool
 * keeps what vfm_dev_free frees.  The next allocations are slower.  No-op on devices without a pool. */
void vfm_dev_trim(struct vfm_stream *s);

/* Adds device memory that another library allocated (bytes > 0) or freed (bytes < 0) to the counts. */
void vfm_dev_count(struct vfm_dev *d, int64_t bytes);
void vfm_dev_peak_reset(struct vfm_dev *d);

/* Marks the contents of the streams as invalid after an aborted collective.  From now on, stream_sync and event_sync
 * wait and then fail with VFM_EENV and `why`.  Any thread may call this; the first reason stays. */
void vfm_dev_poison(struct vfm_dev *d, const char *why);
int vfm_dev_check(const struct vfm_dev *d, struct vfm_err *err);

/* Returns the bytes/s of the slower copy direction on the compute stream s, rounded down to 2^(k/4) so that most runs
 * on a machine get the same value.  Returns 0 if it is unknown: no memory, or a copy failed.  The first call for a
 * device copies 64 MiB several times.  Ranks that share a link should call it together. */
double vfm_dev_host_rate(struct vfm_stream *s);

#endif
