#include "model/units.h"

#include <stdlib.h>
#include <string.h>

#include "model/input.h"

static bool is_identity(const int32_t *index, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (index[i] != i)
			return false;
	return true;
}

/* Puts n ints at *at and moves on. */
static int put(
	struct vfm_units *u, char **at, const int32_t *host, int64_t n, struct vfm_tensor *out, struct vfm_err *err)
{
	*out = vfm_t1(*at, VFM_I32, n);
	*at += ((size_t)n * 4 + 63) / 64 * 64;
	return u->stream->dev->t->to_device(u->stream, out->data, host, (size_t)n * 4, err);
}

/* The table of rotations of the rows in this division: what stands still within a unit cancels, so one table serves all
 * kinds. */
static int put_rope(
	struct vfm_units *u, char *at, const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err)
{
	int64_t n = u->d.rows, hd = vfm_model_head_dim(m);
	int16_t(*pos)[3] = vfm_calloc((size_t)n + 1, sizeof(*pos));
	size_t bytes = (size_t)(n * hd + 1) * sizeof(float);
	float *host = vfm_big_alloc(bytes, "position tables", err);
	int rc = VFM_EENV;

	if (!host)
		goto out;
	for (int64_t i = 0; i < n; i++)
		memcpy(pos[i], p->pos[u->d.pack_row[i]], sizeof(*pos));
	vfm_rope_table(host, (const int16_t(*)[3])pos, n, hd, m->rope_theta);
	u->a.rope = vfm_t2(at, VFM_F32, n, hd);
	rc = u->stream->dev->t->to_device(u->stream, at, host, vfm_nbytes(&u->a.rope), err);
out:
	vfm_big_free(host, bytes);
	free(pos);
	return rc;
}

static int upload(struct vfm_units *u, char *at, struct vfm_err *err)
{
	const struct vfm_division *d = &u->d;
	struct vfm_redist *r = &u->a.there;

	r->send = d->send;
	r->recv = d->recv;
	r->n_send = d->home;
	r->n_recv = d->rows;
	if (!is_identity(d->gather, d->home)) {
		TRY(put(u, &at, d->gather, d->home, &r->gather, err));
		TRY(put(u, &at, d->gather_inv, d->home, &r->gather_inv, err));
	}
	if (!is_identity(d->place, d->rows)) {
		TRY(put(u, &at, d->place, d->rows, &r->place, err));
		TRY(put(u, &at, d->place_inv, d->rows, &r->place_inv, err));
	}
	u->a.back = (struct vfm_redist){.send = d->recv,
		.recv = d->send,
		.n_send = d->rows,
		.n_recv = d->home,
		.gather = r->place_inv,
		.place = r->gather_inv,
		.gather_inv = r->place,
		.place_inv = r->gather};
	u->a.seqs = (struct vfm_seqs){.n = d->units, .total = d->rows, .cu = d->cu};
	for (int i = 0; i < d->units; i++)
		if (d->cu[i + 1] - d->cu[i] > u->a.seqs.max_len)
			u->a.seqs.max_len = d->cu[i + 1] - d->cu[i];
	return put(u, &at, d->cu, d->units + 1, &u->a.seqs.dev_cu, err);
}

int vfm_units_make(struct vfm_units *u, enum vfm_division_kind kind, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err)
{
	bool rope = m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH;
	size_t table, index;

	*u = (struct vfm_units){.stream = s};
	vfm_division_make(&u->d, kind, p->n, p->cu_seqlens, p->grid, mesh->size[VFM_AX_CP], mesh->coord[VFM_AX_CP]);
	table = rope ? ((size_t)(u->d.rows * vfm_model_head_dim(m)) * 4 + 63) / 64 * 64 : 0;
	index = (size_t)(2 * u->d.home + 2 * u->d.rows + u->d.units + 1) * 4 + 5 * 64;
	u->bytes = table + index;
	u->mem = vfm_dev_alloc(s, u->bytes, "a division of a pack", err);
	if (!u->mem)
		return VFM_EENV;
	if (rope)
		TRY(put_rope(u, u->mem, m, p, err));
	return upload(u, (char *)u->mem + table, err);
}

void vfm_units_release(struct vfm_units *u)
{
	if (u->stream)
		vfm_dev_free(u->stream, u->mem, u->bytes);
	vfm_division_release(&u->d);
	*u = (struct vfm_units){0};
}
