/* vae_frame.c - device memory of frames from shared blocks, and the past frames that causal convolutions read. */
#include <stdlib.h>

#include "base/mem.h"
#include "encoder/vae/vae_impl.h"

enum { ALIGN = 256 }; /* of frames, as CUDA aligns its own allocations */

/* Device memory that frames share. */
struct vae_block {
	char *data;
	size_t bytes;
	struct vae_frame *first; /* in the order of addresses */
	struct vae_block *next;
};

struct vfm_tensor vae_frame_rows(const struct vae_frame *f)
{
	return vfm_t2(f->t.data, f->t.dtype, f->t.shape[1] * f->t.shape[2], f->t.shape[3]);
}

/* ---- shared memory ---- */

/* Free bytes of a block: of all such places, the smallest that holds a frame. */
struct gap {
	struct vae_block *block;
	struct vae_frame **at; /* the link that the frame belongs to */
	size_t start, size;
};

static void search_block(struct vae_block *b, size_t bytes, struct gap *best)
{
	size_t start = 0;

	for (struct vae_frame **at = &b->first;; at = &(*at)->next) {
		const size_t end = *at ? (*at)->start : b->bytes, size = end - start;

		if (size >= bytes && (!best->block || size < best->size))
			*best = (struct gap){b, at, start, size};
		if (!*at)
			return;
		start = end + (*at)->bytes;
	}
}

static struct vae_block *add_block(struct vae_run *r, size_t bytes, struct vfm_err *err)
{
	void *data = vfm_dev_alloc(r->s, bytes, "frames of the VAE", err);
	struct vae_block *b;

	if (!data)
		return NULL;
	b = vfm_calloc(1, sizeof(*b));
	*b = (struct vae_block){.data = data, .bytes = bytes, .next = r->blocks};
	r->blocks = b;
	return b;
}

int vae_frame_bytes(struct vae_run *r, size_t bytes, struct vae_frame **out, struct vfm_err *err)
{
	struct gap best = {0};
	struct vae_frame *f;
	void *data;

	bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	for (struct vae_block *b = r->blocks; b; b = b->next)
		search_block(b, bytes, &best);
	if (!best.block) {
		struct vae_block *b = add_block(r, r->blocks || bytes > r->room ? bytes : r->room, err);

		if (!b)
			return VFM_EENV;
		search_block(b, bytes, &best);
	}
	if (r->from_end)
		best.start += best.size - bytes;
	data = best.block->data + best.start;
	f = vfm_calloc(1, sizeof(*f));
	*f = (struct vae_frame){.t = {.data = data},
		.bytes = bytes,
		.refs = 1,
		.block = best.block,
		.start = best.start,
		.next = *best.at};
	*best.at = f;
	*out = f;
	return 0;
}

static void free_frame(struct vae_run *r, struct vae_frame *f)
{
	struct vae_frame **at;

	if (f->pair) {
		vae_frame_drop(r, f->pair);
	} else if (!f->block) {
		vfm_dev_free(r->s, f->t.data, f->bytes);
	} else {
		for (at = &f->block->first; *at != f; at = &(*at)->next)
			;
		*at = f->next;
	}
	free(f);
}

void vae_frame_release(struct vae_run *r)
{
	while (r->blocks) {
		struct vae_block *b = r->blocks;

		r->blocks = b->next;
		vfm_dev_free(r->s, b->data, b->bytes);
		free(b);
	}
}

/* ---- frames ---- */

int vae_frame_new(struct vae_run *r, int64_t h, int64_t w, int64_t c, struct vae_frame **out, struct vfm_err *err)
{
	TRY(vae_frame_bytes(r, (size_t)(h * w * c) * vfm_dtype_size(r->dtype), out, err));
	(*out)->t = vfm_t4((*out)->t.data, r->dtype, 1, h, w, c);
	return 0;
}

int vae_frame_lasting(struct vae_run *r, int64_t h, int64_t w, int64_t c, struct vae_frame **out, struct vfm_err *err)
{
	const size_t bytes = (size_t)(h * w * c) * vfm_dtype_size(r->dtype);
	void *data = vfm_dev_alloc(r->s, bytes, "a frame of the VAE", err);

	if (!data)
		return VFM_EENV;
	*out = vfm_calloc(1, sizeof(**out));
	**out = (struct vae_frame){.t = vfm_t4(data, r->dtype, 1, h, w, c), .bytes = bytes, .refs = 1};
	return 0;
}

struct vae_frame *vae_frame_keep(struct vae_frame *f)
{
	f->refs++;
	return f;
}

void vae_frame_drop(struct vae_run *r, struct vae_frame *f)
{
	if (f && !--f->refs)
		free_frame(r, f);
}

struct vae_frame vae_frame_window(const struct vae_frame *f, int64_t first, int64_t n)
{
	struct vae_frame part = *f;

	part.t.data = (char *)f->t.data + (size_t)(first * f->t.shape[2] * f->t.shape[3]) * vfm_dtype_size(f->t.dtype);
	part.t.shape[1] = n;
	part.t.stride[0] = n * f->t.stride[1];
	return part;
}

int vae_frame_copy(struct vae_run *r, const struct vae_frame *x, const struct vae_frame *y, struct vfm_err *err)
{
	return vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .x = x->t, .y = y->t}, err);
}

int vae_frame_own(struct vae_run *r, struct vae_frame **x, struct vfm_err *err)
{
	struct vae_frame *y;
	int rc;

	if ((*x)->refs == 1)
		return 0;
	TRY(vae_frame_new(r, (*x)->t.shape[1], (*x)->t.shape[2], (*x)->t.shape[3], &y, err));
	rc = vae_frame_copy(r, *x, y, err);
	vae_frame_drop(r, *x); /* the others keep it */
	*x = y;
	return rc;
}

/* ---- frames before the current one ---- */

/* Makes the frames of p in one allocation. */
static int make_pair(struct vae_run *r, struct vae_past *p, const int64_t size[3], struct vfm_err *err)
{
	struct vae_frame *f, *second;

	TRY(vae_frame_lasting(r, 2 * size[0], size[1], size[2], &f, err));
	second = vfm_calloc(1, sizeof(*second));
	*second = vae_frame_window(f, size[0], size[0]);
	second->refs = 1;
	second->pair = vae_frame_keep(f);
	f->t = vae_frame_window(f, 0, size[0]).t;
	p->f[0] = f;
	p->f[1] = second;
	return 0;
}

int vae_past_next(
	struct vae_run *r, struct vae_past *p, const int64_t size[3], struct vae_frame **f, struct vfm_err *err)
{
	if (r->pairs && !p->f[0])
		TRY(make_pair(r, p, size, err));
	if (p->n < 2 && !p->f[p->n])
		TRY(vae_frame_lasting(r, size[0], size[1], size[2], &p->f[p->n], err));
	*f = p->f[p->n % 2];
	return 0;
}

void vae_past_shift(struct vae_past *p)
{
	struct vae_frame *oldest = p->f[0];

	if (p->n < 2) {
		p->n++;
		return;
	}
	p->f[0] = p->f[1];
	p->f[1] = oldest;
}

void vae_past_swap(struct vae_past *p, struct vae_frame **x)
{
	struct vae_frame *newest = *x;

	*x = p->f[p->n % 2];
	p->f[p->n % 2] = newest;
	vae_past_shift(p);
}

int vae_past_add(struct vae_run *r, struct vae_past *p, const struct vae_frame *x, struct vfm_err *err)
{
	struct vae_frame *to;

	TRY(vae_past_next(r, p, x->t.shape + 1, &to, err));
	TRY(vae_frame_copy(r, x, to, err));
	vae_past_shift(p);
	return 0;
}

void vae_past_release(struct vae_run *r, struct vae_past *p)
{
	for (int i = 0; i < 2; i++)
		vae_frame_drop(r, p->f[i]);
	*p = (struct vae_past){0};
}

struct vfm_tensor vae_past_tensor(const struct vae_past *p)
{
	struct vfm_tensor t = {0};

	if (!p->n)
		return t;
	t = p->f[0]->t;
	t.shape[0] = p->n;
	if (p->n == 2)
		t.stride[0] = ((char *)p->f[1]->t.data - (char *)p->f[0]->t.data) / (int64_t)vfm_dtype_size(t.dtype);
	return t;
}
