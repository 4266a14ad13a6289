/* comm_sim.c - meetings of simulated ranks, which advance their clocks by the time of a collective.
 *
 * Two kinds split together: for the memory of the simulated device, transport.c on the transport of this room, with
 * messages, padding, scratch and sums as on GPUs; for host memory, a backend whose results are as if each rank held
 * what its representative holds.  It refuses reduce_scatter, all_to_all and exchange.
 *
 * Where a simulated rank represents ranks of several groups of a split, these groups meet as one: each waits for the
 * slowest of them.
 */
#include "comm/device/comm_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/coll/comm_sum.h"
#include "comm/device/comm_sim_impl.h"
#include "io/hash.h"

/* ---- members ---- */

/* Returns an id of the groups of rank [n], which are those of this name. */
static uint64_t members_id(const struct vfm_comm_sim_rank *r, const int *rank, int n, const char *name)
{
	char label[16] = {0};

	memcpy(label, name, strnlen(name, sizeof(label) - 1));
	return vfm_fnv64(rank, (size_t)n * sizeof(*rank)) ^ vfm_fnv64(label, sizeof(label)) ^ r->made << 56;
}

/* Takes rank [n], and has [n_reps], who comes to the meetings. */
static struct members make_members(const struct vfm_comm_sim_rank *r, int *rank, int n, bool *has)
{
	const struct vfm_comm_sim_job *job = r->job;
	struct members m = {.rank = rank, .n = n};

	m.rep = vfm_calloc((size_t)job->n_reps, sizeof(*m.rep));
	for (int i = 0; i < job->n_reps; i++) {
		if (i == r->rep)
			m.place = m.n_reps;
		if (!has[i])
			continue;
		m.uneven = m.uneven || (job->work_of && m.n_reps && job->work_of[i] != job->work_of[m.rep[0]]);
		m.rep[m.n_reps++] = i;
	}
	m.own = m.n_reps == n;
	for (int i = 0; i < n && m.own; i++)
		m.own = job->rank_of[job->rep_of[rank[i]]] == rank[i];
	free(has);
	return m;
}

struct members comm_sim_members_copy(const struct members *m, int max_reps)
{
	struct members y = *m;

	y.rank = vfm_calloc((size_t)m->n, sizeof(*y.rank));
	memcpy(y.rank, m->rank, (size_t)m->n * sizeof(*y.rank));
	y.rep = vfm_calloc((size_t)max_reps, sizeof(*y.rep));
	memcpy(y.rep, m->rep, (size_t)m->n_reps * sizeof(*y.rep));
	return y;
}

void comm_sim_members_release(struct members *m)
{
	free(m->rank);
	free(m->rep);
}

/* Returns the place of the simulated rank that represents member i. */
static int place_of_member(const struct sim_comm *g, int i)
{
	int rep = g->r->job->rep_of[g->of.rank[i]];

	for (int k = 0; k < g->of.n_reps; k++)
		if (g->of.rep[k] == rep)
			return k;
	return 0;
}

int comm_sim_member_node(const struct vfm_comm_sim_rank *r, const struct members *of, int i)
{
	return of->rank[i] / (int)r->job->machine.node_gpus;
}

/* ---- host memory ---- */

/* The operands and state of a rank in a call. */
struct contribution {
	const char *data;
	size_t bytes;
};

/* Waits until all have come to a meeting, while the streams continue. */
int comm_sim_meeting_wait(const struct vfm_comm_sim_rank *r, const struct vfm_sim_meeting *m, const char *what,
	const char *of, struct vfm_err *err)
{
	for (;;) {
		if (r->dev)
			vfm_sim_progress(r->dev);
		if (vfm_sim_met(m))
			return 0;
		TRY(vfm_sim_world_wait(r->job->world, what, of, err));
	}
}

/* Arrives at a meeting of the group and waits for the others. */
static int gather_here(struct sim_comm *g, const char *what, const struct contribution *mine,
	struct vfm_sim_meeting **out, struct vfm_err *err)
{
	double now[VFM_ESTIMATES] = {0};

	if (g->r->dev)
		vfm_sim_host_now(g->r->dev, now);
	*out = vfm_sim_meet(g->r->job->world, g->of.id, g->calls++, g->of.n_reps, g->of.place, now, mine);
	TRY(comm_sim_meeting_wait(g->r, *out, what, g->c.name, err));
	if (g->r->dev)
		vfm_sim_host_until(g->r->dev, (*out)->at);
	return 0;
}

static void concatenate(const struct vfm_coll *c, const struct contribution *const *of, int n)
{
	char *to = c->out;

	for (int i = 0; i < n; i++) {
		size_t bytes = (size_t)(c->send ? c->send[i] : c->n_in) * vfm_dtype_size(c->dtype);
		size_t has = of[i]->bytes < bytes ? of[i]->bytes : bytes;

		if (!bytes)
			continue;
		memcpy(to, of[i]->data, has);
		memset(to + has, 0, bytes - has);
		to += bytes;
	}
}

/* Sets the result of a call from what each simulated rank brings. */
static void finish_here(const struct sim_comm *g, const struct vfm_coll *c, const struct vfm_sim_comer *comer)
{
	const struct contribution **of = vfm_calloc((size_t)g->of.n, sizeof(struct contribution *));
	const void **data = vfm_calloc((size_t)g->of.n, sizeof(*data));

	for (int i = 0; i < g->of.n; i++) {
		of[i] = comer[place_of_member(g, i)].brought;
		data[i] = of[i]->data;
	}
	if (c->kind == VFM_C_ALL_REDUCE)
		vfm_comm_sum(c->dtype, c->out, data, g->of.n, (size_t)c->n_out);
	else if (c->kind == VFM_C_ALL_GATHER)
		concatenate(c, of, g->of.n);
	else if (c->kind == VFM_C_BROADCAST && c->n_out)
		memcpy(c->out, of[c->from]->data, of[c->from]->bytes);
	free(data);
	free(of);
}

/* Brings a copy, since the result may lie in the operand.  Waits until all ranks have used it. */
static int call_here(struct sim_comm *g, const struct vfm_coll *c, struct vfm_err *err)
{
	const char *what = vfm_coll_name[c->kind];
	size_t bytes = (size_t)c->n_in * vfm_dtype_size(c->dtype);
	char *copy = vfm_malloc(bytes + 1);
	struct contribution mine = {copy, bytes};
	struct vfm_sim_meeting *m;
	int rc = 0;

	if (c->kind == VFM_C_REDUCE_SCATTER || c->kind == VFM_C_ALL_TO_ALL || c->kind == VFM_C_EXCHANGE) {
		rc = vfm_fail(
			err, VFM_EUSAGE, "internal: a simulated job has no %s of host memory ('%s')", what, g->c.name);
		goto out;
	}
	if (bytes)
		memcpy(copy, c->in, bytes);
	if (g->of.n_reps == 1) {
		finish_here(g, c, &(struct vfm_sim_comer){.brought = &mine});
		goto out;
	}
	TRY_OUT(gather_here(g, what, &mine, &m, err));
	finish_here(g, c, m->comer);
	vfm_sim_part(g->r->job->world, m);
	TRY_OUT(gather_here(g, what, &mine, &m, err));
	vfm_sim_part(g->r->job->world, m);
out:
	free(copy);
	return rc;
}

static int sim_call(struct vfm_comm *comm, struct vfm_stream *s, const struct vfm_coll *c, struct vfm_err *err)
{
	struct sim_comm *g = sim_comm_of(comm);
	size_t bytes = (size_t)c->n_in * vfm_dtype_size(c->dtype);

	if (!s || c->kind == VFM_C_BARRIER)
		return call_here(g, c, err);
	if (c->kind == VFM_C_EXCHANGE)
		return comm_sim_enqueue_exchange(g, s, c, err);
	/* Every rank holds what this one does, where the blocks are equal. */
	if (c->kind == VFM_C_ALL_GATHER && !c->send)
		for (int i = 0; i < comm->size; i++)
			vfm_sim_moved(s->dev, c->out + (size_t)i * bytes, c->in, bytes);
	if (c->kind == VFM_C_ALL_TO_ALL && !c->send)
		vfm_sim_moved(s->dev, c->out, c->in, bytes);
	return comm_sim_enqueue_group(g, s, c, err);
}

static int sim_split(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err);

static void sim_comm_free(struct vfm_comm *c)
{
	struct sim_comm *g = sim_comm_of(c);

	comm_sim_transport_free(g->device);
	comm_sim_members_release(&g->of);
	free(g);
}

static void sim_abort(struct vfm_comm *c, const char *why)
{
	vfm_sim_world_fail(sim_comm_of(c)->r->job->world, why);
}

static int sim_node(const struct vfm_comm *c, int rank)
{
	const struct sim_comm *g = (const struct sim_comm *)c;

	return comm_sim_member_node(g->r, &g->of, rank);
}

static const struct vfm_comm_table sim_table = {
	.name = "sim",
	.call = sim_call,
	.split = sim_split,
	.free = sim_comm_free,
	.abort = sim_abort,
	.node = sim_node,
};

static struct vfm_comm *make_comm(struct vfm_comm_sim_rank *r, const struct members *m, int me, const char *name)
{
	struct sim_comm *g = vfm_calloc(1, sizeof(*g));

	*g = (struct sim_comm){.c = {.t = &sim_table, .rank = me, .size = m->n}, .r = r, .of = *m};
	snprintf(g->c.name, sizeof(g->c.name), "%s", name);
	if (r->job->machine.kind == VFM_MACHINE_CPU)
		g->device = comm_sim_transport_new(r, &g->c, false);
	return &g->c;
}

struct keyed_rank {
	int key, at;
};

static int compare_split_keys(const void *a, const void *b)
{
	const struct keyed_rank *x = a, *y = b;

	return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->at < y->at ? -1 : 1;
}

/* The ranks of a communicator, divided by colors. */
struct division {
	const struct sim_comm *g;
	struct vfm_comm_place *at; /* [size] */
	int *with;                 /* [size]: of a color, one whose groups meet with its own; of a root, itself */
};

static int root_of(const struct division *d, int color)
{
	while (d->with[color] != color)
		color = d->with[color] = d->with[d->with[color]];
	return color;
}

/* Joins groups with a common simulated rank into one meeting: a rank that represents ranks of several groups arrives at
 * all of them. */
static void join_colors(struct division *d)
{
	const struct vfm_comm_sim_job *job = d->g->r->job;
	int *first = vfm_calloc((size_t)job->n_reps, sizeof(*first)); /* color of a simulated rank, + 1 */

	for (int i = 0; i < d->g->of.n; i++) {
		int color = d->at[i].color, *had = &first[job->rep_of[d->g->of.rank[i]]];
		int a = color < 0 ? 0 : root_of(d, color), b = color < 0 || !*had ? a : root_of(d, *had - 1);

		if (color < 0)
			continue;
		d->with[a > b ? a : b] = a > b ? b : a;
		*had = color + 1;
	}
	free(first);
}

static void divide_ranks(struct division *d, const struct vfm_comm *c, const struct vfm_comm_places *p)
{
	int colors = 1;

	d->at = vfm_calloc((size_t)c->size, sizeof(*d->at));
	for (int i = 0; i < c->size; i++) {
		d->at[i] = p->of(p->ctx, i);
		colors = d->at[i].color >= colors ? d->at[i].color + 1 : colors;
	}
	d->with = vfm_calloc((size_t)colors, sizeof(*d->with));
	for (int i = 0; i < colors; i++)
		d->with[i] = i;
	join_colors(d);
}

/* Returns the ranks of a color by their keys; *n: how many.  me: of the communicator; becomes that in the color. */
static int *ranks_of_color(const struct division *d, int color, int *n, int *me)
{
	struct keyed_rank *v = vfm_calloc((size_t)d->g->of.n, sizeof(*v));
	int *rank, was = *me;

	*n = 0;
	for (int i = 0; i < d->g->of.n; i++)
		if (d->at[i].color == color)
			v[(*n)++] = (struct keyed_rank){d->at[i].key, i};
	qsort(v, (size_t)*n, sizeof(*v), compare_split_keys);
	rank = vfm_calloc((size_t)*n + 1, sizeof(*rank));
	for (int i = 0; i < *n; i++) {
		rank[i] = d->g->of.rank[v[i].at];
		*me = v[i].at == was ? i : *me;
	}
	free(v);
	return rank;
}

/* Returns which simulated ranks come to the meetings of a color.  *apart: this group is one of several that meet as
 * one, and so do all parts of them. */
static bool *ranks_that_meet(const struct division *d, int color, bool *apart)
{
	const struct vfm_comm_sim_job *job = d->g->r->job;
	bool *has = vfm_calloc((size_t)job->n_reps, sizeof(*has)),
	     *here = vfm_calloc((size_t)job->n_reps, sizeof(*here));

	*apart = false;
	for (int i = 0; i < d->g->of.n; i++) {
		int rep = job->rep_of[d->g->of.rank[i]];

		here[rep] = here[rep] || job->rank_of[rep] == d->g->of.rank[i];
		has[rep] = has[rep] || (d->at[i].color >= 0 && root_of(d, d->at[i].color) == root_of(d, color));
	}
	for (int k = 0; k < d->g->of.n_reps; k++)
		*apart = *apart || !here[d->g->of.rep[k]];
	for (int k = 0; k < d->g->of.n_reps && *apart; k++)
		has[d->g->of.rep[k]] = true;
	free(here);
	return has;
}

static int sim_split(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err)
{
	struct sim_comm *g = sim_comm_of(c);
	struct division d = {.g = g};
	int n = 0, first_n, me = c->rank, none = 0, *rank, *first;
	struct members m;
	bool apart;

	*out = g->r->split = NULL;
	if (!q->places)
		return vfm_fail(
			err, VFM_EUSAGE, "internal: a simulated job cannot split '%s' to '%s'", c->name, q->name);
	if (q->color < 0)
		return 0;
	divide_ranks(&d, c, q->places);
	rank = ranks_of_color(&d, q->color, &n, &me);
	if (n > 1) {
		first = ranks_of_color(&d, root_of(&d, q->color), &first_n, &none);
		m = make_members(g->r, rank, n, ranks_that_meet(&d, q->color, &apart));
		m.id = apart ? members_id(g->r, (const int *)&g->of.id, 2, q->name)
			     : members_id(g->r, first, first_n, q->name);
		free(first);
		*out = g->r->split = make_comm(g->r, &m, me, q->name);
	} else {
		*out = vfm_comm_self();
		free(rank);
	}
	free(d.at);
	free(d.with);
	return 0;
}

struct vfm_comm *vfm_comm_sim_new(struct vfm_comm_sim_rank *r)
{
	int n = r->job->n, *rank = vfm_calloc((size_t)n, sizeof(*rank));
	bool *has = vfm_calloc((size_t)r->job->n_reps, sizeof(*has));
	struct members m;

	for (int i = 0; i < n; i++)
		rank[i] = i;
	for (int i = 0; i < r->job->n_reps; i++)
		has[i] = true;
	r->made++;
	m = make_members(r, rank, n, has);
	m.id = members_id(r, rank, n, "world");
	return make_comm(r, &m, r->job->rank_of[r->rep], "world");
}
