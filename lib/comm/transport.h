/* wire.h - what carries the collectives of a device's memory: a table that a plugin fills (NCCL) and comm_transport.c
 * builds groups on.
 *
 * Calls put work on a stream of the device and return: 0, or VFM_TRANSPORT_BUSY when the library is still at it (it
 * connects): then nothing else may be put on that stream before `state` says 0; negative: err is set.  One thread makes
 * the calls; `state` and `abort` may come from another at any time.  Counts are equal on all ranks; sums are of f32,
 * bf16, f64, i64, all else is bytes.
 */
#ifndef VFM_COMM_WIRE_H
#define VFM_COMM_WIRE_H

#include "dev/dev.h"
#include "spec/dtype.h"

enum { VFM_TRANSPORT_ID = 128, VFM_TRANSPORT_DEVICE = 64, VFM_TRANSPORT_BUSY = 1 };

struct vfm_transport_comm; /* a communicator of the library */

/* One of several messages that are put on the stream together, so that no order of them can block another. */
struct vfm_transport_msg {
	void *p;
	size_t bytes;
	int peer;
	bool send;
};

struct vfm_transport {
	const char *name; /* "nccl" */
	/* A name that no other device in the world has. */
	int (*device_id)(struct vfm_dev *d, char id[VFM_TRANSPORT_DEVICE], struct vfm_err *err);
	/* Several ranks will use one device: arranges this process for it.  Before the first unique_id. */
	int (*share)(int rank, struct vfm_err *err);

	int (*unique_id)(unsigned char id[VFM_TRANSPORT_ID], struct vfm_err *err);
	/* Collective.  *w is there at once, also when BUSY; to be freed when it failed, too. */
	int (*init)(struct vfm_transport_comm **w, struct vfm_dev *d, const unsigned char id[VFM_TRANSPORT_ID],
		int rank, int size, const char *name, struct vfm_err *err);
	/* Collective over w.  color < 0: *out stays NULL.  The state of both is to be asked.  links: for messages that
	 * wait beside the computing; it should take little of the device. */
	int (*split)(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
		struct vfm_transport_comm **out, struct vfm_err *err);

	int (*state)(
		struct vfm_transport_comm *w, struct vfm_err *err); /* 0, BUSY, or what went wrong in the background */
	/* What is on the streams ends, the results undefined; every call of w fails from here on.  Does not free it. */
	void (*abort)(struct vfm_transport_comm *w);
	/* collective: the end in order; then `state` until 0, then free */
	int (*finish)(struct vfm_transport_comm *w, struct vfm_err *err);
	void (*free)(struct vfm_transport_comm *w); /* NULL is fine; aborts what has not finished */

	int (*all_reduce)(struct vfm_transport_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt,
		struct vfm_err *err);
	/* in may lie in its place in out */
	int (*all_gather)(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
		size_t bytes_each, struct vfm_err *err);
	/* out may lie in its place in in */
	int (*reduce_scatter)(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
		int64_t n_each, enum vfm_dtype dt, struct vfm_err *err);
	int (*all_to_all)(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
		size_t bytes_each, struct vfm_err *err);
	int (*broadcast)(struct vfm_transport_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root,
		struct vfm_err *err);
	int (*messages)(struct vfm_transport_comm *w, struct vfm_stream *s, const struct vfm_transport_msg *m, int n,
		struct vfm_err *err);

	/* Device memory of the kind that register_memory takes, counted for the device's reports (vfm_oom) as `what`;
	 * both block.  NULL: there is none. */
	int (*mem_alloc)(struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err);
	void (*mem_free)(struct vfm_stream *s, void *p, size_t bytes, const char *what); /* nothing uses it any more */
	/* That memory will be an operand often, on all ranks of w: the library may move it without a copy.  *handle may
	 * stay NULL (it will not).  A failure leaves w as it was.  Local; unregister before it is freed, also when w
	 * was aborted. */
	int (*register_memory)(struct vfm_transport_comm *w, void *p, size_t bytes, void **handle, struct vfm_err *err);
	void (*unregister_memory)(struct vfm_transport_comm *w, void *handle);
};

#endif
