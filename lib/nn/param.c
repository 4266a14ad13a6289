#include "nn/param.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { ALIGN = 16 }; /* elements: 64 bytes of f32 */

void vfm_params_init(struct vfm_params *ps, struct vfm_stream *s, const struct vfm_mesh *mesh)
{
	*ps = (struct vfm_params){.stream = s, .mesh = mesh};
}

void vfm_params_release(struct vfm_params *ps)
{
	size_t n = (size_t)ps->n_flat;

	if (ps->stream) {
		vfm_dev_free(ps->stream, ps->master, n * 4);
		vfm_dev_free(ps->stream, ps->grad, n * 4);
		vfm_dev_free(ps->stream, ps->copy, n * vfm_dtype_size(ps->dtype));
	}
	for (size_t i = 0; i < ps->n; i++) {
		vfm_part_release(&ps->p[i]->part);
		free(ps->p[i]);
	}
	free(ps->p);
	*ps = (struct vfm_params){0};
}

struct vfm_param *vfm_param_add(struct vfm_params *ps, int unit, const struct vfm_pdesc *shape_and_cut, enum vfm_init init, float std,
	const char *name_fmt, ...)
{
	struct vfm_param *p = vfm_calloc(1, sizeof(*p));
	va_list ap;

	va_start(ap, name_fmt);
	vsnprintf(p->name, sizeof(p->name), name_fmt, ap);
	va_end(ap);
	p->d = *shape_and_cut;
	p->d.name = p->name;
	p->init = init;
	p->std = std;
	p->unit = unit;
	p->all_stages = ps->all_stages;
	if (vfm_part_of(&p->d, ps->mesh->coord, ps->mesh->size, &p->part, ps->bad.code ? NULL : &ps->bad) < 0)
		vfm_part_full(&p->part, p->d.ndim, p->d.shape);
	p->n = vfm_part_numel(&p->part);
	p->var.needs_grad = true;
	vfm_grow(&ps->p, &ps->cap, ps->n + 1, sizeof(struct vfm_param *));
	ps->p[ps->n++] = p;
	if (unit >= ps->units)
		ps->units = unit + 1;
	return p;
}

void vfm_params_all_stages(struct vfm_params *ps, bool on)
{
	ps->all_stages = on;
}

struct vfm_param *vfm_param_find(const struct vfm_params *ps, const char *name)
{
	for (size_t i = 0; i < ps->n; i++)
		if (!strcmp(ps->p[i]->name, name))
			return ps->p[i];
	return NULL;
}

static bool is_matrix(const struct vfm_param *p)
{
	return p->d.ndim > 1;
}

int vfm_params_ranges(const struct vfm_params *ps, struct vfm_param_range *out)
{
	int n = 0;

	for (int u = 0; u < ps->units; u++) {
		for (int matrix = 1; matrix >= 0; matrix--) {
			int64_t lo = -1, hi = -1;

			for (size_t i = 0; i < ps->n; i++) {
				const struct vfm_param *p = ps->p[i];

				if (p->unit != u || is_matrix(p) != (bool)matrix)
					continue;
				if (lo < 0)
					lo = p->off;
				hi = p->off + p->n;
			}
			if (lo < 0)
				continue;
			if (out)
				out[n] = (struct vfm_param_range){lo, hi - lo, matrix};
			n++;
		}
	}
	return n;
}

static void lay_out(struct vfm_params *ps)
{
	int64_t off = 0;

	ps->n_values = 0;
	for (int u = 0; u < ps->units; u++) {
		for (int matrix = 1; matrix >= 0; matrix--) {
			for (size_t i = 0; i < ps->n; i++) {
				struct vfm_param *p = ps->p[i];

				if (p->unit != u || is_matrix(p) != (bool)matrix)
					continue;
				p->off = off;
				off += (p->n + ALIGN - 1) / ALIGN * ALIGN;
				ps->n_values += p->n;
			}
		}
	}
	ps->n_flat = off;
}

static struct vfm_tensor shaped(const struct vfm_param *p, void *data, enum vfm_dtype dt)
{
	return is_matrix(p) ? vfm_t2(data, dt, p->part.shape[0], p->n / p->part.shape[0]) : vfm_t1(data, dt, p->n);
}

int vfm_params_alloc(struct vfm_params *ps, enum vfm_dtype dtype, bool with_grad, struct vfm_err *err)
{
	size_t n;

	if (ps->bad.code) {
		*err = ps->bad;
		return err->code;
	}
	lay_out(ps);
	n = (size_t)ps->n_flat;
	ps->dtype = dtype;
	ps->master = vfm_dev_alloc(ps->stream, n * 4, "parameters", err);
	if (!ps->master)
		return VFM_EENV;
	TRY(ps->stream->dev->t->zero(ps->stream, ps->master, n * 4, err)); /* the padding, too */
	if (with_grad) {
		ps->grad = vfm_dev_alloc(ps->stream, n * 4, "gradients", err);
		if (!ps->grad)
			return VFM_EENV;
		TRY(ps->stream->dev->t->zero(ps->stream, ps->grad, n * 4, err));
	}
	if (dtype != VFM_F32) {
		ps->copy = vfm_dev_alloc(ps->stream, n * vfm_dtype_size(dtype), "parameters in the compute dtype", err);
		if (!ps->copy)
			return VFM_EENV;
	}
	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_param *p = ps->p[i];
		bool copied = is_matrix(p) && ps->copy;

		p->var.v = copied ? shaped(p, (char *)ps->copy + (size_t)p->off * vfm_dtype_size(dtype), dtype)
				  : shaped(p, ps->master + p->off, VFM_F32);
		if (with_grad)
			p->var.g = shaped(p, ps->grad + p->off, VFM_F32);
		else
			p->var.needs_grad = false;
	}
	return 0;
}

int vfm_params_fill(struct vfm_params *ps, uint64_t seed, struct vfm_err *err)
{
	struct vfm_runs runs = {0};
	int rc = 0;

	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_param *p = ps->p[i];
		struct vfm_fill a = {.mean = p->init == VFM_INIT_ONE ? 1 : 0, .std = p->init == VFM_INIT_NORMAL ? p->std : 0};

		a.rng = vfm_rng_stream(seed, 0, vfm_fnv64(p->name, strlen(p->name)), VFM_RNG_INIT);
		vfm_runs_clear(&runs);
		vfm_runs_add_part(&runs, &p->part, 0, p->n);
		for (size_t r = 0; r < runs.n; r++) {
			a.x = vfm_t1(ps->master + p->off + runs.v[r].loc, VFM_F32, runs.v[r].n);
			a.first = runs.v[r].glob;
			TRY_OUT(vfm_op_fill(ps->stream, &a, err));
		}
	}
	rc = vfm_params_refresh(ps, err);
out:
	vfm_runs_release(&runs);
	return rc;
}

struct vfm_var *vfm_unit_region(struct vfm_tape *t, struct vfm_params *ps, int unit, enum vfm_recompute mode,
	struct vfm_var *(*fn)(struct vfm_tape *t, void *ctx), void *ctx, struct vfm_var **in, int n_in)
{
	(void)ps, (void)unit;
	return vfm_region(t, mode, fn, ctx, in, n_in);
}

void vfm_unit_begin(struct vfm_tape *t, struct vfm_params *ps, int unit)
{
	(void)t, (void)ps, (void)unit;
}

void vfm_unit_end(struct vfm_tape *t, struct vfm_params *ps, int unit)
{
	(void)t, (void)ps, (void)unit;
}

int vfm_params_refresh(struct vfm_params *ps, struct vfm_err *err)
{
	for (size_t i = 0; ps->copy && i < ps->n; i++) {
		struct vfm_param *p = ps->p[i];
		struct vfm_axpby a = {.alpha = 1, .x = shaped(p, ps->master + p->off, VFM_F32), .y = p->var.v};

		if (is_matrix(p))
			TRY(vfm_op_axpby(ps->stream, &a, err));
	}
	return 0;
}

int vfm_params_grad_begin(struct vfm_params *ps, struct vfm_err *err)
{
	/* A matrix's first contribution overwrites; ops add to vectors, so those start from zero. */
	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_param *p = ps->p[i];

		p->var.g_ready = false;
		if (!is_matrix(p))
			TRY(ps->stream->dev->t->zero(ps->stream, p->var.g.data, (size_t)p->n * 4, err));
	}
	return 0;
}

int vfm_params_grad_end(struct vfm_params *ps, struct vfm_err *err)
{
	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_param *p = ps->p[i];

		if (!p->var.g_ready)
			TRY(ps->stream->dev->t->zero(ps->stream, p->var.g.data, (size_t)p->n * 4, err));
	}
	return 0;
}

int vfm_param_set(struct vfm_params *ps, struct vfm_param *p, const float *host, struct vfm_err *err)
{
	return ps->stream->dev->t->to_device(ps->stream, ps->master + p->off, host, (size_t)p->n * 4, err);
}
