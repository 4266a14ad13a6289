/* upload.c - gathers small arrays in pinned blocks and copies them on a stream of their own. */
#include "device/dev/upload.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
	BUFFERS = 2,
	BLOCK = 4 << 20,
	PREDICTED_BYTES = 64 << 10, /* larger arrays are not copied for a device without data */
};

/* A copy that is gathered. */
struct gathered {
	void *dst;
	const void *host;
	size_t bytes;
};

/* Pinned blocks, filled one after another. */
struct buffer {
	struct block {
		char *p;
		size_t bytes;
	} * block;
	size_t n, cap, cur, used; /* cur: the block that is filled, up to `used` */
	struct vfm_event *done;
};

struct vfm_upload {
	struct vfm_stream *compute, *copies;
	struct vfm_event *free; /* for vfm_stream_follow: what used the destinations is done */
	struct buffer buffer[BUFFERS];
	int cur;
	struct gathered *v;
	size_t n, cap;
};

struct vfm_upload *vfm_upload_new(struct vfm_stream *s, struct vfm_err *err)
{
	const struct vfm_dev_table *t = s->dev->t;
	struct vfm_upload *u = vfm_calloc(1, sizeof(*u));
	bool ok;

	u->compute = s;
	u->copies = t->stream_new(s->dev, true, err);
	ok = u->copies != NULL;
	for (int i = 0; ok && i < BUFFERS; i++) {
		u->buffer[i].done = t->event_new(s->dev, err);
		ok = u->buffer[i].done != NULL;
	}
	if (ok)
		return u;
	vfm_upload_free(u);
	return NULL;
}

void vfm_upload_free(struct vfm_upload *u)
{
	const struct vfm_dev_table *t;

	if (!u)
		return;
	t = u->compute->dev->t;
	u->compute->upload = NULL;
	if (u->copies) {
		t->stream_sync(u->copies, NULL);
		t->stream_free(u->copies);
	}
	for (int i = 0; i < BUFFERS; i++) {
		struct buffer *b = &u->buffer[i];

		for (size_t k = 0; k < b->n; k++)
			t->free_host(u->compute->dev, b->block[k].p, b->block[k].bytes);
		free(b->block);
		if (b->done)
			t->event_free(b->done);
	}
	if (u->free)
		t->event_free(u->free);
	free(u->v);
	free(u);
}

int vfm_upload_begin(struct vfm_upload *u, struct vfm_err *err)
{
	struct buffer *b;

	u->cur = (u->cur + 1) % BUFFERS;
	b = &u->buffer[u->cur];
	TRY(u->compute->dev->t->event_sync(b->done, err));
	b->cur = b->used = 0;
	u->n = 0;
	u->compute->upload = u;
	return 0;
}

/* Returns `bytes` of the current buffer. */
static char *take_pinned(struct vfm_upload *u, size_t bytes, struct vfm_err *err)
{
	struct vfm_dev *d = u->compute->dev;
	struct buffer *b = &u->buffer[u->cur];
	struct block *k;

	while (b->cur < b->n && b->used + bytes > b->block[b->cur].bytes)
		b->cur++, b->used = 0;
	if (b->cur == b->n) {
		size_t size = bytes > BLOCK ? bytes : BLOCK;
		char *p = d->t->alloc_host(d, size, "the upload of a pack", err);

		if (!p)
			return NULL;
		vfm_grow(&b->block, &b->cap, b->n + 1, sizeof(*b->block));
		b->block[b->n++] = (struct block){p, size};
	}
	k = &b->block[b->cur];
	b->used += (bytes + 63) / 64 * 64;
	return k->p + b->used - (bytes + 63) / 64 * 64;
}

int vfm_upload_end(struct vfm_upload *u, struct vfm_event **done, struct vfm_err *err)
{
	const struct vfm_dev_table *t = u->compute->dev->t;
	struct buffer *b = &u->buffer[u->cur];
	int rc;

	u->compute->upload = NULL;
	*done = b->done;
	rc = vfm_stream_follow(u->copies, u->compute, &u->free, err);
	for (size_t i = 0; rc == 0 && i < u->n; i++)
		rc = t->to_device(u->copies, u->v[i].dst, u->v[i].host, u->v[i].bytes, err);
	u->n = 0;
	return rc < 0 ? rc : t->event_record(b->done, u->copies, err);
}

int vfm_dev_upload(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err)
{
	struct vfm_upload *u = s->upload;
	char *p;

	if (!u)
		return host ? s->dev->t->to_device(s, dst, host, bytes, err) : s->dev->t->zero(s, dst, bytes, err);
	if (!bytes)
		return 0;
	p = take_pinned(u, bytes, err);
	if (!p)
		return VFM_EENV;
	if (vfm_dev_predicts(s->dev) && bytes > PREDICTED_BYTES)
		; /* it holds no data */
	else if (host)
		memcpy(p, host, bytes);
	else
		memset(p, 0, bytes);
	vfm_grow(&u->v, &u->cap, u->n + 1, sizeof(*u->v));
	u->v[u->n++] = (struct gathered){dst, p, bytes};
	return 0;
}
