/* vae_order.c - the pixels of a frame in another order, by an index on the device. */
#include <stdlib.h>

#include "base/mem.h"
#include "encoder/vae/vae_impl.h"

/* Returns the row of the source [h, w] that becomes pixel (y, x). */
static int64_t source_of(const struct vae_index *i, int64_t border, int64_t y, int64_t x)
{
	const int64_t pixel = y / 2 * i->w + x / 2, cell = y % 2 * 2 + x % 2;

	switch (i->order) {
	case VAE_ORDER_DUP:
		return pixel * 4 + cell;
	case VAE_ORDER_SLOT_0:
		return pixel * 8 + cell;
	case VAE_ORDER_SLOT_1:
		return pixel * 8 + 4 + cell;
	case VAE_ORDER_EVEN:
		return pixel * 8 + 2 * cell;
	case VAE_ORDER_EDGE:
		break;
	}
	y = y < border ? 0 : y - border < i->h ? y - border : i->h - 1;
	x = x < border ? 0 : x - border < i->w ? x - border : i->w - 1;
	return y * i->w + x;
}

/* height and width: of the result */
static int make_index(struct vae_run *r, struct vae_index *i, int64_t height, int64_t width, struct vfm_err *err)
{
	const size_t bytes = (size_t)i->n * sizeof(int32_t);
	const int64_t border = (height - i->h) / 2;
	int32_t *rows;
	int rc;

	i->data = vfm_dev_alloc(r->s, bytes, "an index of the VAE", err);
	if (!i->data)
		return VFM_EENV;
	rows = vfm_malloc(bytes);
	for (int64_t k = 0; k < i->n; k++)
		rows[k] = (int32_t)source_of(i, border, k / width, k % width);
	rc = r->s->dev->t->to_device(r->s, i->data, rows, bytes, err);
	free(rows);
	return rc;
}

int vae_order_rows(struct vae_run *r, enum vae_order order, int64_t h, int64_t w, const struct vae_frame *x,
	const struct vae_frame *y, struct vfm_err *err)
{
	const int64_t height = y->t.shape[1], width = y->t.shape[2], c = y->t.shape[3], n = height * width;
	struct vae_index *i = r->indices;

	while (i && (i->order != order || i->h != h || i->w != w || i->n != n))
		i = i->next;
	if (!i) {
		i = vfm_calloc(1, sizeof(*i));
		*i = (struct vae_index){.order = order, .h = h, .w = w, .n = n, .next = r->indices};
		r->indices = i;
		TRY(make_index(r, i, height, width, err));
	}
	return vfm_op_index_select(r->s,
		&(struct vfm_index_select){.x = vfm_t2(x->t.data, r->dtype, vfm_numel(&x->t) / c, c),
			.index = vfm_t1(i->data, VFM_I32, n),
			.y = vae_frame_rows(y)},
		err);
}

void vae_order_release(struct vae_run *r)
{
	while (r->indices) {
		struct vae_index *i = r->indices;

		r->indices = i->next;
		if (i->data)
			vfm_dev_free(r->s, i->data, (size_t)i->n * sizeof(int32_t));
		free(i);
	}
}
