/* exec.c - the pool: its queue of requests, and calls.
 *
 * One thread for each child moves the lines.  A guardian process kills the children with their process groups and
 * removes the folder when the parent ends, also by SIGKILL; other process groups that a child made continue.
 */
#include "encoder/exec/exec.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/installed.h"
#include "base/log.h"
#include "encoder/exec/exec_impl.h"
#include "io/file.h"
#include "io/process.h"

#define MAX_THREADS 1024
#define MIN_DEPTH   4 /* a quick child has answered two requests before a thread runs */

int vfm_exec_depth(const struct vfm_exec *x)
{
	return x->hello.batch < MIN_DEPTH / 2 ? MIN_DEPTH : 2 * x->hello.batch;
}

/* ---- the queue; with the lock ---- */

bool vfm_exec_has_room(const struct vfm_exec_child *c)
{
	if (!c->ready || c->alone || !c->x->head || (c->x->head->suspect && c->n_flight))
		return false;
	/* A busy child gets full batches: single requests would become batches of one. */
	return c->n_flight == 0 ||
		(c->x->n_queued >= c->x->hello.batch && c->n_flight + c->x->hello.batch <= vfm_exec_depth(c->x));
}

void vfm_exec_wake_one(struct vfm_exec *x)
{
	const uint64_t one = 1;
	struct vfm_exec_child *best = NULL;

	for (int i = 0; i < x->o.children; i++) {
		struct vfm_exec_child *c = &x->children[i];

		if (vfm_exec_has_room(c) && (!best || c->n_flight < best->n_flight))
			best = c;
	}
	if (!best || best->woken)
		return;
	best->woken = true;
	if (write(best->wake, &one, sizeof(one)) < 0) /* an eventfd that is set already */
		return;
}

void vfm_exec_finish(struct vfm_exec_slot *s, int rc, json_t *answer, const struct vfm_err *err)
{
	s->rc = rc;
	s->answer = answer;
	if (err)
		s->err = *err;
	s->done = true;
	s->x->stats.requests++;
	s->x->stats.errors += rc < 0;
	pthread_cond_signal(&s->answered);
}

void vfm_exec_give_up(struct vfm_exec *x, const struct vfm_err *err)
{
	const uint64_t one = 1;

	if (!x->failed)
		x->err = *err;
	x->failed = true;
	for (struct vfm_exec_slot *s = x->head, *next; s; s = next) {
		next = s->next;
		vfm_exec_finish(s, VFM_EENV, NULL, &x->err);
	}
	x->head = NULL;
	x->tail = &x->head;
	x->n_queued = 0;
	pthread_cond_broadcast(&x->hello_came);
	for (int i = 0; i < x->o.children; i++)
		if (write(x->children[i].wake, &one, sizeof(one)) < 0)
			continue;
}

/* ---- calls ---- */

int vfm_exec_call(struct vfm_exec_slot *s, json_t *request, json_t **answer, struct vfm_err *err)
{
	struct vfm_exec *x = s->x;
	int rc;

	*answer = NULL;
	if (s->op & VFM_EXEC_ARRAY_OPS) {
		rc = vfm_exec_invalidate_output(s, err);
		if (rc < 0) {
			json_decref(request);
			return rc;
		}
	}
	json_object_set_new(request, "op", json_string(vfm_exec_op_name(s->op)));
	json_object_set_new(request, "out", json_string(s->out_path));
	pthread_mutex_lock(&x->lock);
	s->request = request;
	s->answer = NULL;
	s->deaths = 0;
	s->suspect = s->shared = false;
	s->done = false;
	s->next = NULL;
	s->queued = vfm_now();
	s->id = x->next_id++;
	json_object_set_new(request, "id", json_integer(s->id));
	if (x->failed) {
		vfm_exec_finish(s, VFM_EENV, NULL, &x->err);
	} else {
		*x->tail = s;
		x->tail = &s->next;
		x->n_queued++;
		vfm_exec_wake_one(x);
	}
	while (!s->done)
		pthread_cond_wait(&s->answered, &x->lock);
	rc = s->rc;
	pthread_mutex_unlock(&x->lock);
	json_decref(s->request);
	s->request = NULL;
	*answer = s->answer;
	if (rc < 0 && err)
		*err = s->err;
	return rc;
}

/* ---- opening ---- */

_Static_assert(VFM_GUARDIAN_GROUPS >= 2 * VFM_EXEC_MAX, "the guardian knows all children");

static int make_argv(struct vfm_exec *x, struct vfm_err *err)
{
	if (x->o.shell) {
		x->argv = vfm_calloc(4, sizeof(*x->argv));
		x->argv[0] = vfm_strdup("sh");
		x->argv[1] = vfm_strdup("-c");
		x->argv[2] = vfm_strdup(x->o.command);
	} else {
		x->argv = vfm_exec_words(x->o.command, err);
		if (!x->argv)
			return VFM_EUSAGE;
	}
	x->name = x->o.shell ? vfm_strfmt("%.40s", x->o.command) : vfm_strdup(vfm_exec_name(x->argv));
	vfm_installed_use("exec", x->argv);
	return 0;
}

static int start_children(struct vfm_exec *x, struct vfm_err *err)
{
	x->children = vfm_calloc((size_t)x->o.children, sizeof(*x->children));
	for (int i = 0; i < x->o.children; i++) {
		x->children[i] = (struct vfm_exec_child){.x = x, .index = i, .p = VFM_PROCESS_NONE};
		x->children[i].wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	}
	for (int i = 0; i < x->o.children; i++)
		if (x->children[i].wake < 0)
			return vfm_fail_errno(err, VFM_EENV, "cannot make an event descriptor");
	for (; x->n_started < x->o.children; x->n_started++)
		if (pthread_create(&x->children[x->n_started].thread, NULL, vfm_exec_child_main,
			    &x->children[x->n_started]) != 0)
			return vfm_fail(err, VFM_EENV, "cannot start a thread");
	return 0;
}

int vfm_exec_wait(struct vfm_exec *x, struct vfm_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&x->lock);
	while (!x->hello_json && !x->failed)
		pthread_cond_wait(&x->hello_came, &x->lock);
	if (x->failed) {
		rc = x->err.code;
		if (err)
			*err = x->err;
	}
	pthread_mutex_unlock(&x->lock);
	return rc;
}

int vfm_exec_refuse_opts(const struct vfm_exec_opts *o, const char *command, struct vfm_err *err)
{
	const char *given = o->shell                      ? "--exec-shell"
		: o->timeout_s != VFM_EXEC_UNSET          ? "--exec-timeout"
		: o->start_s != VFM_EXEC_UNSET            ? "--exec-start"
		: o->retries != VFM_EXEC_DEFAULTS.retries ? "--exec-retries"
							  : NULL;

	return given ? vfm_fail(err, VFM_EUSAGE, "%s: only with %s", given, command) : 0;
}

static void set_defaults(struct vfm_exec_opts *o)
{
	o->children = o->children ? o->children : 1;
	if (o->timeout_s == VFM_EXEC_UNSET)
		o->timeout_s = 600;
	if (o->start_s == VFM_EXEC_UNSET)
		o->start_s = 1800;
	if (o->retries == VFM_EXEC_DEFAULTS.retries)
		o->retries = 1;
}

static int check_exec_opts(const struct vfm_exec_opts *o, struct vfm_err *err)
{
	if (o->children < 1 || o->children > VFM_EXEC_MAX)
		return vfm_fail(err, VFM_EUSAGE, "-j: expected 1 to %d child processes, got %lld", VFM_EXEC_MAX,
			(long long)o->children);
	if (!(o->timeout_s > 0 && o->timeout_s < 1e9) || !(o->start_s > 0 && o->start_s < 1e9))
		return vfm_fail(err, VFM_EUSAGE, "--exec-timeout, --exec-start: expected a number of seconds above 0");
	if (o->retries < 0 || o->retries > 1000)
		return vfm_fail(err, VFM_EUSAGE, "--exec-retries: expected 0 to 1000, got %lld", (long long)o->retries);
	return 0;
}

int vfm_exec_start(struct vfm_exec **out, const struct vfm_exec_opts *o, struct vfm_err *err)
{
	struct vfm_exec *x = vfm_calloc(1, sizeof(*x));
	int rc;

	x->o = *o;
	set_defaults(&x->o);
	x->op = vfm_exec_op_of(o->capability);
	x->lock_fd = -1;
	x->guardian.fd = -1;
	x->tail = &x->head;
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->hello_came, NULL);
	TRY_OUT(check_exec_opts(&x->o, err));
	TRY_OUT(make_argv(x, err));
	TRY_OUT(vfm_exec_dir_make(&x->dir, &x->lock_fd, err));
	TRY_OUT(vfm_guardian_start(&x->guardian, x->dir, err));
	TRY_OUT(start_children(x, err));
	*out = x;
	return 0;
out:
	vfm_exec_close(x);
	return rc;
}

int vfm_exec_open(struct vfm_exec **out, const struct vfm_exec_opts *o, struct vfm_err *err)
{
	struct vfm_exec *x = NULL;
	int rc;

	TRY(vfm_exec_start(&x, o, err));
	rc = vfm_exec_wait(x, err);
	if (rc < 0)
		vfm_exec_close(x);
	else
		*out = x;
	return rc;
}

const struct vfm_hello *vfm_exec_hello(const struct vfm_exec *x)
{
	return &x->hello;
}

int vfm_exec_threads(const struct vfm_exec *x, int preparing)
{
	int64_t n = x->o.children * vfm_exec_depth(x) + preparing;

	return n < MAX_THREADS ? (int)n : MAX_THREADS;
}

void vfm_exec_make_slots(struct vfm_exec *x, int n)
{
	x->n_slots = n;
	x->slots = vfm_calloc((size_t)n, sizeof(*x->slots));
	for (int i = 0; i < n; i++) {
		vfm_exec_slot_init(&x->slots[i], x, i);
		x->slots[i].op = x->op;
	}
}

void vfm_exec_set_op(struct vfm_exec_slot *s, enum vfm_exec_op op)
{
	s->op = op;
}

/* ---- the end ---- */

struct vfm_exec_stats vfm_exec_stats(struct vfm_exec *x)
{
	struct vfm_exec_stats s;

	pthread_mutex_lock(&x->lock);
	s = x->stats;
	pthread_mutex_unlock(&x->lock);
	return s;
}

static void log_totals(const struct vfm_exec *x)
{
	const struct vfm_exec_stats *s = &x->stats;

	if (!s->requests || x->failed)
		return;
	vfm_info("%s %s: %lld requests, %lld failed, %lld restarts; children busy for %.1f of %.1f s", x->hello.name,
		x->hello.version, (long long)s->requests, (long long)s->errors, (long long)s->restarts, s->busy_s,
		s->ready_s);
}

void vfm_exec_close(struct vfm_exec *x)
{
	const uint64_t one = 1;

	if (!x)
		return;
	pthread_mutex_lock(&x->lock);
	x->closing = true;
	pthread_mutex_unlock(&x->lock);
	for (int i = 0; i < x->n_started; i++)
		if (write(x->children[i].wake, &one, sizeof(one)) < 0)
			continue; /* it is set already */
	for (int i = 0; i < x->n_started; i++)
		pthread_join(x->children[i].thread, NULL);
	log_totals(x);
	for (int i = 0; x->children && i < x->o.children; i++)
		if (x->children[i].wake >= 0)
			close(x->children[i].wake);
	for (int i = 0; i < x->n_slots; i++)
		vfm_exec_slot_release(&x->slots[i]);
	if (x->dir)
		vfm_rm_rf(x->dir, NULL);
	vfm_guardian_end(&x->guardian);
	if (x->lock_fd >= 0)
		close(x->lock_fd);
	json_decref(x->hello_json);
	vfm_exec_words_free(x->argv);
	pthread_mutex_destroy(&x->lock);
	pthread_cond_destroy(&x->hello_came);
	free(x->children);
	free(x->slots);
	free(x->name);
	free(x->dir);
	free(x);
}
