/* host_job.h - the host side of a job: its state, failures and waits, also for communicators of comm/device.
 *
 * Each process has one job (struct vfm_hjob): the placement of the ranks, the shared memory of the node, the listening
 * socket of this rank, the monitor and the flight recorder.  Only one thread at a time uses a communicator (struct
 * vfm_hcomm); different threads may use different communicators at the same time.
 */
#ifndef VFM_COMM_HOST_HOST_JOB_H
#define VFM_COMM_HOST_HOST_JOB_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/shared.h"
#include "comm/host/comm_host.h"
#include "comm/host/handshake.h"

enum {
	VFM_POLL_MS = 100, /* every wait checks the job's state this often */
	VFM_RECORDS = 256,
	VFM_WHY_MAX = 512,
	VFM_HC_ADDRS = 6,
	VFM_NODE_RANKS = 1024, /* most ranks on one node */
};

struct vfm_call_sig; /* host_impl.h */
struct vfm_hcomm;

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
	uint64_t id;          /* the same on all ranks */
	int *world;           /* [size] world ranks */
	uint64_t number;      /* of the last collective */
	uint64_t *sent, *got; /* [size] messages of exchange with each peer */
	struct vfm_shm shm;
	int *fd;   /* [size] sockets, -1 */
	char *tmp; /* scratch of the collectives */
	size_t tmp_bytes;
	struct vfm_activity act;
	pthread_mutex_t lock; /* counts */
	struct vfm_counts *counts;
};

/* The addresses and identity by which other ranks reach a rank.  Each rank publishes its own. */
struct vfm_endpoint {
	uint8_t secret[VFM_SECRET]; /* handshake.h; the job's key is derived from that of rank 0 */
	uint8_t net[16];            /* identifies the network namespace and boot; equal on one host */
	char host[32];
	uint8_t n_addr, loopback; /* its listening addresses; loopback: it has only that one */
	union vfm_inet_address {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
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
	struct vfm_endpoint *_Atomic *endpoint; /* [size] NULL: not fetched yet (vfm_endpoint_of) */
	pthread_mutex_t fetch_lock;
	uint8_t key[VFM_HMAC_BYTES]; /* of the handshakes */
	uint64_t world_id;           /* of the world's communicator */
	double timeout;
	_Atomic double beat_timeout; /* changed by tests */
	char *recorder_dir;
	pthread_t main; /* the thread that made the job; its waits are exposed */
	int spin;       /* rounds of polling before sleep */
	int yields;     /* then rounds of sched_yield */
	int32_t *pid;   /* [size] of the ranks of this node; NULL: process_vm_readv is not allowed */

	struct vfm_shared shared; /* the node's memory */
	bool owns_shared;         /* the first rank of its node */

	/* counts for tests: connections that this rank made and accepted, and messages between nodes that it started */
	atomic_int n_dialed, n_accepted;
	_Atomic int64_t n_messages;

	int listen[1 + VFM_HC_ADDRS], n_listen; /* the local socket, then one for each published address */
	int wake;
	pthread_t monitor;
	bool monitor_runs;
	atomic_bool joined;  /* this is rank 0, or its monitor is connected to its parent */
	atomic_bool started; /* all ranks have joined */
	struct vfm_mon *mon;

	pthread_mutex_t lock;            /* activities, links */
	pthread_cond_t came;             /* signals an addition to links */
	struct vfm_activity *activities; /* of host and device communicators */
	struct vfm_link {                /* an accepted connection; exists until its group is freed */
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

const char *vfm_rank_str(struct vfm_hjob *j, int rank, char *buf, size_t len); /* "rank 3 (node2)" */
/* Returns 0, or VFM_EENV with the job's message once the job has failed. */
int vfm_hjob_check(struct vfm_hjob *j, struct vfm_err *err);
/* Fails the job on all ranks.  Returns VFM_EENV with the job's message, the first one reported. */
int vfm_hjob_fail(struct vfm_hjob *j, struct vfm_err *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Marks the job as failed in this rank and writes the flight recorder; no-op if it has failed already. */
void vfm_hjob_set_failed(struct vfm_hjob *j, const char *why);
/* Fails the job because of a broken connection or message of a peer.  First gives the monitor time to find the
 * cause. */
int vfm_hjob_lost(struct vfm_hcomm *g, int peer, const char *what, struct vfm_err *err);
/* Fails the job because two ranks make different calls. */
int vfm_hjob_mismatch(struct vfm_hcomm *g, int peer, const struct vfm_call_sig *mine, const struct vfm_call_sig *theirs,
	struct vfm_err *err);
void vfm_wait_begin(struct vfm_hcomm *g, int peer); /* peer: rank in the communicator */
void vfm_wait_end(struct vfm_hcomm *g);
/* Call regularly during a wait.  Fails if the job has failed, or if the wait exceeds the limit and the monitor has
 * reported no failure. */
int vfm_wait_check(struct vfm_hcomm *g, struct vfm_err *err);

/* Registers an activity; the monitor reports it until vfm_activity_remove. */
void vfm_activity_add(struct vfm_hjob *j, struct vfm_activity *a, const char *name, uint64_t id);
/* Shows a call to the monitor.  peer: world rank, or -1; since: vfm_now at its start. */
void vfm_activity_begin(
	struct vfm_activity *a, enum vfm_coll_kind kind, uint64_t number, uint64_t bytes, int peer, double since);
void vfm_activity_remove(struct vfm_hjob *j, struct vfm_activity *a);

/* Fails because a rank no longer listens, with the cause that the monitor finds within 2 s, or else with a message that
 * the rank ended. */
int vfm_hjob_unreachable(struct vfm_hjob *j, int rank, struct vfm_err *err);

/* ---- the flight recorder: the last collectives of this rank, written out when the job fails ---- */

/* Starts a record and returns its number.  peer: world rank, or -1. */
uint64_t vfm_record_begin(struct vfm_hjob *j, const char name[16], int kind, uint64_t number, uint64_t bytes, int peer);
void vfm_record_end(struct vfm_hjob *j, uint64_t which);

#endif
