/* exec.h - outside models (captioners, scorers, embedders, encoders, decoders) as child processes: vfm-exec(7).
 *
 * A vfm_exec starts N children of one command and distributes requests over them.  Requests and answers are JSON
 * objects; arrays travel in two files of a slot, `in` and `out`, on a tmpfs.  Each requesting thread has its own slot:
 *
 *	TRY(vfm_exec_open(&x, &opts, err));                    // starts the children, waits for the first hello
 *	vfm_exec_make_slots(x, vfm_exec_threads(x, 2));
 *	slot = vfm_exec_slot(x, worker);
 *	TRY(vfm_exec_input(slot, 0, frames, bytes, err));      // to the file that the child reads
 *	TRY(vfm_exec_describe(slot, dtype, ndim, shape, &o, err)); // {"path":…}, for a key of the request
 *	TRY(vfm_exec_call(slot, request, &answer, err));       // blocks until a child has answered
 *	TRY(vfm_exec_read_array(slot, answer, "latent", &a, err)); // what the child wrote
 *	vfm_exec_close(x);
 *
 * A child that crashes, stalls or answers wrongly is killed and started again.  Its requests are repeated, each alone;
 * a request that ends `retries` + 1 children, the last one alone, fails.
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
	const char *command;    /* "python3 vae.py DIR": divided into words (vfm_exec_words) */
	bool shell;             /* instead: sh -c command */
	const char *capability; /* "encode": the op of the requests (see vfm_exec_set_op); the hello must name it */
	int64_t children;       /* 0: 1; at most VFM_EXEC_MAX */
	double timeout_s;       /* between an answer and the next */
	double start_s;         /* until the hello */
	int64_t retries;        /* of a request after the death of its child */
	int first_gpu;          /* of child 0 */
};

/* Values of options that were not given; the pool takes the defaults of VFM_EXEC_OPTS for them. */
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
/* For a command without an outside model: VFM_EUSAGE if one of VFM_EXEC_OPTS was given.  `command`: "--exec CMD". */
int vfm_exec_refuse_opts(const struct vfm_exec_opts *o, const char *command, struct vfm_err *err);

#define VFM_EXEC_MAX 256 /* children */

struct vfm_exec;
struct vfm_exec_slot;

/* Starts the children; each loads its weights while the caller works on.  VFM_EUSAGE: an option is out of range, or the
 * command has no word.  Wait before any other call. */
int vfm_exec_start(struct vfm_exec **x, const struct vfm_exec_opts *o, struct vfm_err *err);
/* Blocks until a child has said hello.  After a failure the caller still closes x.  VFM_EUSAGE: the command cannot be
 * started, or its hello is invalid or lacks the capability.  VFM_EENV: it ended or stalled before its hello. */
int vfm_exec_wait(struct vfm_exec *x, struct vfm_err *err);
/* Both; closes the pool if the second fails. */
int vfm_exec_open(struct vfm_exec **x, const struct vfm_exec_opts *o, struct vfm_err *err);
/* Ends the children: closes their stdin, waits for 10 s, then kills them.  Logs the totals.  No call may be in
 * progress.  No-op for NULL. */
void vfm_exec_close(struct vfm_exec *x);

const struct vfm_hello *vfm_exec_hello(const struct vfm_exec *x); /* borrowed; the same for all children */
/* Returns the number of threads that keep all children busy while `preparing` others prepare requests; at most 1024. */
int vfm_exec_threads(const struct vfm_exec *x, int preparing);

/* Makes n slots.  Once, after open. */
void vfm_exec_make_slots(struct vfm_exec *x, int n);
/* Sets the op of the slot's further requests, which is that of the pool before; the hello must name it, too. */
void vfm_exec_set_op(struct vfm_exec_slot *s, enum vfm_exec_op op);

/* Adds "id", "op" and "out" to a request, sends it, and blocks until it is answered or has failed.  Before a child gets
 * a request of an op of VFM_EXEC_ARRAY_OPS, `out` has a length that no array has.  Takes the reference of `request`.
 * The caller owns *answer.  VFM_EINPUT: the child answered with an error, or children died; VFM_EENV: children or files
 * cannot be made any more. */
int vfm_exec_call(struct vfm_exec_slot *s, json_t *request, json_t **answer, struct vfm_err *err);

struct vfm_exec_stats {
	int64_t requests, errors; /* answered or failed; of them: failed */
	int64_t restarts;
	double busy_s;    /* sum over the children of the time with a request in flight */
	double waiting_s; /* of the time without, while a request was waiting */
	double ready_s;   /* of the time since the hello */
};
struct vfm_exec_stats vfm_exec_stats(struct vfm_exec *x);

#endif
