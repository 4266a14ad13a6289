#include "spec/keep_plan.h"

#include <math.h>
#include <stdio.h>

const struct vfm_keep_plan_rates vfm_keep_plan_h200 = {.flops = 720e12, .mem = 4.3e12, .host = 14e9};

static const double hidden_share = 0.9; /* of the forward of a block that a copy to the host may take */

enum { GROUPS = 6, MOST_KINDS = 1 << 11 };

/* ---- kinds ---- */

struct kind {
	struct vfm_keeps keeps;
	double device, host; /* bytes of one block */
	double running;      /* vfm_keep_plan_running */
	double cost;         /* seconds that its backward recomputes, and a little for the copies */
};

struct kinds {
	const struct vfm_keep_plan_in *in;
	struct vfm_saved_how how;
	double forward_s;  /* of a block */
	double host_limit; /* bytes of one block that may be offloaded */
	struct kind v[MOST_KINDS];
	int n;
};

static double again_seconds(const struct vfm_keep_plan_in *in, struct vfm_block_again a)
{
	return a.flops / in->rates.flops + a.traffic / in->rates.mem;
}

static void add_kind(struct kinds *k, unsigned keep, unsigned offload)
{
	const struct vfm_model_spec *m = k->in->model;
	struct vfm_saved_how how = k->how;
	struct kind *x = &k->v[k->n];
	double all;

	how.keep = keep;
	all = vfm_block_saved_bytes(m, &how);
	*x = (struct kind){.keeps = {keep, offload}};
	x->host = vfm_block_saved_part(m, &how, offload);
	if (x->host > k->host_limit || k->n == MOST_KINDS)
		return;
	x->device = all - x->host;
	x->running = vfm_keep_plan_running(m, &how);
	x->cost = again_seconds(k->in, vfm_block_again(m, &how)) + 1e-3 * x->host / k->in->rates.host;
	k->n++;
}

/* Lists the kinds: everything, and every set of groups with every part of it that may be offloaded. */
static void list_kinds(struct kinds *k)
{
	unsigned present = 0, most = k->host_limit > 0 ? VFM_KEEP_PRODUCTS | VFM_KEEP_INPUT : 0;
	struct vfm_saved all[VFM_SAVED_MAX];

	for (int i = 0, n = vfm_block_saved(k->in->model, &k->how, all); i < n; i++)
		present |= all[i].keep & VFM_KEEP_PRODUCTS;
	add_kind(k, VFM_KEEP_ALL, 0);
	for (unsigned keep = 0; keep < VFM_KEEP_REST; keep++) {
		unsigned may = (keep | VFM_KEEP_INPUT) & most;

		if (keep & ~present)
			continue;
		/* The subsets of `may`.  Small tensors of samples and routers stay on the device. */
		may &= ~(unsigned)VFM_KEEP_OTHER;
		for (unsigned offload = may;; offload = (offload - 1) & may) {
			add_kind(k, keep, offload);
			if (offload == 0)
				break;
		}
	}
}

/* ---- the choice ---- */

/* Kinds that no other kind of the list beats in memory and in time, in descending order of memory. */
struct front {
	const struct kind *v[MOST_KINDS];
	int n;
};

static void make_front(const struct kinds *k, double host, double running, struct front *f)
{
	f->n = 0;
	for (int i = 0; i < k->n; i++) {
		const struct kind *x = &k->v[i];
		bool beaten = x->host > host || x->running > running;
		int at = 0, n = 0;

		for (int j = 0; j < f->n && !beaten; j++)
			beaten = f->v[j]->device <= x->device && f->v[j]->cost <= x->cost;
		if (beaten)
			continue;
		for (int j = 0; j < f->n; j++)
			if (f->v[j]->device < x->device || f->v[j]->cost < x->cost)
				f->v[n++] = f->v[j];
		for (at = n; at > 0 && f->v[at - 1]->device < x->device; at--)
			f->v[at] = f->v[at - 1];
		f->v[at] = x;
		f->n = n + 1;
	}
}

struct choice {
	const struct kind *v[VFM_KEEP_PARTS];
	int64_t blocks[VFM_KEEP_PARTS];
	int n;
	double device, cost;
};

static void add_blocks(struct choice *c, const struct kind *x, int64_t blocks)
{
	int i = 0;

	if (blocks == 0)
		return;
	while (i < c->n && c->v[i] != x)
		i++;
	if (i == c->n) {
		c->v[c->n] = x;
		c->blocks[c->n++] = 0;
	}
	c->blocks[i] += blocks;
	c->device += (double)blocks * x->device;
	c->cost += (double)blocks * x->cost;
}

/* Moves single blocks to the kind that saves most time, as long as one fits. */
static void use_slack(struct choice *c, const struct front *f, double room)
{
	for (;;) {
		const struct kind *best = NULL;
		double gain = 0;
		int from = 0;

		for (int i = 0; i < c->n; i++)
			for (int j = 0; j < f->n; j++) {
				const struct kind *x = f->v[j];
				bool known = c->blocks[i] == 1;

				for (int k = 0; k < c->n; k++)
					known |= c->v[k] == x;
				if (c->v[i]->cost - x->cost > gain && (known || c->n < VFM_KEEP_PARTS) &&
					c->device - c->v[i]->device + x->device <= room) {
					gain = c->v[i]->cost - x->cost;
					best = x;
					from = i;
				}
			}
		if (!best)
			return;
		c->device -= c->v[from]->device;
		c->cost -= c->v[from]->cost;
		if (--c->blocks[from] == 0) {
			c->n--;
			c->v[from] = c->v[c->n];
			c->blocks[from] = c->blocks[c->n];
		}
		add_blocks(c, best, 1);
	}
}

/* As many blocks as possible of kind a, one of the best kind that then fits, and the others of kind b, which needs at
 * most the memory of a.  Returns false if the blocks do not fit as kind b. */
static bool mix_kinds(const struct front *f, const struct kind *a, const struct kind *b, int64_t blocks, double room,
	struct choice *c)
{
	double slack = room - (double)blocks * b->device, step = a->device - b->device;
	int64_t n = step > 0 && slack < (double)blocks * step ? (int64_t)(slack / step) : blocks, third = 0;

	*c = (struct choice){0};
	if (slack < 0)
		return false;
	add_blocks(c, a, n);
	slack -= (double)n * step;
	for (int i = 0; i < f->n && n < blocks && !third; i++)
		if (f->v[i]->device - b->device <= slack) {
			add_blocks(c, f->v[i], 1);
			third = 1;
		}
	add_blocks(c, b, blocks - n - third);
	return true;
}

/* Returns false if nothing fits. */
static bool choose_parts(const struct front *f, int64_t blocks, double room, struct choice *best)
{
	bool found = false;

	for (int i = 0; i < f->n; i++)
		for (int j = i; j < f->n; j++) {
			struct choice c;

			if (!mix_kinds(f, f->v[i], f->v[j], blocks, room, &c) || (found && c.cost >= best->cost))
				continue;
			*best = c;
			found = true;
		}
	if (found)
		use_slack(best, f, room);
	return found;
}

/* Returns the peak of a choice on the device.  Of offloaded tensors, two blocks have theirs on the device. */
static double peak_of(const struct kinds *k, const struct choice *c)
{
	double running = 0, host = 0;

	for (int i = 0; i < c->n; i++) {
		running = fmax(running, c->v[i]->running);
		host = fmax(host, c->v[i]->host);
	}
	return c->device * k->in->copies + running + 2 * host;
}

static void search(const struct kinds *k, struct choice *best, bool *found)
{
	struct front f;

	*found = false;
	/* All kinds that are used share a limit of the offloaded bytes and of the bytes of the running block. */
	for (int h = 0; h <= 4; h++) {
		double host = k->host_limit * h / 4;

		if (h > 0 && k->host_limit <= 0)
			break;
		for (unsigned keep = 0; keep <= VFM_KEEP_REST; keep++) {
			struct vfm_saved_how how = k->how;
			struct choice c;
			double running;

			how.keep = keep == VFM_KEEP_REST ? VFM_KEEP_ALL : keep;
			running = vfm_keep_plan_running(k->in->model, &how);
			make_front(k, host, running, &f);
			if (choose_parts(&f, k->in->blocks, (k->in->room - running - 2 * host) / k->in->copies, &c) &&
				(!*found || c.cost < best->cost)) {
				*best = c;
				*found = true;
			}
		}
	}
}

/* ---- interface ---- */

double vfm_keep_plan_running(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	struct vfm_saved_how all = *how;
	struct vfm_saved list[VFM_SAVED_MAX];
	double rest, widest = 0, row = how->pack.q * (double)m->hidden;
	double size = (double)vfm_dtype_size(how->dtype);

	all.keep = VFM_KEEP_ALL;
	rest = fmax(0, vfm_block_saved_bytes(m, &all) - vfm_block_saved_bytes(m, how));
	for (int i = 0, n = vfm_block_saved(m, how, list); i < n; i++)
		if (list[i].rows == VFM_ROWS_TOKENS)
			widest = fmax(widest, how->pack.q * list[i].width * size);
	/* Gradients: of the widest tensor and of its input, and of the residual stream; dq in f32, in which backwards of
	 * attention in other types sum. */
	return rest + widest + row * size + row * (double)vfm_dtype_size(how->residual) +
		(how->dtype != VFM_F32 ? 4 * row : 0);
}

static void fill_plan(const struct kinds *k, const struct choice *c, struct vfm_keep_plan *out)
{
	struct vfm_saved_how how = k->how;

	out->n = c->n;
	out->device = peak_of(k, c);
	out->forward_s = k->forward_s;
	for (int i = 0; i < c->n; i++) {
		const struct kind *x = c->v[i];
		struct vfm_block_again again;
		int at = i;

		for (; at > 0 && c->v[i]->device > 0 && out->part[at - 1].blocks > 0; at--) {
			how.keep = out->part[at - 1].keeps.keep;
			if (vfm_block_saved_bytes(k->in->model, &how) -
					vfm_block_saved_part(k->in->model, &how, out->part[at - 1].keeps.offload) >=
				x->device)
				break;
			out->part[at] = out->part[at - 1];
		}
		out->part[at] = (struct vfm_keep_plan_part){x->keeps, c->blocks[i]};
		how.keep = x->keeps.keep;
		again = vfm_block_again(k->in->model, &how);
		out->again += (double)c->blocks[i] * again.flops;
		out->again_s += (double)c->blocks[i] * again_seconds(k->in, again);
		out->host += (double)c->blocks[i] * x->host * k->in->copies;
		out->offload_s = fmax(out->offload_s, x->host / k->in->rates.host);
	}
	how.keep = 0;
	out->flops = (double)k->in->blocks * vfm_block_again(k->in->model, &how).flops;
}

void vfm_keep_plan_make(const struct vfm_keep_plan_in *in, struct vfm_keep_plan *out)
{
	struct kinds k = {.in = in,
		.how = {.dtype = in->dtype,
			.residual = in->residual,
			.pack = in->pack,
			.tuning = in->tuning,
			.exchanges_heads = in->exchanges_heads,
			.exchanges_units = in->exchanges_units,
			.tp = in->tp}};
	struct choice best = {0};
	bool found = false;

	*out = (struct vfm_keep_plan){0};
	if (in->blocks < 1)
		return;
	k.forward_s = again_seconds(in, vfm_block_again(in->model, &k.how));
	k.host_limit =
		fmin(hidden_share * in->rates.host * k.forward_s, in->host_room / ((double)in->blocks * in->copies));
	list_kinds(&k);
	search(&k, &best, &found);
	out->fits = found;
	for (int i = 0; i < k.n && !found; i++) { /* the least memory */
		struct choice c = {0};

		add_blocks(&c, &k.v[i], in->blocks);
		if (best.n == 0 || peak_of(&k, &c) < peak_of(&k, &best))
			best = c;
	}
	fill_plan(&k, &best, out);
}

void vfm_keep_plan_spread(const struct vfm_keep_plan *p, struct vfm_keeps *how)
{
	int64_t done[VFM_KEEP_PARTS] = {0}, blocks = 0;

	for (int i = 0; i < p->n; i++)
		blocks += p->part[i].blocks;
	for (int64_t b = 0; b < blocks; b++) {
		int64_t most = INT64_MIN;
		int next = 0;

		/* The kind that is furthest behind its even share of the first b + 1 blocks. */
		for (int i = 0; i < p->n; i++) {
			int64_t behind = (b + 1) * p->part[i].blocks - done[i] * blocks;

			if (done[i] < p->part[i].blocks && behind > most) {
				most = behind;
				next = i;
			}
		}
		how[b] = p->part[next].keeps;
		done[next]++;
	}
}

void vfm_keeps_text(struct vfm_keeps k, char *buf, size_t size)
{
	static const struct {
		unsigned group;
		const char *name;
	} groups[] = {{VFM_KEEP_INPUT, "input"}, {VFM_KEEP_ATTN, "attention"}, {VFM_KEEP_QKV, "qkv"},
		{VFM_KEEP_PROJ, "projections"}, {VFM_KEEP_FC1, "fc1"}, {VFM_KEEP_MLP, "mlp"}};
	const unsigned big = VFM_KEEP_PRODUCTS & ~(unsigned)VFM_KEEP_OTHER;
	const char *word = k.keep & VFM_KEEP_REST ? "everything" : (k.keep & big) == big ? "light" : NULL;
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = word ? 0 : 1; i < sizeof(groups) / sizeof(*groups) && !word && at < size; i++)
		if (k.keep & groups[i].group)
			at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? "+" : "", groups[i].name);
	if (at == 0)
		at = (size_t)snprintf(buf, size, "%s", word ? word : "inputs only");
	for (size_t i = 0, n = 0; i < sizeof(groups) / sizeof(*groups) && at < size; i++)
		if (k.offload & groups[i].group)
			at += (size_t)snprintf(buf + at, size - at, "%s%s", n++ ? "+" : " (", groups[i].name);
	if (k.offload && at < size)
		snprintf(buf + at, size - at, " offloaded)");
}
