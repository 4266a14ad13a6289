/* units.c - uploads permutations, boundaries and RoPE tables of frames and columns. */
#include "net/diffusion/units.h"

#include <stdlib.h>
#include <string.h>

#include "device/dev/upload.h"
#include "device/ops/ops.h"
#include "device/ops/tensor.h"
#include "net/diffusion/input.h"

static bool is_identity(const int32_t *index, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (index[i] != i)
			return false;
	return true;
}

/* Omits identity permutations. */
static void place_units(struct vfm_units *u, const struct vfm_model_spec *m, struct vfm_suballoc *a)
{
	const struct vfm_division *d = &u->d;
	struct vfm_redist *r = &u->a.to_units;

	if (m->pos == VFM_POS_ROPE || m->pos == VFM_POS_BOTH)
		u->a.rope = vfm_sub_t2(a, VFM_F32, d->rows, vfm_model_head_dim(m));
	if (!is_identity(d->gather, d->home)) {
		r->gather = vfm_sub_t1(a, VFM_I32, d->home);
		r->gather_inv = vfm_sub_t1(a, VFM_I32, d->home);
	}
	if (!is_identity(d->place, d->rows)) {
		r->place = vfm_sub_t1(a, VFM_I32, d->rows);
		r->place_inv = vfm_sub_t1(a, VFM_I32, d->rows);
	}
	u->a.seqs.dev_cu = vfm_sub_t1(a, VFM_I32, d->units + 1);
}

static int upload_array(struct vfm_units *u, const struct vfm_tensor *dst, const void *host, struct vfm_err *err)
{
	return vfm_has(dst) ? vfm_dev_upload(u->stream, dst->data, host, vfm_nbytes(dst), err) : 0;
}

/* Uploads the 3-D RoPE table in the row order of this division.  Coordinates that are constant within a unit cancel in
 * q k^T, so frames and columns need no tables of their own. */
static int upload_rope(
	struct vfm_units *u, const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err)
{
	int64_t n = u->d.rows, hd = vfm_model_head_dim(m);
	int16_t(*pos)[3] = vfm_calloc((size_t)n + 1, sizeof(*pos));
	size_t bytes = (size_t)(n * hd + 1) * sizeof(float);
	struct vfm_rope_axes axes;
	float *host = vfm_big_alloc(bytes, "position tables", err);
	int rc = VFM_EENV;

	if (!host)
		goto out;
	for (int64_t i = 0; i < n; i++)
		memcpy(pos[i], p->pos[u->d.pack_row[i]], sizeof(*pos));
	vfm_model_rope_axes(m, &axes);
	vfm_rope_table(host, (const int16_t(*)[3])pos, n, &axes);
	rc = upload_array(u, &u->a.rope, host, err);
out:
	vfm_big_free(host, bytes);
	free(pos);
	return rc;
}

static int upload_units(struct vfm_units *u, struct vfm_err *err)
{
	const struct vfm_division *d = &u->d;
	struct vfm_redist *r = &u->a.to_units;

	r->send = d->send;
	r->recv = d->recv;
	r->n_send = d->home;
	r->n_recv = d->rows;
	u->a.from_units = (struct vfm_redist){.send = d->recv,
		.recv = d->send,
		.n_send = d->rows,
		.n_recv = d->home,
		.gather = r->place_inv,
		.place = r->gather_inv,
		.gather_inv = r->place,
		.place_inv = r->gather};
	TRY(upload_array(u, &r->gather, d->gather, err));
	TRY(upload_array(u, &r->gather_inv, d->gather_inv, err));
	TRY(upload_array(u, &r->place, d->place, err));
	TRY(upload_array(u, &r->place_inv, d->place_inv, err));
	return upload_array(u, &u->a.seqs.dev_cu, d->cu, err);
}

int vfm_units_make(struct vfm_units *u, enum vfm_division_kind kind, struct vfm_stream *s, const struct vfm_mesh *mesh,
	const struct vfm_model_spec *m, const struct vfm_pack *p, struct vfm_err *err)
{
	struct vfm_suballoc count = {0};

	*u = (struct vfm_units){.stream = s};
	vfm_division_make(&u->d, kind, p->n, p->cu_seqlens, (const int32_t(*)[3])p->grid, mesh->size[VFM_AX_CP],
		mesh->coord[VFM_AX_CP]);
	vfm_seqs_init(&u->a.seqs, u->d.units, u->d.cu);
	place_units(u, m, &count);
	u->bytes = count.used;
	u->mem = vfm_dev_alloc(s, u->bytes, "a division of a pack", err);
	if (!u->mem)
		return VFM_EENV;
	place_units(u, m, &(struct vfm_suballoc){.base = u->mem});
	if (vfm_has(&u->a.rope))
		TRY(upload_rope(u, m, p, err));
	return upload_units(u, err);
}

void vfm_units_release(struct vfm_units *u)
{
	if (u->stream)
		vfm_dev_free(u->stream, u->mem, u->bytes);
	vfm_division_release(&u->d);
	*u = (struct vfm_units){0};
}
