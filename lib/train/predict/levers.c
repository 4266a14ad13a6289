/* levers.c - simulates a run with other settings. */
#include "train/predict/levers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* A setting. */
struct lever {
	const char *set;
	bool rounds;
	bool frozen; /* only for frozen weights */
};
enum { RECOMPUTE, WEIGHTS, ACTIVATIONS, OPTIMIZER, SPLIT, EXACT };
static const struct lever exact[EXACT] = {
	[RECOMPUTE] = {"train.recompute=auto", false, false},
	[WEIGHTS] = {"train.offload_weights=auto", false, true},
	[ACTIVATIONS] = {"train.offload=activations", false, false},
	[OPTIMIZER] = {"train.offload=optimizer", false, false},
	[SPLIT] = {"train.master=split", false, false},
};
static const struct lever rounding[] = {
	{"train.frozen_dtype=fp8", true, true},
	{"train.frozen_dtype=nf4", true, true},
	{"train.moments=bf16", true, false},
	{"train.moments=int8", true, false},
};
enum { ROUNDING = sizeof(rounding) / sizeof(rounding[0]), SETS = 1 << EXACT };

struct lever_search {
	const struct vfm_dry_run_opts *o;
	struct vfm_levers *out;
	double unlimited; /* tokens per second and GPU with enough memory; NAN: unknown */
};

static bool has_frozen(const struct vfm_config *c)
{
	return c->tuning.rank > 0 || c->tuning.freeze.text[0];
}

/* Returns whether the configuration does not use the lever yet, and may. */
static bool is_open(const struct vfm_config *c, const struct lever *l)
{
	if (l->frozen && !has_frozen(c))
		return false;
	if (l == &exact[RECOMPUTE])
		return c->train.recompute != VFM_RECOMPUTE_AUTO;
	if (l == &exact[WEIGHTS])
		return !c->train.offload_weights;
	if (l == &exact[ACTIVATIONS])
		return !(c->train.offload & VFM_OFFLOAD_ACTIVATIONS);
	if (l == &exact[OPTIMIZER])
		return !(c->train.offload & VFM_OFFLOAD_OPTIMIZER);
	if (l == &exact[SPLIT])
		return c->train.master == VFM_MASTER_F32 && c->train.dtype == VFM_BF16;
	return l->frozen ? c->tuning.frozen_dtype == VFM_FROZEN_SAME : c->train.moments == VFM_F32;
}

static void add_word(char *text, const char *word)
{
	size_t at = strlen(text);

	snprintf(text + at, VFM_LEVER_TEXT - at, "%s%s", at ? " " : "", word);
}

/* Sets the keys of a list such as "train.lr=1 train.moments=bf16". */
static int set_words(struct vfm_config *c, const char *text, struct vfm_err *err)
{
	char *copy = vfm_strdup(text), *save = NULL;
	int rc = 0;

	for (char *w = strtok_r(copy, " ", &save); w && rc == 0; w = strtok_r(NULL, " ", &save))
		rc = vfm_config_set(c, w, err);
	free(copy);
	return rc;
}

/* Sets the levers in the bits of `on`, and `round` unless it is NULL; writes them to `text`. */
static int apply_levers(
	struct vfm_config *c, unsigned on, const struct lever *round, char text[VFM_LEVER_TEXT], struct vfm_err *err)
{
	const unsigned host = (on >> ACTIVATIONS & 1 ? VFM_OFFLOAD_ACTIVATIONS : 0) |
		(on >> OPTIMIZER & 1 ? VFM_OFFLOAD_OPTIMIZER : 0) | (unsigned)c->train.offload;
	static const char *const offload[] = {
		NULL, "train.offload=optimizer", "train.offload=activations", "train.offload=both"};

	text[0] = '\0';
	if (on >> WEIGHTS & 1)
		add_word(text, exact[WEIGHTS].set);
	if ((int)host != c->train.offload)
		add_word(text, offload[host]);
	if (on >> SPLIT & 1)
		add_word(text, exact[SPLIT].set);
	if (round)
		add_word(text, round->set);
	if (on >> RECOMPUTE & 1) {
		add_word(text, exact[RECOMPUTE].set);
		c->train.recompute_blocks = 0;
	}
	TRY(set_words(c, text, err));
	return vfm_config_check(c, err);
}

static void refuse(struct vfm_lever_row *x, const struct vfm_err *err)
{
	x->refused = true;
	memcpy(x->why, err->msg, sizeof(x->why));
}

/* Simulates the run with a configuration; *x has set and ranks. */
static void try_run(const struct lever_search *s, const struct vfm_config *c, struct vfm_lever_row *x)
{
	struct vfm_dry_run_opts o = *s->o;
	struct vfm_err err = {0};
	struct vfm_dry_run d;

	o.config = c;
	o.ranks = x->ranks;
	o.timeline = o.memory = false;
	o.trace = NULL;
	if (vfm_dry_run(&o, &d, &err) == 0) {
		x->fits = d.fits;
		x->bytes = d.mem_peak + d.mem_beside;
		x->s = d.s[VFM_MID];
		x->speed = d.tokens / x->s / o.ranks / s->unlimited;
		for (int i = 0; i < d.n; i++)
			x->host = fmax(x->host, d.rank[i].host_bytes);
	} else {
		refuse(x, &err);
	}
	vfm_dry_run_release(&d);
}

static struct vfm_lever_row try_levers(const struct lever_search *s, unsigned on, const struct lever *round)
{
	struct vfm_lever_row x = {.ranks = s->o->ranks, .rounds = round != NULL};
	struct vfm_config c = *s->o->config;
	struct vfm_err err = {0};

	if (apply_levers(&c, on, round, x.set, &err) < 0)
		refuse(&x, &err);
	else
		try_run(s, &c, &x);
	return x;
}

static void add_lever_row(struct vfm_levers *l, const struct vfm_lever_row *x)
{
	for (int i = 0; i < l->n; i++)
		if (!strcmp(l->v[i].set, x->set) && l->v[i].ranks == x->ranks)
			return;
	l->v = vfm_realloc(l->v, (size_t)l->n + 1, sizeof(*l->v));
	l->v[l->n++] = *x;
}

/* A run with more settings must be faster by more than rounding. */
static bool is_faster(const struct vfm_lever_row *a, const struct vfm_lever_row *b)
{
	return !a->refused && a->fits && (!b->fits || a->s < 0.999 * b->s);
}

/* Adds the fastest run that fits, of all combinations of levers that keep values with `n` of `round`. */
static void add_fastest(const struct lever_search *s, const struct lever *round, int n)
{
	const struct vfm_config *c = s->o->config;
	struct vfm_lever_row best = {0};
	unsigned open = 0;

	for (unsigned i = 0; i < EXACT; i++)
		open |= is_open(c, &exact[i]) << i;
	for (int k = 0; k < (n ? n : 1); k++) /* once without a lever of a round */
		for (unsigned on = 0; on < SETS; on++) {
			struct vfm_lever_row x;

			/* activations and weights are planned with recompute; with frozen weights, moments are few */
			if ((on & ~open) || (~on & open & 1U << RECOMPUTE) ||
				(n && (!is_open(c, &round[k]) || round[k].frozen != has_frozen(c))))
				continue;
			x = try_levers(s, on, n ? &round[k] : NULL);
			if (is_faster(&x, &best))
				best = x;
		}
	if (best.fits)
		add_lever_row(s->out, &best);
}

/* The tokens per second and GPU if all memory were there. */
static double find_unlimited(const struct vfm_dry_run_opts *o)
{
	struct vfm_machine m = *o->machine;
	struct vfm_dry_run_opts big = *o;
	struct vfm_config c = *o->config;
	struct vfm_dry_run d;
	double rate = NAN;

	m.capacity = m.capacity < INT64_C(1) << 40 ? INT64_C(1) << 40 : 8 * m.capacity;
	c.train.recompute = VFM_RECOMPUTE_NONE;
	c.train.recompute_blocks = 0;
	c.train.offload = VFM_OFFLOAD_NONE;
	c.train.offload_weights = 0;
	c.train.memory_gib = c.train.host_gib = 0;
	big.machine = &m;
	big.config = &c;
	big.timeline = big.memory = false;
	big.trace = NULL;
	if (vfm_dry_run(&big, &d, NULL) == 0 && d.fits)
		rate = d.tokens / d.s[VFM_MID] / o->ranks;
	vfm_dry_run_release(&d);
	return rate;
}

/* Twice the ranks for each pack. */
static void add_more_ranks(const struct lever_search *s)
{
	struct vfm_lever_row x = {.ranks = 2 * s->o->ranks};
	struct vfm_config c = *s->o->config;
	struct vfm_err err = {0};

	snprintf(x.set, sizeof(x.set), "parallel.cp=%lld", (long long)(2 * c.parallel.cp));
	if (vfm_config_set(&c, x.set, &err) == 0 && vfm_config_check(&c, &err) == 0)
		try_run(s, &c, &x);
	else
		refuse(&x, &err);
	add_lever_row(s->out, &x);
}

void vfm_levers_find(const struct vfm_dry_run_opts *o, struct vfm_levers *out)
{
	struct lever_search s = {.o = o, .out = out, .unlimited = find_unlimited(o)};
	struct vfm_lever_row x = try_levers(&s, 0, NULL);

	*out = (struct vfm_levers){0};
	add_lever_row(out, &x);
	for (unsigned i = 0; i < EXACT; i++)
		if (is_open(o->config, &exact[i])) {
			x = try_levers(&s, 1U << i, NULL);
			add_lever_row(out, &x);
		}
	for (int i = 0; i < ROUNDING; i++)
		if (is_open(o->config, &rounding[i])) {
			x = try_levers(&s, 0, &rounding[i]);
			add_lever_row(out, &x);
		}
	add_fastest(&s, NULL, 0);
	add_fastest(&s, rounding, ROUNDING);
	add_more_ranks(&s);
}

void vfm_levers_release(struct vfm_levers *l)
{
	free(l->v);
	*l = (struct vfm_levers){0};
}
