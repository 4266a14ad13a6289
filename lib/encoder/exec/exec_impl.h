/* exec_impl.h - shared by the files of encoder/exec: the pool, its slots and its children. */
#ifndef VFM_ENCODER_EXEC_EXEC_IMPL_H
#define VFM_ENCODER_EXEC_EXEC_IMPL_H

#include <pthread.h>

#include "base/mem.h"
#include "encoder/exec/exec.h"
#include "io/process.h"

struct vfm_exec_slot {
	struct vfm_exec *x;
	unsigned op; /* of its requests */
	char *in_path, *out_path;
	int in_fd; /* of in_path; -1: not yet open */
	void *out; /* copy of out_path */
	size_t out_bytes;

	/* the call in progress; guarded by the pool's lock */
	json_t *request, *answer;
	int64_t id;
	int deaths;    /* of children that had the request in flight */
	bool suspect;  /* a child died with the request in flight: it is sent alone */
	bool shared;   /* other requests were in flight at the same time and may have caused a death */
	double queued; /* time when it was queued */
	double clock;  /* start of its time limit */
	int rc;
	struct vfm_err err;
	bool done;
	pthread_cond_t answered;
	struct vfm_exec_slot *next; /* in the queue */
};

struct vfm_exec_child {
	struct vfm_exec *x;
	int index;
	pthread_t thread;
	int wake; /* eventfd */
	struct vfm_process p;
	double started;
	bool greeted;      /* this process or a previous one has sent its hello */
	bool answered;     /* this process has answered a request */
	int empty_runs;    /* consecutive processes that ended without a request or an answer */
	struct vfm_buf to; /* lines for its stdin; the first `sent` bytes are written */
	size_t sent;
	struct vfm_buf from;     /* the incomplete line of its stdout */
	struct vfm_buf err_text; /* of its stderr */
	char last_line[256];     /* the last line of its stderr */
	char fault[384];         /* of its last line */

	/* guarded by the pool's lock */
	bool ready;                    /* it has said hello */
	bool woken;                    /* the eventfd is set */
	bool alone;                    /* its only request was in flight when a child died */
	struct vfm_exec_slot **flight; /* [depth] in the order of sending */
	int n_flight;
	double since; /* start of its current busy or idle time */
};

struct vfm_exec {
	struct vfm_exec_opts o;
	char **argv;
	char *name; /* of the command; for messages before the hello */
	unsigned op;
	struct vfm_guardian guardian;
	char *dir;
	int lock_fd; /* of dir */

	pthread_mutex_t lock;
	pthread_cond_t hello_came;
	json_t *hello_json; /* NULL: no hello yet */
	struct vfm_hello hello;
	bool closing, failed;
	struct vfm_err err;                 /* if failed */
	struct vfm_exec_slot *head, **tail; /* requests that no child has taken */
	int64_t n_queued;                   /* requests in the queue */
	int n_idle;                         /* children that are ready and have no request */
	int64_t next_id;
	struct vfm_exec_stats stats;

	struct vfm_exec_child *children; /* [o.children] */
	int n_started;                   /* threads */
	struct vfm_exec_slot *slots;     /* [n_slots] */
	int n_slots;
};

void *vfm_exec_child_main(void *child);
/* Returns the number of requests in flight that keep a child busy. */
int vfm_exec_depth(const struct vfm_exec *x);

/* payload.c: the folder, with a lock that tells other processes that it is in use. */
int vfm_exec_dir_make(char **dir, int *lock_fd, struct vfm_err *err);
void vfm_exec_slot_init(struct vfm_exec_slot *s, struct vfm_exec *x, int index);
void vfm_exec_slot_release(struct vfm_exec_slot *s);
/* Sets `out` to a length that no array has, and creates it if it is absent.  Otherwise the array of an earlier request,
 * or of a dead process, could be mistaken for the array of this request. */
int vfm_exec_invalidate_output(const struct vfm_exec_slot *s, struct vfm_err *err);

/* Call the functions below with the pool's lock. */
/* Returns whether the child can take requests from the queue. */
bool vfm_exec_has_room(const struct vfm_exec_child *c);
void vfm_exec_wake_one(struct vfm_exec *x); /* wakes a child that can take a request from the queue */
void vfm_exec_finish(struct vfm_exec_slot *s, int rc, json_t *answer, const struct vfm_err *err);
/* Makes all present and future calls fail. */
void vfm_exec_give_up(struct vfm_exec *x, const struct vfm_err *err);

#endif
