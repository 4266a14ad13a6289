/* fault.c - fault injection into collectives.  Replaces the function table of one group of the mesh.  The chosen call
 * then skips its work or shifts the result by one element.  Every rank does so in the same call, so no rank hangs. */
#include <stdio.h>
#include <string.h>

#include "meshes.h"
#include "net/nn/param.h"

static struct {
	const struct fault *f;
	const struct vfm_comm_table *orig;
	struct vfm_comm_table t;
	int64_t calls, hits;
} g;

static bool is_faulty_call(const char *op)
{
	int64_t k;

	if (strcmp(g.f->op, op) != 0)
		return false;
	k = g.calls++;
	if (g.f->call >= 0 && k != g.f->call)
		return false;
	g.hits++;
	return true;
}

int64_t fault_hits(void)
{
	return g.hits;
}

static int copy(struct vfm_stream *s, void *dst, const void *src, size_t n, struct vfm_err *err)
{
	if (dst == src || !n)
		return 0;
	if (s)
		return s->dev->t->to_device(s, dst, src, n, err);
	memmove(dst, src, n);
	return 0;
}

/* Skips the reduction: each rank keeps its partial sum. */
static int all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	return is_faulty_call("all_reduce") ? 0 : g.orig->all_reduce(c, s, x, err);
}

static int64_t start_of(const struct vfm_comm *c, const int64_t *count, int64_t equal)
{
	int64_t at = 0;

	for (int i = 0; i < c->rank; i++)
		at += count ? count[i] : equal;
	return at;
}

static int reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	size_t es = vfm_dtype_size(in.dtype);

	if (!is_faulty_call("reduce_scatter"))
		return g.orig->reduce_scatter(c, s, in, out, count, err);
	return copy(s, out.data, (const char *)in.data + (size_t)start_of(c, count, vfm_numel(&out)) * es,
		vfm_nbytes(&out), err);
}

/* Rotates the result by one element. */
struct shift {
	char *p;
	size_t n, es;
};

static int do_shift(void *arg, struct vfm_err *err)
{
	const struct shift *a = arg;
	char last[16];

	(void)err;
	if (a->n <= a->es)
		return 0;
	memcpy(last, a->p + a->n - a->es, a->es);
	memmove(a->p + a->es, a->p, a->n - a->es);
	memcpy(a->p, last, a->es);
	return 0;
}

static int shift(struct vfm_stream *s, struct vfm_tensor out, struct vfm_err *err)
{
	struct shift a = {out.data, vfm_nbytes(&out), vfm_dtype_size(out.dtype)};

	return s ? s->dev->t->host_call(s, do_shift, &a, sizeof(a), err) : do_shift(&a, err);
}

static int all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	TRY(g.orig->all_gather(c, s, in, out, count, err));
	return is_faulty_call("all_gather") ? shift(s, out, err) : 0;
}

static int all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *err)
{
	TRY(g.orig->all_to_all(c, s, in, out, send, recv, err));
	return is_faulty_call("all_to_all") ? shift(s, out, err) : 0;
}

static int exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
	int from, struct vfm_err *err)
{
	TRY(g.orig->exchange(c, s, out, to, in, from, err));
	return is_faulty_call("exchange") && vfm_numel(&in) ? shift(s, in, err) : 0;
}

/* Groups that share a communicator are named "shard+eshard". */
static bool has_name(const struct vfm_comm *c, const char *group)
{
	char list[sizeof(c->name) + 2], one[34];

	snprintf(list, sizeof(list), "+%s+", c->name);
	snprintf(one, sizeof(one), "+%s+", group);
	return strstr(list, one) != NULL;
}

void fault_arm(const struct fault *f, struct vfm_mesh *m)
{
	struct vfm_comm *all[] = {m->world, m->group[0], m->group[1], m->group[2], m->group[3], m->group[4], m->ring,
		m->a2a, m->seq, m->shard, m->replica, m->eshard, m->ereplica, m->tp_param, m->gather, m->egather,
		m->fwd_in, m->bwd_in, m->nodes[0].across};

	g.f = f;
	for (size_t i = 0; f && i < sizeof(all) / sizeof(*all); i++) {
		struct vfm_comm *c = all[i];

		if (!c || c->size < 2 || !has_name(c, f->group) || c->t == &g.t)
			continue;
		g.orig = c->t;
		g.t = *c->t;
		g.t.all_reduce = all_reduce;
		g.t.reduce_scatter = reduce_scatter;
		g.t.all_gather = all_gather;
		g.t.all_to_all = all_to_all;
		g.t.exchange = exchange;
		c->t = &g.t;
	}
}

int fault_slice(const struct fault *f, struct vfm_params *ps, struct vfm_err *err)
{
	if (!f || strcmp(f->op, "slice") != 0)
		return 0;
	for (size_t i = 0; i < ps->n; i++) {
		const struct vfm_param *p = ps->p[i];
		struct vfm_owned o = vfm_param_owned(ps, p);

		if (p->d.cut[VFM_AX_TP].groups == 0 || ps->mesh->coord[VFM_AX_TP] == 0 || o.a == o.b)
			continue;
		g.hits++;
		return shift(ps->stream, vfm_t1(ps->master + o.at, VFM_F32, o.b - o.a), err);
	}
	return 0;
}
