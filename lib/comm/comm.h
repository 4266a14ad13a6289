/* comm.h - a group of ranks and what they do together.
 *
 * Every call here but those marked (local) is *collective*: all ranks of the group make it,
 * in the same order, with operands that go together.  Calls are put on a stream of the device and
 * return at once; the result is there when the stream has passed (on the compute stream
 * of a CPU: when the call returns).  A group is used on one stream at a time.  Without a stream (NULL) operands are
 * host memory and the call blocks, on groups for device memory, too.
 *
 * Sums of bf16 are made in f32.  For a given group the order of a sum is fixed, and all ranks get the same
 * bits.  Tensors are contiguous.  Counts are in elements; NULL counts: equal shares.  A share may be empty.
 *
 * Every wait has a time-out.  When a rank died, hangs, is stopped or does something else than the others, all ranks of
 * the job fail with VFM_EENV and the same sentence: "rank 3 (node2) died (last heard in all_reduce number 811 of 'tp');
 * rank 0 (node0) waits for it in all_reduce number 812 of 'tp' since 4.1 s".  No call on the job's groups works after
 * that.
 *
 * Fillings are tables, as devices are: the group of one; host (shared memory within a node, TCP between
 * nodes, comm_host.h); for the memory of other devices wire (NCCL) and stage (comm_dev.h).
 */
#ifndef VFM_COMM_COMM_H
#define VFM_COMM_COMM_H

#include "dev/dev.h"
#include "ops/tensor.h"

struct vfm_comm;

struct vfm_comm_table {
	const char *name; /* "self", "host", "transport", "staging" */
	int (*all_reduce)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err);
	int (*all_gather)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
		const int64_t *count, struct vfm_err *err);
	int (*reduce_scatter)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
		const int64_t *count, struct vfm_err *err);
	int (*all_to_all)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
		const int64_t *send, const int64_t *recv, struct vfm_err *err);
	int (*broadcast)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err);
	int (*exchange)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
		int from, struct vfm_err *err);
	int (*barrier)(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err);
	int (*split)(
		struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err);
	void (*free)(struct vfm_comm *c);
	/* struct vfm_comm_mem; all NULL where there is nothing to do.  mem_alloc: *p NULL: the device's own will do. */
	int (*mem_alloc)(struct vfm_comm *c, struct vfm_stream *s, size_t bytes, const char *what, void **p,
		struct vfm_err *err);
	void (*mem_free)(struct vfm_comm *c, struct vfm_stream *s, void *p, size_t bytes, const char *what);
	int (*register_memory)(struct vfm_comm *c, void *p, size_t bytes, void **handle, struct vfm_err *err);
	void (*unregister_memory)(struct vfm_comm *c, void *handle);
	const char *(*carrier)(const struct vfm_comm *c); /* what name stands for */
};

/* Fillings embed this as their first member. */
struct vfm_comm {
	const struct vfm_comm_table *t;
	int rank, size;
	char name[16];         /* "world", "tp": for messages */
	bool p2p;              /* what is split from it now are such (vfm_comm_split_p2p) */
	struct vfm_comm *host; /* of a group for device memory (comm_dev.h): its pair for host memory; else NULL */
};

/* The group of the same ranks for host memory (local): c itself where it is one. */
static inline struct vfm_comm *vfm_comm_host(struct vfm_comm *c)
{
	return c->host ? c->host : c;
}

/* The group of this rank alone (local).  Static; vfm_comm_free ignores it. */
struct vfm_comm *vfm_comm_self(void);

/* The ranks of c that gave the same color, in the order of key, then rank; a group of one gives vfm_comm_self().
 * color < 0: takes part in the call, but gets no group (*out = NULL). */
int vfm_comm_split(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err);
/* The same for groups that send messages beside the computing and are not in a hurry: they may take little of the
 * device. */
int vfm_comm_split_p2p(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err);
void vfm_comm_free(struct vfm_comm *c); /* (local) NULL is fine; frees groups before what they were split from */

/* x [n] = sum over the ranks; f32, bf16, f64, i64. */
int vfm_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err);
/* out = the ranks' in, in the order of the ranks; any dtype.  in may lie in its place in out.  count [size]: elements
 * of each rank's share. */
int vfm_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err);
/* out = this rank's share of the sum of in; f32, bf16.  out may lie in its place in in (which is then undefined
 * elsewhere). */
int vfm_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err);
/* in holds a block for each rank, out gets one from each, both in the order of the ranks; any dtype. send, recv [size].
 */
int vfm_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *err);
int vfm_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err);
/* Sends `out` to rank `to` while it receives `in` from rank `from`; -1: leaves that part out.  Only the two ends of
 * a message take part in it.  The sizes of both ends are the same; empty messages are no messages. */
int vfm_exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
	int from, struct vfm_err *err);
int vfm_send(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int to, struct vfm_err *err);
int vfm_recv(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int from, struct vfm_err *err);
int vfm_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err);

/* "host", "staging", or what carries the group ("nccl"): for reports (local). */
const char *vfm_comm_backend(const struct vfm_comm *c);

/* Device memory that lives long and is often an operand: vfm_dev_alloc's, or, where the library that carries c has
 * memory that it moves without copies of its own, of that kind (comm_dev.h).  `= {0}` is none.  The groups must outlive
 * it. */
enum { VFM_COMM_REGISTRATIONS = 8 };
struct vfm_comm_mem {
	void *p; /* 64-byte aligned; NULL: none */
	size_t bytes;
	/* private to comm.c */
	struct vfm_stream *s;
	struct vfm_comm *of; /* whose library's it is; NULL: the device's own */
	const char *what;
	int n_registered;
	struct vfm_comm_registration {
		struct vfm_comm *c;
		void *handle;
	} registered[VFM_COMM_REGISTRATIONS];
};
/* s: the compute stream; what: as for vfm_dev_alloc, and stays valid.  Counted as that is.  (local) */
int vfm_comm_mem_new(struct vfm_comm_mem *m, struct vfm_comm *c, struct vfm_stream *s, size_t bytes, const char *what,
	struct vfm_err *err);
/* Whether it is of the library's kind (local). */
static inline bool vfm_comm_mem_from_transport(const struct vfm_comm_mem *m)
{
	return m->of != NULL;
}
/* From here on calls of c know it.  Its operands in it should lie at the same place on all ranks, but for shares.
 * Collective, blocking; m may be of none, too.  All ranks know it or none does, since NCCL forbids to mix: that it
 * cannot be known is no failure. */
int vfm_comm_mem_register(struct vfm_comm_mem *m, struct vfm_comm *c, struct vfm_err *err);
/* No group knows it any more, and it is freed, in the order of the compute stream (local).  Waits for that stream where
 * it is the library's. */
void vfm_comm_mem_release(struct vfm_comm_mem *m);

/* Bytes of host memory, blocking, any length a rank: *all is malloc'ed, the blobs one after the other, off [size+1]
 * malloc'ed. */
int vfm_comm_gather_bytes(
	struct vfm_comm *c, const void *mine, size_t n, char **all, size_t **off, struct vfm_err *err);

/* Seconds this rank spent waiting for others in blocking calls, and bytes it sent, since the start (local). */
struct vfm_comm_stats {
	double wait_s; /* of the thread of the compute stream: exposed */
	double busy_s; /* of all threads */
	int64_t bytes, calls;
};
struct vfm_comm_stats vfm_comm_stats(void);

#endif
