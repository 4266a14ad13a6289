/* comm_dev.c - selects the backend of device communicators; the backend "staging".
 *
 * The watch thread of the transport checks waits, the library's errors and the state of the job ten times a second.
 *
 * Sums of the transport.  The library sums f32, f64 and i64 in its own fixed order; uneven blocks are padded.  bf16
 * parts are exchanged and summed in f32 in rank order, which moves as many bytes as a ring; the host thread of a stream
 * that runs no ops computes the sums.  VFM_COMM_BF16=native lets the library sum bf16, which may round at every rank.
 *
 * Registered buffers (struct vfm_comm_mem) come from the transport (mem_alloc), which can only register whole
 * allocations of the driver.  If it has no memory left, they come from the device and are not registered.  The ranks
 * agree over the host communicator on which are registered.  VFM_COMM_REGISTER=0 disables registration.
 */
#include "comm/device/comm_dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/device/transport.h"

/* ---- staging: operands are copied through pinned memory ----
 *
 * Calls without a stream use `host`.  Calls on streams use `data`, a second communicator of the same ranks, because the
 * thread of an asynchronous stream may be inside a call of `data`. */

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

/* Calls the host backend with copies of the operands.  On the compute stream the host makes that call itself, after the
 * copies have finished. */
static int staging_call(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *err)
{
	struct staging_group *g = (struct staging_group *)c;
	const struct vfm_dev_table *t = s->dev->t;
	size_t es = vfm_dtype_size(k->dtype), n_in = (size_t)k->n_in * es, n_out = (size_t)k->n_out * es;
	bool in_place = k->kind == VFM_C_ALL_REDUCE || k->kind == VFM_C_BROADCAST,
	     root = k->kind == VFM_C_BROADCAST && c->rank == k->from,
	     reads = n_in && (k->kind != VFM_C_BROADCAST || root);
	struct vfm_coll copy = *k;

	TRY(reserve_staging(g, IN, n_in, &copy.in, err));
	copy.out = copy.in;
	if (!in_place)
		TRY(reserve_staging(g, OUT, n_out, &copy.out, err));
	if (reads)
		TRY(t->to_host(s, copy.in, k->in, n_in, err));
	if (s == g->compute)
		TRY(t->stream_sync(s, err));
	TRY(g->data->t->call(g->data, s == g->compute ? NULL : s, &copy, err));
	return n_out && !root ? t->to_device(s, k->out, copy.out, n_out, err) : 0;
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
	struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err);

static void staging_free_with_host(struct vfm_comm *c)
{
	struct vfm_comm *host = c->host;

	staging_free(c);
	vfm_comm_free(host);
}

/* The communicator that made the groups owns the host communicator of the first group; a split group owns its own. */
static const struct vfm_comm_table
	staging_table = {.name = "staging", .call = staging_call, .split = staging_split, .free = staging_free},
	split_table = {.name = "staging", .call = staging_call, .split = staging_split, .free = staging_free_with_host};

/* Makes the communicator of the same ranks; collective over host. */
static int staging_new(struct vfm_comm *host, struct vfm_stream *compute, struct vfm_comm **out, struct vfm_err *err)
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

static int staging_split(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err)
{
	struct vfm_comm *host;
	int rc;

	TRY(c->host->t->split(c->host, q, &host, err));
	*out = host;
	if (!host || host->size == 1)
		return 0;
	rc = staging_new(host, ((struct staging_group *)c)->compute, out, err);
	if (rc < 0) {
		vfm_comm_free(host);
		*out = NULL;
	} else {
		(*out)->t = &split_table;
	}
	return rc;
}

/* ---- the choice of a backend ---- */

/* Sets *a and *b to the first two ranks with the same device, or to -1.  Collective. */
static int find_shared_device(
	struct vfm_comm *host, const struct vfm_comm_dev_opts *o, int *a, int *b, struct vfm_err *err)
{
	char mine[VFM_TRANSPORT_DEVICE] = {0}, *all = vfm_calloc((size_t)host->size, VFM_TRANSPORT_DEVICE);
	int rc, gathered;

	*a = *b = -1;
	/* A rank that cannot read its id still takes part in the call, and then fails. */
	rc = o->transport->device_id(o->compute->dev, mine, err);
	gathered = vfm_all_gather(host, NULL, vfm_t1(mine, VFM_U8, VFM_TRANSPORT_DEVICE),
		vfm_t1(all, VFM_U8, (int64_t)host->size * VFM_TRANSPORT_DEVICE), NULL, rc < 0 ? NULL : err);
	rc = rc < 0 ? rc : gathered;
	for (int i = 0; rc >= 0 && i < host->size; i++)
		if (!all[i * VFM_TRANSPORT_DEVICE])
			rc = vfm_fail(err, VFM_EENV, "rank %d cannot identify its device", i);
	for (int i = 0; rc >= 0 && *a < 0 && i < host->size; i++)
		for (int k = i + 1; *a < 0 && k < host->size; k++)
			if (!memcmp(all + i * VFM_TRANSPORT_DEVICE, all + k * VFM_TRANSPORT_DEVICE,
				    VFM_TRANSPORT_DEVICE)) {
				*a = i;
				*b = k;
			}
	free(all);
	return rc;
}

/* Uses the transport unless ranks share a device.  NCCL would report that too late, and from each rank. */
static int new_over_transport(struct vfm_comm *host, const struct vfm_comm_dev_opts *o, bool asked,
	struct vfm_comm **out, struct vfm_err *err)
{
	const char *share = getenv("VFM_CUDA_SHARE");
	bool may_share = share && !strcmp(share, "1");
	int a, b;

	TRY(find_shared_device(host, o, &a, &b, err));
	if (a >= 0 && !may_share && asked)
		return vfm_fail(err, VFM_EUSAGE,
			"VFM_COMM=%s: ranks %d and %d have the same device; start fewer ranks, or set VFM_COMM=staging "
			"or VFM_CUDA_SHARE=1",
			o->transport->name, a, b);
	if (a >= 0 && !may_share) {
		vfm_info("ranks share a device: collectives are staged through the host");
		return staging_new(host, o->compute, out, err);
	}
	if (a >= 0)
		TRY(o->transport->share(host->rank, err));
	return vfm_comm_transport_new(host, o->transport, o->compute, out, err);
}

int vfm_comm_dev_new(
	struct vfm_comm *host, const struct vfm_comm_dev_opts *o, struct vfm_comm **out, struct vfm_err *err)
{
	const char *want = getenv("VFM_COMM");
	bool asked = want && *want;

	*out = host;
	if (asked && strcmp(want, "host") != 0 && strcmp(want, "staging") != 0 &&
		!(o->transport && !strcmp(want, o->transport->name)))
		return vfm_fail(err, VFM_EUSAGE, "VFM_COMM: expected %s%s%sstaging, got '%s'",
			o->host_memory ? "host, " : "", o->transport ? o->transport->name : "",
			o->transport ? ", " : "", want);
	if (asked && !strcmp(want, "host") && !o->host_memory)
		return vfm_fail(err, VFM_EUSAGE,
			"VFM_COMM=host: the host cannot access this device's memory; set VFM_COMM=staging");
	if (asked ? !strcmp(want, "host") : o->host_memory)
		return 0;
	if (asked ? !strcmp(want, "staging") : !o->transport)
		return staging_new(host, o->compute, out, err);
	return host->size == 1 && !asked ? 0 : new_over_transport(host, o, asked, out, err);
}

void vfm_comm_dev_free(struct vfm_comm *c, struct vfm_comm *host)
{
	if (c != host)
		vfm_comm_free(c);
}
