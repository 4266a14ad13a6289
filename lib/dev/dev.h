/* dev.h - a device: memory, streams, events, and the op table that runs on it.
 *
 * Three modules fill `struct vfm_dev_table`: cpu (always there, the reference), cuda
 * (a plugin) and sim (counts, computes nothing).  Code above this line never asks
 * which one it has.  Work is put on a stream and runs in the order in which it was
 * put there; the host may run ahead, so device memory must stay alive until the
 * stream has passed its last use (freeing is stream-ordered, too).  A CPU's compute stream
 * runs its work at once; its asynchronous streams have a thread of their own each, on which
 * only host_call, copies and events may be put.
 *
 * A device and its streams belong to one host thread, the one that computes: it alone allocates, frees, puts work on
 * streams and waits (but event_passed).  Memory is allocated and freed in the order of the compute stream: another
 * stream that uses it waits for an event recorded after the allocation, and the compute stream waits for one behind
 * that use before it is freed. Threads start with the first work on a stream, so a process may fork before.
 */
#ifndef VFM_DEV_DEV_H
#define VFM_DEV_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_ops; /* ops/ops.h */
struct vfm_dev;
struct vfm_stream;
struct vfm_event;
struct vfm_stalls;

struct vfm_dev_table {
	const char *name; /* "cpu" */
	const struct vfm_ops *ops;

	/* 64-byte aligned device memory, contents undefined (of 0 bytes, too: an address of
	 * its own); `what` names it when it does not fit.  free: stream-ordered with respect to s. */
	void *(*alloc)(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err);
	void (*free)(struct vfm_stream *s, void *p, size_t bytes);

	/* Host memory that is page-locked and that the device can address, too: copies from and to it do not hold the
	 * host, and ops may work on it (slowly).  Any thread may use it; free_host when nothing on any stream uses it
	 * any more. */
	void *(*alloc_host)(struct vfm_dev *d, size_t bytes, const char *what, struct vfm_err *err);
	void (*free_host)(struct vfm_dev *d, void *p, size_t bytes);

	/* to_device: on the compute stream `host` may be used again when the call returns (the device stages it); on
	 * others, and where it is memory of alloc_host, it must stay until the stream has passed.  to_host: there when
	 * the stream has passed; into memory of alloc_host without holding the host.  Either end may be device memory.
	 */
	int (*to_device)(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err);
	int (*to_host)(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err);
	int (*zero)(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err);

	/* async: beside the compute stream, for communication and copies. */
	struct vfm_stream *(*stream_new)(struct vfm_dev *d, bool async, struct vfm_err *err);
	/* NULL is fine; when all work on it is done.  Nobody may wait for its events afterwards, but event_passed says
	 * that they have */
	void (*stream_free)(struct vfm_stream *s);
	/* the host waits; a failure of work on it comes out here */
	int (*stream_sync)(struct vfm_stream *s, struct vfm_err *err);
	/* fn(arg) on the host when the stream gets there; arg is copied (at most 256 bytes).  At once where streams run
	 * at once.  A failure makes the stream skip what follows and comes out of event_wait and stream_sync. */
	int (*host_call)(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
		struct vfm_err *err);

	struct vfm_event *(*event_new)(struct vfm_dev *d, struct vfm_err *err);
	/* An event that also tells when it passed; else like any other.  It must have passed before it is freed. */
	struct vfm_event *(*event_new_timed)(struct vfm_dev *d, struct vfm_err *err);
	void (*event_free)(struct vfm_event *e);
	int (*event_record)(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);
	/* s waits for what stood before the last record (never recorded: for nothing); the host does not, unless s runs
	 * its work at once.  A failure of the stream that was waited for comes out here, or fails s. */
	int (*event_wait)(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);

	/* The host waits for what stood before the last record; a failure comes out here. */
	int (*event_sync)(struct vfm_event *e, struct vfm_err *err);
	/* Whether that has passed, without waiting (a failed stream counts as passed).  From any thread, while nobody
	 * records or frees it. */
	bool (*event_passed)(struct vfm_event *e);
	/* Seconds from a to b; both timed, recorded and passed. */
	int (*event_elapsed)(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err);

	/* Optional, both or neither (NULL: there are no graphs).  What is put on the compute stream s between the two,
	 * and on streams that come to wait for it there and that it waits for again, does not run but is written down;
	 * graph_end launches it as one, in its place on s.  With `run` false it is dropped, and nothing of it ever
	 * runs; the same where graph_end fails.  Arguments count as they are when they are put there, so nothing of a
	 * graph outlives the two calls but what makes the next one cheap.
	 * Between them memory may be allocated and freed as ever.  What would make the host wait for s, call the host
	 * from s, or copy from or to ordinary memory fails; so does waiting for an event from outside that has not
	 * passed.  Events recorded there mean nothing outside.  After such a failure the work is to be put on s again,
	 * outside.  vfm_dev.graph_first then tells that only the first time was at fault. */
	int (*graph_begin)(struct vfm_stream *s, struct vfm_err *err);
	int (*graph_end)(struct vfm_stream *s, bool run, struct vfm_err *err);

	void (*dev_free)(struct vfm_dev *d);
};

/* What would make room and is not done: as a setting in words, and about how many bytes. */
struct vfm_dev_saving {
	char how[64];
	int64_t bytes;
	bool more_ranks; /* with twice as many */
};
/* Asked when memory has run out, within an allocation: writes at most n, in any order, and says how many. */
struct vfm_dev_advice {
	int (*savings)(void *ctx, struct vfm_dev_saving *v, int n); /* NULL: nobody knows */
	void *ctx;
};

/* Fillings embed these as their first member. */
struct vfm_dev {
	const struct vfm_dev_table *t;
	int64_t mem_now, mem_peak; /* bytes given out by alloc */
	const char *poison;        /* see vfm_dev_poison */
	/* seconds that the host stood waiting for asynchronous streams: exposed where work is done at once (stall.h) */
	double wait_s;
	double behind_s; /* seconds that the host, running ahead, stood waiting for the compute stream */
	/* what measures how long the compute stream stands still (stall.h); NULL: nobody asks */
	struct vfm_stalls *stalls;
	/* set by a failure within a graph: what was done there for the first time works in one once it was done outside
	 */
	bool graph_first;
	bool runs_behind; /* the host runs ahead, and streams run beside one another */
	/* calls of attention that the device's own library had to leave to slower kernels of ours */
	int64_t slow_attn;
	struct vfm_dev_advice advice; /* set and cleared by whoever fills the memory */
	int64_t mem_total;            /* bytes there are; 0: not known */
	int64_t mem_reserved;         /* bytes taken from the system, for use now or later; 0: not known */
	char name[64];                /* "NVIDIA H200", "cpu": by it spec/hw.h knows the peak */
	char descr[128];              /* "2 threads, avx512_bf16, oneDNN 2.6.3" */
};
struct vfm_stream {
	struct vfm_dev *dev;
	/* it is a thread of the host's, which can address all memory of the device: host_call, copies, events, and no
	 * ops */
	bool host_only;
};

/* Thin callers that keep the memory counts; nothing else may call t->alloc and t->free. */
void *vfm_dev_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err);
void vfm_dev_free(struct vfm_stream *s, void *p, size_t bytes);
/* Memory of this device that came from elsewhere, or goes back there: in the counts only. */
void vfm_dev_count(struct vfm_dev *d, int64_t bytes);
void vfm_dev_peak_reset(struct vfm_dev *d);

/* What is on the streams has lost its meaning (a collective was given up): from here on stream_sync and event_sync fail
 * with VFM_EENV and `why` once they have waited.  From any thread; the first one stays. */
void vfm_dev_poison(struct vfm_dev *d, const char *why);
int vfm_dev_check(const struct vfm_dev *d, struct vfm_err *err);

#endif
