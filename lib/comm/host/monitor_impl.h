/* monitor_impl.h - the monitors: a thread in each rank that detects failures and tells all ranks.  host_impl.h declares
 * the functions for other threads.  Only the monitor thread calls the functions here:
 *
 *   tree.c              the tree of the monitors
 *   message.c           makes, sends and relays messages; connections of neighbours
 *   acceptor.c          accepts connections
 *   join_watch.c        finds children that end before they connect
 *   failure_detector.c  finds neighbours that do not answer; in rank 0, decides which failed; fails the job
 *   monitor.c           the thread, its start and end
 *
 * Each monitor connects to its parent in the tree, whose root is rank 0.  It checks that its parent and children
 * connect, stay connected, and send a message each second.  It reports faults to rank 0, which decides.  A monitor that
 * loses its parent fails the ranks below it itself.  A rank that ends waits until the connections of its children have
 * closed.
 */
#ifndef VFM_COMM_HOST_MONITOR_IMPL_H
#define VFM_COMM_HOST_MONITOR_IMPL_H

#include "base/mem.h"
#include "comm/host/handshake.h"
#include "comm/host/host_impl.h"

/* ---- tree.c ----
 *
 * The tree follows from the placement of the ranks.  The children of the first rank of a node are the other ranks of
 * the node, and the first ranks of up to FANOUT other nodes: nodes FANOUT k + 1 to FANOUT k + FANOUT for node k.  With
 * 8 ranks on a node, a rank has at most 16 connections, and a message to the root takes at most 4 hops at 4,096
 * ranks. */
enum { VFM_TREE_FANOUT = 8 };

struct vfm_rank_tree {
	const int *node_of; /* [size] numbered in the order of their first ranks (launch.h) */
	int size, nodes;
	int *first; /* [nodes] the first rank of each node */
	int parent; /* of this rank; -1: it is the root */
	int n;      /* children of this rank */
	int *child; /* [n] */
};

/* Fills the tree for the rank `self`.  node_of must outlive it. */
void vfm_tree_init(struct vfm_rank_tree *t, const int *node_of, int size, int self);
void vfm_tree_release(struct vfm_rank_tree *t);

int vfm_tree_parent(const struct vfm_rank_tree *t, int rank); /* -1: the root */
/* Returns whether `above` is an ancestor of the rank, or the rank itself. */
bool vfm_tree_is_above(const struct vfm_rank_tree *t, int above, int rank);

/* ---- messages and state ----
 *
 *   BEAT     to parent and children, each second: the current calls of the sender
 *   STATE    up: the current calls of a rank, after a wait of more than 2 s (or the time-out), or in answer to PROBE
 *   JOINED   up: a rank has connected to its parent
 *   GOODBYE  up: a rank has ended normally
 *   DIED     up: the connection of a rank has closed, although it or a rank below it has not ended
 *   SUSPECT  up: a rank has another fault; the text follows the name of the rank
 *   PROBE    down: asks all ranks for STATE
 *   FAIL     up: a rank requests that the job fail with this text; down: rank 0 announces that the job has failed
 *
 * Messages up are relayed at once to rank 0, messages down to all ranks.  A message has 16 bytes, and 64 for each call
 * of the rank.  A monitor closes the connection of a sender whose message is malformed, or is about a rank that is not
 * below the sender. */

enum mon_type { BEAT = 1, STATE, JOINED, GOODBYE, DIED, SUSPECT, PROBE, FAIL, MON_TYPES };
enum { ACTS = 12, JOIN_PROBES = 16, MSG_MAGIC = 0x76666d34 };

struct mon_act {
	char name[16];
	uint64_t group, number, bytes;
	int32_t kind, peer;
	double age, waits; /* seconds since the call, and since its wait began; waits < 0: it does not wait */
};

struct mon_head {
	uint32_t magic, type;
	int32_t rank; /* the rank that the message is about; PROBE: 0; FAIL: the reporting rank */
	uint32_t bytes;
};

struct mon_msg {
	struct mon_head h; /* followed by h.bytes bytes: */
	union {
		struct mon_act act[ACTS]; /* BEAT, STATE */
		char text[VFM_WHY_MAX];   /* SUSPECT, FAIL */
	};
};

struct mon_conn {
	int fd;      /* -1: not connected yet, and messages wait in out */
	size_t have; /* bytes of in */
	struct mon_msg in;
	struct vfm_buf out;
};

struct vfm_acceptor {
	struct vfm_half_open *half; /* [most] oldest first */
	int n, most;
};

/* Connections that only test whether a child that has not joined still listens. */
struct join_watch {
	double next; /* the time of the next round */
	int at;      /* the next child to probe; tree.n: the round is complete */
	struct join_probe {
		int rank, addr, fd; /* rank 0: free */
		double until;
	} probe[JOIN_PROBES];
};

/* What this rank knows about a rank: one of its neighbours in the tree, of the ranks below it, or itself. */
struct mon_peer {
	struct mon_conn *conn; /* of a neighbour; NULL: a child that is not connected, or a closed connection */
	bool joined, left;     /* it has connected to its parent (or this rank to it); it has sent a goodbye */
	bool suspect;          /* reported */
	double heard;          /* a neighbour: vfm_now of its last message, or of the start of this monitor */
	double told;           /* vfm_now of the last STATE */
	int n;
	struct mon_act *act; /* [n] its calls in its last message */
};

struct vfm_mon {
	struct vfm_rank_tree tree;
	struct mon_peer *peer; /* [size] */
	struct vfm_acceptor acceptor;
	struct join_watch joins;
	int n_joined;        /* children that have connected */
	double beat, looked; /* times of the last heartbeat and of the last pass of the loop */
	double scanned;      /* rank 0: time of the last check for long waits */
	double probed;       /* rank 0: time of the last probe of all ranks; 0: never */
	int dying;           /* rank 0: the rank that died, while the others are being probed; -1: none */
	bool said_goodbye;
	atomic_bool stop;
	double stop_since, failed_since; /* when the thread was asked to end; when it was after a failure */
	double reported;                 /* when the wait for rank 0's answer to a report began; 0: no wait */
	char why[VFM_WHY_MAX];           /* of that report */
	pthread_mutex_t lock;            /* guards report and joining */
	char report[VFM_WHY_MAX];        /* a failure of this rank that the thread will send to rank 0 */
	int joining;                     /* a connection to the parent that the thread will adopt; -1: none */
};

/* ---- message.c ---- */
struct mon_msg vfm_mon_msg(enum mon_type type, int rank, const char *text); /* text may be NULL */
struct mon_msg vfm_mon_calls(struct vfm_hjob *j, enum mon_type type);       /* of this rank, for BEAT or STATE */
void vfm_mon_post(struct mon_conn *c, const struct mon_msg *m);             /* no-op if c is NULL */
void vfm_mon_post_down(struct vfm_hjob *j, const struct mon_msg *m);
void vfm_mon_close(struct mon_peer *p);
/* Returns whether a header from a neighbour is valid. */
bool vfm_mon_head_ok(const struct vfm_rank_tree *t, int from, const struct mon_head *h);
/* Records the content of a message and passes it to rank 0, which acts on it. */
void vfm_mon_tell(struct vfm_hjob *j, const struct mon_msg *m);
/* Makes a message and passes it to vfm_mon_tell; before DIED and SUSPECT also a STATE with the calls of the rank. */
void vfm_mon_report(struct vfm_hjob *j, enum mon_type type, int rank, const char *text);
/* Reports a failure of this rank to rank 0.  If this rank has not connected to its parent, announces it instead. */
void vfm_report_failure(struct vfm_hjob *j, const char *why);
/* Takes ownership of fd, a connection to the monitor of a neighbour. */
void vfm_mon_adopt(struct vfm_hjob *j, int rank, int fd);
/* Reads and writes according to poll's result for a neighbour. */
void vfm_mon_serve(struct vfm_hjob *j, int rank, bool writable);

/* ---- acceptor.c ---- */
struct pollfd;
void vfm_acceptor_init(struct vfm_hjob *j);
void vfm_acceptor_release(struct vfm_hjob *j);
int vfm_acceptor_limit(const struct vfm_hjob *j); /* the longest poll set */
/* Fills p and returns the number of entries, which vfm_acceptor_serve handles after poll. */
int vfm_acceptor_poll_set(const struct vfm_hjob *j, struct pollfd *p);
void vfm_acceptor_serve(struct vfm_hjob *j, const struct pollfd *p);

/* ---- join_watch.c ---- */
/* Reports children that ended before they connected: they have published their addresses, but no longer listen.  No-op
 * once all children have joined. */
void vfm_watch_joins(struct vfm_hjob *j);
void vfm_watch_joins_end(struct vfm_hjob *j);

/* ---- failure_detector.c ---- */
/* Fails the job in this rank and below it.  Sends the message down first, since this process may end as soon as its
 * threads see the failure. */
void vfm_announce_failure(struct vfm_hjob *j, const char *why);
/* Fails the job with "rank R (host) REASON (last heard in ...)" and names the rank that has waited longest for R. */
void vfm_declare_failed(struct vfm_hjob *j, int rank, const char *reason);
void vfm_watch_neighbours(struct vfm_hjob *j); /* reports children that do not answer; fails if the parent does not */
void vfm_detect_failures(struct vfm_hjob *j);  /* in rank 0: fails the job if a rank died or hangs */
double vfm_shortest_wait_limit(const struct vfm_hjob *j);                 /* shorter waits are never a failure */
const struct mon_act *vfm_longest_wait(const struct mon_act *act, int n); /* NULL: none waits */

#endif
