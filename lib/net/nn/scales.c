/* scales.c - gathers the maxima of all ranks each step, and pushes their largest to the histories. */
#include "net/nn/scales.h"

#include <stdlib.h>

#include "comm/coll/comm.h"

/* Returns n zeroed floats on the device.  Returns NULL if n is 0, and on failure, with *rc < 0. */
static float *alloc_zeroed_floats(struct vfm_params *ps, int64_t n, const char *what, int *rc, struct vfm_err *err)
{
	float *p;

	if (n == 0 || *rc < 0)
		return NULL;
	p = vfm_dev_alloc(ps->stream, (size_t)n * sizeof(*p), what, err);
	*rc = p ? ps->stream->dev->t->zero(ps->stream, p, (size_t)n * sizeof(*p), err) : VFM_EENV;
	return p;
}

/* Returns this rank's row of s->all. */
static float *own_row(const struct vfm_scales *s, const struct vfm_params *ps)
{
	return s->all + s->room * ps->mesh->rank;
}

/* Sets the row size to the maximum over the pp stages, which have different layers. */
static int set_row_size(struct vfm_scales *s, const struct vfm_params *ps, struct vfm_err *err)
{
	int64_t mine = s->n, *all = vfm_calloc((size_t)s->ranks, sizeof(*all));
	int rc = vfm_all_gather(
		ps->mesh->world, NULL, vfm_t1(&mine, VFM_I64, 1), vfm_t1(all, VFM_I64, s->ranks), NULL, err);

	for (int64_t i = 0; i < s->ranks && rc == 0; i++)
		s->room = all[i] * VFM_FP8_TENSORS > s->room ? all[i] * VFM_FP8_TENSORS : s->room;
	free(all);
	return rc;
}

int vfm_scales_new(struct vfm_params *ps, int64_t window, struct vfm_err *err)
{
	struct vfm_scales *s = ps->scales = vfm_calloc(1, sizeof(*s));
	const int *at = ps->mesh->coord;
	int rc;

	s->window = window;
	s->ranks = ps->mesh->world_size;
	s->writes = at[VFM_AX_TP] == 0 && at[VFM_AX_CP] == 0 && at[VFM_AX_DP] == 0;
	s->p = vfm_calloc(ps->n + 1, sizeof(struct vfm_param *));
	for (size_t i = 0; i < ps->n; i++)
		if (ps->p[i]->fp8)
			s->p[s->n++] = ps->p[i];
	s->n_past = s->n * VFM_FP8_TENSORS * window;
	rc = set_row_size(s, ps, err);
	s->past = alloc_zeroed_floats(ps, s->n_past, "fp8 histories", &rc, err);
	s->all = alloc_zeroed_floats(ps, s->ranks * s->room, "fp8 maxima", &rc, err);
	if (rc < 0)
		return rc;
	s->of = vfm_calloc((size_t)s->n + 1, sizeof(*s->of));
	for (int64_t i = 0; i < s->n; i++) {
		for (int k = 0; k < VFM_FP8_TENSORS; k++) {
			int64_t place = i * VFM_FP8_TENSORS + k;

			s->of[i].history[k] = vfm_t1(s->past + place * window, VFM_F32, window);
			s->of[i].amax[k] = vfm_t1(own_row(s, ps) + place, VFM_F32, 1);
		}
		s->p[i]->past = &s->of[i];
	}
	return 0;
}

void vfm_scales_free(struct vfm_params *ps)
{
	struct vfm_scales *s = ps->scales;

	if (!s)
		return;
	for (int64_t i = 0; i < s->n; i++)
		s->p[i]->past = NULL;
	vfm_dev_free(ps->stream, s->past, (size_t)s->n_past * sizeof(float));
	vfm_dev_free(ps->stream, s->all, (size_t)(s->ranks * s->room) * sizeof(float));
	free(s->p);
	free(s->of);
	free(s);
	ps->scales = NULL;
}

int vfm_scales_discard(struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_scales *s = ps->scales;
	size_t n = s ? (size_t)(s->n * VFM_FP8_TENSORS) : 0;

	return n ? ps->stream->dev->t->zero(ps->stream, own_row(s, ps), n * sizeof(float), err) : 0;
}

/* The ranks of a pp stage are consecutive. */
int vfm_scales_step(struct vfm_params *ps, struct vfm_tensor grad_scale, struct vfm_err *err)
{
	struct vfm_scales *s = ps->scales;
	const struct vfm_mesh *m = ps->mesh;
	int64_t inner = s ? s->ranks / m->size[VFM_AX_PP] : 0, n = s ? s->n * VFM_FP8_TENSORS : 0;
	struct vfm_amax_push push = {.grad_scale = grad_scale};

	if (!s || s->room == 0)
		return 0;
	TRY(vfm_all_gather(m->world, ps->stream, vfm_t1(own_row(s, ps), VFM_F32, s->room),
		vfm_t1(s->all, VFM_F32, s->ranks * s->room), NULL, err));
	if (n == 0)
		return 0;
	push.parts = vfm_t2(s->all + m->coord[VFM_AX_PP] * inner * s->room, VFM_F32, inner, n);
	push.parts.stride[0] = s->room;
	push.past = vfm_t2(s->past, VFM_F32, n, s->window);
	TRY(vfm_op_amax_push(ps->stream, &push, err));
	for (int64_t i = 0; i < s->n; i++)
		s->of[i].filled = true;
	return ps->stream->dev->t->zero(ps->stream, own_row(s, ps), (size_t)n * sizeof(float), err);
}
