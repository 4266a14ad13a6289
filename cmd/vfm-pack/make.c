/* Packs the sets of one plan. */
#include "pack_cmd.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "data/metadataset.h"
#include "data/pack.h"
#include "data/patch.h"

struct packing {
	const struct pack_opts *o;
	struct vfm_blend_set *sets; /* [n] */
	int n;
	struct vfm_manifest_header h;
	struct vfm_plan_opts po;
	bool bin, by_samples; /* by_samples: the weights are shares of the samples until the sets are read */
	json_t *forced;
	struct vfm_arena mem;
};

/* ---- options ---- */

static int parse_choice(const char *opt, const char *s, const char *a, const char *b, bool *is_b, struct vfm_err *err)
{
	if (strcmp(s, a) && strcmp(s, b))
		return vfm_fail(err, VFM_EUSAGE, "--%s: expected %s or %s, got '%s'", opt, a, b, s);
	*is_b = !strcmp(s, b);
	return 0;
}

static int range(const char *opt, int64_t x, int64_t min, int64_t max, struct vfm_err *err)
{
	if (x < min || x > max)
		return vfm_fail(err, VFM_EUSAGE, "%s: expected %lld to %lld, got %lld", opt, (long long)min,
			(long long)max, (long long)x);
	return 0;
}

/* NAME=WEIGHT:DIR */
static int parse_blend(const char *arg, struct vfm_blend_set *set, struct vfm_arena *mem, struct vfm_err *err)
{
	char *name = vfm_arena_strdup(mem, arg), *weight = strchr(name, '='),
	     *dir = weight ? strchr(weight, ':') : NULL;

	if (!dir || weight == name || !dir[1])
		return vfm_fail(err, VFM_EUSAGE, "--blend: expected NAME=WEIGHT:DIR, got '%s'", arg);
	*weight++ = 0;
	*dir++ = 0;
	if (vfm_parse_f64(weight, &set->weight, err) < 0)
		return vfm_err_context(err, "--blend %s", arg);
	if (!(set->weight > 0))
		return vfm_fail(err, VFM_EUSAGE, "--blend %s: the weight must be > 0", arg);
	set->name = name;
	set->dir = dir;
	return 0;
}

/* NAME=F */
static int parse_max_passes(const char *arg, struct vfm_blend_set *sets, int n, struct vfm_err *err)
{
	const char *passes = strchr(arg, '=');
	size_t len = passes ? (size_t)(passes - arg) : 0;

	for (int i = 0; i < n && passes; i++) {
		if (strlen(sets[i].name) != len || strncmp(sets[i].name, arg, len) != 0)
			continue;
		if (vfm_parse_f64(passes + 1, &sets[i].max_passes, err) < 0)
			return vfm_err_context(err, "--max-passes %s", arg);
		return sets[i].max_passes > 0
			? 0
			: vfm_fail(err, VFM_EUSAGE, "--max-passes %s: the number must be > 0", arg);
	}
	return vfm_fail(
		err, VFM_EUSAGE, "--max-passes: expected NAME=F with the name of a set of --blend, got '%s'", arg);
}

/* Returns the default name of a set: the last component of its path. */
static const char *name_of(const char *dir, struct vfm_arena *mem)
{
	char *s = vfm_arena_strdup(mem, dir), *slash;

	for (size_t n = strlen(s); n > 1 && s[n - 1] == '/'; n--)
		s[n - 1] = 0;
	slash = strrchr(s, '/');
	return slash && slash[1] ? slash + 1 : s;
}

static int parse_set_args(const struct pack_opts *o, int n, char **dirs, struct vfm_blend_set *sets,
	struct vfm_arena *mem, struct vfm_err *err)
{
	double sum = 0;

	if (!!n == !!o->blend.n)
		return vfm_fail(
			err, VFM_EUSAGE, n ? "give either folders or --blend, not both" : "a folder is missing");
	if (n > VFM_MANIFEST_MAX_SETS || o->blend.n > VFM_MANIFEST_MAX_SETS)
		return vfm_fail(err, VFM_EUSAGE, "more than %d sets", VFM_MANIFEST_MAX_SETS);
	for (int i = 0; i < n; i++) {
		sets[i].dir = dirs[i];
		sets[i].name = name_of(dirs[i], mem);
	}
	for (int i = 0; i < o->blend.n; i++) {
		TRY(parse_blend(o->blend.v[i], &sets[i], mem, err));
		sum += sets[i].weight;
	}
	for (int i = 0; i < o->blend.n; i++)
		sets[i].weight /= sum;
	for (int i = 0; i < o->max_passes.n; i++)
		TRY(parse_max_passes(o->max_passes.v[i], sets, o->blend.n, err));
	return 0;
}

/* ---- metadatasets of Megatron-Energon ---- */

static bool is_metadataset(const char *operand)
{
	const char *dot = strrchr(operand, '.');

	return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

/* Sets that stand several times in a pass get a number behind their name. */
static void add_metadataset_set(struct packing *p, const struct vfm_metadataset_set *s)
{
	const char *dir = vfm_arena_strdup(&p->mem, s->dir), *name = name_of(dir, &p->mem);
	int same = 1;

	for (int i = 0; i < p->n; i++)
		same += strcmp(p->sets[i].dir, dir) == 0;
	if (same > 1) {
		char *numbered = vfm_strfmt("%s.%d", name, same);

		name = vfm_arena_strdup(&p->mem, numbered);
		free(numbered);
	}
	p->sets[p->n++] = (struct vfm_blend_set){.name = name, .dir = dir, .weight = s->weight};
}

static int read_metadataset_sets(struct packing *p, const char *path, struct vfm_err *err)
{
	struct vfm_metadataset m = {0};
	size_t n = 0;
	int rc;

	TRY_OUT(vfm_metadataset_read(&m, path, p->o->split ? p->o->split : "train", err));
	for (size_t i = 0; i < m.n; i++)
		n += (size_t)m.sets[i].repetitions;
	if (n > VFM_MANIFEST_MAX_SETS) {
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': more than %d sets", path, VFM_MANIFEST_MAX_SETS);
		goto out;
	}
	free(p->sets);
	p->sets = vfm_calloc(n + 1, sizeof(*p->sets));
	p->n = 0;
	for (size_t i = 0; i < m.n; i++)
		for (int k = 0; k < m.sets[i].repetitions; k++)
			add_metadataset_set(p, &m.sets[i]);
	p->by_samples = m.weighted;
out:
	vfm_metadataset_release(&m);
	return rc;
}

/* The weights of a metadataset are shares of the samples; those of a plan, of the tokens. */
static void weigh_tokens(struct packing *p)
{
	double sum = 0;

	for (int i = 0; i < p->n; i++) {
		if (p->sets[i].n)
			p->sets[i].weight *= (double)p->sets[i].total_tokens / (double)p->sets[i].n;
		sum += p->sets[i].weight;
	}
	for (int i = 0; i < p->n; i++)
		p->sets[i].weight /= sum;
}

static int check_parts(const struct pack_opts *o, struct vfm_err *err)
{
	if (o->cp == 0)
		return 0;
	TRY(range("--cp", o->cp, 2, VFM_MANIFEST_MAX_CP, err));
	if (o->cp & (o->cp - 1))
		return vfm_fail(err, VFM_EUSAGE, "--cp: expected a power of two, got %lld", (long long)o->cp);
	if (o->batch % o->cp)
		return vfm_fail(err, VFM_EUSAGE, "--batch %lld: expected a multiple of --cp %lld", (long long)o->batch,
			(long long)o->cp);
	return range("--context x --cp", o->context * o->cp, 1, VFM_MANIFEST_MAX_CONTEXT, err);
}

static int parse_plan(const struct pack_opts *o, struct vfm_plan_opts *p, struct vfm_err *err)
{
	bool drop_last, cost;

	TRY(range("--context", o->context, 1, VFM_MANIFEST_MAX_CONTEXT, err));
	TRY(range("--batch", o->batch, 1, VFM_MANIFEST_MAX_BATCH, err));
	TRY(check_parts(o, err));
	TRY(range("--steps", o->steps, 0, ((int64_t)1 << 40) / o->batch, err));
	TRY(range("--seed", o->seed, 0, INT64_MAX, err));
	TRY(range("--window", o->window, 0, 1 << 30, err));
	if (o->epochs < 0 || o->epochs > 1e6)
		return vfm_fail(err, VFM_EUSAGE, "--epochs: expected a number > 0, at most 1e6");
	if (!(o->held_out >= 0 && o->held_out < 1))
		return vfm_fail(err, VFM_EUSAGE, "--held-out: expected a fraction below 1");
	if (o->held_out_plan && o->held_out == 0)
		return vfm_fail(err, VFM_EUSAGE, "--held-out-plan: it needs --held-out");
	if (o->epochs > 0 && o->steps > 0)
		return vfm_fail(err, VFM_EUSAGE, "give either --epochs or --steps, not both");
	TRY(parse_choice("last", o->last, "fill", "drop", &drop_last, err));
	TRY(parse_choice("balance", o->balance, "tokens", "cost", &cost, err));
	*p = (struct vfm_plan_opts){.context = (int32_t)o->context,
		.batch = (int32_t)o->batch,
		.cp = (int32_t)o->cp,
		.steps = o->steps,
		.epochs = o->epochs > 0 ? o->epochs : 1,
		.drop_last = drop_last,
		.balance_cost = cost,
		.seed = (uint64_t)o->seed,
		.window = o->window,
		.cost = vfm_pack_cost_default()};
	if (vfm_pack_algo(o->algo, &p->algo, err) < 0)
		return vfm_err_context(err, "--algo");
	if (o->cost)
		TRY(vfm_pack_cost_load(o->cost, &p->cost, err));
	return 0;
}

/* ---- sets ---- */

/* Fails if samples were left out without --long drop or --ragged drop. */
static int check_left_out(const struct pack_opts *o, const struct vfm_blend_set *sets, int n, int32_t longest,
	bool drop_long, bool drop_ragged, struct vfm_err *err)
{
	int64_t n_long = 0, n_ragged = 0, records = 0;

	for (int i = 0; i < n; i++) {
		n_long += sets[i].n_long;
		n_ragged += sets[i].n_ragged;
		records += sets[i].records;
	}
	if (n_long && !drop_long)
		return vfm_fail(err, VFM_EUSAGE,
			"%lld of %lld samples are longer than the context of %d tokens (--long drop leaves them out)",
			(long long)n_long, (long long)records, longest);
	if (n_ragged && !drop_ragged)
		return vfm_fail(err, VFM_EUSAGE,
			"%lld of %lld samples are not divisible by the patch %s (--ragged drop leaves them out)",
			(long long)n_ragged, (long long)records, o->patch);
	return 0;
}

static int same_widths(const struct vfm_blend_set *sets, int n, struct vfm_manifest_header *h, struct vfm_err *err)
{
	for (int i = 0; i < n; i++) {
		const struct vfm_blend_set *s = &sets[i], *a = &sets[0];

		if (s->channels != a->channels)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has %d latent channels, set '%s' has %d", s->name,
				s->channels, a->name, a->channels);
		if (s->text_dim && h->text_dim && s->text_dim != h->text_dim)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has texts of width %d, others have %d", s->name,
				s->text_dim, h->text_dim);
		if (s->cond_channels != a->cond_channels)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has conditions of %d channels, set '%s' has %d",
				s->name, s->cond_channels, a->name, a->cond_channels);
		if (s->image_len != a->image_len || s->image_dim != a->image_dim)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has image rows [%d, %d], set '%s' has [%d, %d]",
				s->name, s->image_len, s->image_dim, a->name, a->image_len, a->image_dim);
		h->text_dim = s->text_dim ? s->text_dim : h->text_dim;
	}
	h->latent_channels = sets[0].channels;
	h->cond_channels = sets[0].cond_channels;
	h->image_len = sets[0].image_len;
	h->image_dim = sets[0].image_dim;
	return 0;
}

static const char *set_text(const struct vfm_blend_set *s, char *text, size_t size)
{
	snprintf(text, size, "set '%s' (%s)", s->name, s->dir);
	return text;
}

/* Compares an encoder of set i with that of set `first`, whose maker is in the header.  With --force it records a
 * difference instead. */
static int match_encoder(const struct pack_opts *o, struct vfm_manifest_header *h, json_t **forced, enum vfm_encoder e,
	const struct vfm_blend_set *sets, int first, int i, const struct vfm_maker *mine, struct vfm_err *err)
{
	const struct vfm_maker *expected = vfm_makers_of(&h->makers, e);
	char a[256], b[256];
	struct vfm_err why;
	json_t *entry;

	if (vfm_maker_check(e, mine, set_text(&sets[i], a, sizeof(a)), expected, set_text(&sets[first], b, sizeof(b)),
		    &why) == 0)
		return 0;
	if (!o->force)
		return vfm_fail(err, VFM_EUSAGE, "%s (--force mixes them)", why.msg);
	vfm_warn("%s: mixed by --force", why.msg);
	entry = vfm_forced_entry("vfm-pack", e, sets[i].dir, expected, mine);
	json_object_set_new(entry, "set", json_integer(i));
	if (!*forced)
		*forced = json_array();
	json_array_append_new(*forced, entry);
	return 0;
}

/* Fails if the encoders of two sets differ.  A set without encoder names matches every set. */
static int match_encoders(const struct pack_opts *o, const struct vfm_blend_set *sets, int n,
	struct vfm_manifest_header *h, json_t **forced, struct vfm_err *err)
{
	int first[VFM_ENCODERS] = {0}; /* the set that the header's maker is from */

	for (int i = 0; i < n; i++) {
		struct vfm_makers m = vfm_index_makers(sets[i].ix);

		if (!sets[i].text_dim)
			m.text = (struct vfm_maker){0};
		if (!sets[i].image_dim)
			m.image = (struct vfm_maker){0};
		if (!m.tokenizer.name[0] || (sets[i].text_dim && !m.text.name[0]))
			vfm_warn("set '%s' does not name its %s: vfm-pack cannot check that the encoders match",
				sets[i].name,
				m.tokenizer.name[0]      ? "text encoder"
					: m.text.name[0] ? "tokenizer"
							 : "encoders");
		for (enum vfm_encoder e = 0; e < VFM_ENCODERS; e++) {
			const struct vfm_maker *mine = vfm_makers_of(&m, e);

			if (!vfm_makers_of(&h->makers, e)->name[0] && mine->name[0])
				first[e] = i;
			TRY(match_encoder(o, h, forced, e, sets, first[e], i, mine, err));
		}
		vfm_makers_fill(&h->makers, &m);
	}
	return 0;
}

static int scan_sets(const struct pack_opts *o, struct vfm_blend_set *sets, int n, struct vfm_manifest_header *h,
	json_t **forced, struct vfm_err *err)
{
	int32_t longest = h->context * (h->cp ? h->cp : 1);
	bool drop_long, drop_ragged;

	TRY(parse_choice("long", o->long_, "error", "drop", &drop_long, err));
	TRY(parse_choice("ragged", o->ragged, "error", "drop", &drop_ragged, err));
	for (int i = 0; i < n; i++)
		TRY(vfm_blend_scan(&sets[i], h->patch, longest, o->held_out, err));
	TRY(check_left_out(o, sets, n, longest, drop_long, drop_ragged, err));
	TRY(same_widths(sets, n, h, err));
	return match_encoders(o, sets, n, h, forced, err);
}

/* Returns the path of a set to store: readers resolve relative paths against the manifest's folder.  If stdout is a
 * file outside the current folder, makes the path absolute. */
static const char *stored_dir(const char *dir, struct vfm_arena *mem)
{
	char out[PATH_MAX], cwd[PATH_MAX], full[PATH_MAX], *slash;
	struct stat st;
	ssize_t n;

	if (dir[0] == '/' || fstat(STDOUT_FILENO, &st) || !S_ISREG(st.st_mode))
		return dir;
	n = readlink("/proc/self/fd/1", out, sizeof(out) - 1);
	if (n < 1 || !getcwd(cwd, sizeof(cwd)) || !realpath(dir, full))
		return dir;
	out[n] = 0;
	slash = strrchr(out, '/');
	if (!slash || ((size_t)(slash - out) == strlen(cwd) && !strncmp(out, cwd, strlen(cwd))))
		return dir;
	return vfm_arena_strdup(mem, full);
}

/* The same for a file that is not stdout. */
static const char *stored_dir_beside(const char *dir, const char *file, struct vfm_arena *mem)
{
	char full[PATH_MAX];

	return dir[0] == '/' || !strchr(file, '/') || !realpath(dir, full) ? dir : vfm_arena_strdup(mem, full);
}

/* file: where the manifest goes; NULL: stdout. */
static void fill_header(
	struct vfm_manifest_header *h, const struct vfm_blend_set *sets, int n, const char *file, struct vfm_arena *mem)
{
	double all = 0;

	h->n_sets = n;
	h->sets = vfm_arena_alloc(mem, (size_t)n * sizeof(*h->sets));
	for (int i = 0; i < n; i++)
		all += (double)sets[i].total_tokens;
	for (int i = 0; i < n; i++) {
		struct vfm_manifest_set *s = &h->sets[i];

		s->name = sets[i].name;
		s->dir_given = file ? stored_dir_beside(sets[i].dir, file, mem) : stored_dir(sets[i].dir, mem);
		s->records = sets[i].records;
		s->weight = sets[i].weight > 0 ? sets[i].weight : (double)sets[i].total_tokens / all;
		memcpy(s->index_sha256, sets[i].sha256, VFM_SHA256_HEX);
	}
}

/* ---- report ---- */

static void report_sets(const struct vfm_plan *p, const struct vfm_blend_set *sets, const struct vfm_manifest_header *h)
{
	int64_t all = 0;

	for (int32_t i = 0; i < h->n_sets; i++)
		all += p->set_tokens[i];
	for (int32_t i = 0; i < h->n_sets; i++) {
		vfm_info("set %s: %lld samples, %.2f passes, %.2f%% of the tokens (asked: %.2f%%)", sets[i].name,
			(long long)p->set_samples[i], (double)p->set_samples[i] / (double)sets[i].n,
			100.0 * (double)p->set_tokens[i] / (double)all, 100 * h->sets[i].weight);
		if (sets[i].n_long || sets[i].n_ragged)
			vfm_info("set %s: %lld samples left out: %lld too long, %lld not divisible by the patch",
				sets[i].name, (long long)(sets[i].n_long + sets[i].n_ragged), (long long)sets[i].n_long,
				(long long)sets[i].n_ragged);
	}
}

static void report_plan(const struct vfm_plan *p, double seconds)
{
	vfm_info("%lld steps, %lld packs, %lld samples; fill %.2f%% (at most %.2f%% is possible); largest pack of a "
		 "step over the mean: tokens %.3f, cost %.3f; %.2f s",
		(long long)p->steps, (long long)p->n_packs, (long long)p->n_samples, 100 * p->fill, 100 * p->fill_bound,
		p->imbalance_tokens, p->imbalance_cost, seconds);
	if (p->filled_packs)
		vfm_info("the last step was filled with %lld packs from another pass", (long long)p->filled_packs);
	if (p->dropped_packs)
		vfm_info("an incomplete last step was dropped: %lld packs, %lld samples", (long long)p->dropped_packs,
			(long long)p->dropped_samples);
}

/* ---- held-out data ---- */

/* Returns the number of held-out samples. */
static int64_t report_held_out(const struct vfm_blend_set *sets, int n)
{
	int64_t samples = 0, all = 0;

	for (int i = 0; i < n; i++) {
		samples += sets[i].n_held;
		all += sets[i].n + sets[i].n_held;
	}
	vfm_info("held out: %lld of %lld samples (%.2f%%)", (long long)samples, (long long)all,
		100.0 * (double)samples / (double)all);
	return samples;
}

/* Writes the plan of the held-out samples: each once, a pack a step, which all cp ranks compute. */
static int write_held_out(const struct vfm_blend_set *sets, int n, const struct vfm_manifest_header *train,
	const struct vfm_plan_opts *po, bool bin, const char *path, struct vfm_arena *mem, struct vfm_err *err)
{
	struct vfm_blend_set *held = vfm_calloc((size_t)n + 1, sizeof(*held));
	struct vfm_plan_opts once = *po;
	struct vfm_manifest_header h = *train;
	struct vfm_blend *blend = NULL;
	struct vfm_plan plan = {0};
	struct vfm_atomic file = {0};
	int rc;

	for (int i = 0; i < n; i++)
		held[i] = vfm_blend_held_out(&sets[i]);
	once.batch = 1;
	once.cp = 0;
	once.context *= po->cp ? po->cp : 1;
	once.steps = 0;
	once.epochs = 1;
	h.batch = 1;
	h.cp = 0;
	h.context = once.context;
	h.side = VFM_SIDE_HELD_OUT;
	blend = vfm_blend_new(held, n, po->seed, err);
	TRY_OUT(blend ? 0 : err->code);
	fill_header(&h, held, n, path, mem);
	TRY_OUT(vfm_atomic_open(&file, path, err));
	TRY_OUT(vfm_plan_write(
		&plan, blend, &once, held, &h, bin ? VFM_MANIFEST_BIN : VFM_MANIFEST_JSONL, file.f, err));
	rc = vfm_atomic_commit(&file, err);
out:
	vfm_atomic_abort(&file);
	vfm_plan_release(&plan);
	vfm_blend_free(blend);
	free(held);
	return rc < 0 ? vfm_err_context(err, "'%s'", path) : 0;
}

/* ---- the plan ---- */

static int read_options(struct packing *p, int n_dirs, char **dirs, struct vfm_err *err)
{
	const struct pack_opts *o = p->o;

	TRY(parse_choice("format", o->format, "jsonl", "bin", &p->bin, err));
	if (n_dirs == 1 && !o->blend.n && is_metadataset(dirs[0]))
		TRY(read_metadataset_sets(p, dirs[0], err));
	else if (o->split)
		return vfm_fail(err, VFM_EUSAGE, "--split: it is for a metadataset");
	else
		TRY(parse_set_args(o, n_dirs, dirs, p->sets, &p->mem, err));
	TRY(parse_plan(o, &p->po, err));
	if (vfm_patch_parse(o->patch, p->h.patch, err) < 0)
		return vfm_err_context(err, "--patch");
	p->h.context = p->po.context;
	p->h.batch = p->po.batch;
	p->h.cp = p->po.cp;
	p->h.seed = p->po.seed;
	return 0;
}

static int read_sets(struct packing *p, struct vfm_err *err)
{
	TRY(scan_sets(p->o, p->sets, p->n, &p->h, &p->forced, err));
	p->h.forced = p->forced;
	if (p->by_samples)
		weigh_tokens(p);
	return 0;
}

/* Reports and, if asked, writes what is held out.  Returns the number of samples. */
static int64_t hold_out(struct packing *p, const struct pack_out *out, struct vfm_err *err)
{
	int64_t samples;

	if (p->o->held_out == 0)
		return 0;
	p->h.side = VFM_SIDE_TRAIN;
	p->h.held_out = p->o->held_out;
	samples = report_held_out(p->sets, p->n);
	if (samples == 0 && p->o->held_out_plan)
		return vfm_fail(err, VFM_EUSAGE, "'%s': --held-out %g holds out no sample; a larger fraction may",
			p->o->held_out_plan, p->o->held_out);
	if (samples == 0)
		vfm_warn("--held-out %g holds out no sample of these", p->o->held_out);
	else if (out->held_out)
		TRY(write_held_out(p->sets, p->n, &p->h, &p->po, p->bin, out->held_out, &p->mem, err));
	return samples;
}

static int64_t make_plan(struct packing *p, const struct pack_out *out, struct vfm_err *err)
{
	double start = vfm_now();
	struct vfm_plan plan = {0};
	struct vfm_blend *blend = vfm_blend_new(p->sets, p->n, p->po.seed, err);
	int64_t held = 0;
	int rc;

	TRY_OUT(blend ? 0 : err->code);
	held = hold_out(p, out, err);
	TRY_OUT(held < 0 ? (int)held : 0);
	fill_header(&p->h, p->sets, p->n, out->path, &p->mem);
	TRY_OUT(vfm_plan_write(
		&plan, blend, &p->po, p->sets, &p->h, p->bin ? VFM_MANIFEST_BIN : VFM_MANIFEST_JSONL, out->f, err));
	report_sets(&plan, p->sets, &p->h);
	report_plan(&plan, vfm_now() - start);
out:
	vfm_plan_release(&plan);
	vfm_blend_free(blend);
	return rc < 0 ? rc : held;
}

static void packing_init(struct packing *p, const struct pack_opts *o, int n_dirs)
{
	*p = (struct packing){.o = o, .n = n_dirs > o->blend.n ? n_dirs : o->blend.n};
	p->sets = vfm_calloc((size_t)p->n + 1, sizeof(*p->sets));
}

static void packing_release(struct packing *p)
{
	for (int i = 0; i < p->n; i++)
		vfm_blend_set_release(&p->sets[i]);
	free(p->sets);
	json_decref(p->forced);
	vfm_pack_cost_release(&p->po.cost);
	vfm_arena_release(&p->mem);
}

int pack_check(const struct pack_opts *o, int n_dirs, char **dirs, struct vfm_err *err)
{
	struct packing p;
	int rc;

	packing_init(&p, o, n_dirs);
	rc = read_options(&p, n_dirs, dirs, err);
	packing_release(&p);
	return rc;
}

int64_t pack_make(const struct pack_opts *o, int n_dirs, char **dirs, const struct pack_out *out, struct vfm_err *err)
{
	struct packing p;
	int64_t rc;

	packing_init(&p, o, n_dirs);
	rc = read_options(&p, n_dirs, dirs, err);
	if (rc == 0)
		rc = read_sets(&p, err);
	if (rc == 0 && p.bin && isatty(fileno(out->f)))
		rc = vfm_fail(err, VFM_EUSAGE, "--format bin: not to a terminal");
	if (rc == 0)
		rc = make_plan(&p, out, err);
	packing_release(&p);
	return rc;
}
