/* monitor_impl.h - the monitors: a thread in each rank, which detects failures and tells all ranks.  host_impl.h
 * declares what other threads call; only the monitor thread calls the functions here:
 *
 *   tree.c              the tree of the monitors
 *   message.c           makes, sends and relays messages; connections of neighbours
 *   acceptor.c          accepts connections
 *   join_watch.c        finds children that end before they connect
 *   failure_detector.c  finds neighbours that do not answer; in rank 0, decides which failed; fails the job
 *   monitor.c           the thread, its start and end
 *
 * Each monitor connects to its parent in the tree, whose root is rank 0.  It watches parent and children: whether they
 * connect, stay connected, and send a message each second.  It reports faults to rank 0, which decides.  A monitor that
 * loses its parent fails the ranks below it itself.  A rank that ends stays until the connections of its children have
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
 * the node, and the first ranks of up to FANOUT other nodes: of node k those of nodes FANOUT k + 1 to FANOUT k +
 * FANOUT.  With 8 ranks on a node, a rank has at most 16 connections, and a message to the root takes at most 4 hops at
 * 4,096 ranks. */
enum { VFM_TREE_FANOUT = 8 };

struct vfm_rank_tree {
	const int *node_of; /* [size] numbered in the order of their first ranks (launch.h) */
	int size, nodes;
	int *first; /* [nodes] the first rank of each node */
	int parent; /* of this rank; -1: it is the root */
	int n;      /* children of this rank */
	int *child; /* [n] */
};

/* Fills the tree as rank `self` sees it.  node_of must outlive it. */
void vfm_tree_init(struct vfm_rank_tree *t, const int *node_of, int size, int self);
void vfm_tree_release(struct vfm_rank_tree *t);

int vfm_tree_parent(const struct vfm_rank_tree *t, int rank); /* -1: the root */
/* Returns whether `above` is an ancestor of the rank, or the rank itself. */
bool vfm_tree_is_above(const struct vfm_rank_tree *t, int above, int rank);

/* ---- messages and state ----
 *
 *   BEAT     to parent and children, each second: the calls in which the sender is
 *   STATE    up: the calls in which a rank is, if it waits for longer than 2 s (or the time-out), or in answer to PROBE
 *   JOINED   up: a rank has connected to its parent
 *   GOODBYE  up: a rank has ended normally
 *   DIED     up: the connection of a rank has closed, although it or a rank below it has not ended
 *   SUSPECT  up: a rank has another fault; its text follows the name of the rank
 *   PROBE    down: asks all ranks for STATE
 *   FAIL     up: the job fails with this text, says a rank; down: the job has failed, says rank 0
 *
 * Messages up are relayed to rank 0, those down to all ranks, at once.  A message has 16 bytes, and 64 for each call of
 * the rank.  A monitor closes the connection of a sender whose message is malformed, or is about a rank that is not
 * below the sender. */

enum mon_type { BEAT = 1, STATE, JOINED, GOODBYE, DIED, SUSPECT, PROBE, FAIL, MON_TYPES };
enum { ACTS = 12, JOIN_PROBES = 16, MSG_MAGIC = 0x76666d34 };

struct mon_act {
	char name[16];
	uint64_t group, number, bytes;
	int32_t kind, peer;
	double age, waits; /* seconds since the call and since its wait began; waits < 0: it does not wait */
};

struct mon_head {
	uint32_t magic, type;
	int32_t rank; /* that the message is about; PROBE: 0, FAIL: that reports */
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
	int fd;      /* -1: not connected yet; messages wait in out */
	size_t have; /* bytes of in */
	struct mon_msg in;
	struct vfm_buf out;
};

struct vfm_acceptor {
	struct vfm_half_open *half; /* [most] the oldest first */
	int n, most;
};

/* Connections that only find out whether a child that has not joined still listens. */
struct join_watch {
	double next; /* the time of the next round */
	int at;      /* the child that it comes to next; tree.n: the round is complete */
	struct join_probe {
		int rank, addr, fd; /* rank 0: free */
		double until;
	} probe[JOIN_PROBES];
};

/* The state that this rank knows of a rank: its neighbours in the tree, the ranks below it, and itself. */
struct mon_peer {
	struct mon_conn *conn; /* of a neighbour; NULL: a child that is not connected, or a closed connection */
	bool joined, left;     /* it has connected to its parent (or this rank to it); it sent a goodbye */
	bool suspect;          /* reported */
	double heard;          /* a neighbour: vfm_now of its last message, or of this monitor's start */
	double told;           /* vfm_now of the last STATE */
	int n;
	struct mon_act *act; /* [n] its calls when last heard */
};

struct vfm_mon {
	struct vfm_rank_tree tree;
	struct mon_peer *peer; /* [size] */
	struct vfm_acceptor acceptor;
	struct join_watch joins;
	int n_joined;        /* children that have connected */
	double beat, looked; /* times of the last heartbeat and of the last pass of the loop */
	double scanned;      /* rank 0: when it last looked for long waits */
	double probed;       /* rank 0: when it probed all ranks; 0: it did not */
	int dying;           /* rank 0: the rank that died, while the others are probed; -1: none */
	bool said_goodbye;
	atomic_bool stop;
	double stop_since, failed_since; /* since when the thread wants to end; since when it does after a failure */
	double reported;                 /* since when it waits for rank 0's answer to a report; 0: it does not */
	char why[VFM_WHY_MAX];           /* of that report */
	pthread_mutex_t lock;            /* report, joining */
	char report[VFM_WHY_MAX];        /* a failure of this rank, to be sent to rank 0 */
	int joining;                     /* a connection to the parent for the thread to adopt; -1: none */
};

/* ---- message.c ---- */
struct mon_msg vfm_mon_msg(enum mon_type type, int rank, const char *text); /* text: or NULL */
struct mon_msg vfm_mon_calls(struct vfm_hjob *j, enum mon_type type);       /* of this rank: BEAT or STATE */
void vfm_mon_post(struct mon_conn *c, const struct mon_msg *m);             /* c: or NULL, then no-op */
void vfm_mon_post_down(struct vfm_hjob *j, const struct mon_msg *m);
void vfm_mon_close(struct mon_peer *p);
/* Returns whether a header that comes from a neighbour may stand before a message. */
bool vfm_mon_head_ok(const struct vfm_rank_tree *t, int from, const struct mon_head *h);
/* Records what a message says and passes it to rank 0, which acts on it. */
void vfm_mon_tell(struct vfm_hjob *j, const struct mon_msg *m);
/* Makes a message and tells it; before DIED and SUSPECT also a STATE with the calls of the rank. */
void vfm_mon_report(struct vfm_hjob *j, enum mon_type type, int rank, const char *text);
/* Reports a failure of this rank to rank 0.  Announces it instead if this rank has not connected to its parent. */
void vfm_report_failure(struct vfm_hjob *j, const char *why);
/* Takes ownership of fd, a connection to the monitor of a neighbour. */
void vfm_mon_adopt(struct vfm_hjob *j, int rank, int fd);
/* Reads and writes what poll found for a neighbour. */
void vfm_mon_serve(struct vfm_hjob *j, int rank, bool writable);

/* ---- acceptor.c ---- */
struct pollfd;
void vfm_acceptor_init(struct vfm_hjob *j);
void vfm_acceptor_release(struct vfm_hjob *j);
int vfm_acceptor_limit(const struct vfm_hjob *j); /* the longest poll set */
/* Fills p and returns the number of entries; serve takes them after poll. */
int vfm_acceptor_poll_set(const struct vfm_hjob *j, struct pollfd *p);
void vfm_acceptor_serve(struct vfm_hjob *j, const struct pollfd *p);

/* ---- join_watch.c ---- */
/* Reports children that ended before they connected.  Such a rank has published its addresses, but no longer listens.
 * No-op once all children have joined. */
void vfm_watch_joins(struct vfm_hjob *j);
void vfm_watch_joins_end(struct vfm_hjob *j);

/* ---- failure_detector.c ---- */
/* Fails the job in this rank and below it.  Sends the message down first, since this process may end as soon as its
 * threads see it. */
void vfm_announce_failure(struct vfm_hjob *j, const char *why);
/* Fails the job with "rank R (host) REASON (last heard in ...)" and the rank that has waited longest for R. */
void vfm_declare_failed(struct vfm_hjob *j, int rank, const char *reason);
void vfm_watch_neighbours(struct vfm_hjob *j); /* reports children that do not answer; fails if the parent does not */
void vfm_detect_failures(struct vfm_hjob *j);  /* in rank 0: fails the job if a rank died or hangs */
double vfm_shortest_wait_limit(const struct vfm_hjob *j);                 /* no shorter wait is a failure */
const struct mon_act *vfm_longest_wait(const struct mon_act *act, int n); /* NULL: none waits */

#endif
