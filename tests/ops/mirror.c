#include "mirror.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/ops/cases.h"

enum { MAX_REGIONS = VFM_MAX_OPERANDS + 6 };

struct block {
	struct block *next;
	char *p;
	size_t bytes;
};

struct mirror {
	struct vfm_dev dev; /* first */
	struct vfm_dev *real;
	struct vfm_stream *rs;
	struct block *blocks;
};

/* Host memory of an op, and its copy on the device. */
struct region {
	char *host, *dev;
	size_t bytes;
};
struct regions {
	struct region v[MAX_REGIONS];
	int n;
};

static struct mirror *mirror_of(struct vfm_stream *s)
{
	return (struct mirror *)s->dev;
}

static void add(struct mirror *m, struct regions *r, const struct vfm_tensor *t)
{
	char *at = t->data;
	size_t bytes = vfm_tensor_extent(t);

	if (!at)
		return;
	if (bytes && t->stride[0] < 0) { /* the first row is the last in memory */
		struct vfm_tensor up = *t;

		up.stride[0] = -up.stride[0];
		bytes = vfm_tensor_extent(&up);
		at += (t->shape[0] - 1) * t->stride[0] * (int64_t)vfm_dtype_size(t->dtype);
	}
	for (const struct block *b = m->blocks; b; b = b->next)
		if (at >= b->p && at < b->p + b->bytes) {
			at = b->p;
			bytes = b->bytes;
		}
	r->v[r->n++] = (struct region){.host = at, .bytes = bytes};
}

static int by_address(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	return x->host < y->host ? -1 : x->host > y->host;
}

/* Merges overlapping regions. */
static void merge(struct regions *r)
{
	int n = 0;

	qsort(r->v, (size_t)r->n, sizeof(r->v[0]), by_address);
	for (int i = 0; i < r->n; i++) {
		struct region *last = n ? &r->v[n - 1] : NULL;

		if (last && (r->v[i].host < last->host + last->bytes || r->v[i].host == last->host)) {
			size_t end = (size_t)(r->v[i].host - last->host) + r->v[i].bytes;

			last->bytes = end > last->bytes ? end : last->bytes;
		} else {
			r->v[n++] = r->v[i];
		}
	}
	r->n = n;
}

/* A kernel that reads a bad index makes all later waits fail with VFM_EUSAGE; the results are copied nevertheless. */
static int settled(struct mirror *m, struct vfm_err *err)
{
	return m->real->t->stream_sync(m->rs, err);
}

static int upload(struct mirror *m, struct regions *r, struct vfm_err *err)
{
	for (int i = 0; i < r->n; i++) {
		r->v[i].dev = vfm_dev_alloc(m->rs, r->v[i].bytes, "a mirrored operand", err);
		if (!r->v[i].dev)
			return VFM_EENV;
		TRY(m->real->t->to_device(m->rs, r->v[i].dev, r->v[i].host, r->v[i].bytes, err));
	}
	return settled(m, err) == VFM_EENV ? VFM_EENV : 0;
}

static int download(struct mirror *m, struct regions *r, struct vfm_err *err)
{
	int rc = settled(m, err);

	if (rc == VFM_EENV)
		return rc;
	for (int i = 0; i < r->n; i++)
		TRY(m->real->t->to_host(m->rs, r->v[i].host, r->v[i].dev, r->v[i].bytes, err));
	return settled(m, err);
}

static void translate(const struct regions *r, struct vfm_tensor *t)
{
	char *at = t->data;

	for (int i = 0; at && i < r->n; i++)
		if (at >= r->v[i].host && (at < r->v[i].host + r->v[i].bytes || at == r->v[i].host)) {
			t->data = r->v[i].dev + (at - r->v[i].host);
			return;
		}
}

/* Creates dev_cu and seg if a test leaves them out; the caller frees *made. */
static void complete(struct vfm_seqs *q, int32_t **made)
{
	if (q->dev_cu.data && q->seg.data)
		return;
	*made = vfm_calloc((size_t)q->n + (size_t)q->total + 2, sizeof(**made));
	if (q->n || q->cu)
		memcpy(*made, q->cu, (size_t)(q->n + 1) * sizeof(**made));
	for (int i = 0; i < q->n; i++)
		for (int32_t t = q->cu[i]; t < q->cu[i + 1]; t++)
			(*made)[q->n + 1 + t] = i;
	q->dev_cu = vfm_t1(*made, VFM_I32, q->n + 1);
	q->seg = vfm_t1(*made + q->n + 1, VFM_I32, q->total);
}

static int through(struct vfm_stream *s, enum vfm_op_id op, const void *args, struct vfm_err *err)
{
	const struct vfm_op_info *info = vfm_op_info(op);
	const struct vfm_operand *o = info->operands;
	struct mirror *m = mirror_of(s);
	struct vfm_seqs seqs[2];
	int32_t *made[2] = {NULL, NULL};
	struct regions r = {.n = 0};
	union vfm_op_args a;
	int rc;

	memcpy(&a, args, info->args_size);
	for (int i = 0; o[i].name; i++)
		add(m, &r, vfm_operand_of(&a, &o[i]));
	for (int i = 0; i < 2 && info->seqs[i].name; i++) {
		const struct vfm_seqs **at = (const struct vfm_seqs **)((char *)&a + info->seqs[i].offset);

		if (!*at)
			continue;
		seqs[i] = **at;
		*at = &seqs[i];
		complete(&seqs[i], &made[i]);
		add(m, &r, &seqs[i].dev_cu);
		add(m, &r, &seqs[i].seg);
	}
	merge(&r);
	TRY_OUT(upload(m, &r, err));
	for (int i = 0; o[i].name; i++)
		translate(&r, vfm_operand_of(&a, &o[i]));
	for (int i = 0; i < 2 && info->seqs[i].name; i++)
		if (*(const struct vfm_seqs **)((char *)&a + info->seqs[i].offset)) {
			translate(&r, &seqs[i].dev_cu);
			translate(&r, &seqs[i].seg);
		}
	TRY_OUT(info->call(m->rs, &a, err));
	rc = download(m, &r, err);
out:
	for (int i = 0; i < r.n; i++)
		vfm_dev_free(m->rs, r.v[i].dev, r.v[i].bytes);
	free(made[0]);
	free(made[1]);
	return rc;
}

#define X(name)                                                                                                        \
	static int mirror_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)                \
	{                                                                                                              \
		return through(s, VFM_OP_##name, a, err);                                                              \
	}
VFM_OP_LIST(X)
#undef X
static const struct vfm_ops ops = {
#define X(name) .name = mirror_##name,
	VFM_OP_LIST(X)
#undef X
};

/* ---- memory of the host, work that is done at once ---- */

static void *mirror_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct mirror *m = mirror_of(s);
	struct block *b = vfm_calloc(1, sizeof(*b));

	(void)what, (void)err;
	b->bytes = (bytes + 256) / 256 * 256; /* 0 bytes, too, get a distinct address */
	b->p = aligned_alloc(256, b->bytes);
	if (!b->p)
		abort();
	b->next = m->blocks;
	m->blocks = b;
	return b->p;
}

static void mirror_free(struct vfm_stream *s, void *p, size_t bytes)
{
	(void)bytes;
	for (struct block **b = &mirror_of(s)->blocks; *b; b = &(*b)->next)
		if ((*b)->p == p) {
			struct block *gone = *b;

			*b = gone->next;
			free(gone->p);
			free(gone);
			return;
		}
}

static int mirror_copy(struct vfm_stream *s, void *dst, const void *src, size_t bytes, struct vfm_err *err)
{
	(void)s, (void)err;
	if (bytes)
		memcpy(dst, src, bytes);
	return 0;
}

static void mirror_drop_copies(struct vfm_stream *s)
{
	vfm_dev_drop_copies(mirror_of(s)->rs);
}

static int mirror_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err)
{
	(void)s, (void)err;
	memset(dst, 0, bytes);
	return 0;
}

static int mirror_sync(struct vfm_stream *s, struct vfm_err *err)
{
	struct mirror *m = mirror_of(s);

	return m->real->t->stream_sync(m->rs, err);
}

static struct vfm_stream *mirror_stream(struct vfm_dev *d, bool async, struct vfm_err *err)
{
	struct vfm_stream *s = vfm_calloc(1, sizeof(*s));

	(void)async, (void)err;
	s->dev = d;
	return s;
}

static void mirror_stream_free(struct vfm_stream *s)
{
	free(s);
}

static void mirror_dev_free(struct vfm_dev *d)
{
	struct mirror *m = (struct mirror *)d;

	if (m->real->mem_now) {
		fprintf(stderr, "%lld bytes of the device were not given back\n", (long long)m->real->mem_now);
		abort();
	}
	m->real->t->stream_free(m->rs);
	m->real->t->dev_free(m->real);
	free(m);
}

static const struct vfm_dev_table table = {
	.name = "mirror",
	.ops = &ops,
	.alloc = mirror_alloc,
	.free = mirror_free,
	.to_device = mirror_copy,
	.to_host = mirror_copy,
	.zero = mirror_zero,
	.drop_copies = mirror_drop_copies,
	.stream_new = mirror_stream,
	.stream_free = mirror_stream_free,
	.stream_sync = mirror_sync,
	.dev_free = mirror_dev_free,
};

struct vfm_dev *vfm_mirror_open(struct vfm_dev *real, struct vfm_stream *rs, struct vfm_err *err)
{
	struct mirror *m;

	if (!real || !rs) {
		if (real)
			real->t->dev_free(real);
		return NULL;
	}
	(void)err;
	m = vfm_calloc(1, sizeof(*m));
	m->dev = (struct vfm_dev){.t = &table};
	memcpy(m->dev.name, real->name, sizeof(m->dev.name));
	m->real = real;
	m->rs = rs;
	return &m->dev;
}
