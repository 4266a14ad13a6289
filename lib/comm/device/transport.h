/* transport.h - the device transport: a plugin's library (NCCL) as a table of functions, and communicators on it.
 *
 * Collectives enqueue work on a stream of the device.  They return 0, VFM_TRANSPORT_BUSY, or a negative code with err
 * set.  BUSY means that the library still waits for other ranks: enqueue nothing else on that stream until `state`
 * returns 0.  The first collective of a communicator may block the host until the other ranks arrive; `abort` ends it.
 * One thread makes the calls; any thread may call `state` and `abort`.  Counts are equal on all ranks.  Sums are of
 * f32, bf16, f64 or i64; everything else moves bytes.
 */
#ifndef VFM_COMM_DEVICE_TRANSPORT_H
#define VFM_COMM_DEVICE_TRANSPORT_H

#include "comm/coll/comm.h"
#include "spec/model/dtype.h"

enum { VFM_TRANSPORT_ID = 128, VFM_TRANSPORT_DEVICE = 64, VFM_TRANSPORT_BUSY = 1 };
/* Thread blocks of a p2p communicator between pp stages.  Two sends and one receive may wait while collectives and
 * computation run.  All of them must fit on the device at once, one block per multiprocessor. */
enum { VFM_P2P_CTAS = 8 };

struct vfm_transport_comm; /* a communicator of the library */

/* One of several messages that are enqueued together, so that no order among them can deadlock. */
struct vfm_transport_msg {
	void *p;
	size_t bytes;
	int peer;
	bool send;
};

struct vfm_transport {
	const char *name; /* "nccl" */
	/* Writes a name that identifies the device across hosts. */
	int (*device_id)(struct vfm_dev *d, char id[VFM_TRANSPORT_DEVICE], struct vfm_err *err);
	/* Prepares this process to share its device with other ranks.  Call it before unique_id. */
	int (*share)(int rank, struct vfm_err *err);

	/* Writes the id of a new communicator; called in one rank. */
	int (*unique_id)(unsigned char id[VFM_TRANSPORT_ID], struct vfm_err *err);
	/* Collective.  Sets *w at once, even if the result is BUSY or an error; the caller frees it. */
	int (*init)(struct vfm_transport_comm **w, struct vfm_dev *d, const unsigned char id[VFM_TRANSPORT_ID],
		int rank, int size, const char *name, struct vfm_err *err);
	/* Collective over w.  color < 0 leaves *out NULL.  Both communicators may be BUSY afterwards.  p2p: *out
	 * carries messages that overlap computation and should occupy little of the device. */
	int (*split)(struct vfm_transport_comm *w, int color, int key, bool p2p, const char *name,
		struct vfm_transport_comm **out, struct vfm_err *err);

	int (*state)(struct vfm_transport_comm *w, struct vfm_err *err); /* 0, BUSY, or an asynchronous error */
	/* Makes enqueued work of the n communicators finish with undefined results; their later calls fail.  Frees
	 * none.  Pass all communicators in one call, since the abort of one may wait for the work of the others. */
	void (*abort)(struct vfm_transport_comm *const *w, int n);
	/* Collective: starts a normal shutdown; `state` returns 0 once it is complete. */
	int (*finish)(struct vfm_transport_comm *w, struct vfm_err *err);
	void (*free)(struct vfm_transport_comm *w); /* no-op for NULL; aborts w if it is not shut down */

	int (*all_reduce)(struct vfm_transport_comm *w, struct vfm_stream *s, void *x, int64_t n, enum vfm_dtype dt,
		struct vfm_err *err);
	/* `in` may be this rank's block of out */
	int (*all_gather)(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
		size_t bytes_each, struct vfm_err *err);
	/* out may be this rank's block of `in` */
	int (*reduce_scatter)(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
		int64_t n_each, enum vfm_dtype dt, struct vfm_err *err);
	int (*all_to_all)(struct vfm_transport_comm *w, struct vfm_stream *s, const void *in, void *out,
		size_t bytes_each, struct vfm_err *err);
	int (*broadcast)(struct vfm_transport_comm *w, struct vfm_stream *s, void *x, size_t bytes, int root,
		struct vfm_err *err);
	int (*messages)(struct vfm_transport_comm *w, struct vfm_stream *s, const struct vfm_transport_msg *m, int n,
		struct vfm_err *err);

	/* Allocate and free device memory that register_memory accepts; both block.  The device's reports (vfm_oom)
	 * list it as `what`.  NULL: the library has no such memory. */
	int (*mem_alloc)(struct vfm_stream *s, size_t bytes, const char *what, void **p, struct vfm_err *err);
	void (*mem_free)(struct vfm_stream *s, void *p, size_t bytes, const char *what); /* no work may use p */
	/* Registers memory of mem_alloc with w, which may then move it without copies (local).  *handle stays NULL if
	 * the library ignores the registration.  An error leaves w unchanged.  Deregister before mem_free, even after
	 * abort. */
	int (*register_memory)(struct vfm_transport_comm *w, void *p, size_t bytes, void **handle, struct vfm_err *err);
	void (*deregister_memory)(struct vfm_transport_comm *w, void *handle);
};

/* Makes the communicator of the same ranks on w; collective over host.  Arguments and ownership are those of
 * vfm_comm_dev_new (comm_dev.h). */
int vfm_comm_transport_new(struct vfm_comm *host, const struct vfm_transport *w, struct vfm_stream *compute,
	struct vfm_comm **out, struct vfm_err *err);

#endif
