/* monitor.h - what the monitor's thread (monitor.c) and its judgement (judge.c) share.  Not for others.
 * All of it is called by that thread alone. */
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
	double age, waits; /* seconds; waits < 0: does not wait */
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

struct mon_peer { /* what rank 0 knows; the others: of rank 0 */
	struct mon_conn *conn;
	bool joined, left, dead;
	double heard; /* vfm_now of the last message */
	struct mon_msg last;
};

struct vfm_mon {
	struct mon_peer *peer; /* [size] */
	struct mon_hello hello[HELLOS];
	int n_hello;
	double beat, looked; /* last beat sent; last pass of the loop */
	double asked;        /* rank 0: when all were asked for their state; 0: not */
	int dying;           /* rank 0: who died, while the others are asked; -1 */
	atomic_bool stop;
	double stop_since;
	pthread_mutex_t lock;     /* report, joining */
	char report[VFM_WHY_MAX]; /* for rank 0 */
	int joining;              /* a connection to rank 0 that the thread takes over; -1 */
};

/* ---- monitor.c ---- */
void vfm_mon_heartbeat(struct vfm_hjob *j, struct mon_msg *m);  /* what this rank is doing */
void vfm_mon_post(struct vfm_hjob *j, const struct mon_msg *m); /* to all that are connected */
/* The job has failed: the others first, since this process may end as soon as its threads know. */
void vfm_announce_failure(struct vfm_hjob *j, const char *why);

/* ---- judge.c ---- */
void vfm_detect_failures(struct vfm_hjob *j);      /* rank 0: who died, hangs or is stopped? */
void vfm_detect_rank0_failure(struct vfm_hjob *j); /* the others: is rank 0 alive? */
void vfm_declare_failed(struct vfm_hjob *j, int rank, const char *reason);

#endif
