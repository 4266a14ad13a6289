#include "base/mem.h"
#include "encoder/vae_impl.h"

struct vfm_tensor vae_frame_rows(const struct vae_frame *f)
{
	return vfm_t2(f->t.data, f->t.dtype, f->t.shape[1] * f->t.shape[2], f->t.shape[3]);
}

int vae_frame_new(struct vae_run *r, int64_t h, int64_t w, int64_t c, struct vae_frame **out, struct vfm_err *err)
{
	const size_t bytes = (size_t)(h * w * c) * vfm_dtype_size(r->dtype);
	struct vae_frame **at = &r->free, *f;
	void *data;

	while (*at && (*at)->bytes != bytes)
		at = &(*at)->next;
	f = *at;
	if (f) {
		*at = f->next;
		data = f->t.data;
	} else {
		data = vfm_dev_alloc(r->s, bytes, "a frame of the VAE", err);
		if (!data)
			return VFM_EENV;
		f = vfm_calloc(1, sizeof(*f));
	}
	*f = (struct vae_frame){.t = vfm_t4(data, r->dtype, 1, h, w, c), .bytes = bytes, .refs = 1};
	*out = f;
	return 0;
}

struct vae_frame *vae_frame_keep(struct vae_frame *f)
{
	f->refs++;
	return f;
}

void vae_frame_drop(struct vae_run *r, struct vae_frame *f)
{
	if (!f || --f->refs)
		return;
	f->next = r->free;
	r->free = f;
}

void vae_past_add(struct vae_run *r, struct vae_past *p, struct vae_frame *x)
{
	if (p->n == 2) {
		vae_frame_drop(r, p->f[0]);
		p->f[0] = p->f[1];
		p->n = 1;
	}
	p->f[p->n++] = vae_frame_keep(x);
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

int vae_frame_own(struct vae_run *r, struct vae_frame **x, struct vfm_err *err)
{
	struct vae_frame *y;
	int rc;

	if ((*x)->refs == 1)
		return 0;
	TRY(vae_frame_new(r, (*x)->t.shape[1], (*x)->t.shape[2], (*x)->t.shape[3], &y, err));
	rc = vfm_op_axpby(r->s, &(struct vfm_axpby){.alpha = 1, .x = (*x)->t, .y = y->t}, err);
	vae_frame_drop(r, *x); /* the others keep it */
	*x = y;
	return rc;
}
