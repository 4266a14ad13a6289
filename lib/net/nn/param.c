/* param.c - lays parameters out in buckets and units, and allocates their arrays. */
/* Design
 *
 * All parameters of a bucket agree in
 *   - kind: matrix, bias, other vector
 *   - dense or expert
 *   - summed over tp or not
 *   - held by one pp stage or by all
 * A bucket spans consecutive units (embedders, each block, head) with about parallel.bucket_mib of gradients; with
 * fsdp, each unit has its own buckets of matrices.  Owned arrays (master, and m, v, ema of the optimizer) hold only
 * this rank's shards, one bucket after the other.
 *
 * Masters are f32.  Matrices have the compute dtype and weight decay, biases the compute dtype, other vectors f32;
 * vectors have no decay.  Ops read the masters or a copy in the compute dtype (VFM_SHARDING_NONE), weights that are
 * all-gathered after each update (_STATE) or for each unit (_FULL).
 *
 * Frozen parameters (spec/model/tuning.h) have buckets after all others and only the array that ops read; functions for
 * gradients, updates or owned arrays ignore them.  The frozen weights of a block are base weights: they may be stored
 * in another dtype, of which ops read an exact copy while the unit runs, or in host memory (param_store.c).
 *
 * Gradients are f32 partial sums, summed over every axis along which the parameter is not cut, and over pp if all pp
 * stages hold it.  Reductions overlap with the backward in a fixed order: reduce-scatter over the shard group, then tp,
 * then the replicas.  The square of the norm is summed in the order of the reductions.
 *
 * Updates on another stream overlap the next forward: a unit waits for those of its buckets. */
#include "net/nn/param.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/comm.h"
#include "comm/coll/comm_nodes.h"
#include "net/nn/param_impl.h"
#include "net/nn/scales.h"

enum { ALIGN = 16, SHARD_ALIGN = 32 }; /* elements: 64 bytes of f32, of bf16 */

void vfm_params_init(struct vfm_params *ps, struct vfm_stream *s, const struct vfm_mesh *mesh)
{
	*ps = (struct vfm_params){.stream = s, .mesh = mesh, .pending = -1, .last_unit = -1};
}

void vfm_params_release(struct vfm_params *ps)
{
	if (ps->stream) {
		vfm_dev_drop_copies(ps->stream);
		vfm_params_sync_release(ps);
		vfm_params_stores_release(ps);
		for (int i = 0; i < ps->n_buckets; i++)
			vfm_bucket_free_code(ps, &ps->bucket[i]);
		vfm_scales_free(ps);
		vfm_dev_free(ps->stream, ps->master, (size_t)ps->n_master * 4);
		vfm_dev_free(ps->stream, ps->master_lo, (size_t)ps->n_master_lo * 2);
		vfm_dev_free(ps->stream, ps->sumsq.data, sizeof(double));
		vfm_comm_mem_release(&ps->grad_mem);
		vfm_comm_mem_release(&ps->copy_mem);
		vfm_comm_mem_release(&ps->node_scratch);
		for (int k = 0; k < 2; k++) {
			vfm_comm_mem_release(&ps->w_buf[k].mem);
			vfm_comm_mem_release(&ps->g_buf[k].mem);
		}
	}
	for (size_t i = 0; i < ps->n; i++) {
		vfm_part_release(&ps->p[i]->part);
		free(ps->p[i]);
	}
	for (size_t i = 0; i < ps->n_stack; i++) {
		free(ps->stack[i]->p);
		free(ps->stack[i]);
	}
	for (int i = 0; i < ps->n_buckets; i++)
		free(ps->bucket[i].p);
	free(ps->reduced);
	free(ps->stack);
	free(ps->p);
	free(ps->bucket);
	free(ps->unit);
	*ps = (struct vfm_params){0};
}

struct vfm_param *vfm_param_add(struct vfm_params *ps, int unit, const struct vfm_pdesc *shape_and_cut,
	enum vfm_init init, float std, const char *name_fmt, ...)
{
	struct vfm_param *p = vfm_calloc(1, sizeof(*p));
	va_list ap;

	va_start(ap, name_fmt);
	vsnprintf(p->name, sizeof(p->name), name_fmt, ap);
	va_end(ap);
	p->d = *shape_and_cut;
	p->d.name = p->name;
	p->init = init;
	p->std = std;
	p->unit = unit;
	p->ps = ps;
	p->all_pp_stages = ps->all_pp_stages;
	p->frozen = vfm_tuning_freezes(&ps->tuning, p->name);
	if (vfm_part_of(&p->d, ps->mesh->coord, ps->mesh->size, &p->part, ps->bad.code ? NULL : &ps->bad) < 0)
		vfm_part_full(&p->part, p->d.ndim, p->d.shape);
	p->n = vfm_part_numel(&p->part);
	vfm_grow(&ps->p, &ps->cap, ps->n + 1, sizeof(struct vfm_param *));
	ps->p[ps->n++] = p;
	if (unit >= ps->units)
		ps->units = unit + 1;
	return p;
}

void vfm_params_all_pp_stages(struct vfm_params *ps, bool on)
{
	ps->all_pp_stages = on;
}

struct vfm_param *vfm_param_find(const struct vfm_params *ps, const char *name)
{
	for (size_t i = 0; i < ps->n; i++)
		if (!strcmp(ps->p[i]->name, name))
			return ps->p[i];
	return NULL;
}

struct vfm_var *vfm_params_stack(struct vfm_params *ps, struct vfm_param *const *p, int n)
{
	struct vfm_param_stack *s;

	if (n == 1)
		return &p[0]->var;
	s = vfm_calloc(1, sizeof(*s));
	s->n = n;
	s->p = vfm_calloc((size_t)n, sizeof(struct vfm_param *));
	for (int i = 0; i < n; i++) {
		s->p[i] = p[i];
		p[i]->stack = s;
	}
	vfm_grow(&ps->stack, &ps->cap_stack, ps->n_stack + 1, sizeof(struct vfm_param_stack *));
	ps->stack[ps->n_stack++] = s;
	return &s->var;
}

enum vfm_dtype vfm_bucket_dtype(const struct vfm_params *ps, const struct vfm_param_bucket *s)
{
	return s->matrix || s->bias ? ps->dtype : VFM_F32;
}

struct vfm_tensor vfm_param_tensor(
	const struct vfm_param *p, const struct vfm_param_bucket *s, void *base, enum vfm_dtype dt)
{
	void *data = base ? (char *)base + (size_t)(p->off - s->off) * vfm_dtype_size(dt) : NULL;

	if (p->part.ndim == 3)
		return vfm_t3(data, dt, p->part.shape[0], p->part.shape[1], p->part.shape[2]);
	return vfm_param_is_matrix(p) ? vfm_t2(data, dt, p->part.shape[0], p->n / p->part.shape[0])
				      : vfm_t1(data, dt, p->n);
}

/* ---- layout ---- */

static int64_t round_up(int64_t n, int64_t step)
{
	return (n + step - 1) / step * step;
}

/* The properties shared by the parameters of a bucket.  Buckets are laid out by key, matrices first. */
enum {
	KEY_FROZEN = 64,
	KEY_BASE = 32,
	KEY_BIAS = 16,
	KEY_VECTOR = 8,
	KEY_EXPERT = 4,
	KEY_TP_SUM = 2,
	KEY_ALL_STAGES = 1
};
enum { KEYS = KEY_FROZEN }; /* of trained parameters; as many are frozen */

static int bucket_key(const struct vfm_params *ps, const struct vfm_param *p)
{
	bool expert = p->d.cut[VFM_AX_EP].groups > 0;
	bool tp_sum = !expert && ps->mesh->size[VFM_AX_TP] > 1 && p->d.cut[VFM_AX_TP].groups == 0;

	return (vfm_param_is_matrix(p) ? 0 : KEY_VECTOR) | (p->bias && ps->dtype != VFM_F32 ? KEY_BIAS : 0) |
		(expert ? KEY_EXPERT : 0) | (tp_sum ? KEY_TP_SUM : 0) | (p->all_pp_stages ? KEY_ALL_STAGES : 0) |
		(p->base && (ps->stores || p->stored != VFM_FROZEN_SAME) ? KEY_BASE : 0) | (p->frozen ? KEY_FROZEN : 0);
}

static struct vfm_param_bucket bucket_of_key(const struct vfm_params *ps, int key)
{
	const struct vfm_mesh *m = ps->mesh;
	struct vfm_param_bucket s = {.matrix = !(key & KEY_VECTOR),
		.bias = (key & KEY_BIAS) != 0,
		.expert = (key & KEY_EXPERT) != 0,
		.tp_sum = (key & KEY_TP_SUM) != 0,
		.all_pp_stages = (key & KEY_ALL_STAGES) != 0,
		.frozen = (key & KEY_FROZEN) != 0,
		.base = (key & KEY_BASE) != 0};

	s.stored = s.base ? (enum vfm_frozen_dtype)ps->tuning.frozen_dtype : VFM_FROZEN_SAME;
	s.shard = s.expert ? m->eshard : m->shard;
	s.replica = s.expert ? m->ereplica : m->replica;
	s.gather = s.expert ? m->egather : m->gather;
	s.sharding = s.shard->size == 1 ? VFM_SHARDING_NONE
		: m->p.fsdp && s.matrix ? VFM_SHARDING_FULL
		: s.frozen              ? VFM_SHARDING_NONE
					: VFM_SHARDING_STATE;
	s.first = (!s.tp_sum || m->coord[VFM_AX_TP] == 0) && (!s.all_pp_stages || m->coord[VFM_AX_PP] == 0);
	if (s.frozen && s.sharding == VFM_SHARDING_NONE) {
		s.first &= s.shard->rank == 0;
		s.shard = s.gather = vfm_comm_self();
	}
	s.counts_norm = s.first && s.replica->rank == 0;
	return s;
}

/* Returns whether p follows `before` without padding. */
static bool joins_stack(const struct vfm_param *p, const struct vfm_param *before)
{
	return p->stack && before && before->stack == p->stack;
}

/* Adds a bucket for the parameters with this key in units [first, last].  No-op if none has the key. */
static void add_bucket(struct vfm_params *ps, int first, int last, int key)
{
	struct vfm_param_bucket s = bucket_of_key(ps, key);
	const struct vfm_param *before = NULL;
	const int align = s.base ? VFM_BASE_ALIGN : ALIGN, shard_align = s.base ? VFM_BASE_SHARD : SHARD_ALIGN;
	int unit = -1;

	s.first_unit = first;
	s.last_unit = last;
	s.off = ps->n_flat;
	for (int u = first; u <= last; u++) {
		for (size_t i = 0; i < ps->n; i++) {
			struct vfm_param *p = ps->p[i];

			if (p->unit != u || bucket_key(ps, p) != key)
				continue;
			s.p = vfm_realloc(s.p, (size_t)s.n_p + 1, sizeof(*s.p));
			s.p[s.n_p++] = p;
			p->bucket = ps->n_buckets;
			p->off = s.off + (joins_stack(p, before) ? before->off - s.off + before->n : s.n);
			s.n = round_up(p->off - s.off + p->n, align);
			before = p;
			ps->n_values += p->n;
			s.units += unit != u;
			unit = u;
		}
	}
	if (unit < 0)
		return;
	s.n = round_up(s.n, (int64_t)shard_align * s.shard->size);
	s.own_n = s.n / s.shard->size;
	s.own = s.own_n * s.shard->rank;
	s.own_off = s.frozen ? ps->n_frozen : ps->n_own;
	if (!s.frozen) {
		s.master_off = vfm_bucket_is_split(ps, &s) ? ps->n_master_lo : ps->n_master;
		*(vfm_bucket_is_split(ps, &s) ? &ps->n_master_lo : &ps->n_master) += s.own_n;
	}
	ps->n_flat += s.n;
	*(s.frozen ? &ps->n_frozen : &ps->n_own) += s.own_n;
	ps->bucket = vfm_realloc(ps->bucket, (size_t)ps->n_buckets + 1, sizeof(*ps->bucket));
	ps->bucket[ps->n_buckets++] = s;
}

static int64_t unit_bytes(const struct vfm_params *ps, int u)
{
	int64_t n = 0;

	for (size_t i = 0; i < ps->n; i++)
		n += ps->p[i]->unit == u ? ps->p[i]->n * 4 : 0;
	return n;
}

/* Returns the first unit of the range that ends with `last`.  Ranges are filled from the last unit down, in the order
 * of the backward.  The remainder is thus the first range, whose reduction starts last and cannot be overlapped. */
static int unit_range_begin(const struct vfm_params *ps, int last)
{
	int64_t bytes = 0;

	while (last >= 0) {
		bytes += unit_bytes(ps, last);
		if (bytes >= ps->mesh->p.bucket_mib << 20)
			return last;
		last--;
	}
	return 0;
}

static void lay_out_unit_range(struct vfm_params *ps, int first, int last, bool frozen)
{
	const int key0 = frozen ? KEY_FROZEN : 0;

	for (int key = key0; key < key0 + KEYS; key++) {
		struct vfm_param_bucket s = bucket_of_key(ps, key);
		bool by_unit = s.sharding == VFM_SHARDING_FULL || s.base;

		if (!by_unit)
			add_bucket(ps, first, last, key);
		for (int u = first; by_unit && u <= last; u++)
			add_bucket(ps, u, u, key);
	}
}

static void lay_out(struct vfm_params *ps)
{
	int *first = vfm_calloc((size_t)ps->units + 1, sizeof(*first)), n = 0, last = ps->units - 1;

	for (; last >= 0; last = first[n++] - 1)
		first[n] = unit_range_begin(ps, last);
	for (int i = n - 1; i >= 0; i--)
		lay_out_unit_range(ps, first[i], i ? first[i - 1] - 1 : ps->units - 1, false);
	ps->n_trained = ps->n_buckets;
	for (int i = n - 1; i >= 0; i--)
		lay_out_unit_range(ps, first[i], i ? first[i - 1] - 1 : ps->units - 1, true);
	free(first);
}

static void make_units(struct vfm_params *ps)
{
	ps->unit = vfm_calloc((size_t)ps->units + 1, sizeof(*ps->unit));
	for (int u = 0; u < ps->units; u++)
		ps->unit[u] = (struct vfm_unit){.ps = ps, .id = u, .next = {-1, -1}, .passes = 1};
	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_unit *x = &ps->unit[ps->p[i]->unit];

		x->present = true;
		if (ps->p[i]->all_pp_stages)
			x->passes = ps->mesh->p.vpp > 1 ? ps->mesh->p.vpp : 1;
	}
	for (int i = 0; i < ps->n_buckets; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];
		struct vfm_unit *x = &ps->unit[s->first_unit];

		if (s->shard->size > 1 || (!s->frozen && (s->replica->size > 1 || s->tp_sum)))
			ps->hooks = true;
		if (s->base && s->stored != VFM_FROZEN_SAME) {
			s->decoded_off = x->n_decoded;
			x->n_decoded += s->n;
		}
		if (s->base && ps->stores) {
			s->store_off = x->store_bytes;
			x->store_bytes += vfm_bucket_bytes(ps, s, s->own_n);
		}
		if (s->sharding != VFM_SHARDING_FULL)
			continue;
		s->w_off = x->w_bytes;
		x->w_bytes += vfm_bucket_bytes(ps, s, s->n);
		s->buf_off = x->n_grad;
		x->n_grad += s->frozen ? 0 : s->n;
	}
	vfm_units_guess_order(ps);
}

void vfm_units_guess_order(struct vfm_params *ps)
{
	ps->last_unit = -1;
	for (int u = 0, last = -1; u < ps->units; u++) {
		ps->unit[u].next[VFM_DIR_FORWARD] = ps->unit[u].next[VFM_DIR_BACKWARD] = -1;
		if (!vfm_unit_arrives(&ps->unit[u]))
			continue;
		ps->unit[u].next[VFM_DIR_BACKWARD] = last;
		if (last >= 0)
			ps->unit[last].next[VFM_DIR_FORWARD] = u;
		last = u;
	}
}

/* ---- memory ---- */

static void *alloc_zeroed(struct vfm_params *ps, size_t bytes, const char *what, struct vfm_err *err)
{
	void *p = vfm_dev_alloc(ps->stream, bytes, what, err);

	if (p && ps->stream->dev->t->zero(ps->stream, p, bytes, err) < 0) {
		vfm_dev_free(ps->stream, p, bytes);
		return NULL;
	}
	return p;
}

/* Returns a group that uses these arrays, whose communication library allocates them.  Without such a group, returns
 * the group of one rank. */
static struct vfm_comm *allocating_comm(const struct vfm_params *ps)
{
	for (int i = 0; i < ps->n_buckets; i++) {
		const struct vfm_param_bucket *s = &ps->bucket[i];

		if (s->shard->size > 1 || s->replica->size > 1)
			return s->shard->size > 1 ? s->shard : s->replica;
		if (s->tp_sum)
			return ps->mesh->tp_param;
	}
	return vfm_comm_self();
}

static void *alloc_zeroed_operand(
	struct vfm_params *ps, struct vfm_comm_mem *m, size_t bytes, const char *what, struct vfm_err *err)
{
	if (vfm_comm_mem_new(m, allocating_comm(ps), ps->stream, bytes, what, err) < 0)
		return NULL;
	return ps->stream->dev->t->zero(ps->stream, m->p, bytes, err) < 0 ? NULL : m->p;
}

/* Allocates the permanent unit buffers, if the communication library can allocate memory.  If the first one fails, the
 * second is skipped.  Otherwise this rank would use its second buffer where the other ranks use their first
 * (take_unit_buf in param_sync.c), and registered operands would not match. */
static int alloc_unit_bufs(struct vfm_params *ps, bool grads, struct vfm_err *err)
{
	struct vfm_unit_buf *buf = grads ? ps->g_buf : ps->w_buf;
	const char *what = grads ? "unit gradients" : "unit weights";
	int64_t most = 0;

	for (int u = 0; u < ps->units; u++) {
		int64_t bytes = grads ? 4 * ps->unit[u].n_grad : ps->unit[u].w_bytes;

		most = bytes > most ? bytes : most;
	}
	for (int k = 0; most && k < 2; k++) {
		TRY(vfm_comm_mem_new(&buf[k].mem, allocating_comm(ps), ps->stream, (size_t)most, what, err));
		if (!vfm_comm_mem_from_transport(&buf[k].mem)) {
			vfm_comm_mem_release(&buf[k].mem);
			break;
		}
	}
	return 0;
}

double vfm_params_unit_bytes(const struct vfm_params *ps)
{
	double most = 0, most_decoded = 0, most_fetched = 0;

	for (int u = 0; u < ps->units; u++) {
		const struct vfm_unit *x = &ps->unit[u];
		double bytes = (double)x->w_bytes + (ps->grad ? 4 * (double)x->n_grad : 0),
		       decoded = (double)x->n_decoded * (double)vfm_dtype_size(ps->dtype),
		       fetched = vfm_unit_fetches(x) ? (double)x->store_bytes : 0;

		most = bytes > most && !ps->w_buf[0].mem.p ? bytes : most;
		most_decoded = decoded > most_decoded ? decoded : most_decoded;
		most_fetched = fetched > most_fetched ? fetched : most_fetched;
	}
	return 2 * most + most_decoded + VFM_STORES_FETCHED * most_fetched;
}

double vfm_params_unit_grad_bytes(const struct vfm_params *ps)
{
	int64_t most = 0;

	for (int u = 0; u < ps->units; u++)
		most = ps->unit[u].n_grad > most ? ps->unit[u].n_grad : most;
	return ps->grad ? 4 * (double)most : 0;
}

/* Registers the arrays that the buckets reduce or gather over c. */
static int register_with(struct vfm_params *ps, struct vfm_comm *c, struct vfm_err *err)
{
	bool sums = false, scatters = false, gathers = false, unit_sums = false, unit_gathers = false;
	const struct vfm_comm_nodes *nodes = vfm_mesh_nodes(ps->mesh, c);
	struct vfm_comm *sum = nodes ? nodes->node : c; /* that has gradients as operands */

	for (int i = 0; i < ps->n_buckets; i++) {
		const struct vfm_param_bucket *s = &ps->bucket[i];
		bool full = s->sharding == VFM_SHARDING_FULL;

		sums |= !s->frozen && (s->shard == c || s->replica == c || (s->tp_sum && c == ps->mesh->tp_param));
		scatters |= !s->frozen && s->shard == c;
		gathers |= s->gather == c;
		unit_sums |= !s->frozen && s->shard == c && full;
		unit_gathers |= s->gather == c && full;
	}
	if (sums && ps->grad)
		TRY(vfm_comm_mem_register(&ps->grad_mem, sum, err));
	if (sums && ps->grad && nodes)
		TRY(vfm_comm_mem_register(&ps->node_scratch, nodes->across, err));
	if (scatters && ps->grad && nodes)
		TRY(vfm_comm_mem_register(&ps->node_scratch, nodes->node, err));
	if (gathers)
		TRY(vfm_comm_mem_register(&ps->copy_mem, c, err));
	for (int k = 0; k < 2; k++) {
		if (unit_gathers)
			TRY(vfm_comm_mem_register(&ps->w_buf[k].mem, c, err));
		if (unit_sums && ps->grad)
			TRY(vfm_comm_mem_register(&ps->g_buf[k].mem, sum, err));
	}
	return 0;
}

int vfm_params_register_buffers(struct vfm_params *ps, struct vfm_err *err)
{
	const struct vfm_mesh *m = ps->mesh;
	struct vfm_comm *all[] = {m->shard, m->replica, m->eshard, m->ereplica, m->tp_param, m->gather, m->egather};

	if (ps->registered)
		return 0;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		bool seen = false;

		for (size_t k = 0; k < i; k++)
			seen |= all[k] == all[i];
		if (all[i]->size > 1 && !seen)
			TRY(register_with(ps, all[i], err));
	}
	ps->registered = true;
	return 0;
}

/* Sets the address where ops read the weights of each bucket: in `copy`, or in the masters. */
static void place_bucket_weights(struct vfm_params *ps, struct vfm_suballoc *a)
{
	for (int i = 0; i < ps->n_buckets; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];
		enum vfm_dtype dt = vfm_bucket_dtype(ps, s);
		int64_t n = s->sharding == VFM_SHARDING_STATE ? s->n : s->frozen || dt != VFM_F32 ? s->own_n : 0;
		char *mem;

		if (s->base && ps->stores)
			continue;
		mem = n ? vfm_suballoc(a, vfm_bucket_bytes(ps, s, n), 1) : NULL;
		if (s->sharding != VFM_SHARDING_FULL && s->stored == VFM_FROZEN_SAME)
			s->full = mem ? mem : (char *)(ps->master + s->master_off);
		if (mem && (s->frozen || dt != VFM_F32))
			s->w = s->sharding == VFM_SHARDING_STATE ? mem + (size_t)s->own * vfm_dtype_size(dt) : mem;
	}
}

static int alloc_weights(struct vfm_params *ps, struct vfm_err *err)
{
	struct vfm_suballoc count = {0};

	ps->master = alloc_zeroed(ps, (size_t)ps->n_master * 4, "parameters", err);
	if (!ps->master)
		return VFM_EENV;
	if (ps->split) {
		ps->master_lo = alloc_zeroed(ps, (size_t)ps->n_master_lo * 2, "low bits of split masters", err);
		if (!ps->master_lo)
			return VFM_EENV;
	}
	place_bucket_weights(ps, &count);
	ps->copy_bytes = count.used;
	if (ps->copy_bytes) {
		ps->copy = alloc_zeroed_operand(ps, &ps->copy_mem, ps->copy_bytes, "compute weights", err);
		if (!ps->copy)
			return VFM_EENV;
		place_bucket_weights(ps, &(struct vfm_suballoc){.base = ps->copy});
	}
	return 0;
}

static int alloc_grads(struct vfm_params *ps, struct vfm_err *err)
{
	int64_t at = 0;

	for (int i = 0; i < ps->n_trained; i++)
		ps->n_grad += ps->bucket[i].sharding == VFM_SHARDING_FULL ? ps->bucket[i].own_n : ps->bucket[i].n;
	ps->sumsq = vfm_t1(alloc_zeroed(ps, sizeof(double), "the square of the gradient norm", err), VFM_F64, 1);
	if (!ps->sumsq.data)
		return VFM_EENV;
	ps->reduced = vfm_calloc((size_t)ps->n_buckets + 1, sizeof(*ps->reduced));
	ps->grad = alloc_zeroed_operand(ps, &ps->grad_mem, (size_t)ps->n_grad * 4, "gradients", err);
	if (!ps->grad)
		return VFM_EENV;
	for (int i = 0; i < ps->n_trained; i++) {
		struct vfm_param_bucket *s = &ps->bucket[i];

		if (s->sharding == VFM_SHARDING_FULL) {
			s->g = ps->grad + at;
			at += s->own_n;
		} else {
			s->grad = ps->grad + at;
			s->g = s->grad + s->own;
			at += s->n;
		}
	}
	return 0;
}

/* Of the largest bucket; the sums run after one another on one stream. */
static int alloc_node_scratch(struct vfm_params *ps, struct vfm_err *err)
{
	size_t most = 0;

	for (int i = 0; i < ps->n_trained; i++) {
		const struct vfm_param_bucket *s = &ps->bucket[i];

		for (int k = 0; k < 2; k++) {
			const struct vfm_comm_nodes *n = vfm_mesh_nodes(ps->mesh, k ? s->replica : s->shard);
			size_t bytes = n ? vfm_nodes_scratch(n, s->own_n, k == 0) : 0;

			most = bytes > most ? bytes : most;
		}
	}
	return most ? vfm_comm_mem_new(
			      &ps->node_scratch, allocating_comm(ps), ps->stream, most, "gradients between nodes", err)
		    : 0;
}

/* Makes the variable of a stack from those of its parameters, which become its views. */
static int join_stack(struct vfm_param_stack *s, struct vfm_err *err)
{
	const struct vfm_var *first = &s->p[0]->var;
	int64_t rows = 0;

	for (int i = 0; i < s->n; i++) {
		struct vfm_param *p = s->p[i];

		if (!p->var.v.data ||
			(i && (p->bucket != s->p[i - 1]->bucket || p->off != s->p[i - 1]->off + s->p[i - 1]->n)))
			return vfm_fail(err, VFM_EUSAGE, "internal: %s does not follow %s in memory", p->name,
				s->p[i ? i - 1 : 0]->name);
		rows += p->var.v.shape[0];
		p->var.parent = &s->var;
		p->var.next_view = s->var.views;
		s->var.views = &p->var;
	}
	s->var.v = first->v;
	s->var.v.shape[0] = rows;
	s->var.g = first->g;
	s->var.g.shape[0] = rows;
	s->var.needs_grad = first->needs_grad;
	return 0;
}

int vfm_params_alloc(struct vfm_params *ps, enum vfm_dtype dtype, bool with_grad, struct vfm_err *err)
{
	if (ps->bad.code) {
		*err = ps->bad;
		return err->code;
	}
	if (ps->split && dtype != VFM_BF16)
		return vfm_fail(err, VFM_EUSAGE, "split master weights need weights in bf16");
	TRY(vfm_params_check_base(ps, with_grad ? "train.frozen_dtype" : "--weights", err));
	ps->dtype = dtype;
	lay_out(ps);
	make_units(ps);
	TRY(alloc_weights(ps, err));
	for (int i = ps->n_trained; i < ps->n_buckets; i++)
		TRY(vfm_bucket_alloc_code(ps, &ps->bucket[i], err));
	TRY(alloc_unit_bufs(ps, false, err));
	if (with_grad)
		TRY(alloc_grads(ps, err));
	if (with_grad)
		TRY(alloc_node_scratch(ps, err));
	if (with_grad)
		TRY(alloc_unit_bufs(ps, true, err));
	for (size_t i = 0; i < ps->n; i++) {
		struct vfm_param *p = ps->p[i];
		const struct vfm_param_bucket *s = &ps->bucket[p->bucket];

		p->var.v = vfm_param_tensor(p, s, s->full, vfm_bucket_dtype(ps, s));
		p->var.needs_grad = with_grad && !p->frozen;
		if (p->var.needs_grad) {
			p->var.g = vfm_param_tensor(p, s, s->grad, VFM_F32);
			p->var.want_grad = s->grad ? NULL : vfm_param_want_grad;
		}
	}
	for (size_t i = 0; i < ps->n_stack; i++)
		TRY(join_stack(ps->stack[i], err));
	return 0;
}
