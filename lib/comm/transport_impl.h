/* transport_impl.h - what comm_transport.c and transport_watch.c share.  Not for callers.
 *
 * A call leaves a record in its group's ring: an event before and one behind what it put on the stream.  The host
 * thread adds, the watch thread (or the host thread with its next call) takes away what has passed; `lock` of the job
 * guards the rings and the list of groups.
 */
#ifndef VFM_COMM_WIRE_IMPL_H
#define VFM_COMM_WIRE_IMPL_H

#include "comm/comm_dev.h"
#include "comm/comm_impl.h"

enum vfm_transport_call_state {
	VFM_CALL_BEGUN,    /* the host is in it; end is not recorded yet */
	VFM_CALL_ENQUEUED, /* end is recorded */
	VFM_CALL_FAILED,   /* nothing to wait for */
};

struct vfm_transport_call {
	enum vfm_transport_call_state state;
	enum vfm_coll_kind kind;
	int peer; /* world rank that it will wait for */
	uint64_t number, bytes, record;
	double put; /* vfm_now */
	bool seen;  /* the watch thread: act shows it */
	struct vfm_event *begin, *end;
};

struct vfm_transport_group {
	struct vfm_comm c; /* c.host: the pair */
	bool owns_host;
	struct vfm_transport_job *job;
	struct vfm_transport_group *next; /* job->groups */
	struct vfm_transport_comm *w;
	int *world; /* [size] world ranks */
	struct vfm_activity act;
	uint64_t number, *sent, *got; /* as in struct vfm_hcomm */

	struct vfm_transport_call **ring; /* [cap], a power of 2; call i at i % cap */
	uint64_t cap, put, done;

	/* of the host thread */
	struct vfm_transport_msg *msg; /* [2 size] */
	int n_msg;
	int64_t *count;                /* [size] */
	bool lost;                     /* the wire said that it failed */
	struct vfm_event *fence;       /* of vfm_stream_follow: scratch passes between the compute stream and another */
	struct vfm_stream *scratch_of; /* the stream that used scratch last; NULL: none */
	void *scratch, *word;          /* scratch: on streams beside the compute stream; word: 8 bytes for barriers */
	size_t scratch_bytes;
};

struct vfm_transport_job {
	const struct vfm_transport *transport;
	struct vfm_stream *compute;
	struct vfm_hjob *hjob; /* NULL: one rank */
	double timeout;
	bool native_bf16, registers; /* what rank 0 wants */
	int users;                   /* groups; known to the host thread */
	bool told;                   /* that memory cannot be registered; likewise */

	pthread_mutex_t lock; /* groups, their rings, stop */
	pthread_cond_t wake;
	pthread_t watch;
	bool stop, aborted;
	struct vfm_transport_group *groups;

	atomic_bool failed; /* without hjob: why */
	char why[VFM_WHY_MAX];
};

int vfm_transport_job_check(struct vfm_transport_job *j, struct vfm_err *err);
/* It has failed: so has the device; VFM_EENV. */
int vfm_transport_poison(struct vfm_transport_job *j, struct vfm_err *err);
/* As vfm_hjob_fail. */
int vfm_transport_job_fail(struct vfm_transport_job *j, struct vfm_err *err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Under the lock: forgets calls that have passed, at most `most`. */
void vfm_transport_retire(struct vfm_transport_group *g, int most);
int vfm_transport_watch_start(struct vfm_transport_job *j, struct vfm_err *err);
void vfm_transport_watch_stop(struct vfm_transport_job *j);

#endif
