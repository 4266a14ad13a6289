/* comm.c - checks operands of collectives, calls the backend and counts; the communicator of one rank. */
#include "comm/coll/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/dev/stall.h"

/* ---- the communicator of one rank ---- */

static int self_call(struct vfm_comm *c, struct vfm_stream *s, const struct vfm_coll *k, struct vfm_err *err)
{
	size_t bytes = (size_t)k->n_out * vfm_dtype_size(k->dtype);

	(void)c;
	if (k->in == k->out || k->n_in == 0 || k->n_out == 0)
		return 0;
	if (!s) {
		memmove(k->out, k->in, bytes);
		return 0;
	}
	/* A copy handles any dtype and keeps the order of an asynchronous stream; an op does not. */
	return s->dev->t->to_device(s, k->out, k->in, bytes, err);
}

static int self_split(struct vfm_comm *c, const struct vfm_comm_split *q, struct vfm_comm **out, struct vfm_err *err)
{
	(void)err;
	*out = q->color < 0 ? NULL : c;
	return 0;
}

static void self_free(struct vfm_comm *c)
{
	(void)c;
}

static const struct vfm_comm_table self_table = {
	.name = "self",
	.call = self_call,
	.split = self_split,
	.free = self_free,
};

struct vfm_comm *vfm_comm_self(void)
{
	static struct vfm_comm self = {.t = &self_table, .size = 1, .name = "self"};

	return &self;
}

/* ---- calls: check the operands, then dispatch to the backend ---- */

static int64_t sum_counts(const struct vfm_comm *c, const int64_t *count, int64_t equal)
{
	int64_t n = 0;

	if (!count)
		return equal * c->size;
	for (int i = 0; i < c->size; i++)
		n += count[i];
	return n;
}

/* small: this rank's block; big: the whole. */
static int check_blocks(const struct vfm_comm *c, const char *what, struct vfm_tensor small, struct vfm_tensor big,
	const int64_t *count, struct vfm_err *err)
{
	int64_t mine = count ? count[c->rank] : vfm_numel(&small);

	if (small.dtype == big.dtype && vfm_numel(&small) == mine && sum_counts(c, count, mine) == vfm_numel(&big) &&
		vfm_contiguous(&small) && vfm_contiguous(&big))
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"internal: %s over %d ranks of '%s': %lld elements of %s do not match %lld of %s", what, c->size,
		c->name, (long long)vfm_numel(&small), vfm_dtype_name(small.dtype), (long long)vfm_numel(&big),
		vfm_dtype_name(big.dtype));
}

/* A call on the compute stream is not overlapped: the stream stalls until it is done. */
static int dispatch_call(struct vfm_comm *c, struct vfm_stream *s, struct vfm_coll k, struct vfm_err *err)
{
	int rc;

	if (!s)
		c = vfm_comm_host(c);
	if (s && c->size > 1)
		vfm_stall_begin(s, VFM_STALL_COMM);
	rc = c->t->call(c, s, &k, err);
	if (s && c->size > 1)
		vfm_stall_end(s);
	return rc;
}

/* The call without peers. */
static struct vfm_coll make_call(enum vfm_coll_kind kind, struct vfm_tensor in, struct vfm_tensor out)
{
	return (struct vfm_coll){.kind = kind,
		.dtype = in.dtype,
		.in = in.data,
		.out = out.data,
		.n_in = vfm_numel(&in),
		.n_out = vfm_numel(&out),
		.to = -1,
		.from = -1};
}

int vfm_all_reduce(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, struct vfm_err *err)
{
	if (!vfm_contiguous(&x) ||
		(x.dtype != VFM_F32 && x.dtype != VFM_BF16 && x.dtype != VFM_F64 && x.dtype != VFM_I64))
		return vfm_fail(err, VFM_EUSAGE, "internal: all_reduce of '%s': bad operand", c->name);
	return dispatch_call(c, s, make_call(VFM_C_ALL_REDUCE, x, x), err);
}

int vfm_all_gather(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	struct vfm_coll k = make_call(VFM_C_ALL_GATHER, in, out);

	TRY(check_blocks(c, "all_gather", in, out, count, err));
	k.send = count;
	return dispatch_call(c, s, k, err);
}

int vfm_reduce_scatter(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *count, struct vfm_err *err)
{
	struct vfm_coll k = make_call(VFM_C_REDUCE_SCATTER, in, out);

	TRY(check_blocks(c, "reduce_scatter", out, in, count, err));
	if (in.dtype != VFM_F32 && in.dtype != VFM_BF16)
		return vfm_fail(err, VFM_EUSAGE, "internal: reduce_scatter of %s", vfm_dtype_name(in.dtype));
	k.send = count;
	return dispatch_call(c, s, k, err);
}

int vfm_all_to_all(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor in, struct vfm_tensor out,
	const int64_t *send, const int64_t *recv, struct vfm_err *err)
{
	struct vfm_coll k = make_call(VFM_C_ALL_TO_ALL, in, out);

	if (in.dtype != out.dtype || !vfm_contiguous(&in) || !vfm_contiguous(&out) || !send != !recv ||
		(send ? sum_counts(c, send, 0) != k.n_in || sum_counts(c, recv, 0) != k.n_out
		      : k.n_in != k.n_out || k.n_in % c->size))
		return vfm_fail(err, VFM_EUSAGE,
			"internal: all_to_all over %d ranks of '%s': %lld elements in, %lld out", c->size, c->name,
			(long long)k.n_in, (long long)k.n_out);
	k.send = send;
	k.recv = recv;
	return dispatch_call(c, s, k, err);
}

int vfm_broadcast(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int root, struct vfm_err *err)
{
	struct vfm_coll k = make_call(VFM_C_BROADCAST, x, x);

	if (root < 0 || root >= c->size || !vfm_contiguous(&x))
		return vfm_fail(
			err, VFM_EUSAGE, "internal: broadcast of '%s': root %d of %d ranks", c->name, root, c->size);
	k.from = root;
	return dispatch_call(c, s, k, err);
}

int vfm_exchange(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor out, int to, struct vfm_tensor in,
	int from, struct vfm_err *err)
{
	struct vfm_coll k = {.kind = VFM_C_EXCHANGE,
		.dtype = VFM_U8,
		.in = out.data,
		.out = in.data,
		.n_in = to < 0 ? 0 : (int64_t)vfm_nbytes(&out),
		.n_out = from < 0 ? 0 : (int64_t)vfm_nbytes(&in),
		.to = to,
		.from = from};

	if (to >= c->size || from >= c->size || !vfm_contiguous(&out) || !vfm_contiguous(&in))
		return vfm_fail(err, VFM_EUSAGE, "internal: exchange of '%s': to %d, from %d of %d ranks", c->name, to,
			from, c->size);
	return dispatch_call(c, s, k, err);
}

int vfm_send(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int to, struct vfm_err *err)
{
	return vfm_exchange(c, s, x, to, (struct vfm_tensor){0}, -1, err);
}

int vfm_recv(struct vfm_comm *c, struct vfm_stream *s, struct vfm_tensor x, int from, struct vfm_err *err)
{
	return vfm_exchange(c, s, (struct vfm_tensor){0}, -1, x, from, err);
}

int vfm_barrier(struct vfm_comm *c, struct vfm_stream *s, struct vfm_err *err)
{
	return dispatch_call(
		c, s, (struct vfm_coll){.kind = VFM_C_BARRIER, .dtype = VFM_U8, .to = -1, .from = -1}, err);
}

int vfm_comm_split(struct vfm_comm *c, int color, int key, const char *name, struct vfm_comm **out, struct vfm_err *err)
{
	return c->t->split(c, &(struct vfm_comm_split){.color = color, .key = key, .name = name}, out, err);
}

int vfm_comm_split_by(struct vfm_comm *c, struct vfm_comm_places p, bool p2p, const char *name, struct vfm_comm **out,
	struct vfm_err *err)
{
	struct vfm_comm_place own = p.of(p.ctx, c->rank);

	return c->t->split(c,
		&(struct vfm_comm_split){.color = own.color, .key = own.key, .name = name, .p2p = p2p, .places = &p},
		out, err);
}

void vfm_comm_free(struct vfm_comm *c)
{
	if (c)
		c->t->free(c);
}

void vfm_comm_abort(struct vfm_comm *c, const char *why)
{
	struct vfm_comm *host = vfm_comm_host(c);

	if (host->t->abort)
		host->t->abort(host, why);
}

const char *vfm_comm_backend(const struct vfm_comm *c)
{
	return c->t->transport_name ? c->t->transport_name(c) : c->t->name;
}

int vfm_comm_mem_new(struct vfm_comm_mem *m, struct vfm_comm *c, struct vfm_stream *s, size_t bytes, const char *what,
	struct vfm_err *err)
{
	*m = (struct vfm_comm_mem){.s = s, .bytes = bytes, .what = what};
	if (c->t->mem_alloc && bytes)
		TRY(c->t->mem_alloc(c, s, bytes, what, &m->p, err));
	if (m->p) {
		m->of = c;
		vfm_dev_count(s->dev, (int64_t)bytes);
	} else {
		m->p = vfm_dev_alloc(s, bytes, what, err);
	}
	return m->p ? 0 : VFM_EENV;
}

int vfm_comm_mem_register(struct vfm_comm_mem *m, struct vfm_comm *c, struct vfm_err *err)
{
	struct vfm_comm_registration *k = &m->registered[m->n_registered];

	if (!c->t->register_memory)
		return 0;
	if (m->n_registered == VFM_COMM_REGISTRATIONS)
		return vfm_fail(err, VFM_EUSAGE, "internal: a buffer is registered with more than %d communicators",
			VFM_COMM_REGISTRATIONS);
	*k = (struct vfm_comm_registration){.c = c};
	TRY(c->t->register_memory(c, m->of ? m->p : NULL, m->bytes, &k->handle, err));
	m->n_registered += k->handle != NULL;
	return 0;
}

void vfm_comm_mem_release(struct vfm_comm_mem *m)
{
	if (m->p && m->of) {
		/* The library frees at once, not in stream order.  The caller has seen a failure already. */
		m->s->dev->t->stream_sync(m->s, &(struct vfm_err){0});
		while (m->n_registered-- > 0)
			m->registered[m->n_registered].c->t->deregister_memory(
				m->registered[m->n_registered].c, m->registered[m->n_registered].handle);
		m->of->t->mem_free(m->of, m->s, m->p, m->bytes, m->what);
		vfm_dev_count(m->s->dev, -(int64_t)m->bytes);
	} else if (m->p) {
		vfm_dev_free(m->s, m->p, m->bytes);
	}
	*m = (struct vfm_comm_mem){0};
}

int vfm_comm_gather_bytes(struct vfm_comm *c, const void *mine, size_t n, char **all, size_t **off, struct vfm_err *err)
{
	int64_t len = (int64_t)n, *count = vfm_calloc((size_t)c->size, sizeof(*count));
	size_t *o = vfm_calloc((size_t)c->size + 1, sizeof(*o));
	char *blob = NULL;
	int rc;

	TRY_OUT(vfm_all_gather(c, NULL, vfm_t1(&len, VFM_I64, 1), vfm_t1(count, VFM_I64, c->size), NULL, err));
	for (int i = 0; i < c->size; i++)
		o[i + 1] = o[i] + (size_t)count[i];
	blob = vfm_malloc(o[c->size] + 1);
	rc = vfm_all_gather(
		c, NULL, vfm_t1((void *)mine, VFM_U8, len), vfm_t1(blob, VFM_U8, (int64_t)o[c->size]), count, err);
out:
	free(count);
	if (rc < 0) {
		free(blob);
		free(o);
		return rc;
	}
	blob[o[c->size]] = '\0';
	*all = blob;
	*off = o;
	return 0;
}

/* ---- for backends ---- */

const char *const vfm_coll_name[VFM_C_KINDS] = {
	"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "exchange", "barrier"};

int64_t vfm_coll_sends(const struct vfm_comm *c, const struct vfm_coll *k)
{
	int64_t es = (int64_t)vfm_dtype_size(k->dtype);

	switch (k->kind) {
	case VFM_C_ALL_REDUCE:
		return es * (2 * k->n_out * (c->size - 1) / c->size);
	case VFM_C_ALL_GATHER:
		return es * k->n_in * (c->size - 1);
	case VFM_C_REDUCE_SCATTER:
		return es * (k->n_in - k->n_out);
	case VFM_C_ALL_TO_ALL:
		return es * (k->n_in - (k->send ? k->send[c->rank] : k->n_in / c->size));
	case VFM_C_BROADCAST:
		return k->from == c->rank ? es * k->n_out : 0;
	default:
		return es * k->n_in;
	}
}

static pthread_mutex_t stats_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vfm_comm_stats stats;

void vfm_comm_count(int64_t bytes, double busy_s, double wait_s)
{
	pthread_mutex_lock(&stats_lock);
	stats.bytes += bytes;
	stats.calls++;
	stats.busy_s += busy_s;
	stats.wait_s += wait_s;
	pthread_mutex_unlock(&stats_lock);
}

struct vfm_comm_stats vfm_comm_stats(void)
{
	struct vfm_comm_stats s;

	pthread_mutex_lock(&stats_lock);
	s = stats;
	pthread_mutex_unlock(&stats_lock);
	return s;
}
