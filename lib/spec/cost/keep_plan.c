/* keep_plan.c - searches which tensors blocks keep, offload or recompute under a limit of memory. */
#include "spec/cost/keep_plan.h"

#include <math.h>
#include <stdio.h>

const struct vfm_keep_plan_rates vfm_keep_plan_h200 = {.flops = 720e12, .mem = 4.3e12, .host = 14e9};

static const double hidden_share = 0.9; /* of the forward of a block that a copy to the host may take */

enum { MOST_KINDS = VFM_KEEP_REST + 1, MOST_PARTS = 1 << 6, MIX = 4 };

/* ---- kinds and parts ---- */

/* The tensors that a block keeps.  Which of them it offloads is chosen later. */
struct block_kind {
	unsigned keep;
	double saved, running; /* bytes of one block; vfm_keep_plan_running */
	double cost;           /* seconds that its backward recomputes */
};

/* A set of groups that blocks may offload. */
struct keep_part {
	unsigned groups;
	double bytes; /* of one block */
};

struct kinds {
	const struct vfm_keep_plan_in *in;
	double forward_s; /* of a block */
	struct block_kind v[MOST_KINDS];
	int n;
	struct keep_part part[MOST_PARTS]; /* in ascending order of bytes */
	int n_parts;
};

static double again_seconds(const struct vfm_keep_plan_in *in, struct vfm_block_again a)
{
	return a.flops / in->rates.flops + a.traffic / in->rates.mem;
}

static void add_kind(struct kinds *k, unsigned keep)
{
	struct vfm_saved_how how = k->in->how;

	how.keep = keep;
	k->v[k->n++] = (struct block_kind){.keep = keep,
		.saved = vfm_block_saved_bytes(k->in->model, &how),
		.running = vfm_keep_plan_running(k->in->model, &how),
		.cost = again_seconds(k->in, vfm_block_again(k->in->model, &how))};
}

static void add_offloadable(struct kinds *k, unsigned groups)
{
	struct vfm_saved_how how = k->in->how;
	struct keep_part x = {.groups = groups};
	int at = k->n_parts;

	how.keep = groups & VFM_KEEP_PRODUCTS;
	x.bytes = vfm_block_saved_part(k->in->model, &how, groups);
	if (x.bytes <= 0 || x.bytes > hidden_share * k->in->rates.host * k->forward_s)
		return;
	for (; at > 0 && k->part[at - 1].bytes > x.bytes; at--)
		k->part[at] = k->part[at - 1];
	k->part[at] = x;
	k->n_parts++;
}

/* Lists the kinds, which are everything and every set of groups, and the parts.  Small tensors of samples and routers
 * stay on the device. */
static void list_kinds(struct kinds *k)
{
	unsigned present = 0, may;
	struct vfm_saved all[VFM_SAVED_MAX];

	for (int i = 0, n = vfm_block_saved(k->in->model, &k->in->how, all); i < n; i++)
		present |= all[i].keep & VFM_KEEP_PRODUCTS;
	add_kind(k, VFM_KEEP_ALL);
	for (unsigned keep = 0; keep < VFM_KEEP_REST; keep++)
		if (!(keep & ~present))
			add_kind(k, keep);
	may = k->in->host_room > 0 ? (present | VFM_KEEP_INPUT) & ~(unsigned)VFM_KEEP_OTHER : 0;
	for (unsigned groups = may; groups; groups = (groups - 1) & may)
		add_offloadable(k, groups);
}

static bool may_offload(const struct block_kind *x, const struct keep_part *p)
{
	return !(x->keep & VFM_KEEP_REST) && !(p->groups & ~(x->keep | VFM_KEEP_INPUT));
}

/* ---- the choice ---- */

struct keep_choice {
	const struct block_kind *v[MIX];
	int64_t blocks[MIX];
	int n;
	int level; /* the parts of lower index may be offloaded */
	double cost;
};

/* Adds blocks, or removes them if `blocks` is negative.  Returns false if the choice has too many kinds. */
static bool add_blocks(struct keep_choice *c, const struct block_kind *x, int64_t blocks)
{
	int i = 0;

	while (i < c->n && c->v[i] != x)
		i++;
	if (i == MIX)
		return false;
	if (i == c->n) {
		c->v[i] = x;
		c->blocks[i] = 0;
		c->n++;
	}
	c->blocks[i] += blocks;
	c->cost += (double)blocks * x->cost;
	if (c->blocks[i] == 0) {
		c->n--;
		c->v[i] = c->v[c->n];
		c->blocks[i] = c->blocks[c->n];
	}
	return true;
}

/* Returns the smallest part that covers `need`, else the largest; NULL if all have more than `left` bytes. */
static const struct keep_part *part_for(
	const struct kinds *k, const struct block_kind *x, int level, double need, double left)
{
	const struct keep_part *best = NULL;

	for (int i = 0; i < level && k->part[i].bytes <= left && (!best || best->bytes < need); i++)
		if (may_offload(x, &k->part[i]))
			best = &k->part[i];
	return best;
}

/* Returns false if the plan has too many parts. */
static bool list_part(struct vfm_keep_plan *p, unsigned keep, unsigned offload, int64_t blocks)
{
	struct vfm_keep_plan_part *last = p->n > 0 ? &p->part[p->n - 1] : NULL;

	if (last && last->keeps.keep == keep && last->keeps.offload == offload) {
		last->blocks += blocks;
		return true;
	}
	if (p->n == VFM_KEEP_PARTS)
		return false;
	p->part[p->n++] = (struct vfm_keep_plan_part){{keep, offload}, blocks};
	return true;
}

/* Returns the bytes of blocks that must leave the device. */
static double bytes_over(const struct kinds *k, const struct keep_choice *c)
{
	double saved = 0, running = 0, staged = c->level > 0 ? k->in->staged * k->part[c->level - 1].bytes : 0;

	for (int i = 0; i < c->n; i++) {
		saved += (double)c->blocks[i] * c->v[i]->saved;
		running = fmax(running, c->v[i]->running);
	}
	return saved * k->in->copies + running + staged - k->in->room;
}

/* Offloads as few bytes as make the choice fit.  Lists the parts of the plan; returns whether it fits in both rooms. */
static bool place(const struct kinds *k, const struct keep_choice *c, double over, struct vfm_keep_plan *p)
{
	double need = over / k->in->copies, left = k->in->host_room / k->in->copies;
	int64_t may = k->in->offloading;

	p->n = 0;
	for (int i = 0; i < c->n; i++) {
		int64_t blocks = c->blocks[i], n;

		for (; blocks > 0 && may > 0 && need > 0; blocks -= n, may -= n) {
			const struct keep_part *x = part_for(k, c->v[i], c->level, need, left);

			if (!x)
				break;
			n = blocks < may ? blocks : may;
			n = (int64_t)fmax(1, fmin((double)n, floor(fmin(need, left) / x->bytes)));
			need -= (double)n * x->bytes;
			left -= (double)n * x->bytes;
			if (!list_part(p, c->v[i]->keep, x->groups, n))
				return false;
		}
		if (blocks > 0 && !list_part(p, c->v[i]->keep, 0, blocks))
			return false;
	}
	return need <= 0;
}

static bool choice_fits(const struct kinds *k, const struct keep_choice *c)
{
	struct vfm_keep_plan p;

	return place(k, c, bytes_over(k, c), &p);
}

/* Moves single blocks to the kind that saves most time, as long as one fits. */
static void use_slack(const struct kinds *k, struct keep_choice *best)
{
	struct keep_choice from;

	do {
		from = *best;
		for (int i = 0; i < from.n; i++)
			for (int j = 0; j < k->n; j++) {
				struct keep_choice c = from;

				if (from.cost + k->v[j].cost - from.v[i]->cost >= best->cost)
					continue;
				add_blocks(&c, from.v[i], -1);
				if (add_blocks(&c, &k->v[j], 1) && choice_fits(k, &c))
					*best = c;
			}
	} while (best->cost < from.cost);
}

/* The largest part that blocks of this kind may offload. */
static double most_offloaded(const struct kinds *k, const struct block_kind *x, int level)
{
	const struct keep_part *p = part_for(k, x, level, INFINITY, k->in->host_room / k->in->copies);

	return p ? p->bytes : 0;
}

/* Returns an upper bound on the number of blocks of kind a that fit, if the others are of kind b.  It follows from the
 * bytes that blocks keep, and from those that they cannot offload. */
static int64_t most_blocks(const struct kinds *k, const struct block_kind *a, const struct block_kind *b, int level)
{
	struct keep_choice none = {.v = {a, b}, .n = 2, .level = level};
	double blocks = (double)k->in->blocks, room = -bytes_over(k, &none) / k->in->copies;
	double kept_a = a->saved - most_offloaded(k, a, level), kept_b = b->saved - most_offloaded(k, b, level);
	double n = blocks - 1;

	if (kept_a > kept_b)
		n = fmin(n, (room - blocks * kept_b) / (kept_a - kept_b));
	if (a->saved > b->saved)
		n = fmin(n, (room + k->in->host_room / k->in->copies - blocks * b->saved) / (a->saved - b->saved));
	return n >= 1 ? (int64_t)(n * (1 + 1e-12)) : 0;
}

static void keep_better(const struct kinds *k, const struct keep_choice *c, struct keep_choice *best)
{
	if ((best->n == 0 || c->cost < best->cost) && choice_fits(k, c))
		*best = *c;
}

/* Mixes kinds: as many blocks of a as possible, one of the best kind that then fits, and the rest of kind b. */
static void mix_kinds(const struct kinds *k, const struct block_kind *a, const struct block_kind *b, int level,
	struct keep_choice *best)
{
	for (int64_t n = most_blocks(k, a, b, level); n > 0; n--) {
		struct keep_choice c = {.level = level}, third;

		add_blocks(&c, a, n);
		add_blocks(&c, b, k->in->blocks - n);
		if (best->n > 0 && c.cost >= best->cost + b->cost)
			return;
		if (!choice_fits(k, &c))
			continue;
		keep_better(k, &c, best);
		for (int i = 0; i < k->n; i++) {
			third = c;
			add_blocks(&third, b, -1);
			add_blocks(&third, &k->v[i], 1);
			keep_better(k, &third, best);
		}
		return;
	}
}

/* Leaves best->n 0 if nothing fits. */
static void search(const struct kinds *k, struct keep_choice *best)
{
	for (int level = 0; level <= k->n_parts; level++) {
		for (int i = 0; i < k->n; i++) {
			struct keep_choice c = {.level = level};

			add_blocks(&c, &k->v[i], k->in->blocks);
			keep_better(k, &c, best);
		}
		for (int i = 0; i < k->n; i++)
			for (int j = 0; j < k->n; j++)
				if (k->v[i].cost < k->v[j].cost)
					mix_kinds(k, &k->v[i], &k->v[j], level, best);
	}
	if (best->n > 0)
		use_slack(k, best);
}

/* ---- interface ---- */

double vfm_keep_plan_running(const struct vfm_model_spec *m, const struct vfm_saved_how *how)
{
	struct vfm_saved_how all = *how;
	struct vfm_saved list[VFM_SAVED_MAX];
	double rest, widest = 0, row = how->pack.tokens * (double)m->hidden;
	double size = (double)vfm_dtype_size(how->dtype);

	if (how->single > 0 && how->single < 1) { /* blocks run one by one */
		struct vfm_saved_how kind[2] = {*how, *how};

		kind[0].single = 0;
		kind[1].single = 1;
		return fmax(vfm_keep_plan_running(m, &kind[0]), vfm_keep_plan_running(m, &kind[1]));
	}
	all.keep = VFM_KEEP_ALL;
	rest = fmax(0, vfm_block_saved_bytes(m, &all) - vfm_block_saved_bytes(m, how));
	for (int i = 0, n = vfm_block_saved(m, how, list); i < n; i++)
		if (list[i].rows == VFM_ROWS_TOKENS)
			widest = fmax(widest, how->pack.tokens * list[i].width * size);
	/* Gradients: of the widest tensor and of its input, and of the residual stream; dq in f32, since backwards of
	 * attention in other types sum in f32. */
	return rest + widest + row * size + row * (double)vfm_dtype_size(how->residual) +
		(how->dtype != VFM_F32 ? 4 * row : 0);
}

/* The bytes of a block on the device, and on the host. */
static double device_bytes(const struct kinds *k, struct vfm_keeps x, double *host)
{
	struct vfm_saved_how how = k->in->how;

	how.keep = x.keep;
	*host = vfm_block_saved_part(k->in->model, &how, x.offload);
	return vfm_block_saved_bytes(k->in->model, &how) - *host;
}

static void sort_parts(const struct kinds *k, struct vfm_keep_plan *p)
{
	for (int i = 1; i < p->n; i++) {
		struct vfm_keep_plan_part x = p->part[i];
		double host, bytes = device_bytes(k, x.keeps, &host);
		int at = i;

		for (; at > 0 && device_bytes(k, p->part[at - 1].keeps, &host) < bytes; at--)
			p->part[at] = p->part[at - 1];
		p->part[at] = x;
	}
}

/* Fills what follows from the parts. */
static void count_plan(const struct kinds *k, struct vfm_keep_plan *p)
{
	struct vfm_saved_how how = k->in->how;
	double running = 0, most = 0;

	p->device = p->host = p->again_s = 0;
	for (int i = 0; i < p->n; i++) {
		double blocks = (double)p->part[i].blocks, host;

		p->device += blocks * device_bytes(k, p->part[i].keeps, &host) * k->in->copies;
		p->host += blocks * host * k->in->copies;
		most = fmax(most, host);
		how.keep = p->part[i].keeps.keep;
		running = fmax(running, vfm_keep_plan_running(k->in->model, &how));
		p->again_s += blocks * again_seconds(k->in, vfm_block_again(k->in->model, &how));
	}
	p->device += running + k->in->staged * most;
}

/* Blocks of one kind that offload as much as they may. */
static void least_memory(const struct kinds *k, struct vfm_keep_plan *best)
{
	for (int level = 0; level <= k->n_parts; level++)
		for (int i = 0; i < k->n; i++) {
			struct keep_choice c = {.level = level};
			struct vfm_keep_plan p = {0};

			add_blocks(&c, &k->v[i], k->in->blocks);
			place(k, &c, level > 0 ? INFINITY : 0, &p);
			count_plan(k, &p);
			if (best->n == 0 || p.device < best->device)
				*best = p;
		}
}

double vfm_keep_plan_forward_s(const struct vfm_keep_plan_in *in)
{
	return again_seconds(in, vfm_block_again(in->model, &in->how));
}

void vfm_keep_plan_make(const struct vfm_keep_plan_in *in, struct vfm_keep_plan *out)
{
	struct kinds k = {.in = in};
	struct keep_choice best = {0};

	*out = (struct vfm_keep_plan){0};
	if (in->blocks < 1)
		return;
	k.forward_s = vfm_keep_plan_forward_s(in);
	list_kinds(&k);
	search(&k, &best);
	if (best.n > 0)
		place(&k, &best, bytes_over(&k, &best), out);
	else
		least_memory(&k, out);
	out->fits = best.n > 0;
	sort_parts(&k, out);
	count_plan(&k, out);
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
