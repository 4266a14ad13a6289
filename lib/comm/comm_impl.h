/* comm_impl.h - what the files of the host filling share.  Not for callers.
 *
 * A job (one a process) holds what all groups need: who is where, the shared memory of this node, the socket
 * by which others find this rank, the monitor, the recorder.  A group (struct vfm_hcomm) is used by one
 * thread at a time; different groups by different threads at once.
 *
 *   comm_host.c   making, splitting and freeing groups; every call: dispatch, numbers, counts
 *   comm_shm.c    the node's memory, segments of groups, turns, mailboxes
 *   shm_coll.c    collectives of a group on one node
 *   comm_net.c    addresses, connections, messages over sockets
 *   net_coll.c    collectives of a group on several nodes
 *   comm_sum.c    sums
 *   monitor.c     the thread that tells the others what this rank does; what a failure is called
 *   judge.c       who died, hangs or is stopped
 *   recorder.c    the last collectives
 * and, over these groups, those for devices (comm_dev.h): comm_dev.c, comm_transport.c, transport_watch.c,
 * comm_staging.c
 */
#ifndef VFM_COMM_COMM_IMPL_H
#define VFM_COMM_COMM_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "comm/comm_host.h"

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

enum {
	VFM_POLL_MS = 100, /* no wait is longer without a look at the job's state */
	VFM_RECORDS = 256,
	VFM_WHY_MAX = 512,
	VFM_HC_ADDRS = 6,
	VFM_NODE_RANKS = 1024, /* at most, on one node */
};

struct vfm_hcomm;

/* One call, in elements; operands are in host memory.  out and in are as in comm.h but for exchange, where `in` is
 * what goes to `to` and `out` what comes from `from`; the root of a broadcast is `from`. */
struct vfm_coll {
	struct vfm_hcomm *g;
	enum vfm_coll_kind kind;
	enum vfm_dtype dtype;
	const char *in;
	char *out;
	int64_t n_in, n_out;
	const int64_t *send, *recv; /* counts; all_gather and reduce_scatter: send; NULL: equal */
	int to, from;
	struct vfm_counts *counts; /* the copy that send and recv lie in */
	pthread_t caller;
	uint64_t number;
};

/* What the ranks of a group must agree on in a call. */
struct vfm_sig {
	uint64_t number;
	uint32_t kind, dtype;
	uint64_t bytes; /* of all of it; 0 where ranks may differ */
	uint64_t hash;  /* of the counts that all ranks know */
};
struct vfm_sig vfm_coll_sig(const struct vfm_coll *c);

/* Bytes of rank i's share and where it begins. */
size_t vfm_share(const struct vfm_coll *c, const int64_t *count, int i);
size_t vfm_share_at(const struct vfm_coll *c, const int64_t *count, int i);

/* ---- what a group is doing: written by its thread, read by the monitor ---- */
struct vfm_activity {
	struct vfm_activity *next; /* job->activities */
	const char *name;          /* of the group */
	uint64_t id;               /* the same on all ranks */
	atomic_bool busy, waits;
	atomic_int kind, peer; /* peer: world rank that it waits for, -1 */
	_Atomic uint64_t number, bytes;
	_Atomic double since, wait_since; /* vfm_now */
};

/* ---- shared memory of a group ---- */
struct vfm_shm {
	struct shm_head *head; /* NULL: this group spans nodes */
	size_t bytes, slot;    /* of the mapping; of a slot's data */
	uint64_t at;           /* offset in the node's file */
	uint64_t epoch;        /* turns passed */
	int n, me;
};

struct vfm_counts {
	struct vfm_counts *next;
	bool used;
	int64_t v[];
};

struct vfm_hcomm {
	struct vfm_comm c;
	struct vfm_hjob *job;
	struct vfm_hcomm *next; /* job->groups */
	uint64_t id;            /* the same on all ranks */
	int *world;             /* [size] world ranks */
	uint64_t number;        /* of the last collective */
	uint64_t *sent, *got;   /* [size] messages of exchange, for each peer */
	struct vfm_shm shm;
	int *fd;   /* [size] sockets, -1 */
	char *tmp; /* scratch of the collectives */
	size_t tmp_bytes;
	struct vfm_activity act;
	pthread_mutex_t lock; /* counts */
	struct vfm_counts *counts;
};

/* What a rank publishes of itself. */
struct vfm_endpoint {
	uint8_t token[16]; /* rank 0's is the job's */
	uint8_t net[16];   /* of this network namespace and boot: equal = one host */
	char host[32];
	uint16_t port;
	uint8_t n_addr, loopback; /* loopback: has no other address */
	struct {
		uint8_t family, pad[3];
		uint8_t a[16];
	} addr[VFM_HC_ADDRS];
};

struct vfm_record {
	char name[16];
	uint64_t number, bytes;
	int kind, peer;
	double start, end; /* wall time; end 0: not yet */
};

struct vfm_hjob {
	struct vfm_launch *l;
	int rank, size, *node_of;
	struct vfm_endpoint *endpoint; /* [size] */
	double timeout, beat_timeout;
	char *recorder_dir;
	pthread_t main; /* the thread that made it: its waits are exposed */
	int spin;       /* rounds of polling before sleep */
	int yields;     /* then rounds of leaving the processor to others */
	int32_t *pid;   /* [size] of the ranks of this node; NULL: their memory cannot be read */

	int arena_fd; /* the node's memory */
	struct arena_head *arena;
	bool owns_arena; /* first rank of its node: made the arena */

	int listen_unix, listen_tcp, wake;
	pthread_t monitor;
	bool monitor_runs;
	struct vfm_mon *mon;

	pthread_mutex_t lock; /* groups, doing, pending */
	pthread_cond_t came;  /* something was added to pending */
	struct vfm_hcomm *groups;
	struct vfm_activity *activities; /* of groups, and of those for devices */
	struct vfm_pending {
		struct vfm_pending *next;
		uint64_t group;
		int from, fd;
	} * pending; /* connections that nobody has taken yet */

	atomic_bool failed;
	pthread_mutex_t fail_lock;
	char why[VFM_WHY_MAX];

	pthread_mutex_t rec_lock;
	struct vfm_record rec[VFM_RECORDS];
	uint64_t n_rec;
};

/* ---- failure (monitor.c) ---- */
/* 0, or VFM_EENV with the job's sentence. */
int vfm_hjob_check(struct vfm_hjob *j, struct vfm_err *err);
/* Told to all ranks; returns VFM_EENV with the sentence that the job ends with (the first one wins). */
int vfm_hjob_fail(struct vfm_hjob *j, struct vfm_err *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A peer's connection or message is not as it should be: gives the monitor a moment to find the cause. */
int vfm_hjob_lost(struct vfm_hcomm *g, int peer, const char *what, struct vfm_err *err);
/* The two ranks are not in the same call. */
int vfm_hjob_mismatch(
	struct vfm_hcomm *g, int peer, const struct vfm_sig *mine, const struct vfm_sig *theirs, struct vfm_err *err);
void vfm_wait_begin(struct vfm_hcomm *g, int peer); /* rank in the group */
void vfm_wait_end(struct vfm_hcomm *g);
/* Every so often in a wait: the job's state, and whether this rank waited too long though the monitor says nothing. */
int vfm_wait_check(struct vfm_hcomm *g, struct vfm_err *err);

/* The monitor tells what a->name is doing, until it is taken away. */
void vfm_activity_add(struct vfm_hjob *j, struct vfm_activity *a, const char *name, uint64_t id);
void vfm_activity_remove(struct vfm_hjob *j, struct vfm_activity *a);

int vfm_monitor_start(struct vfm_hjob *j, struct vfm_err *err);                /* accepts connections from here on */
int vfm_monitor_join(struct vfm_hjob *j, struct vfm_err *err);                 /* connects to rank 0's */
void vfm_monitor_stop(struct vfm_hjob *j);                                     /* says good-bye first */
const char *vfm_rank_str(struct vfm_hjob *j, int rank, char *buf, size_t len); /* "rank 3 (node2)" */

/* ---- recorder.c ---- */
/* peer: world rank, -1 */
uint64_t vfm_record_begin(struct vfm_hjob *j, const char name[16], int kind, uint64_t number, uint64_t bytes, int peer);
void vfm_record_end(struct vfm_hjob *j, uint64_t which);
void vfm_record_dump(struct vfm_hjob *j, const char *why);

/* ---- comm_shm.c ---- */
int vfm_arena_make(struct vfm_hjob *j, struct vfm_err *err);        /* the node's first rank */
int vfm_arena_map(struct vfm_hjob *j, int fd, struct vfm_err *err); /* takes fd */
void vfm_arena_close(struct vfm_hjob *j);
uint64_t vfm_shm_first(void);                        /* the offset of the first segment of a node */
uint64_t vfm_shm_reserve(struct vfm_hjob *j, int n); /* an offset for a new segment of n ranks */
int vfm_shm_map(struct vfm_hcomm *g, uint64_t at, struct vfm_err *err);
void vfm_shm_unmap(struct vfm_hcomm *g);

/* A turn: write to your slot, pass, read the others' slots.  Slots stay as they are until the next turn but one begins.
 */
struct shm_meta {
	struct vfm_sig sig;
	uint64_t addr; /* of an operand in its owner */
	int32_t pid, pad;
	uint64_t max;
	uint64_t table[]; /* [n] all_to_all: bytes for each rank */
};
struct shm_meta *vfm_slot_meta(struct vfm_shm *s, uint64_t epoch, int rank);
char *vfm_slot(struct vfm_shm *s, uint64_t epoch, int rank);
int vfm_shm_barrier(struct vfm_hcomm *g, struct vfm_err *err);
int vfm_shm_exchange(const struct vfm_coll *c, struct vfm_err *err);
int vfm_shm_coll(const struct vfm_coll *c, struct vfm_err *err);

/* ---- comm_net.c ---- */
enum vfm_hello_kind { VFM_HELLO_ARENA = 1, VFM_HELLO_MONITOR, VFM_HELLO_DATA };
struct vfm_hello {
	uint32_t magic, kind;
	uint8_t token[16];
	int32_t from, to;
	uint64_t group;
};
enum { VFM_HELLO_MAGIC = 0x76666d31 };

int vfm_net_open(struct vfm_hjob *j, struct vfm_endpoint *self, struct vfm_err *err); /* listens; fills self */
int vfm_net_check(struct vfm_hjob *j, struct vfm_err *err);                           /* once all cards are there */
void vfm_net_close(struct vfm_hjob *j);
/* A connection to world rank `to` that said hello and was answered; tries until the job's time is up. */
int vfm_net_connect(struct vfm_hjob *j, int to, enum vfm_hello_kind kind, uint64_t group, int *fd, struct vfm_err *err);
int vfm_net_recv_fd(int sock, int *fd);
int vfm_net_send_fd(int sock, int fd);

struct vfm_msg {
	struct vfm_sig sig;
	uint64_t bytes;
};
/* Sends and receives at the same time; to or from -1: not.  Both ends give the same sizes. */
int vfm_net_exchange(struct vfm_hcomm *g, const struct vfm_sig *sig_out, int to, const void *out, size_t n_out,
	const struct vfm_sig *sig_in, int from, void *in, size_t n_in, struct vfm_err *err);
int vfm_net_coll(const struct vfm_coll *c, struct vfm_err *err);

static inline size_t vfm_min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* ---- comm_sum.c: out[n] = in[0] + in[1] + ..., in that order; bf16 in f32.  out may be one of in. ---- */
void vfm_comm_sum(enum vfm_dtype dt, void *out, const void *const *in, int n_in, size_t n);

/* ---- comm.c ---- */
void vfm_comm_count(int64_t bytes, double busy_s, double wait_s);

/* NULL: c is not of the host filling. */
struct vfm_hcomm *vfm_hcomm_of(struct vfm_comm *c);
/* Elements that this rank has to send, whatever the algorithm; own: of its own share. */
int64_t vfm_coll_sends(enum vfm_coll_kind kind, int size, int64_t n_in, int64_t n_out, int64_t own, bool sender);

/* At least `bytes` of scratch; NULL: err is set. */
char *vfm_hc_tmp(struct vfm_hcomm *g, size_t bytes, struct vfm_err *err);

#endif
