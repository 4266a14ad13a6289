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

static bool is_faulty_call(enum vfm_coll_kind kind)
{
	int64_t k;

	if (strcmp(g.f->op, vfm_coll_name[kind]) != 0)
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

static int64_t start_of(const struct vfm_comm *c, const int64_t *count, int64_t equal)
{
	int64_t at = 0;

	for (int i = 0; i < c->rank; i++)
		at += count ? count[i] : equal;
	return at;
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

static int shift(struct vfm_stream *s, struct shift a, struct vfm_err *err)
{
	return s ? s->dev->t->host_call(s, do_shift, &a, sizeof(a), err) : do_shift(&a, err);
}

/* An all_reduce or reduce_scatter skips the reduction: each rank keeps its partial sum.  Other calls shift. */
static int faulty_call(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *err)
{
	size_t es = vfm_dtype_size(k->dtype), n = (size_t)k->n_out * es;

	if (k->kind == VFM_C_BROADCAST || k->kind == VFM_C_BARRIER)
		return g.orig->call(c, s, k, err);
	if (k->kind == VFM_C_ALL_REDUCE && is_faulty_call(k->kind))
		return 0;
	if (k->kind == VFM_C_REDUCE_SCATTER && is_faulty_call(k->kind))
		return copy(s, k->out, k->in + (size_t)start_of(c, k->send, k->n_out) * es, n, err);
	TRY(g.orig->call(c, s, k, err));
	if (k->kind == VFM_C_ALL_REDUCE || k->kind == VFM_C_REDUCE_SCATTER || !is_faulty_call(k->kind))
		return 0;
	return shift(s, (struct shift){k->out, n, es}, err);
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
		g.t.call = faulty_call;
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
		return shift(ps->stream,
			(struct shift){(char *)(ps->master + o.at), (size_t)(o.b - o.a) * sizeof(float), sizeof(float)},
			err);
	}
	return 0;
}
