/* monitor.h - shared by the monitor thread (monitor.c) and the failure detector (failure_detector.c).  Not for others.
 * Only the monitor thread calls these functions. */
#ifndef VFM_COMM_MONITOR_H
#define VFM_COMM_MONITOR_H

#include "base/mem.h"
#include "comm/comm_impl.h"

enum { HEARTBEAT = 1, PROBE, FAIL, GOODBYE };
enum { ACTS = 12, HELLOS = 512, MSG_MAGIC = 0x76666d32 };

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

struct mon_hello {
	int fd;
	double until;
	size_t have;
	struct vfm_hello h;
};

struct mon_peer { /* in rank 0: of each rank; elsewhere: of rank 0 */
	struct mon_conn *conn;
	bool joined, left, dead; /* connected once; sent a goodbye; disconnected without one */
	double heard;            /* time of the last message, vfm_now */
	struct mon_msg last;
};

struct vfm_mon {
	struct mon_peer *peer; /* [size] */
	struct mon_hello hello[HELLOS];
	int n_hello;
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

/* ---- failure_detector.c ---- */
void vfm_detect_failures(struct vfm_hjob *j);      /* in rank 0: fails the job if a rank died, hangs or is stopped */
void vfm_detect_rank0_failure(struct vfm_hjob *j); /* in the others: fails the job if rank 0 does not answer */
/* Fails the job with "rank R (host) REASON (last heard in ...)" and the rank that has waited longest for R. */
void vfm_declare_failed(struct vfm_hjob *j, int rank, const char *reason);

#endif
