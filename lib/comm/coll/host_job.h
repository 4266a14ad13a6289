/* host_job.h - the host side of a job, shared by this room and comm/monitor.  Not for callers.
 *
 * Each process has one job (struct vfm_hjob): the placement of the ranks, the shared memory of the node, the socket on
 * which this rank listens, the monitor and the flight recorder.  A communicator (struct vfm_hcomm) is used by one
 * thread at a time; different threads may use different communicators at the same time.
 *
 *   comm_host.c         makes, splits and frees communicators; dispatches every call
 *   comm_shm.c          shared memory of the node, barriers and mailboxes in it
 *   shm_coll.c          collectives of ranks on one node
 *   handshake.c         both ends of a connection prove that they are ranks of this job
 *   comm_net.c          addresses, connections, messages over sockets
 *   net_coll.c          collectives of ranks on several nodes
 *   comm_sum.c          sums
 *   comm_job.c          the state of the job: failure, waits, calls
 *   recorder.c          the flight recorder
 *
 * Device communicators (comm_dev.h) are built on these: comm_dev.c, comm_transport.c, transport_watch.c,
 * comm_staging.c.
 */
#ifndef VFM_COMM_COLL_HOST_JOB_H
#define VFM_COMM_COLL_HOST_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/shared.h"
#include "comm/coll/comm_host.h"
#include "comm/coll/handshake.h"

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
	VFM_POLL_MS = 100, /* every wait checks the job's state this often */
	VFM_RECORDS = 256,
	VFM_WHY_MAX = 512,
	VFM_HC_ADDRS = 6,
	VFM_NODE_RANKS = 1024, /* maximum on one node */
};

struct vfm_hcomm;

/* One call, in elements; operands are in host memory.  in and out are as in comm.h, but for exchange: it sends `in` to
 * `to` and receives `out` from `from`.  `from` is the root of a broadcast. */
struct vfm_coll {
	struct vfm_hcomm *g;
	enum vfm_coll_kind kind;
	enum vfm_dtype dtype;
	const char *in;
	char *out;
	int64_t n_in, n_out;
	const int64_t *send, *recv; /* counts, NULL: equal; all_gather and reduce_scatter use send */
	int to, from;
	struct vfm_counts *counts; /* holds the copies of send and recv */
	pthread_t caller;
	uint64_t number;
};

/* The signature of a call: it must be equal on all ranks of the communicator. */
struct vfm_call_sig {
	uint64_t number;
	uint32_t kind, dtype;
	uint64_t bytes; /* of the whole operand; 0 if ranks may differ */
	uint64_t hash;  /* of the counts that all ranks have */
};
struct vfm_call_sig vfm_coll_sig(const struct vfm_coll *c);

/* Return the bytes of rank i's share, and the offset of that share. */
size_t vfm_coll_bytes_of(const struct vfm_coll *c, const int64_t *count, int i);
size_t vfm_coll_offset_of(const struct vfm_coll *c, const int64_t *count, int i);

/* ---- the current call of a communicator: written by its thread, read by the monitor ---- */
struct vfm_activity {
	struct vfm_activity *next; /* job->activities */
	const char *name;          /* of the communicator */
	uint64_t id;               /* the same on all ranks */
	atomic_bool busy, waits;
	atomic_int kind, peer; /* peer: world rank that it waits for, or -1 */
	_Atomic uint64_t number, bytes;
	_Atomic double since, wait_since; /* vfm_now */
};

/* ---- shared memory of a group ---- */
struct vfm_shm {
	struct shm_head *head; /* NULL: the communicator spans nodes */
	size_t bytes, slot;    /* of the mapping; of a slot's data */
	uint64_t at;           /* offset in the node's file */
	uint64_t epoch;        /* barriers passed */
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

/* How the other ranks reach a rank: each publishes its own. */
struct vfm_endpoint {
	uint8_t secret[VFM_SECRET]; /* handshake.h; that of rank 0 gives the job's key */
	uint8_t net[16];            /* of the network namespace and boot: equal on one host */
	char host[32];
	uint8_t n_addr, loopback; /* addresses on which it listens; loopback: it is the only one */
	struct {
		uint8_t family, pad;
		uint16_t port;
		uint8_t a[16];
	} addr[VFM_HC_ADDRS];
};

struct vfm_flight_record {
	char name[16];
	uint64_t number, bytes;
	int kind, peer;
	double start, end; /* wall time; end 0: not finished */
};

struct vfm_hjob {
	struct vfm_launch *l;
	int rank, size, *node_of;
	struct vfm_endpoint *_Atomic *endpoint; /* [size] NULL: not fetched yet; vfm_endpoint_of */
	pthread_mutex_t fetch_lock;
	uint8_t key[VFM_HMAC_BYTES]; /* of the handshakes */
	uint64_t world_id;           /* of the world's communicator */
	double timeout;
	_Atomic double beat_timeout; /* tests change it */
	char *recorder_dir;
	pthread_t main; /* the thread that made the job: its waits are exposed */
	int spin;       /* rounds of polling before sleep */
	int yields;     /* then rounds of sched_yield */
	int32_t *pid;   /* [size] of the ranks of this node; NULL: process_vm_readv is not allowed */

	struct vfm_shared shared; /* the node's memory */
	bool owns_shared;         /* the first rank of its node */

	/* counts for tests: connections that this rank made and accepted; messages between nodes that it began */
	atomic_int n_dialed, n_accepted;
	_Atomic int64_t n_messages;

	int listen[1 + VFM_HC_ADDRS], n_listen; /* the local socket, then one for each published address */
	int wake;
	pthread_t monitor;
	bool monitor_runs;
	atomic_bool joined;  /* rank 0, or its monitor has a connection to its parent */
	atomic_bool started; /* all ranks have joined */
	struct vfm_mon *mon;

	pthread_mutex_t lock; /* groups, activities, links */
	pthread_cond_t came;  /* signals an addition to links */
	struct vfm_hcomm *groups;
	struct vfm_activity *activities; /* of host and device communicators */
	struct vfm_link {                /* an accepted connection, until its group is freed */
		struct vfm_link *next;
		uint32_t kind;
		uint64_t group;
		int from, fd; /* fd: -1 once a communicator has claimed it */
	} * links;

	atomic_bool failed;
	pthread_mutex_t fail_lock;
	char why[VFM_WHY_MAX];

	pthread_mutex_t rec_lock;
	struct vfm_flight_record rec[VFM_RECORDS];
	uint64_t n_rec;
};

/* ---- comm_job.c ---- */
/* Returns 0, or VFM_EENV with the job's message once the job has failed. */
int vfm_hjob_check(struct vfm_hjob *j, struct vfm_err *err);
/* Fails the job on all ranks.  Returns VFM_EENV with the job's message, which is the first one reported. */
int vfm_hjob_fail(struct vfm_hjob *j, struct vfm_err *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fails the job in this rank, unless it has failed, and writes the flight recorder. */
void vfm_hjob_set_failed(struct vfm_hjob *j, const char *why);
/* Fails the job because of a broken connection or message of a peer, after the monitor had time to find the cause. */
int vfm_hjob_lost(struct vfm_hcomm *g, int peer, const char *what, struct vfm_err *err);
/* Fails the job because two ranks are in different calls. */
int vfm_hjob_mismatch(struct vfm_hcomm *g, int peer, const struct vfm_call_sig *mine, const struct vfm_call_sig *theirs,
	struct vfm_err *err);
void vfm_wait_begin(struct vfm_hcomm *g, int peer); /* peer: rank in the communicator */
void vfm_wait_end(struct vfm_hcomm *g);
/* To be called regularly in a wait.  Fails if the job has failed, or if the wait exceeds the limit without a failure
 * from the monitor. */
int vfm_wait_check(struct vfm_hcomm *g, struct vfm_err *err);

/* The monitor reports the activity from add until remove. */
void vfm_activity_add(struct vfm_hjob *j, struct vfm_activity *a, const char *name, uint64_t id);
void vfm_activity_remove(struct vfm_hjob *j, struct vfm_activity *a);

/* Fails because a rank no longer listens: with the cause that the monitor finds within 2 s, or else that it ended. */
int vfm_hjob_unreachable(struct vfm_hjob *j, int rank, struct vfm_err *err);

const char *vfm_rank_str(struct vfm_hjob *j, int rank, char *buf, size_t len); /* "rank 3 (node2)" */

/* ---- comm/monitor/monitor.c ---- */
int vfm_monitor_start(struct vfm_hjob *j, struct vfm_err *err); /* accepts connections from then on */
int vfm_monitor_join(struct vfm_hjob *j, struct vfm_err *err);  /* connects to the parent */
void vfm_monitor_report(struct vfm_hjob *j, const char *why);   /* a failure of this rank; does not wait for it */
void vfm_monitor_stop(struct vfm_hjob *j);                      /* sends a goodbye first */

/* ---- recorder.c ---- */
/* Starts a record and returns its number.  peer: world rank, or -1. */
uint64_t vfm_record_begin(struct vfm_hjob *j, const char name[16], int kind, uint64_t number, uint64_t bytes, int peer);
void vfm_record_end(struct vfm_hjob *j, uint64_t which);
void vfm_record_dump(struct vfm_hjob *j, const char *why);

/* ---- comm_shm.c ---- */
uint64_t vfm_shm_reserve(struct vfm_hjob *j, int n); /* the offset of a new segment for n ranks */
int vfm_shm_map(struct vfm_hcomm *g, uint64_t at, struct vfm_err *err);
void vfm_shm_unmap(struct vfm_hcomm *g);

/* An epoch ends with a barrier: each rank writes to its slot, passes the barrier, and reads the slots of the others.  A
 * slot keeps its contents until the barrier after the next one. */
struct shm_meta {
	struct vfm_call_sig sig;
	uint64_t addr; /* of an operand in the rank that owns the slot */
	int32_t pid, pad;
	uint64_t max;
	uint64_t table[]; /* [n] all_to_all: bytes for each rank */
};
/* Return the slot of a rank in an epoch: its header, its data. */
struct shm_meta *vfm_slot_meta(struct vfm_shm *s, uint64_t epoch, int rank);
char *vfm_slot(struct vfm_shm *s, uint64_t epoch, int rank);
/* Blocks until all ranks have come; increments the epoch. */
int vfm_shm_barrier(struct vfm_hcomm *g, struct vfm_err *err);
int vfm_shm_exchange(const struct vfm_coll *c, struct vfm_err *err);
int vfm_shm_coll(const struct vfm_coll *c, struct vfm_err *err);

/* ---- comm_net.c ---- */
int vfm_net_open(struct vfm_hjob *j, struct vfm_err *err); /* listens, and publishes this rank's endpoint */
void vfm_net_close(struct vfm_hjob *j);
/* VFM_EENV if the limit of open files is too low for the connections of a rank: of its monitor, and two for each factor
 * of two of the ranks in collectives.  Raises the soft limit first. */
int vfm_net_reserve_files(struct vfm_hjob *j, int monitors, struct vfm_err *err);
/* Returns the endpoint of a rank, which the first call fetches; NULL on failure.  Any thread may call it.  The job owns
 * the endpoint. */
const struct vfm_endpoint *vfm_endpoint_of(struct vfm_hjob *j, int rank, struct vfm_err *err);
/* VFM_EENV if the endpoints of this rank and of `to` contradict each other, so that no connection can be made. */
int vfm_net_check(struct vfm_hjob *j, int to, struct vfm_err *err);
/* Begins to connect to an address of a rank, 0 .. vfm_net_addresses - 1.  Returns the socket, or -1 with errno set.
 * ECONNREFUSED: no process of this user listens there. */
int vfm_net_dial(struct vfm_hjob *j, int to, int addr);
int vfm_net_addresses(struct vfm_hjob *j, int to); /* 0: the endpoint cannot be fetched */
/* Waits for ms; returns 0 if the socket is connected, EINPROGRESS, or the errno of the failure. */
int vfm_net_dialed(int fd, int ms);
/* Connects to world rank `to` with a handshake; retries until 30 s or the job's time-out.  Fails earlier if the rank no
 * longer listens.  The caller owns *fd. */
int vfm_net_connect(struct vfm_hjob *j, int to, enum vfm_hello_kind kind, uint64_t group, int *fd, struct vfm_err *err);
int vfm_net_recv_fd(int sock, int *fd);
int vfm_net_send_fd(int sock, int fd);

struct vfm_msg {
	struct vfm_call_sig sig;
	uint64_t bytes;
};
/* Sends and receives at the same time; -1 omits that side.  Both ranks of a message give the same size. */
int vfm_net_exchange(struct vfm_hcomm *g, const struct vfm_call_sig *sig_out, int to, const void *out, size_t n_out,
	const struct vfm_call_sig *sig_in, int from, void *in, size_t n_in, struct vfm_err *err);
int vfm_net_coll(const struct vfm_coll *c, struct vfm_err *err);

static inline size_t vfm_min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* ---- comm_sum.c ---- */
/* out [n] = in[0] + in[1] + ..., in that order; bf16 is summed in f32.  out may be one of in. */
void vfm_comm_sum(enum vfm_dtype dt, void *out, const void *const *in, int n_in, size_t n);

/* ---- comm.c ---- */
/* Adds a call to vfm_comm_stats. */
void vfm_comm_count(int64_t bytes, double busy_s, double wait_s);

/* Returns c as a host communicator, or NULL if it is of another backend. */
struct vfm_hcomm *vfm_hcomm_of(struct vfm_comm *c);
/* Returns the elements that this rank must send, whatever the algorithm.  own: elements of its own share. */
int64_t vfm_coll_sends(enum vfm_coll_kind kind, int size, int64_t n_in, int64_t n_out, int64_t own, bool sender);

/* Returns scratch of at least `bytes`, valid until the next call; NULL on failure. */
char *vfm_hc_tmp(struct vfm_hcomm *g, size_t bytes, struct vfm_err *err);

#endif
