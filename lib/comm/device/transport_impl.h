/* transport_impl.h - shared by transport.c and transport_watch.c.
 *
 * A call appends a record to the ring of its communicator: an event before and an event after the work that it
 * enqueued.  The host thread appends records.  The watch thread, or the host thread in its next call, removes records
 * whose events have passed.  The job's `lock` guards the rings and the list of communicators.
 */
#ifndef VFM_COMM_DEVICE_TRANSPORT_IMPL_H
#define VFM_COMM_DEVICE_TRANSPORT_IMPL_H

#include "comm/device/transport.h"
#include "comm/host/host_job.h"

enum vfm_transport_call_state {
	VFM_CALL_BEGUN,    /* the host thread is in the call; end is not recorded */
	VFM_CALL_ENQUEUED, /* end is recorded */
	VFM_CALL_FAILED,   /* end will not be recorded */
};

struct vfm_transport_call {
	enum vfm_transport_call_state state;
	enum vfm_coll_kind kind;
	int peer; /* world rank that it waits for */
	uint64_t number, bytes, record;
	double start; /* vfm_now */
	bool shown;   /* by the watch thread: act describes this call */
	struct vfm_event *begin, *end;
};

struct vfm_transport_group {
	struct vfm_comm c; /* c.host: the host communicator */
	bool owns_host;
	struct vfm_transport_job *job;
	struct vfm_transport_group *next; /* job->groups */
	struct vfm_transport_comm *w;
	int *world; /* [size] world ranks */
	struct vfm_activity act;
	uint64_t number, *sent, *got; /* as in struct vfm_hcomm */

	struct vfm_transport_call **ring; /* [cap], a power of 2; call i at i % cap */
	uint64_t cap, begun, done;

	/* used by the host thread */
	struct vfm_transport_msg *msg; /* [2 size] */
	int n_msg;
	int64_t *count;          /* [size] */
	bool lost;               /* the library reported an error */
	struct vfm_event *fence; /* of vfm_stream_follow, when scratch passes between the compute stream and another */
	void *scratch, *word;    /* scratch: for streams other than the compute stream; word: 8 bytes for barriers */
	size_t scratch_bytes;
};

struct vfm_transport_job {
	const struct vfm_transport *transport;
	struct vfm_stream *compute;
	struct vfm_hjob *hjob; /* NULL: one rank */
	double timeout;
	bool native_bf16, registers; /* settings of rank 0 */
	int users;                   /* communicators; used by the host thread */
	bool warned;                 /* about buffers that cannot be registered; used by the host thread */

	pthread_mutex_t lock; /* groups, their rings, stop */
	pthread_cond_t wake;
	pthread_t watch;
	bool stop, aborted;
	struct vfm_transport_group *groups;

	atomic_bool failed; /* without hjob; why is the reason */
	char why[VFM_WHY_MAX];
};

/* Returns 0, or VFM_EENV with the job's message once the job has failed. */
int vfm_transport_job_check(struct vfm_transport_job *j, struct vfm_err *err);
/* Poisons the device after the job has failed; returns VFM_EENV with the job's message. */
int vfm_transport_poison(struct vfm_transport_job *j, struct vfm_err *err);
/* Fails the job, like vfm_hjob_fail. */
int vfm_transport_job_fail(struct vfm_transport_job *j, struct vfm_err *err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Removes at most `most` records of calls that have passed.  The caller holds the lock. */
void vfm_transport_retire(struct vfm_transport_group *g, int most);
int vfm_transport_watch_start(struct vfm_transport_job *j, struct vfm_err *err);
void vfm_transport_watch_stop(struct vfm_transport_job *j);

#endif
