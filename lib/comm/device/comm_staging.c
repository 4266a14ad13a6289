/* Device communicators over the host backend: operands are copied through pinned memory.
 *
 * Calls without a stream use `host`.  Calls on streams use `data`, a second communicator of the same ranks, since the
 * thread of an asynchronous stream may be in a call of it. */
#include <stdlib.h>

#include "base/mem.h"
#include "comm/device/comm_staging.h"

enum { IN, OUT, BUFS };

struct staging_buf {
	struct staging_buf *next;
	size_t bytes;
	char *p;
};

struct staging_group {
	struct vfm_comm c;
	struct vfm_comm *data;
	struct vfm_stream *compute;
	/* lists; the first is in use.  Smaller ones are kept, since a stream may still use them. */
	struct staging_buf *buf[BUFS];
};

/* Returns memory that stays valid until the next call of the communicator has passed. */
static int reserve_staging(struct staging_group *g, int which, size_t bytes, char **p, struct vfm_err *err)
{
	struct vfm_dev *d = g->compute->dev;
	struct staging_buf *b = g->buf[which];

	if (!b || b->bytes < bytes) {
		b = vfm_calloc(1, sizeof(*b));
		b->bytes = g->buf[which] && bytes < 2 * g->buf[which]->bytes ? 2 * g->buf[which]->bytes
			: bytes < 4096                                       ? 4096
									     : bytes;
		b->p = d->t->alloc_host(d, b->bytes, "the staging of a collective", err);
		if (!b->p) {
			free(b);
			return VFM_EENV;
		}
		b->next = g->buf[which];
		g->buf[which] = b;
	}
	*p = b->p;
	return 0;
}

/* Makes *copy, a copy of the operand in host memory; with `fill` it is valid once the stream has passed. */
static int copy_to_staging(struct staging_group *g, struct vfm_stream *s, int which, struct vfm_tensor x, bool fill,
	struct vfm_tensor *copy, struct vfm_err *err)
{
	char *p;

	TRY(reserve_staging(g, which, vfm_nbytes(&x), &p, err));
	*copy = vfm_t1(p, x.dtype, vfm_numel(&x));
	return fill && vfm_numel(&x) ? s->dev->t->to_host(s, p, x.data, vfm_nbytes(&x), err) : 0;
}

static int copy_from_staging(struct vfm_stream *s, struct vfm_tensor x, struct vfm_tensor copy, struct vfm_err *err)
{
	return vfm_numel(&x) ? s->dev->t->to_device(s, x.data, copy.data, vfm_nbytes(&x), err) : 0;
}

/* Sets *on to the stream for the host backend's call.  On the compute stream the host makes the call itself (*on NULL),
 * after the copies have finished. */
static int sync_for_host_call(
	struct staging_group *g, struct vfm_stream *s, struct vfm_stream **on, struct vfm_err *err)
{
	if (s != g->compute) {
		*on = s;
		return 0;
	}
	*on = NULL;
	return s->dev->t->stream_sync(s, err);
}

/* Stages one operand that is read and one that is written. */
static int stage_operands(struct staging_group *g, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	struct vfm_tensor *host_in, struct vfm_tensor *host_out, struct vfm_stream **on, struct vfm_err *err)
{
	TRY(copy_to_staging(g, s, IN, in, true, host_in, err));
	TRY(copy_to_staging(g, s, OUT, out, false, host_out, err));
	return sync_for_host_call(g, s, on, err);
}

static int staging_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_tensor h;
	struct vfm_stream *on;

	TRY(copy_to_staging(g, s, IN, x, true, &h, err));
	TRY(sync_for_host_call(g, s, &on, err));
	TRY(vfm_all_reduce(g->data, on, h, err));
	return copy_from_staging(s, x, h, err);
}

static int staging_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_tensor hi, ho;
	struct vfm_stream *on;

	TRY(stage_operands(g, s, in, out, &hi, &ho, &on, err));
	TRY(vfm_all_gather(g->data, on, hi, ho, count, err));
	return copy_from_staging(s, out, ho, err);
}

static int staging_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_tensor hi, ho;
	struct vfm_stream *on;

	TRY(stage_operands(g, s, in, out, &hi, &ho, &on, err));
	TRY(vfm_reduce_scatter(g->data, on, hi, ho, count, err));
	return copy_from_staging(s, out, ho, err);
}

static int staging_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_tensor hi, ho;
	struct vfm_stream *on;

	TRY(stage_operands(g, s, in, out, &hi, &ho, &on, err));
	TRY(vfm_all_to_all(g->data, on, hi, ho, send, recv, err));
	return copy_from_staging(s, out, ho, err);
}

static int staging_broadcast(
	struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_tensor h;
	struct vfm_stream *on;

	TRY(copy_to_staging(g, s, IN, x, c->rank == root, &h, err));
	TRY(sync_for_host_call(g, s, &on, err));
	TRY(vfm_broadcast(g->data, on, h, root, err));
	return c->rank == root ? 0 : copy_from_staging(s, x, h, err);
}

static int staging_exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to,
	struct vfm_tensor in, int from, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_tensor ho = {0}, hi = {0};
	struct vfm_stream *on;

	if (to >= 0)
		TRY(copy_to_staging(g, s, OUT, out, true, &ho, err));
	if (from >= 0)
		TRY(copy_to_staging(g, s, IN, in, false, &hi, err));
	TRY(sync_for_host_call(g, s, &on, err));
	TRY(vfm_exchange(g->data, on, ho, to, hi, from, err));
	return from >= 0 ? copy_from_staging(s, in, hi, err) : 0;
}

static int staging_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_stream *on;

	TRY(sync_for_host_call(g, s, &on, err));
	return vfm_barrier(g->data, on, err);
}

/* ---- groups ---- */

static void staging_free(struct vfm_comm *c)
{
	struct staging_group *g = (struct staging_group *)c;
	struct vfm_dev *d = g->compute->dev;

	/* copies to the device may still be under way on the compute stream */
	d->t->stream_sync(g->compute, NULL);
	for (int i = 0; i < BUFS; i++)
		while (g->buf[i]) {
			struct staging_buf *b = g->buf[i];

			g->buf[i] = b->next;
			d->t->free_host(d, b->p, b->bytes);
			free(b);
		}
	vfm_comm_free(g->data);
	free(g);
}

static int staging_split(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err);

static void staging_free_with_host(struct vfm_comm *c)
{
	struct vfm_comm *host = c->host;

	staging_free(c);
	vfm_comm_free(host);
}

#define CALLS                                                                                                          \
	.name = "staging", .all_reduce = staging_all_reduce, .all_gather = staging_all_gather,                         \
	.reduce_scatter = staging_reduce_scatter, .all_to_all = staging_all_to_all, .broadcast = staging_broadcast,    \
	.exchange = staging_exchange, .barrier = staging_barrier, .split = staging_split

/* The maker owns the host communicator of the first group; a split group owns its own. */
static const struct vfm_comm_table staging_table = {CALLS, .free = staging_free},
				   split_table = {CALLS, .free = staging_free_with_host};

int vfm_comm_staging_new(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_comm *data;
	struct staging_group *g;

	*out = host;
	if (host->size == 1)
		return 0;
	TRY(vfm_comm_split(host, 0, host->rank, host->name, &data, err));
	g = vfm_calloc(1, sizeof(*g));
	g->c = *host;
	g->c.t = &staging_table;
	g->c.host = host;
	g->data = data;
	g->compute = compute;
	*out = &g->c;
	return 0;
}

static int staging_split(
	struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_comm *host;
	int rc;

	TRY(vfm_comm_split(c->host, color, key, name, &host, err));
	*out = host;
	if (!host || host->size == 1)
		return 0;
	rc = vfm_comm_staging_new(host, ((struct staging_group *)c)->compute, out, err);
	if (rc < 0) {
		vfm_comm_free(host);
		*out = NULL;
	} else {
		(*out)->t = &split_table;
	}
	return rc;
}
