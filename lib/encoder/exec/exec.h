/* exec.h - runs outside models (captioners, scorers, embedders, encoders, decoders) as child processes: vfm-exec(7).
 *
 * A vfm_exec starts N children of one command and distributes requests over them.  Requests and answers are JSON
 * objects.  Arrays are passed in two files of a slot, `in` and `out`, on a tmpfs.  Each requesting thread has its own
 * slot:
 *
 *	TRY(vfm_exec_open(&x, &opts, err));                    // starts the children, waits for the first hello
 *	vfm_exec_make_slots(x, vfm_exec_threads(x, 2));
 *	slot = vfm_exec_slot(x, worker);
 *	TRY(vfm_exec_input(slot, 0, frames, bytes, err));      // writes the file that the child reads
 *	TRY(vfm_exec_describe(slot, dtype, ndim, shape, &o, err)); // {"path":…}, for a key of the request
 *	TRY(vfm_exec_call(slot, request, &answer, err));       // blocks until a child has answered
 *	TRY(vfm_exec_read_array(slot, answer, "latent", &a, err)); // reads the array from the child
 *	vfm_exec_close(x);
 *
 * A child that crashes, stalls or answers incorrectly is killed and restarted.  Its requests are repeated, each alone.
 * A request fails if it ends `retries` + 1 children, the last one alone.
 */
#ifndef VFM_ENCODER_EXEC_EXEC_H
#define VFM_ENCODER_EXEC_EXEC_H

#include <float.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "encoder/exec/hello.h"
#include "io/opt.h"

struct vfm_exec_opts {
	const char *command;    /* "python3 vae.py DIR": split into words (vfm_exec_words) */
	bool shell;             /* instead: sh -c command */
	const char *capability; /* "encode": the op of the requests (see vfm_exec_set_op), which the hello must name */
	int64_t children;       /* 0: 1; at most VFM_EXEC_MAX */
	double timeout_s;       /* between one answer and the next */
	double start_s;         /* until the hello */
	int64_t retries;        /* of a request whose child died */
	int first_gpu;          /* of child 0 */
};

/* Values of options that are not given, for which the pool uses the defaults in VFM_EXEC_OPTS. */
#define VFM_EXEC_UNSET (-DBL_MAX)
#define VFM_EXEC_DEFAULTS                                                                                              \
	((struct vfm_exec_opts){.timeout_s = VFM_EXEC_UNSET, .start_s = VFM_EXEC_UNSET, .retries = INT64_MIN})

/* Rows of a struct vfm_opt table; `o` is a struct vfm_exec_opts *. */
#define VFM_EXEC_OPTS(o)                                                                                               \
	{VFM_OPT_GROUP, 0, NULL, NULL, "Of outside models:", NULL},                                                    \
		{VFM_OPT_FLAG, 0, "exec-shell", NULL, "start the commands with sh -c", &(o)->shell},                   \
		{VFM_OPT_NUM, 0, "exec-timeout", "SECONDS", "restart a child that gives no answer (default 600)",      \
			&(o)->timeout_s},                                                                              \
		{VFM_OPT_NUM, 0, "exec-start", "SECONDS", "limit of the start of a child (default 1800)",              \
			&(o)->start_s},                                                                                \
	{                                                                                                              \
		VFM_OPT_INT, 0, "exec-retries", "N", "repeat a record whose child failed (default 1)", &(o)->retries   \
	}
/* For a command without an outside model.  VFM_EUSAGE: one of VFM_EXEC_OPTS was given.  `command`: "--exec CMD". */
int vfm_exec_refuse_opts(const struct vfm_exec_opts *o, const char *command, struct vfm_err *err);

#define VFM_EXEC_MAX 256 /* children */

struct vfm_exec;
struct vfm_exec_slot;

/* Starts the children, which load their weights in the background.  Call vfm_exec_wait before any other function.
 * VFM_EUSAGE: an option is out of range, or the command has no word. */
int vfm_exec_start(struct vfm_exec **x, const struct vfm_exec_opts *o, struct vfm_err *err);
/* Blocks until a child has sent its hello.  The caller closes x even after a failure.  VFM_EUSAGE: the command cannot
 * be started, or its hello is invalid or lacks the capability.  VFM_EENV: the child ended or stalled before its
 * hello. */
int vfm_exec_wait(struct vfm_exec *x, struct vfm_err *err);
/* Does both; closes the pool if the second fails. */
int vfm_exec_open(struct vfm_exec **x, const struct vfm_exec_opts *o, struct vfm_err *err);
/* Ends the children: closes their stdin, waits for 10 s, then kills them.  Logs the totals.  No call may be in
 * progress.  No-op for NULL. */
void vfm_exec_close(struct vfm_exec *x);

const struct vfm_hello *vfm_exec_hello(const struct vfm_exec *x); /* borrowed; equal for all children */
/* Returns the number of threads that keep all children busy while `preparing` more threads prepare requests; at most
 * 1024. */
int vfm_exec_threads(const struct vfm_exec *x, int preparing);

/* Makes n slots.  Call once, after open. */
void vfm_exec_make_slots(struct vfm_exec *x, int n);
/* Sets the op of the slot's next requests, which the hello must also name; the default is the op of the pool. */
void vfm_exec_set_op(struct vfm_exec_slot *s, enum vfm_exec_op op);

/* Adds "id", "op" and "out" to a request, sends it, and blocks until it is answered or has failed.  Takes the reference
 * of `request`; the caller owns *answer.  For an op of VFM_EXEC_ARRAY_OPS, first sets `out` to a length that no array
 * has.  VFM_EINPUT: the child answered with an error, or children died; VFM_EENV: children or files can no longer be
 * created. */
int vfm_exec_call(struct vfm_exec_slot *s, json_t *request, json_t **answer, struct vfm_err *err);

struct vfm_exec_stats {
	int64_t requests, errors; /* answered or failed requests; failed ones */
	int64_t restarts;
	double busy_s;    /* time with a request in flight, summed over the children */
	double waiting_s; /* time without, while a request was waiting */
	double ready_s;   /* time since the hello */
};
struct vfm_exec_stats vfm_exec_stats(struct vfm_exec *x);

#endif
