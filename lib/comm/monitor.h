/* monitor.h - shared by the monitor thread (monitor.c), its acceptor of connections (acceptor.c) and the failure
 * detector (failure_detector.c, join_watch.c).  Not for others.  Only the monitor thread calls these functions. */
#ifndef VFM_COMM_MONITOR_H
#define VFM_COMM_MONITOR_H

#include "base/mem.h"
#include "comm/comm_impl.h"
#include "comm/handshake.h"

enum { HEARTBEAT = 1, PROBE, FAIL, GOODBYE };
enum { ACTS = 12, JOIN_PROBES = 16, MSG_MAGIC = 0x76666d32 };

struct mon_act {
	char name[16];
	uint64_t group, number, bytes;
	int32_t kind, peer;
	double age, waits; /* seconds since the call and since its wait began; waits < 0: it does not wait */
};

struct mon_msg {
	uint32_t magic, type;
	int32_t rank;
	uint32_t n;
	struct mon_act act[ACTS];
	char why[VFM_WHY_MAX];
};

struct mon_conn {
	int fd, rank;
	size_t have; /* bytes of in */
	struct mon_msg in;
	struct vfm_buf out;
};

struct vfm_acceptor {
	struct vfm_half_open *half; /* [most] the oldest first */
	int n, most;
};

/* Rank 0: connections that only find out whether a rank that has not joined still listens. */
struct join_watch {
	double next; /* the time of the next round */
	int at;      /* the rank that it comes to next; size: the round is complete */
	struct join_probe {
		int rank, addr, fd; /* rank 0: free */
		double until;
	} probe[JOIN_PROBES];
};

struct mon_peer { /* in rank 0: of each rank; elsewhere: of rank 0 */
	struct mon_conn *conn;
	bool joined, left, dead; /* connected once; sent a goodbye; disconnected without one */
	double heard;            /* time of the last message, vfm_now; before it joined: of the monitor's start */
	struct mon_msg last;
};

struct vfm_mon {
	struct mon_peer *peer; /* [size] */
	struct vfm_acceptor acceptor;
	struct join_watch joins;
	int n_joined;        /* rank 0: ranks that have connected once */
	double beat, looked; /* times of the last heartbeat and of the last pass of the loop */
	double probed;       /* rank 0: when it probed all ranks; 0: it did not */
	int dying;           /* rank 0: the rank that died, while the others are probed; -1: none */
	atomic_bool stop;
	double stop_since;
	pthread_mutex_t lock;     /* report, joining */
	char report[VFM_WHY_MAX]; /* a failure of this rank, to be sent to rank 0 */
	int joining;              /* a connection to rank 0 for the thread to adopt; -1: none */
};

/* ---- monitor.c ---- */
void vfm_mon_heartbeat(struct vfm_hjob *j, struct mon_msg *m);  /* fills m with the activities of this rank */
void vfm_mon_post(struct vfm_hjob *j, const struct mon_msg *m); /* sends m to all connected ranks */
/* Fails the job.  Sends the message to the other ranks first, since this process may end as soon as its threads see it.
 */
void vfm_announce_failure(struct vfm_hjob *j, const char *why);

/* Takes ownership of fd, a connection to the monitor of a rank. */
void vfm_mon_adopt(struct vfm_hjob *j, int rank, int fd);

/* ---- acceptor.c ---- */
struct pollfd;
void vfm_acceptor_init(struct vfm_hjob *j);
void vfm_acceptor_release(struct vfm_hjob *j);
int vfm_acceptor_limit(const struct vfm_hjob *j); /* the longest poll set */
/* Fills p and returns the number of entries; serve takes them after poll. */
int vfm_acceptor_poll_set(const struct vfm_hjob *j, struct pollfd *p);
void vfm_acceptor_serve(struct vfm_hjob *j, const struct pollfd *p);

/* ---- join_watch.c ---- */
/* In rank 0: fails the job if a rank ended before it connected.  Such a rank has published its addresses, but no longer
 * listens.  No-op once all ranks have joined. */
void vfm_watch_joins(struct vfm_hjob *j);
void vfm_watch_joins_end(struct vfm_hjob *j);

/* ---- failure_detector.c ---- */
void vfm_detect_failures(struct vfm_hjob *j);      /* in rank 0: fails the job if a rank died, hangs or is stopped */
void vfm_detect_rank0_failure(struct vfm_hjob *j); /* in the others: fails the job if rank 0 does not answer */
/* Fails the job with "rank R (host) REASON (last heard in ...)" and the rank that has waited longest for R. */
void vfm_declare_failed(struct vfm_hjob *j, int rank, const char *reason);

#endif
