/* comm.h - communicators: groups of ranks and their collectives.
 *
 * Every call is *collective* unless marked (local): all ranks of the group make it in the same order with matching
 * operands.  A call enqueues its work on a stream and returns; its result is valid once the stream has passed (on the
 * compute stream of a CPU: when the call returns).  With a NULL stream the operands are host memory and the call
 * blocks.  A communicator is used on one stream at a time.
 *
 * Sums of bf16 are accumulated in f32.  A group sums in a fixed order, and all ranks get the same bits.  Tensors are
 * contiguous.  Counts are in elements; NULL counts mean equal blocks.  A block may be empty.
 *
 * Every wait has a time-out.  If a rank dies, hangs, stops or makes another call, every call on the job's communicators
 * fails on all ranks with VFM_EENV and one message.
 */
#ifndef VFM_COMM_COLL_COMM_H
#define VFM_COMM_COLL_COMM_H

#include "device/dev/dev.h"
#include "device/ops/tensor.h"

struct vfm_comm;

enum vfm_coll_kind {
	VFM_C_ALL_REDUCE,
	VFM_C_ALL_GATHER,
	VFM_C_REDUCE_SCATTER,
	VFM_C_ALL_TO_ALL,
	VFM_C_BROADCAST,
	VFM_C_EXCHANGE,
	VFM_C_BARRIER,
	VFM_C_KINDS
};
extern const char *const vfm_coll_name[VFM_C_KINDS];

/* A backend is a table of functions:
 *
 * - "self": one rank
 * - "host" (comm_host.h): host memory
 * - "transport" (NCCL) and "staging" (comm_dev.h): the memory of other devices
 * - "sim" (comm_sim.h): simulated
 *
 * A backend gets each call with checked operands.  Numbers are elements, or bytes (u8) in an exchange.  all_reduce and
 * broadcast have one operand, which is both `in` and `out`. */
struct vfm_coll {
	enum vfm_coll_kind kind;
	enum vfm_dtype dtype;
	char *in, *out; /* [n_in], [n_out] */
	int64_t n_in, n_out;
	const int64_t *send, *recv; /* counts, NULL: equal; all_gather and reduce_scatter use only send */
	int to, from;               /* of an exchange, -1: none; for a broadcast, `from` is the root */
};

/* The color and key of each rank in a split of a communicator. */
struct vfm_comm_place {
	int color, key;
};
struct vfm_comm_places {
	struct vfm_comm_place (*of)(const void *ctx, int rank);
	const void *ctx;
};

struct vfm_comm_split {
	int color, key;
	const char *name;
	/* for messages that overlap computation; occupies little of the device */
	bool p2p;
	const struct vfm_comm_places *places; /* of all ranks; NULL: unknown */
};

struct vfm_comm_table {
	const char *name; /* "self", "host", "transport", "staging", "sim" */
	int (*call)(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *err);
	int (*split)(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err);
	void (*free)(struct vfm_comm *c);
	/* For struct vfm_comm_mem; NULL in backends without registered buffers.  If mem_alloc leaves *p NULL, the
	 * caller allocates from the device. */
	int (*mem_alloc)(struct vfm_comm *c, struct vfm_stream *s, size_t bytes, const char *what, void **p,
		struct vfm_err *err);
	void (*mem_free)(struct vfm_comm *c, struct vfm_stream *s, void *p, size_t bytes, const char *what);
	int (*register_memory)(struct vfm_comm *c, void *p, size_t bytes, void **handle, struct vfm_err *err);
	void (*deregister_memory)(struct vfm_comm *c, void *handle);
	const char *(*transport_name)(const struct vfm_comm *c); /* NULL: no transport */
	/* NULL in "self" and in device communicators; callers ask the host communicator instead. */
	void (*abort)(struct vfm_comm *c, const char *why); /* vfm_comm_abort */
	int (*node)(const struct vfm_comm *c, int rank);    /* the node of a rank; vfm_comm_node */
};

/* Backends embed this as their first member. */
struct vfm_comm {
	const struct vfm_comm_table *t;
	int rank, size;
	char name[16];         /* "world", "tp": for messages */
	struct vfm_comm *host; /* the host communicator of a device communicator (comm_dev.h); else NULL */
};

/* Returns the communicator of the same ranks for host memory: c itself unless c is a device communicator (local). */
static inline struct vfm_comm *vfm_comm_host(struct vfm_comm *c)
{
	return c->host ? c->host : c;
}

/* Returns the communicator of this rank alone (local).  It is static; vfm_comm_free ignores it. */
struct vfm_comm *vfm_comm_self(void);

/* Splits c into one communicator per color, ordered by key, then by rank in c.  A group of one rank gets
 * vfm_comm_self().  A rank with color < 0 takes part in the call and gets *out = NULL.  The caller owns *out. */
int vfm_comm_split(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err);
/* Like vfm_comm_split, with the places of all ranks known to every rank: a simulated rank represents many (comm_sim.h).
 * p2p: a communicator for point-to-point messages that overlap computation; it occupies little of the device. */
int vfm_comm_split_by(struct vfm_comm *c, struct vfm_comm_places p, bool p2p, const char *name, struct vfm_comm **out,
	struct vfm_err *err);
/* Frees c before the communicator that it was split from; no-op for NULL (local). */
void vfm_comm_free(struct vfm_comm *c);

/* Fails the job: the calls of all ranks return "rank R (host) failed: WHY" (local).  No-op for self. */
void vfm_comm_abort(struct vfm_comm *c, const char *why);

/* x [n] = the sum of x over the ranks.  f32, bf16, f64 or i64. */
int vfm_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err);
/* out = the ranks' `in`, concatenated in rank order; any dtype.  `in` may be this rank's block of out.  count [size]:
 * elements of each rank. */
int vfm_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err);
/* out = this rank's block of the sum of `in` over the ranks; f32 or bf16.  out may be this rank's block of `in`; the
 * rest of `in` is then undefined.  count [size]: elements of each block. */
int vfm_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err);
/* `in` holds a block for each rank, and out receives a block from each rank, both in rank order; any dtype.  send, recv
 * [size]: elements of the blocks. */
int vfm_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *err);
/* x of all ranks = x of root; any dtype. */
int vfm_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err);
/* Sends `out` to rank `to` and at the same time receives `in` from rank `from`; -1 omits that side.  Only the two ranks
 * of a message take part.  Both give the same size; an empty message is not sent. */
int vfm_exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
	int from, struct vfm_err *err);
int vfm_send(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int to, struct vfm_err *err);
int vfm_recv(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int from, struct vfm_err *err);
int vfm_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err);

/* Returns "self", "host", "staging" or the name of the transport ("nccl"), for reports (local). */
const char *vfm_comm_backend(const struct vfm_comm *c);

/* A registered buffer: long-lived device memory that is often an operand.  The transport allocates it and moves it
 * without copies once communicators have registered it; without a transport it comes from vfm_dev_alloc.  `= {0}` holds
 * no memory.  Release it before the communicators. */
enum { VFM_COMM_REGISTRATIONS = 8 };
struct vfm_comm_mem {
	void *p; /* 64-byte aligned; NULL: none */
	size_t bytes;
	/* private to comm.c */
	struct vfm_stream *s;
	struct vfm_comm *of; /* whose transport allocated p; NULL: vfm_dev_alloc did */
	const char *what;
	int n_registered;
	struct vfm_comm_registration {
		struct vfm_comm *c;
		void *handle;
	} registered[VFM_COMM_REGISTRATIONS];
};
/* Allocates bytes on the device of the compute stream s (local).  `what` names them in errors and must stay valid, as
 * in vfm_dev_alloc. */
int vfm_comm_mem_new(struct vfm_comm_mem *m, struct vfm_comm *c, struct vfm_stream *s, size_t bytes, const char *what,
	struct vfm_err *err);
/* Returns whether the transport allocated the buffer, so that it can be registered (local). */
static inline bool vfm_comm_mem_from_transport(const struct vfm_comm_mem *m)
{
	return m->of != NULL;
}
/* Registers the buffer with c, so that calls of c may move it without copies; blocks.  Except for blocks, operands
 * should lie at the same offset in the buffer on all ranks.  If one rank cannot register its buffer, no rank does,
 * since NCCL forbids a mixture; the call still succeeds.  m may hold no memory. */
int vfm_comm_mem_register(struct vfm_comm_mem *m, struct vfm_comm *c, struct vfm_err *err);
/* Deregisters and frees the buffer in the order of the compute stream (local).  If the transport allocated it, blocks
 * until that stream has passed. */
void vfm_comm_mem_release(struct vfm_comm_mem *m);

/* Gathers n bytes of host memory from each rank, where n may differ; blocks.  *all holds the bytes in rank order: those
 * of rank r are [off[r], off[r + 1]), off [size + 1].  The caller frees *all and *off. */
int vfm_comm_gather_bytes(
	struct vfm_comm *c, const void *mine, size_t n, char **all, size_t **off, struct vfm_err *err);

/* The cost of this rank's blocking calls since the start of the process. */
struct vfm_comm_stats {
	double wait_s;        /* seconds in calls from the thread of the compute stream: exposed */
	double busy_s;        /* seconds in calls from all threads */
	int64_t bytes, calls; /* sent; made */
};
/* Returns a snapshot (local). */
struct vfm_comm_stats vfm_comm_stats(void);

/* ---- for backends ---- */

/* Returns the bytes that this rank must send for a call, whatever the algorithm. */
int64_t vfm_coll_sends(const struct vfm_comm *c, const struct vfm_coll *k);

/* Adds a call to vfm_comm_stats. */
void vfm_comm_count(int64_t bytes, double busy_s, double wait_s);

#endif
