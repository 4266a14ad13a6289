/* sim_dev.c - a device without contents: allocations, launches and copies with their texts and times.
 *
 * Large pinned memory is backed by pages only where the host writes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "device/ops/info.h"
#include "device/sim/libraries.h"
#include "device/sim/uneven.h"
#include "device/sim/sim_impl.h"

/* The zones and chunks of the CUDA device's pool (cuda_mem.c). */
enum { SMALL_BELOW = 1 << 20, SMALL_CHUNK = 2 << 20, LARGE_CHUNK = 32 << 20 };
enum { ARG_MAX_BYTES = 256, HOST_SMALL = 1 << 16 };

const char *vfm_sim_class_name(enum vfm_sim_class c)
{
	static const char *const names[VFM_SIM_CLASSES] = {
		"gemm", "attention", "memory", "optimizer", "transfer", "comm"};

	return names[c];
}

/* ---- texts ---- */

const char *vfm_sim_text(struct vfm_dev *dev, const char *text)
{
	struct sim_texts *t = &sim_of(dev)->texts;
	int64_t id = vfm_names_find(&t->names, text);

	if (id < 0) {
		id = vfm_names_add(&t->names, text);
		vfm_grow(&t->v, &t->cap, (size_t)t->names.n, sizeof(char *));
		t->v[id] = vfm_strdup(text);
	}
	return t->v[id];
}

/* ---- the record ---- */

/* Made for every launch, so without printf.  Omits the rest beyond the end. */
struct description {
	char text[512];
	size_t n;
};

static void describe_text(struct description *x, const char *s)
{
	size_t n = strnlen(s, sizeof(x->text) - 1 - x->n);

	memcpy(x->text + x->n, s, n);
	x->n += n;
}

static void describe_number(struct description *x, int64_t v) /* v >= 0 */
{
	char digits[24] = {0}, *at = digits + sizeof(digits) - 1;

	do
		*--at = (char)('0' + v % 10);
	while (v /= 10);
	describe_text(x, at);
}

static void describe_sizes(struct description *x, const int64_t *size, int n)
{
	describe_text(x, "[");
	for (int i = 0; i < n; i++) {
		describe_text(x, i ? "," : "");
		describe_number(x, size[i]);
	}
	describe_text(x, "]");
}

/* "[8192,4096] x:bf16 y:bf16": the shape of the first operand, and of others that it does not determine for products.
 */
static const char *describe_operands(struct sim *d, enum vfm_op_id op, const void *args)
{
	const struct vfm_operand *o = vfm_op_info(op)->operands;
	const struct vfm_gemm *g = args;
	const struct vfm_attn *a = args;
	struct description x = {0};

	if (op == VFM_OP_gemm) {
		int64_t size[] = {g->c.shape[0], g->c.shape[1], g->a.shape[g->trans_a ? 0 : 1]};

		describe_sizes(&x, size, 3);
		describe_text(&x, g->accumulate ? " +=" : "");
	} else {
		const struct vfm_tensor *first = o->name ? vfm_operand_of((void *)args, o) : NULL;

		describe_sizes(&x, first ? first->shape : NULL, first ? first->ndim : 0);
	}
	if (op == VFM_OP_attn || op == VFM_OP_attn_bwd) { /* both begin with q, k */
		describe_text(&x, " keys ");
		describe_number(&x, a->k.shape[0]);
	}
	for (; o->name; o++) {
		const struct vfm_tensor *t = vfm_operand_of((void *)args, o);

		if (!vfm_has(t))
			continue;
		describe_text(&x, " ");
		describe_text(&x, o->name);
		describe_text(&x, ":");
		describe_text(&x, vfm_dtype_name(t->dtype));
	}
	return vfm_sim_text(&d->dev, x.text);
}

/* Returns the bytes of operands in pinned host memory, of the larger direction. */
static double count_pcie(const struct sim *d, enum vfm_op_id op, const void *args)
{
	double in = 0, out = 0;

	for (const struct vfm_operand *o = vfm_op_info(op)->operands; d->pinned.n > 0 && o->name; o++) {
		const struct vfm_tensor *t = vfm_operand_of((void *)args, o);

		if (!vfm_has(t) || !vfm_ranges_hold(&d->pinned, t->data, vfm_nbytes(t)))
			continue;
		in += o->role != VFM_OUT ? (double)vfm_nbytes(t) : 0;
		out += o->role != VFM_IN ? (double)vfm_nbytes(t) : 0;
	}
	return fmax(in, out);
}

/* ---- known contents ---- */

static bool on_device(const struct sim *d, const void *p)
{
	return (const char *)p >= d->base && (const char *)p < d->base + d->reserved;
}

static void forget_contents(struct sim *d, const void *p, size_t bytes)
{
	const char *at = p;

	for (size_t i = 0; i < d->n_known;) {
		struct sim_known *k = d->known[i];

		if (k->at < at + bytes && at < k->at + k->bytes) {
			free(k);
			d->known[i] = d->known[--d->n_known];
		} else {
			i++;
		}
	}
}

void vfm_sim_know(struct vfm_dev *dev, void *dst, const void *host, size_t bytes)
{
	struct sim *d = sim_of(dev);
	struct sim_known *k;

	forget_contents(d, dst, bytes);
	if (bytes == 0 || bytes > VFM_SIM_KNOWN_MAX)
		return;
	k = vfm_malloc(sizeof(*k) + bytes);
	k->at = dst;
	k->bytes = bytes;
	memcpy(k->data, host, bytes);
	vfm_grow(&d->known, &d->cap_known, d->n_known + 1, sizeof(struct sim_known *));
	d->known[d->n_known++] = k;
}

void vfm_sim_known(const struct vfm_dev *dev, void *host, const void *src, size_t bytes)
{
	const struct sim *d = sim_of(dev);
	const char *at = src;

	memset(host, 0, bytes);
	for (size_t i = 0; i < d->n_known; i++) {
		const struct sim_known *k = d->known[i];
		const char *lo = k->at > at ? k->at : at,
			   *end = k->at + k->bytes < at + bytes ? k->at + k->bytes : at + bytes;

		if (lo < end)
			memcpy((char *)host + (lo - at), k->data + (lo - k->at), (size_t)(end - lo));
	}
}

void vfm_sim_moved(struct vfm_dev *dev, void *dst, const void *src, size_t bytes)
{
	struct sim *d = sim_of(dev);
	char data[VFM_SIM_KNOWN_MAX];

	if (bytes > VFM_SIM_KNOWN_MAX) {
		forget_contents(d, dst, bytes);
		return;
	}
	vfm_sim_known(&d->dev, data, src, bytes);
	vfm_sim_know(&d->dev, dst, data, bytes);
}

/* Distributes n rows over all entries of count [E] i32. */
static void know_balanced(struct sim *d, const struct vfm_tensor *count, int64_t n)
{
	int64_t E = vfm_numel(count);
	int32_t *x = vfm_calloc((size_t)E + 1, sizeof(*x));

	for (int64_t i = 0; i < E; i++)
		x[i] = (int32_t)(n / E + (i < n % E));
	vfm_sim_know(&d->dev, count->data, x, (size_t)E * sizeof(*x));
	free(x);
}

/* The counts of tokens that choose experts, of this layer. */
static void know_routing(struct sim *d, const struct vfm_moe_sort *a)
{
	int64_t E = vfm_numel(&a->count), n = a->key.shape[0];
	int32_t *x = vfm_calloc((size_t)E + 1, sizeof(*x));

	vfm_sim_route(x, E, n, n / a->div, d->expert_skew, d->dev.routing);
	vfm_sim_know(&d->dev, a->count.data, x, (size_t)E * sizeof(*x));
	free(x);
}

static void know_counts(struct sim *d, enum vfm_op_id op, const void *args)
{
	const struct vfm_moe_sort *sort = args;
	const struct vfm_moe_own *own = args;

	if (op == VFM_OP_moe_sort && d->expert_skew > 0)
		know_routing(d, sort);
	else if (op == VFM_OP_moe_sort)
		know_balanced(d, &sort->count, sort->key.shape[0]);
	else if (op == VFM_OP_moe_own)
		know_balanced(d, &own->count,
			vfm_has(&own->own) ? vfm_numel(&own->row) * own->own_rows / vfm_numel(&own->own)
					   : vfm_numel(&own->row));
}

/* ---- packed copies of held weights (device/cpu/cpu.h) ---- */

static void keep_copy(struct sim *d, const struct vfm_gemm *g)
{
	const struct vfm_cpu_copy_rule *r = &d->machine.copies[g->a.dtype == VFM_BF16];
	int64_t m = g->c.shape[0];
	struct sim_copy c = {.p = g->b.data,
		.ld = g->b.stride[0],
		.n = g->c.shape[1],
		.k = g->a.shape[g->trans_a ? 0 : 1],
		.trans = g->trans_b};

	if (!g->b.version || m <= r->few || c.n < 1 || c.k < 1 || m > r->rows || vfm_has(&g->scale_a))
		return;
	for (size_t i = 0; i < d->n_copies; i++) {
		const struct sim_copy *x = &d->copy[i];

		if (x->p == c.p && x->ld == c.ld && x->n == c.n && x->k == c.k && x->trans == c.trans)
			return;
	}
	c.bytes = (c.n + r->columns - 1) / r->columns * r->columns * ((c.k + r->depth - 1) / r->depth * r->depth) *
		r->bytes;
	vfm_grow(&d->copy, &d->cap_copies, d->n_copies + 1, sizeof(*d->copy));
	d->copy[d->n_copies++] = c;
	vfm_dev_count(&d->dev, c.bytes);
}

static void sim_drop_copies(struct vfm_stream *s)
{
	struct sim *d = sim_of(s->dev);

	for (size_t i = 0; i < d->n_copies; i++)
		vfm_dev_count(&d->dev, -d->copy[i].bytes);
	d->n_copies = 0;
}

/* ---- ops ---- */

/* A step of a ring reads this rank's part and the received one, and writes the sum or what it passes on. */
enum { LINK_TRAFFIC = 3 };

/* Returns the share of the device that an op on s has, unless another stream overlaps it. */
static struct vfm_sim_room room_of(struct sim *d, struct sim_stream *s)
{
	struct vfm_sim_room r = {.units = s->s.units};

	if (r.units) {
		d->side = s;
		return r;
	}
	r.taken = vfm_dev_units_taken(&d->dev);
	if (!r.taken)
		memset(d->link, 0, sizeof(d->link));
	for (int e = 0; e < VFM_ESTIMATES && r.taken; e++) {
		double side = d->dev.side.flops > 0 ? d->dev.side.taken * d->machine.sm_bw.v[e] * 1e9 : 0;

		r.moved[e] = side + LINK_TRAFFIC * d->link[e];
	}
	return r;
}

void vfm_sim_link_busy(struct vfm_dev *dev, const double rate[VFM_ESTIMATES])
{
	struct sim *d = sim_of(dev);

	for (int e = 0; e < VFM_ESTIMATES; e++)
		d->link[e] = rate[e] > d->link[e] ? rate[e] : d->link[e];
}

/* Grows only, as vfm_cuda_ws does. */
static int grow_scratch(struct sim_stream *s, size_t bytes, struct vfm_err *err)
{
	struct sim *d = sim_of(s->s.dev);
	size_t want = bytes + bytes / 8 + 256;

	if (!bytes || bytes <= s->scratch_bytes || d->machine.kind != VFM_MACHINE_GPU)
		return 0;
	sim_release_scratch(s);
	s->scratch = vfm_dev_alloc(&s->s, want, "scratch of an operation", err);
	if (!s->scratch)
		return VFM_EENV;
	s->scratch_bytes = want;
	d->scratch += (int64_t)want;
	return 0;
}

void sim_release_scratch(struct sim_stream *s)
{
	vfm_dev_free(&s->s, s->scratch, s->scratch_bytes);
	sim_of(s->s.dev)->scratch -= (int64_t)s->scratch_bytes;
	s->scratch = NULL;
	s->scratch_bytes = 0;
}

static int record_op(struct vfm_stream *stream, enum vfm_op_id op, const void *args, struct vfm_err *err)
{
	struct sim_stream *s = sim_stream_of(stream);
	struct sim *d = sim_of(stream->dev);
	struct vfm_sim_room room = room_of(d, s);
	double pcie = count_pcie(d, op, args);
	struct vfm_sim_cost cost, overlapped = {0};
	struct vfm_sim_launch l;

	TRY(grow_scratch(s, vfm_sim_scratch(op, args), err));
	TRY(vfm_sim_cost_of(&d->machine, &room, op, args, pcie, &cost, err));
	if (room.taken) {
		for (int e = 0; e < VFM_ESTIMATES; e++)
			room.shared[e] = true;
		TRY(vfm_sim_cost_of(&d->machine, &room, op, args, pcie, &overlapped, err));
	}
	l = (struct vfm_sim_launch){.class = (uint8_t)cost.class,
		.op = vfm_op_info(op)->name,
		.shape = describe_operands(d, op, args),
		.kernels = cost.kernels,
		.flops = cost.flops,
		.bytes = cost.bytes};
	for (int e = 0; e < VFM_ESTIMATES; e++)
		l.work[e] = (float)cost.work[e];
	know_counts(d, op, args);
	if (d->machine.kind == VFM_MACHINE_CPU && op == VFM_OP_gemm)
		keep_copy(d, args);
	sim_add_launch(s, &l, room.taken ? overlapped.work : NULL);
	return 0;
}

#define X(name)                                                                                                        \
	static int sim_##name(struct vfm_stream *s, const struct vfm_##name *a, struct vfm_err *err)                   \
	{                                                                                                              \
		return record_op(s, VFM_OP_##name, a, err);                                                            \
	}
VFM_OP_LIST(X)
#undef X

static const struct vfm_ops sim_ops = {
#define X(name) .name = sim_##name,
	VFM_OP_LIST(X)
#undef X
};

/* ---- memory ---- */

static int map_simulated(void *ctx, int zone, uint64_t i, struct vfm_err *err)
{
	struct sim *d = ctx;

	(void)i, (void)err;
	if (d->mapped.bytes + d->mapped.zone[zone].chunk > (uint64_t)(d->capacity - d->outside))
		return VFM_MAPPED_FULL;
	return 0;
}

static int unmap_simulated(void *ctx, int zone, uint64_t i)
{
	(void)ctx, (void)zone, (void)i;
	return 0;
}

static int drain_device(void *ctx)
{
	(void)ctx;
	return 0;
}

static const struct vfm_mapped_table mapping = {map_simulated, unmap_simulated, drain_device};

static void report_full(struct sim *d, size_t bytes, const char *what, struct vfm_err *err)
{
	char text[VFM_ERR_MAX];

	if (d->world)
		vfm_sim_world_set_full(d->world);
	vfm_oom_sentence(&(struct vfm_oom){.device = d->dev.name,
				 .what = what,
				 .bytes = bytes,
				 .in_use = (uint64_t)d->dev.mem_now,
				 .total = (uint64_t)d->capacity,
				 .others = (uint64_t)d->outside,
				 .holders = &d->holders,
				 .oom_hints = &d->dev.oom_hints},
		text, sizeof(text));
	vfm_fail(err, VFM_EENV, "%s", text);
}

static void *sim_alloc(struct vfm_stream *s, size_t bytes, const char *what, struct vfm_err *err)
{
	struct sim *d = sim_of(s->dev);
	int zone = bytes >= SMALL_BELOW ? VFM_SIM_LARGE : VFM_SIM_SMALL, rc = VFM_MAPPED_FULL;
	uint32_t tag = vfm_holders_add(&d->holders, what, 0);
	uint64_t at = 0;

	vfm_mapped_set_limit(&d->mapped, d->dev.mem_limit);
	if (bytes <= d->reserved)
		rc = vfm_mapped_take(&d->mapped, zone, bytes, tag, &at, err);
	d->dev.mem_reserved = (int64_t)d->mapped.bytes;
	d->dev.mem_compactions = d->mapped.compactions;
	if (rc == VFM_MAPPED_FULL)
		report_full(d, bytes, what, err);
	if (rc != 0)
		return NULL;
	sim_memory_change(d, tag, (int64_t)bytes);
	return d->base + d->zone_at[zone] + at;
}

static void sim_free(struct vfm_stream *s, void *p, size_t bytes)
{
	struct sim *d = sim_of(s->dev);
	uint64_t at = (uint64_t)((char *)p - d->base);
	int zone = at >= d->zone_at[VFM_SIM_LARGE] ? VFM_SIM_LARGE : VFM_SIM_SMALL;
	uint32_t tag = 0;

	if (!on_device(d, p) || !vfm_mapped_give(&d->mapped, zone, at - d->zone_at[zone], &tag)) {
		fprintf(stderr, "simulated memory %p (%zu bytes) is freed that was not allocated\n", p, bytes);
		abort();
	}
	sim_memory_change(d, tag, -(int64_t)bytes);
	forget_contents(d, p, bytes);
}

int vfm_sim_take_outside(struct vfm_dev *dev, int64_t bytes, const char *what, struct vfm_err *err)
{
	struct sim *d = sim_of(dev);

	if ((int64_t)d->mapped.bytes + d->outside + bytes > d->capacity) {
		report_full(d, (size_t)bytes, what, err);
		return VFM_EENV;
	}
	d->outside += bytes;
	return 0;
}

struct vfm_sim_held vfm_sim_held(const struct vfm_dev *dev)
{
	const struct sim *d = sim_of(dev);

	return (struct vfm_sim_held){d->scratch, d->outside, (int64_t)d->mapped.used_peak};
}

/* Large memory gets its pages when the host writes to it. */
static void *sim_alloc_host(struct vfm_dev *dev, size_t bytes, const char *what, struct vfm_err *err)
{
	void *p = bytes < HOST_SMALL
		? vfm_big_alloc(bytes, what, err)
		: mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		vfm_fail_errno(err, VFM_EENV, "no addresses for %s (%zu bytes)", what, bytes);
		return NULL;
	}
	if (p)
		vfm_ranges_add(&sim_of(dev)->pinned, p, bytes);
	return p;
}

static void sim_free_host(struct vfm_dev *dev, void *p, size_t bytes)
{
	if (!p)
		return;
	vfm_ranges_remove(&sim_of(dev)->pinned, p);
	if (bytes < HOST_SMALL)
		vfm_big_free(p, bytes);
	else
		munmap(p, bytes);
}

double vfm_sim_pinned_bytes(const struct vfm_dev *dev)
{
	const struct vfm_ranges *r = &sim_of(dev)->pinned;
	double bytes = 0;

	for (size_t i = 0; i < r->n; i++)
		bytes += (double)r->v[i].bytes;
	return bytes;
}

/* ---- copies ---- */

static void record_copy(struct vfm_stream *s, const char *op, bool transfer, double moved)
{
	struct sim *d = sim_of(s->dev);
	const struct vfm_machine *m = &d->machine;
	struct vfm_sim_launch l = {.class = transfer ? VFM_SIM_TRANSFER : VFM_SIM_MEMORY,
		.op = op,
		.kernels = transfer ? 0 : 1,
		.bytes = moved};
	char text[32];

	snprintf(text, sizeof(text), "%.0f bytes", moved);
	l.shape = vfm_sim_text(&d->dev, text);
	for (int e = 0; e < VFM_ESTIMATES; e++)
		l.work[e] = (float)(moved / ((transfer ? m->pcie.v[e] : m->copy.v[e]) * 1e9));
	if (moved > 0)
		sim_add_launch(sim_stream_of(s), &l, NULL);
}

static int sim_to_device(struct vfm_stream *s, void *dst, const void *host, size_t bytes, struct vfm_err *err)
{
	struct sim *d = sim_of(s->dev);
	bool within = on_device(d, host);

	(void)err;
	record_copy(s, within ? "copy" : "to_device", !within, (double)bytes * (within ? 2 : 1));
	if (on_device(d, dst) && !within)
		vfm_sim_know(&d->dev, dst, host, bytes);
	else if (on_device(d, dst))
		forget_contents(d, dst, bytes);
	return 0;
}

static int sim_to_host(struct vfm_stream *s, void *host, const void *src, size_t bytes, struct vfm_err *err)
{
	struct sim *d = sim_of(s->dev);
	bool within = on_device(d, host);

	(void)err;
	record_copy(s, within ? "copy" : "to_host", !within, (double)bytes * (within ? 2 : 1));
	if (within)
		forget_contents(d, host, bytes);
	else if (bytes < HOST_SMALL || !vfm_ranges_hold(&d->pinned, host, bytes))
		vfm_sim_known(&d->dev, host, src, bytes);
	return 0;
}

static int sim_zero(struct vfm_stream *s, void *dst, size_t bytes, struct vfm_err *err)
{
	(void)err;
	record_copy(s, "zero", false, (double)bytes);
	if (on_device(sim_of(s->dev), dst))
		forget_contents(sim_of(s->dev), dst, bytes);
	return 0;
}

static int sim_host_call(struct vfm_stream *s, int (*fn)(void *arg, struct vfm_err *err), const void *arg, size_t bytes,
	struct vfm_err *err)
{
	_Alignas(16) char copy[ARG_MAX_BYTES];

	(void)s;
	if (bytes > sizeof(copy))
		return vfm_fail(err, VFM_EUSAGE, "internal: a stream call with an argument of %zu bytes", bytes);
	if (bytes)
		memcpy(copy, arg, bytes);
	return fn(copy, err);
}

/* ---- the device ---- */

static double sim_now(struct vfm_dev *d)
{
	return sim_of(d)->host.s[VFM_MID];
}

static void sim_dev_free(struct vfm_dev *dev)
{
	struct sim *d = sim_of(dev);

	if (!d)
		return;
	vfm_mapped_release(&d->mapped);
	vfm_holders_release(&d->holders);
	sim_memory_free(d->memory);
	vfm_ranges_release(&d->pinned);
	for (size_t i = 0; i < d->n_known; i++)
		free(d->known[i]);
	free(d->known);
	free(d->copy);
	for (int64_t i = 0; i < d->texts.names.n; i++)
		free(d->texts.v[i]);
	free(d->texts.v);
	vfm_names_release(&d->texts.names);
	free(d->launch);
	free(d->past);
	munmap(d->base, d->reserved);
	free(d);
}

static const struct vfm_dev_table sim_table = {
	.name = "sim",
	.ops = &sim_ops,
	.alloc = sim_alloc,
	.free = sim_free,
	.alloc_host = sim_alloc_host,
	.free_host = sim_free_host,
	.to_device = sim_to_device,
	.to_host = sim_to_host,
	.zero = sim_zero,
	.stream_new = sim_stream_new,
	.stream_free = sim_stream_free,
	.stream_sync = sim_stream_sync,
	.host_call = sim_host_call,
	.event_new = sim_event_new,
	.event_new_timed = sim_event_new,
	.event_free = sim_event_free,
	.event_record = sim_event_record,
	.event_wait = sim_event_wait,
	.event_sync = sim_event_sync,
	.event_passed = sim_event_passed,
	.event_elapsed = sim_event_elapsed,
	.graph_begin = sim_graph_begin,
	.graph_end = sim_graph_end,
	.now = sim_now,
	.drop_copies = sim_drop_copies,
	.dev_free = sim_dev_free,
};

/* The zone of large allocations has twice the addresses, as in the pool of the CUDA device. */
static void add_zones(struct sim *d)
{
	uint64_t large = ((uint64_t)d->capacity + LARGE_CHUNK - 1) / LARGE_CHUNK * LARGE_CHUNK;

	vfm_mapped_init(&d->mapped, &mapping, d);
	vfm_mapped_zone(&d->mapped, large, SMALL_CHUNK, 512);
	vfm_mapped_zone(&d->mapped, 2 * large, LARGE_CHUNK, 64 << 10);
	d->zone_at[VFM_SIM_LARGE] = large;
	d->reserved = (size_t)(3 * large);
}

const char vfm_sim_descr[] = "simulated: no data, times at the rates of the machine";

struct vfm_dev *vfm_sim_open(const struct vfm_machine *m, struct vfm_sim_world *w, struct vfm_err *err)
{
	struct sim *d = vfm_calloc(1, sizeof(*d));

	d->machine = *m;
	d->world = w;
	d->capacity = m->capacity * vfm_sim_world_more_memory(w);
	d->outside = m->context;
	add_zones(d);
	d->base = mmap(NULL, d->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (d->base == MAP_FAILED) {
		vfm_fail_errno(err, VFM_EENV, "no %zu bytes of addresses for the memory of the machine '%s'",
			d->reserved, m->name);
		vfm_mapped_release(&d->mapped);
		free(d);
		return NULL;
	}
	d->dev.t = &sim_table;
	d->dev.async = m->kind == VFM_MACHINE_GPU;
	d->dev.no_data = true;
	if (m->sm_bw.v[VFM_MID] > 0) /* as the CUDA device */
		d->dev.side = (struct vfm_dev_side){.units = (int)(m->sms / 4),
			.flops_per_byte = 3 * m->gemm_bf16.v[VFM_MID] * 1e3 / (double)m->sms / m->sm_bw.v[VFM_MID]};
	d->dev.comm_units = w ? (int)m->collective_sms.v[VFM_MID] : 0;
	d->dev.mem_total = m->kind == VFM_MACHINE_GPU ? m->capacity : 0; /* a CPU device does not know its memory */
	d->dev.host_total = m->host;
	d->dev.host_rate = m->kind == VFM_MACHINE_GPU ? m->pcie.v[VFM_LOW] * 1e9 : 0;
	snprintf(d->dev.name, sizeof(d->dev.name), "%s", m->name);
	snprintf(d->dev.descr, sizeof(d->dev.descr), "%s", vfm_sim_descr);
	return &d->dev;
}

void vfm_sim_set_routing(struct vfm_dev *dev, double skew)
{
	sim_of(dev)->expert_skew = skew;
}

const struct vfm_sim_launch *vfm_sim_launches(const struct vfm_dev *dev, size_t *n)
{
	const struct sim *d = sim_of(dev);

	*n = d->n;
	return d->launch;
}
