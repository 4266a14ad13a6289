/* child.c - one child: the thread that starts it, moves its lines, watches its time and replaces it. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "encoder/exec/exec_impl.h"
#include "io/json.h"

#define MAX_LINE       ((size_t)16 << 20)
#define READ_BYTES     ((size_t)256 << 10)
#define END_S          10 /* between the end of stdin and SIGKILL */
#define MAX_EMPTY_RUNS 3
#define STDERR_LINE    4096 /* of a forwarded line */
#define STDERR_KIB     64   /* KiB of stderr that are read at a time */
#define MAX_LAST_READS 8    /* more than the pipe holds */

/* ---- starting ---- */

/* Returns the i-th GPU that this process may use; the children use them in turn.  NULL: none is known. */
static char *choose_gpu(int i)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES"), *p;
	char path[32];
	int n = 0;

	if (!list) {
		while (snprintf(path, sizeof(path), "/dev/nvidia%d", n), access(path, F_OK) == 0)
			n++;
		return n ? vfm_strfmt("CUDA_VISIBLE_DEVICES=%d", i % n) : NULL;
	}
	for (p = list; *p; p += strcspn(p, ",")) { /* "0,1," has two */
		p += strspn(p, ",");
		n += *p != 0;
	}
	if (n == 0)
		return NULL;
	p = list + strspn(list, ",");
	for (i %= n; i > 0; i--) {
		p += strcspn(p, ",");
		p += strspn(p, ",");
	}
	return vfm_strfmt("CUDA_VISIBLE_DEVICES=%.*s", (int)strcspn(p, ","), p);
}

static bool sets_same_variable(const char *a, const char *b)
{
	size_t n = strcspn(a, "=");

	return strncmp(a, b, n + 1) == 0;
}

enum { MAX_OWN = 5 }; /* variables that the tool sets */

/* Returns the environment of a child and sets *n_own.  The caller frees the first *n_own entries and the list. */
static char **make_environment(const struct vfm_exec_child *c, int *n_own)
{
	char *gpu = choose_gpu(c->x->o.first_gpu + c->index), **env;
	size_t n = 0, k = 0;

	while (environ[n])
		n++;
	env = vfm_calloc(n + MAX_OWN + 1, sizeof(*env));
	env[k++] = vfm_strfmt("VFM_EXEC=%d", VFM_EXEC_PROTOCOL);
	env[k++] = vfm_strfmt("VFM_EXEC_CHILD=%d", c->index);
	env[k++] = vfm_strfmt("VFM_EXEC_CHILDREN=%d", (int)c->x->o.children);
	env[k++] = vfm_strfmt("VFM_EXEC_DIR=%s", c->x->dir);
	if (gpu)
		env[k++] = gpu;
	*n_own = (int)k;
	for (size_t i = 0; i < n; i++) {
		bool own = false;

		for (int j = 0; j < *n_own; j++)
			own = own || sets_same_variable(env[j], environ[i]);
		if (!own)
			env[k++] = environ[i];
	}
	return env;
}

static int start_child(struct vfm_exec_child *c, struct vfm_err *err)
{
	int n_own;
	char **env = make_environment(c, &n_own);
	int rc = vfm_process_start(&c->p, c->x->argv, env, err);

	for (int i = 0; i < n_own; i++)
		free(env[i]);
	free(env);
	if (rc < 0)
		return rc;
	vfm_guardian_add(&c->x->guardian, c->p.pid);
	c->started = vfm_now();
	c->answered = false;
	c->last_line[0] = 0;
	return 0;
}

/* For messages: the name of the command, later that of the hello. */
static const char *child_name(const struct vfm_exec_child *c)
{
	return c->greeted ? c->x->hello.name : c->x->name;
}

/* ---- states; with the lock ---- */

/* Adds the time since the last change to the totals. */
static void account_time(struct vfm_exec_child *c)
{
	double now = vfm_now();

	c->x->stats.ready_s += now - c->since;
	if (c->n_flight)
		c->x->stats.busy_s += now - c->since;
	c->since = now;
}

static void set_ready(struct vfm_exec_child *c)
{
	c->ready = true;
	c->since = vfm_now();
	c->x->n_idle++;
}

static void set_not_ready(struct vfm_exec_child *c)
{
	if (!c->ready)
		return;
	account_time(c);
	c->x->n_idle -= c->n_flight == 0;
	c->ready = false;
	c->alone = false;
}

/* Takes a request out of those in flight. */
static void remove_flight(struct vfm_exec_child *c, int i)
{
	account_time(c);
	c->n_flight--;
	memmove(&c->flight[i], &c->flight[i + 1], (size_t)(c->n_flight - i) * sizeof(c->flight[0]));
	if (c->n_flight == 0) {
		c->alone = false;
		c->x->n_idle += c->ready;
	}
}

/* ---- faults ---- */

/* The requests in flight go back to the front of the queue, each to be sent alone.  One that children died with fails,
 * but only after a death that no other request can have caused. */
static void return_flight(struct vfm_exec_child *c, const char *why)
{
	struct vfm_exec *x = c->x;
	struct vfm_err err;

	for (int i = c->n_flight - 1; i >= 0; i--) {
		struct vfm_exec_slot *s = c->flight[i];

		if (++s->deaths > x->o.retries && !s->shared) {
			vfm_fail(&err, VFM_EINPUT, "%s: %d process%s failed on this record; the last %s", x->hello.name,
				s->deaths, s->deaths == 1 ? "" : "es", why);
			vfm_exec_finish(s, VFM_EINPUT, NULL, &err);
			continue;
		}
		s->suspect = true;
		s->next = x->head;
		if (!x->head)
			x->tail = &s->next;
		x->head = s;
		x->n_queued++;
	}
	c->n_flight = 0;
}

/* Kills the process.  `why`: "gave no answer for 600 s".  Without a hello of any child, or after several processes that
 * did nothing, the pool gives up. */
static void drop_process(struct vfm_exec_child *c, const char *why)
{
	struct vfm_exec *x = c->x;
	const char *colon = c->last_line[0] ? ": " : "";
	struct vfm_err err;
	bool fruitless = !c->answered && c->n_flight == 0, goes_on;

	vfm_guardian_remove(&x->guardian, c->p.pid);
	vfm_process_kill(&c->p);
	vfm_buf_clear(&c->from);
	vfm_buf_clear(&c->to);
	vfm_buf_clear(&c->err_text);
	c->sent = 0;
	pthread_mutex_lock(&x->lock);
	set_not_ready(c);
	return_flight(c, why);
	c->empty_runs = fruitless ? c->empty_runs + 1 : 0;
	if (!x->hello_json || c->empty_runs >= MAX_EMPTY_RUNS) {
		vfm_fail(&err, VFM_EENV, "%s: child %d %s%s%s", child_name(c), c->index, why, colon, c->last_line);
		vfm_exec_give_up(x, &err);
	} else {
		x->stats.restarts++;
		vfm_exec_wake_one(x);
	}
	goes_on = !x->failed && !x->closing;
	pthread_mutex_unlock(&x->lock);
	if (goes_on)
		vfm_warn("%s[%d] %s%s%s; starting another", child_name(c), c->index, why, colon, c->last_line);
}

/* Ends the run, since another process would do the same. */
static void refuse_child(struct vfm_exec_child *c, struct vfm_err *err)
{
	vfm_err_context(err, "%s: child %d", child_name(c), c->index);
	pthread_mutex_lock(&c->x->lock);
	vfm_exec_give_up(c->x, err);
	pthread_mutex_unlock(&c->x->lock);
}

/* ---- stderr ---- */

static void forward_line(struct vfm_exec_child *c, const char *line, size_t n)
{
	while (n && (line[n - 1] == '\r' || line[n - 1] == ' '))
		n--;
	if (n == 0)
		return;
	vfm_error("%s[%d]: %.*s", child_name(c), c->index, (int)n, line); /* also with -q */
	snprintf(c->last_line, sizeof(c->last_line), "%.*s", (int)n, line);
}

static void read_stderr(struct vfm_exec_child *c)
{
	char block[4096];
	ssize_t n = 0;

	for (int i = 0; i < STDERR_KIB * 1024 / (int)sizeof(block); i++) {
		n = c->p.err_fd >= 0 ? read(c->p.err_fd, block, sizeof(block)) : 0;
		if (n <= 0)
			break;
		for (ssize_t k = 0; k < n; k++) { /* progress bars end their lines with \r */
			if (block[k] != '\n' && block[k] != '\r' && c->err_text.len < STDERR_LINE) {
				vfm_buf_add(&c->err_text, &block[k], 1);
				continue;
			}
			forward_line(c, c->err_text.data ? c->err_text.data : "", c->err_text.len);
			vfm_buf_clear(&c->err_text);
		}
	}
	if (n == 0 && c->p.err_fd >= 0) {
		forward_line(c, c->err_text.data ? c->err_text.data : "", c->err_text.len);
		vfm_buf_clear(&c->err_text);
		close(c->p.err_fd);
		c->p.err_fd = -1;
	}
}

/* ---- requests ---- */

/* Takes requests from the queue: a batch, and as many as keep the child busy while no other child is idle.  A request
 * that a child did not survive is taken alone. */
static int take_requests(struct vfm_exec_child *c, struct vfm_exec_slot **taken)
{
	struct vfm_exec *x = c->x;
	const int batch = x->hello.batch;
	int others = x->n_idle - (c->ready && c->n_flight == 0), n = 0, room;
	double now = vfm_now();

	c->woken = false;
	if (!vfm_exec_has_room(c) || (c->n_flight && others > 0))
		return 0;
	room = others > 0 ? batch : vfm_exec_depth(x) - c->n_flight;
	if (room > batch && x->n_queued < room) /* full batches, or one that is not */
		room = x->n_queued < batch ? batch : (int)(x->n_queued / batch) * batch;
	if (c->n_flight == 0) /* idle since c->since, while the first request waited */
		x->stats.waiting_s += now - (c->since > x->head->queued ? c->since : x->head->queued);
	account_time(c);
	while (x->head && n < room) {
		struct vfm_exec_slot *s = x->head;

		if (s->suspect && c->n_flight + n)
			break;
		x->head = s->next;
		if (!x->head)
			x->tail = &x->head;
		x->n_queued--;
		s->next = NULL;
		s->clock = now;
		s->shared = false;
		taken[n++] = s;
		if (s->suspect) {
			c->alone = true;
			break;
		}
	}
	if (c->n_flight == 0)
		x->n_idle -= n > 0;
	for (int i = 0; i < n; i++)
		c->flight[c->n_flight++] = taken[i];
	for (int i = 0; i < c->n_flight && c->n_flight > 1; i++)
		c->flight[i]->shared = true;
	vfm_exec_wake_one(x);
	return n;
}

/* The slots in flight belong to this thread until they are finished, so that the lock is not needed for their
 * requests. */
static void queue_requests(struct vfm_exec_child *c, struct vfm_exec_slot **taken, int n)
{
	for (int i = 0; i < n; i++) {
		if (taken[i]->suspect && (taken[i]->op & VFM_EXEC_ARRAY_OPS))
			vfm_exec_invalidate_output(
				taken[i], NULL); /* an error leaves no more than this request's array */
		if (i + 1 < n && (i + 1) % c->x->hello.batch != 0)
			json_object_set_new(taken[i]->request, "more", json_true());
		else
			json_object_del(taken[i]->request, "more");
		vfm_json_text(&c->to, taken[i]->request, 0);
		vfm_buf_add(&c->to, "\n", 1);
	}
}

/* Writes as much as the pipe takes.  Returns false if the child has closed it. */
static bool write_requests(struct vfm_exec_child *c)
{
	while (c->sent < c->to.len) {
		ssize_t n = write(c->p.in, c->to.data + c->sent, c->to.len - c->sent);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		c->sent += (size_t)n;
	}
	vfm_buf_clear(&c->to);
	c->sent = 0;
	return true;
}

/* ---- answers ---- */

/* Fails with VFM_EUSAGE if the child is not what the first one was. */
static int take_hello(struct vfm_exec_child *c, json_t *o, struct vfm_err *err)
{
	struct vfm_exec *x = c->x;
	struct vfm_hello hello;
	int rc;

	TRY(vfm_hello_parse(&hello, o, err));
	if (!(hello.ops & x->op))
		return vfm_fail(err, VFM_EUSAGE, "hello.capabilities: '%s' lacks '%s'", hello.name, x->o.capability);
	c->flight = vfm_realloc(c->flight, (size_t)hello.batch * 2 + 4, sizeof(struct vfm_exec_slot *));
	pthread_mutex_lock(&x->lock);
	if (!x->hello_json) {
		x->hello = hello;
		x->hello_json = json_incref(o);
		pthread_cond_broadcast(&x->hello_came);
	}
	rc = json_equal(x->hello_json, o) ? 0 : VFM_EUSAGE;
	if (rc == 0) {
		c->greeted = true;
		set_ready(c);
	}
	pthread_mutex_unlock(&x->lock);
	return rc == 0 ? 0
		       : vfm_fail(err, VFM_EUSAGE, "its hello differs from that of another child: '%s %s'", hello.name,
				 hello.version);
}

/* Finishes the i-th request in flight; takes the reference of `answer`. */
static void finish_flight(struct vfm_exec_child *c, int i, int rc, json_t *answer, const struct vfm_err *err)
{
	struct vfm_exec_slot *s = c->flight[i];
	double now = vfm_now();

	pthread_mutex_lock(&c->x->lock);
	remove_flight(c, i);
	for (; i < c->n_flight; i++) /* those sent later begin their time now */
		c->flight[i]->clock = now;
	c->answered = true;
	c->empty_runs = 0;
	vfm_exec_finish(s, rc, answer, err);
	pthread_mutex_unlock(&c->x->lock);
}

/* Returns the index of a request in flight, or -1. */
static int find_flight(const struct vfm_exec_child *c, json_int_t id)
{
	for (int i = 0; i < c->n_flight; i++)
		if (c->flight[i]->id == id)
			return i;
	return -1;
}

/* Describes an answer that matches no request in flight.  A second answer to an earlier request does not count against
 * those in flight, unless one of them encounters it again. */
static const char *refuse_answer(struct vfm_exec_child *c, const json_t *id)
{
	for (int i = 0; i < c->n_flight && json_is_integer(id); i++)
		if (!c->flight[i]->suspect && json_integer_value(id) < c->flight[i]->id)
			c->flight[i]->shared = true;
	return json_is_integer(id) ? "answered a request that was not in flight" : "gave an answer without an id";
}

/* Returns NULL, or the fault of the answer.  Takes the reference of o. */
static const char *take_answer(struct vfm_exec_child *c, json_t *o)
{
	const json_t *id = json_object_get(o, "id"), *error = json_object_get(o, "error");
	int i = json_is_integer(id) ? find_flight(c, json_integer_value(id)) : -1;
	struct vfm_err err;
	const char *why;

	if (i < 0) {
		why = refuse_answer(c, id);
		json_decref(o);
		return why;
	}
	if (error && !json_is_null(error)) {
		const char *text = json_string_value(error);

		vfm_fail(&err, VFM_EINPUT, "%s: %s", c->x->hello.name, text ? text : "an error without text");
		json_decref(o);
		finish_flight(c, i, VFM_EINPUT, NULL, &err);
	} else {
		finish_flight(c, i, 0, o, NULL);
	}
	return NULL;
}

/* Returns the request in flight whose id begins the line, {"id":N, or -1. */
static int flight_of_line(const struct vfm_exec_child *c, const char *line, size_t n)
{
	static const char *const before[] = {"{", "\"id\"", ":"};
	size_t at = 0, digits;
	char number[24];

	for (int i = 0; i < 3; i++) {
		size_t len = strlen(before[i]);

		while (at < n && (line[at] == ' ' || line[at] == '\t'))
			at++;
		if (n - at < len || memcmp(line + at, before[i], len) != 0)
			return -1;
		at += len;
	}
	snprintf(number, sizeof(number), "%.*s", (int)(n - at < 23 ? n - at : 23), line + at);
	at = strspn(number, " \t");
	digits = strspn(number + at, "0123456789");
	return digits && number[at + digits] && strchr(" \t,}", number[at + digits])
		? find_flight(c, strtoll(number + at, NULL, 10))
		: -1;
}

enum { MAX_QUOTE = 60, MAX_REASON = 160 };

/* The first bytes of a text, in printable ASCII: it may be cut within a character or be no text at all. */
static void quote_text(char *dst, size_t max, const char *text, size_t n)
{
	size_t k = 0;

	for (; k < n && k < max; k++)
		dst[k] = text[k] < ' ' || text[k] > '~' ? '?' : text[k];
	strcpy(dst + k, k < n ? "..." : "");
}

/* A line that is no JSON object fails the request that it names, otherwise the process.  reason: of the parser. */
static const char *refuse_child_line(struct vfm_exec_child *c, const char *line, size_t n, const char *reason)
{
	int i = c->ready ? flight_of_line(c, line, n) : -1;
	char quoted[MAX_QUOTE + 4], plain[MAX_REASON + 4];
	const char *colon = *reason ? ": " : "";
	struct vfm_err err;

	quote_text(quoted, MAX_QUOTE, line, n);
	quote_text(plain, MAX_REASON, reason, strlen(reason));
	snprintf(c->fault, sizeof(c->fault), "wrote a line that is no JSON object: '%s'%s%s", quoted, colon, plain);
	if (i < 0)
		return c->fault;
	vfm_fail(
		&err, VFM_EINPUT, "%s: the answer is no JSON object: '%s'%s%s", c->x->hello.name, quoted, colon, plain);
	finish_flight(c, i, VFM_EINPUT, NULL, &err);
	return NULL;
}

/* Returns NULL, or the fault.  A hello that is refused ends the pool. */
static const char *take_line(struct vfm_exec_child *c, const char *line, size_t n)
{
	json_error_t parsed = {0};
	json_t *o = json_loadb(line, n, JSON_REJECT_DUPLICATES, &parsed);
	struct vfm_err err = {0};
	int rc;

	if (!json_is_object(o)) {
		json_decref(o);
		return refuse_child_line(c, line, n, parsed.text);
	}
	if (c->ready)
		return take_answer(c, o);
	rc = take_hello(c, o, &err);
	json_decref(o);
	if (rc < 0)
		refuse_child(c, &err);
	return NULL;
}

/* Handles the complete lines of c->from. */
static const char *take_lines(struct vfm_exec_child *c, size_t from)
{
	const char *why = NULL, *end;
	size_t at = 0;

	while (!why && c->from.len > from && (end = memchr(c->from.data + from, '\n', c->from.len - from))) {
		size_t n = (size_t)(end - (c->from.data + at));

		if (n)
			why = take_line(c, c->from.data + at, n);
		at += n + 1;
		from = at;
	}
	if (why)
		return why;
	if (at) {
		memmove(c->from.data, c->from.data + at, c->from.len - at);
		c->from.len -= at;
	}
	return c->from.len > MAX_LINE ? "wrote a line of more than 16 MiB" : NULL;
}

/* Reads once.  Returns NULL or the fault; *end at the end of stdout. */
static const char *read_answers(struct vfm_exec_child *c, bool *end)
{
	size_t had = c->from.len;
	ssize_t n;

	*end = false;
	vfm_grow(&c->from.data, &c->from.cap, had + READ_BYTES + 1, 1);
	n = read(c->p.out, c->from.data + had, READ_BYTES);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? NULL : "cannot be read";
	*end = n == 0;
	c->from.len += (size_t)n;
	return n ? take_lines(c, had) : NULL;
}

/* ---- the loop ---- */

/* Returns the deadline of the child. */
static double child_deadline(const struct vfm_exec_child *c)
{
	double until = c->ready ? 1e300 : c->started + c->x->o.start_s;

	for (int i = 0; i < c->n_flight; i++)
		if (c->flight[i]->clock + c->x->o.timeout_s < until)
			until = c->flight[i]->clock + c->x->o.timeout_s;
	return until;
}

/* Describes the end of a child that has closed a pipe: its wait status, if that comes within 1 s, or else `closed`. */
static void describe_end(struct vfm_exec_child *c, const char *closed, char *why, size_t size)
{
	struct timespec slice = {.tv_nsec = 5000000};
	int status;

	for (int i = 0; i < 200; i++) {
		if (vfm_process_has_ended(&c->p, &status)) {
			read_stderr(c);
			vfm_process_describe(status, why, size);
			return;
		}
		nanosleep(&slice, NULL);
	}
	snprintf(why, size, "%s", closed);
}

/* Reads the answers that a child wrote before its end.  Another process may hold its pipe open. */
static const char *read_last_answers(struct vfm_exec_child *c)
{
	struct pollfd out = {.fd = c->p.out, .events = POLLIN};
	const char *why = NULL;
	bool end = false;

	for (int i = 0; i < MAX_LAST_READS && !why && !end && poll(&out, 1, 0) > 0; i++)
		why = read_answers(c, &end);
	return why;
}

static void check_lateness(struct vfm_exec_child *c)
{
	char why[96];

	if (vfm_now() < child_deadline(c))
		return;
	if (c->ready)
		snprintf(why, sizeof(why), "gave no answer for %g s", c->x->o.timeout_s);
	else
		snprintf(why, sizeof(why), "said no hello within %g s", c->x->o.start_s);
	drop_process(c, why);
}

static int wait_ms(const struct vfm_exec_child *c)
{
	double left = child_deadline(c) - vfm_now(), most = c->p.pidfd < 0 ? 1 : 3600;

	return left <= 0 ? 0 : left > most ? (int)most * 1000 : (int)(left * 1000) + 1;
}

/* Returns NULL, or a text for a child that has ended or closed a pipe.  `fds` are those of serve_child. */
static const char *find_end(struct vfm_exec_child *c, const struct pollfd *fds, bool end_of_stdout)
{
	int status;

	if (end_of_stdout)
		return "closed its stdout";
	if (fds[3].revents & POLLOUT && !write_requests(c))
		return "closed its stdin";
	if (fds[3].revents & ~POLLOUT)
		return "closed its stdin";
	/* A descendant of the child may hold its pipes open. */
	return fds[4].revents || (c->p.pidfd < 0 && vfm_process_has_ended(&c->p, &status)) ? "ended" : NULL;
}

/* Waits for the child or for requests, and handles what has come. */
static void serve_child(struct vfm_exec_child *c)
{
	struct pollfd fds[5] = {
		{.fd = c->wake, .events = POLLIN},
		{.fd = c->p.out, .events = POLLIN},
		{.fd = c->p.err_fd, .events = POLLIN},
		{.fd = c->p.in, .events = c->sent < c->to.len ? POLLOUT : 0}, /* and POLLERR */
		{.fd = c->p.pidfd, .events = POLLIN},
	};
	const char *why = NULL, *ended;
	char text[96] = "";
	uint64_t ignored;
	bool end = false;

	if (poll(fds, 5, wait_ms(c)) < 0)
		return; /* EINTR */
	if (fds[0].revents && read(c->wake, &ignored, sizeof(ignored)) < 0 && errno != EAGAIN)
		return;
	if (fds[2].revents)
		read_stderr(c);
	if (fds[1].revents)
		why = read_answers(c, &end);
	ended = why ? NULL : find_end(c, fds, end);
	if (ended) {
		if (!end)
			why = read_last_answers(c);
		describe_end(c, ended, text, sizeof(text));
		if (!why)
			why = c->from.len ? "ended in the middle of a line" : text;
	}
	if (why)
		drop_process(c, why);
	else
		check_lateness(c);
}

/* Closes stdin and waits for the end of the process; at once: kills it, since it is of no use. */
static void end_child(struct vfm_exec_child *c, bool at_once)
{
	double until = vfm_now() + (at_once ? 0 : END_S);
	struct pollfd fds[2] = {{.fd = c->p.out, .events = POLLIN}, {.fd = c->p.err_fd, .events = POLLIN}};
	bool ended = false, surplus = false;
	char block[4096], how[64];
	int status = 0;

	close(c->p.in);
	c->p.in = -1;
	while (!(ended = vfm_process_has_ended(&c->p, &status)) && vfm_now() < until) {
		ssize_t n;

		fds[1].fd = c->p.err_fd;
		poll(fds, 2, 10);
		read_stderr(c);
		n = fds[0].fd >= 0 ? read(c->p.out, block, sizeof(block)) : -1;
		surplus = surplus || n > 0;
		if (n == 0)
			fds[0].fd = -1;
	}
	read_stderr(c);
	vfm_guardian_remove(&c->x->guardian, c->p.pid);
	vfm_process_kill(&c->p);
	vfm_process_describe(status, how, sizeof(how));
	if (!ended && !at_once)
		vfm_warn("%s[%d] did not end within %d s after the end of its stdin", child_name(c), c->index, END_S);
	else if (ended && status && !at_once)
		vfm_warn("%s[%d] %s after the end of its stdin", child_name(c), c->index, how);
	if (surplus && !at_once)
		vfm_warn("%s[%d] gave more answers than there were requests", child_name(c), c->index);
}

/* Fails the requests in flight when the pool gives up. */
static void abandon_flight(struct vfm_exec_child *c)
{
	for (int i = 0; i < c->n_flight; i++)
		vfm_exec_finish(c->flight[i], VFM_EENV, NULL, &c->x->err);
	set_not_ready(c);
	c->n_flight = 0;
}

void *vfm_exec_child_main(void *arg)
{
	struct vfm_exec_child *c = arg;
	struct vfm_exec *x = c->x;
	struct vfm_exec_slot **taken = NULL;
	struct vfm_err err;
	bool stop, failed;
	int n;

	for (;;) {
		pthread_mutex_lock(&x->lock);
		failed = x->failed;
		stop = x->closing || failed;
		if (c->ready && !taken)
			taken = vfm_calloc((size_t)vfm_exec_depth(x), sizeof(struct vfm_exec_slot *));
		n = stop || !taken ? 0 : take_requests(c, taken);
		pthread_mutex_unlock(&x->lock);
		if (stop)
			break;
		queue_requests(c, taken, n);
		if (!c->p.pid && start_child(c, &err) < 0) {
			refuse_child(c, &err);
			continue;
		}
		if (n && !write_requests(c))
			vfm_buf_clear(&c->to), c->sent = 0; /* serve_child finds out why */
		serve_child(c);
	}
	pthread_mutex_lock(&x->lock);
	failed = failed || !c->ready; /* it still loads its weights */
	abandon_flight(c);
	pthread_mutex_unlock(&x->lock);
	if (c->p.pid)
		end_child(c, failed);
	vfm_buf_release(&c->to);
	vfm_buf_release(&c->from);
	vfm_buf_release(&c->err_text);
	free(c->flight);
	free(taken);
	return NULL;
}
