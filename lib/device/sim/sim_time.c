/* sim_time.c - streams, events and graphs of the simulated device: when work begins and ends.
 *
 * A launch begins when both its stream and the host have reached it.  It lasts for the gap of its kernels and the time
 * of estimate.h, in which streams may share the device.  An event is the time of its stream.  The host's clock advances
 * when the host waits, and by the machine's launch_host for each launch; a captured graph is one launch.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/sim/sim_impl.h"

static void advance(struct sim_clock *c, const struct sim_clock *to)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		c->s[e] = fmax(c->s[e], to->s[e]);
}

/* ---- tickets ---- */

static struct sim_ticket *hold_ticket(struct sim_ticket *t)
{
	t->users++;
	return t;
}

static void drop_ticket(struct sim_ticket *t)
{
	if (t && --t->users == 0)
		free(t);
}

/* ---- the queue of a stream ---- */

enum { QUEUE_LONG = 4096 }; /* then other ranks run first, so that it becomes shorter */

static bool has_queue(const struct sim_stream *s)
{
	return s->head < s->n;
}

static struct sim_item *push_item(struct sim_stream *s, enum sim_item_kind kind)
{
	struct sim_item *x;

	if (s->head > s->n / 2) {
		memmove(s->queue, s->queue + s->head, (s->n - s->head) * sizeof(*s->queue));
		s->n -= s->head;
		s->head = 0;
	}
	vfm_grow(&s->queue, &s->cap, s->n + 1, sizeof(*s->queue));
	x = &s->queue[s->n++];
	*x = (struct sim_item){.kind = kind, .host = sim_of(s->s.dev)->host};
	return x;
}

static void release_item(struct sim_item *x)
{
	if (x->kind == SIM_MEET)
		free(x->guest);
	else if (x->kind != SIM_LAUNCH)
		drop_ticket(x->ticket);
}

static struct vfm_sim_launch *launch_of(struct sim *d, size_t number)
{
	return number < d->cleared ? NULL : &d->launch[number - d->cleared];
}

/* ---- the time of work ---- */

/* Texts have one address each. */
static uint32_t hash_launch(const struct vfm_sim_launch *l)
{
	uint64_t x = (uint64_t)(uintptr_t)l->op * 0x9e3779b97f4a7c15 ^ (uint64_t)(uintptr_t)l->shape;

	return (uint32_t)((x * 0x9e3779b97f4a7c15) >> 32);
}

enum { PAST_NEAR = 32 };

/* Returns a launch in the last step; NULL: it had none.  Steps differ in a few launches, such as copies of shorter
 * texts: what follows is then nearby. */
static const struct sim_past *find_in_past(struct sim *d, size_t number, const struct vfm_sim_launch *l)
{
	int64_t i = (int64_t)(number - d->cleared) + d->past_shift;
	uint32_t what = hash_launch(l);

	for (int64_t k = 0; k <= PAST_NEAR; k = k > 0 ? -k : 1 - k) {
		if (i + k < 0 || i + k >= (int64_t)d->n_past || d->past[i + k].what != what)
			continue;
		d->past_shift += k;
		return &d->past[i + k];
	}
	return NULL;
}

#define PART_WHOLE 0.999

/* Returns the time of the work of a launch.  alone: seconds without overlap with work of other streams; overlapped:
 * with complete overlap.  An overlapped second does 1 / overlapped of the launch.
 *
 * If all of it overlapped in the last step, all of it does now; else as many seconds overlap as in the last step.  In
 * the first step all of it overlaps or nothing, depending on its begin. */
static double overlapped_s(const struct sim *d, const struct sim_past *past, const struct vfm_sim_launch *l, int e,
	double alone, double overlapped)
{
	double until = fmax(d->comm_until.s[e], d->side ? d->side->now.s[e] : 0);

	if (!past)
		return until > l->begin[e] ? overlapped : alone;
	if ((double)past->part[e] > PART_WHOLE || !(overlapped > 0))
		return overlapped;
	return fmin(alone + (double)past->seconds[e] * (1 - alone / overlapped), fmax(alone, overlapped));
}

/* Returns how long a launch stalls because a collective of another stream uses the same CPU: as long as in the last
 * step; if it stalled all the time, longer, so that the next step shows when it ends; 0 in the first step. */
static double stalled_s(const struct sim *d, const struct sim_past *past, double work, int e)
{
	const double longer = 20;

	if (d->machine.kind != VFM_MACHINE_CPU || !past)
		return 0;
	return (double)past->part[e] > PART_WHOLE ? longer * work : (double)past->seconds[e];
}

/* Sets begin, and the work of a launch; a part of it overlaps that of another stream. */
static void begin_launch(struct sim *d, struct sim_stream *s, const struct sim_item *x, struct vfm_sim_launch *l)
{
	const struct sim_past *past = find_in_past(d, x->launch, l);

	for (int e = 0; e < VFM_ESTIMATES; e++) {
		l->begin[e] = fmax(s->now.s[e], x->host.s[e]);
		if (x->shares)
			l->work[e] = (float)overlapped_s(d, past, l, e, (double)l->work[e], (double)x->overlapped[e]);
		l->work[e] += (float)stalled_s(d, past, (double)l->work[e], e);
	}
}

static void end_launch(struct sim_stream *s, const struct vfm_sim_launch *l)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		s->now.s[e] = l->begin[e] + (double)l->gap[e] + (double)l->wait[e] + (double)l->work[e];
}

/* Arrives at the meetings of a collective; returns whether all others have. */
static bool meet(struct sim *d, struct sim_stream *s, struct sim_item *x, const struct vfm_sim_launch *l)
{
	double at[VFM_ESTIMATES];
	bool complete = true;

	for (int e = 0; e < VFM_ESTIMATES; e++)
		at[e] = fmax(s->now.s[e], x->host.s[e]) + (double)l->gap[e];
	for (int i = 0; i < x->guest->n; i++) {
		const struct vfm_sim_invitation *to = &x->guest->v[i].to;
		struct vfm_sim_meeting **m = &x->guest->v[i].m;

		if (!*m)
			*m = vfm_sim_meet(d->world, to->group, to->number, to->n, to->place, at, NULL);
		complete = complete && vfm_sim_met(*m);
	}
	return complete;
}

static void end_meeting(struct sim *d, struct sim_stream *s, struct sim_item *x, struct vfm_sim_launch *l)
{
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		double start;

		l->begin[e] = fmax(s->now.s[e], x->host.s[e]);
		start = l->begin[e] + (double)l->gap[e];
		for (int i = 0; i < x->guest->n; i++)
			start = fmax(start, x->guest->v[i].m->at[e]);
		l->wait[e] = (float)(start - l->begin[e] - (double)l->gap[e]);
	}
	for (int i = 0; i < x->guest->n; i++)
		vfm_sim_part(d->world, x->guest->v[i].m);
	end_launch(s, l);
	advance(&d->comm_until, &s->now);
}

/* Gives an item its time; returns whether that is known. */
static bool time_item(struct sim *d, struct sim_stream *s, struct sim_item *x)
{
	struct vfm_sim_launch *l = x->kind == SIM_LAUNCH || x->kind == SIM_MEET ? launch_of(d, x->launch) : NULL;

	switch (x->kind) {
	case SIM_LAUNCH:
		begin_launch(d, s, x, l);
		end_launch(s, l);
		if (l->class == VFM_SIM_COMM)
			advance(&d->comm_until, &s->now);
		return true;
	case SIM_MEET:
		if (!meet(d, s, x, l))
			return false;
		end_meeting(d, s, x, l);
		return true;
	case SIM_RECORD:
		x->ticket->at = s->now;
		x->ticket->known = true;
		return true;
	case SIM_WAIT:
		if (x->ticket->known)
			advance(&s->now, &x->ticket->at);
		return x->ticket->known;
	}
	return true;
}

/* Gives times as far as they are known. */
static void progress(struct sim *d)
{
	for (bool any = true; any;) {
		any = false;
		for (struct sim_stream *s = d->streams; s; s = s->next)
			for (; has_queue(s) && time_item(d, s, &s->queue[s->head]); any = true)
				release_item(&s->queue[s->head++]);
	}
}

/* Times the last item of s at once, if nothing is before it. */
static void time_only_item(struct sim_stream *s)
{
	if (s->n - s->head == 1 && time_item(sim_of(s->s.dev), s, &s->queue[s->head]))
		release_item(&s->queue[s->head++]);
}

/* Waits until the time of s, or of a ticket, is known. */
static int await(struct sim *d, const struct sim_stream *s, const struct sim_ticket *t, struct vfm_err *err)
{
	for (;;) {
		const struct sim_stream *first = NULL;
		const struct vfm_sim_launch *l;

		progress(d);
		if (s ? !has_queue(s) : t->known)
			return 0;
		for (const struct sim_stream *x = d->streams; x; x = x->next)
			if (has_queue(x) && x->queue[x->head].kind == SIM_MEET)
				first = x;
		if (!d->world || !first)
			return vfm_fail(err, VFM_EUSAGE, "internal: a stream of the simulated device waits for itself");
		l = launch_of(d, first->queue[first->head].launch);
		TRY(vfm_sim_world_wait(d->world, l->op, l->shape, err));
	}
}

/* ---- launches ---- */

/* The host enqueues n launches. */
static void spend_host_time(struct sim *d, int n)
{
	for (int e = 0; e < VFM_ESTIMATES; e++)
		d->host.s[e] += n * d->machine.launch_host.v[e] * 1e-6;
}

static size_t record_launch(struct sim_stream *s, const struct vfm_sim_launch *x)
{
	struct sim *d = sim_of(s->s.dev);
	const struct vfm_rate_range *gap = d->graph ? &d->machine.graph_gap : &d->machine.gap;
	struct vfm_sim_launch *l;

	if (d->n == d->cap) { /* by less than vfm_grow: a job has many such arrays */
		d->cap += d->cap / 4 + 1024;
		d->launch = vfm_realloc(d->launch, d->cap, sizeof(*d->launch));
	}
	l = &d->launch[d->n++];
	*l = *x;
	l->stream = (int16_t)s->number;
	l->graph = d->graph && s->number == 0;
	if (!d->graph)
		spend_host_time(d, l->class == VFM_SIM_TRANSFER ? 1 : l->kernels);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		l->gap[e] = (float)(l->kernels * gap->v[e] * 1e-6);
	return d->cleared + d->n - 1;
}

void sim_add_launch(struct sim_stream *s, const struct vfm_sim_launch *l, const double *overlapped)
{
	struct sim *d = sim_of(s->s.dev);
	size_t number, waiting = s->n - s->head;
	struct sim_item *x;

	if (d->world && waiting && waiting % QUEUE_LONG == 0) {
		vfm_sim_world_yield(d->world);
		progress(d);
	}
	number = record_launch(s, l);
	x = push_item(s, SIM_LAUNCH);

	x->launch = number;
	x->shares = overlapped != NULL;
	for (int e = 0; overlapped && e < VFM_ESTIMATES; e++)
		x->overlapped[e] = (float)overlapped[e];
	time_only_item(s);
}

void vfm_sim_collective(
	struct vfm_stream *stream, const struct vfm_sim_launch *l, const struct vfm_sim_invitation *v, int n)
{
	struct sim_stream *s = sim_stream_of(stream);
	struct vfm_sim_launch own = *l;
	struct sim_item *x;
	size_t number;

	own.class = VFM_SIM_COMM;
	own.kernels = 1;
	own.shape = vfm_sim_text(stream->dev, l->shape);
	number = record_launch(s, &own);
	x = push_item(s, n ? SIM_MEET : SIM_LAUNCH);
	x->launch = number;
	if (n)
		x->guest = vfm_calloc(1, sizeof(*x->guest) + (size_t)n * sizeof(x->guest->v[0]));
	for (int i = 0; i < n; i++)
		x->guest->v[i].to = v[i];
	if (n)
		x->guest->n = n;
	time_only_item(s);
}

/* ---- what overlapped a launch ---- */

struct time_span {
	double begin, end;
};

static int compare_spans(const void *a, const void *b)
{
	const struct time_span *x = a, *y = b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Returns whether a launch takes multiprocessors from those of other streams. */
static bool takes_units(const struct sim *d, const struct vfm_sim_launch *l)
{
	return l->class == VFM_SIM_COMM || (d->side && l->stream == d->side->number);
}

/* Fills v with the intervals of such launches, ascending and disjoint; returns their number. */
static size_t merge_spans(const struct sim *d, struct time_span *v, int e)
{
	size_t n = 0, kept = 0;

	for (size_t i = 0; i < d->n; i++) {
		const struct vfm_sim_launch *l = &d->launch[i];
		double begin = l->begin[e] + (double)l->gap[e] + (double)l->wait[e];

		if (takes_units(d, l))
			v[n++] = (struct time_span){begin, begin + (double)l->work[e]};
	}
	if (n)
		qsort(v, n, sizeof(*v), compare_spans);
	for (size_t i = 0; i < n; i++) {
		if (kept && v[i].begin <= v[kept - 1].end)
			v[kept - 1].end = fmax(v[kept - 1].end, v[i].end);
		else
			v[kept++] = v[i];
	}
	return kept;
}

/* Returns the part of [begin, end) that lies in the spans. */
static double part_in_spans(const struct time_span *v, size_t n, double begin, double end)
{
	size_t lo = 0, hi = n;
	double sum = 0;

	while (lo < hi) { /* the first that ends after begin */
		size_t mid = (lo + hi) / 2;

		if (v[mid].end <= begin)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < n && v[lo].begin < end; lo++)
		sum += fmin(v[lo].end, end) - fmax(v[lo].begin, begin);
	return end > begin ? sum / (end - begin) : 0;
}

static void remember_step(struct sim *d)
{
	size_t n_spans = 0;
	struct time_span *v;

	for (size_t i = 0; i < d->n; i++)
		n_spans += takes_units(d, &d->launch[i]);
	v = vfm_calloc(n_spans + 1, sizeof(*v));
	vfm_grow(&d->past, &d->cap_past, d->n + 1, sizeof(*d->past));
	d->n_past = d->n;
	d->past_shift = 0;
	for (int e = 0; e < VFM_ESTIMATES; e++) {
		size_t n = merge_spans(d, v, e);

		for (size_t i = 0; i < d->n; i++) {
			const struct vfm_sim_launch *l = &d->launch[i];
			double begin = l->begin[e] + (double)l->gap[e];

			d->past[i].what = hash_launch(l);
			d->past[i].part[e] =
				takes_units(d, l) ? 0 : (float)part_in_spans(v, n, begin, begin + (double)l->work[e]);
			d->past[i].seconds[e] = d->past[i].part[e] * l->work[e];
		}
	}
	free(v);
}

void vfm_sim_clear(struct vfm_dev *dev)
{
	struct sim *d = sim_of(dev);

	for (const struct sim_stream *s = d->streams; s; s = s->next)
		if (await(d, s, NULL, NULL) < 0)
			return; /* the job has failed */
	remember_step(d);
	d->cleared += d->n;
	d->n = 0;
	sim_memory_clear(d);
}

/* ---- streams ---- */

struct vfm_stream *sim_stream_new(struct vfm_dev *dev, bool async, struct vfm_err *err)
{
	struct sim_stream *s = vfm_calloc(1, sizeof(*s)), **end = &sim_of(dev)->streams;

	(void)err;
	s->s.dev = dev;
	s->number = async ? ++sim_of(dev)->n_streams : 0;
	while (*end)
		end = &(*end)->next;
	*end = s;
	return &s->s;
}

void sim_stream_free(struct vfm_stream *stream)
{
	struct sim_stream *s = sim_stream_of(stream), **at;

	if (!s)
		return;
	sim_release_scratch(s);
	for (at = &sim_of(s->s.dev)->streams; *at != s;)
		at = &(*at)->next;
	*at = s->next;
	if (sim_of(s->s.dev)->side == s)
		sim_of(s->s.dev)->side = NULL;
	while (has_queue(s))
		release_item(&s->queue[s->head++]);
	free(s->queue);
	free(s);
}

int sim_stream_sync(struct vfm_stream *stream, struct vfm_err *err)
{
	struct sim_stream *s = sim_stream_of(stream);
	struct sim *d = sim_of(stream->dev);

	TRY(await(d, s, NULL, err));
	advance(&d->host, &s->now);
	return vfm_dev_check(stream->dev, err);
}

/* ---- events ---- */

struct vfm_event *sim_event_new(struct vfm_dev *dev, struct vfm_err *err)
{
	struct vfm_event *e = vfm_calloc(1, sizeof(*e));

	(void)err;
	e->dev = sim_of(dev);
	return e;
}

void sim_event_free(struct vfm_event *e)
{
	if (e)
		drop_ticket(e->ticket);
	free(e);
}

int sim_event_record(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct sim_stream *s = sim_stream_of(stream);
	struct sim_item *x;

	(void)err;
	drop_ticket(e->ticket);
	e->ticket = vfm_calloc(1, sizeof(*e->ticket));
	e->ticket->users = 1;
	if (!has_queue(s)) {
		e->ticket->at = s->now;
		e->ticket->known = true;
		return 0;
	}
	x = push_item(s, SIM_RECORD);
	x->ticket = hold_ticket(e->ticket);
	return 0;
}

int sim_event_wait(struct vfm_event *e, struct vfm_stream *stream, struct vfm_err *err)
{
	struct sim_stream *s = sim_stream_of(stream);
	struct sim_item *x;

	(void)err;
	if (!e->ticket)
		return 0;
	if (e->ticket->known && !has_queue(s)) {
		advance(&s->now, &e->ticket->at);
		return 0;
	}
	x = push_item(s, SIM_WAIT);
	x->ticket = hold_ticket(e->ticket);
	time_only_item(s);
	return 0;
}

int sim_event_sync(struct vfm_event *e, struct vfm_err *err)
{
	if (e->ticket) {
		TRY(await(e->dev, NULL, e->ticket, err));
		advance(&e->dev->host, &e->ticket->at);
	}
	return vfm_dev_check(&e->dev->dev, err);
}

/* The host polls for work that it need not wait for. */
bool sim_event_passed(struct vfm_event *e)
{
	(void)e;
	return true;
}

int sim_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err)
{
	TRY(await(a->dev, NULL, a->ticket, err));
	TRY(await(b->dev, NULL, b->ticket, err));
	*s = b->ticket->at.s[VFM_MID] - a->ticket->at.s[VFM_MID];
	return 0;
}

/* ---- graphs: captured work is recorded at once, and forgotten if the capture fails ---- */

int sim_graph_begin(struct vfm_stream *s, struct vfm_err *err)
{
	struct sim *d = sim_of(s->dev);

	if (d->graph || sim_stream_of(s)->number != 0)
		return vfm_fail(err, VFM_EUSAGE, "internal: a capture not on the compute stream, or nested");
	d->graph = true;
	d->graph_n = d->cleared + d->n;
	d->graph_now = sim_stream_of(s)->now;
	spend_host_time(d, 1);
	return 0;
}

int sim_graph_end(struct vfm_stream *stream, bool run, struct vfm_err *err)
{
	struct sim_stream *s = sim_stream_of(stream);
	struct sim *d = sim_of(stream->dev);

	if (!d->graph)
		return vfm_fail(err, VFM_EUSAGE, "internal: the end of a capture that has not begun");
	d->graph = false;
	if (run)
		return 0;
	if (has_queue(s))
		return vfm_fail(err, VFM_EENV, "the simulated device cannot undo a capture that waits for other ranks");
	d->n = d->graph_n - d->cleared;
	s->now = d->graph_now;
	return 0;
}

void vfm_sim_host_now(const struct vfm_dev *dev, double at[VFM_ESTIMATES])
{
	memcpy(at, sim_of(dev)->host.s, sizeof(sim_of(dev)->host.s));
}

void vfm_sim_host_until(struct vfm_dev *dev, const double at[VFM_ESTIMATES])
{
	struct sim_clock c;

	memcpy(c.s, at, sizeof(c.s));
	advance(&sim_of(dev)->host, &c);
}

void vfm_sim_progress(struct vfm_dev *dev)
{
	progress(sim_of(dev));
}
