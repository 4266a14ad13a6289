/* Packs the sets of one plan. */
#include "pack_cmd.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "data/plan/metadataset.h"
#include "data/plan/pack.h"
#include "io/file.h"
#include "io/key.h"
#include "io/yaml.h"
#include "spec/layout/patch.h"

struct packing {
	const struct pack_opts *o;
	struct vfm_blend_set *sets; /* [n] */
	int n;
	struct vfm_plan_header h;
	struct vfm_packing_opts po;
	bool by_samples; /* the weights are shares of the samples until the sets are read */
	json_t *forced;
	struct vfm_arena mem;
};

/* ---- options ---- */

/* "2.5x" */
static int parse_passes(char *text, struct vfm_blend_set *set, struct vfm_err *err)
{
	text[strlen(text) - 1] = 0;
	TRY(vfm_parse_f64(text, &set->passes, err));
	return set->passes > 0 && set->passes <= 1e6
		? 0
		: vfm_fail(err, VFM_EUSAGE, "the number of passes must be > 0, at most 1e6");
}

/* "0.3" or "0.7@0,0.3@20K" */
static int parse_weight(const char *text, struct vfm_blend_set *set, struct vfm_err *err)
{
	double most = 0;

	TRY(vfm_weights_parse(text, &set->weights, err));
	for (int32_t i = 0; i < set->weights.n; i++)
		most = set->weights.v[i].weight > most ? set->weights.v[i].weight : most;
	if (!(most > 0))
		return vfm_fail(err, VFM_EUSAGE, "the weight must be > 0");
	if (!vfm_mix_changes(&set->weights, 1)) {
		set->weight = most;
		vfm_weights_release(&set->weights);
	}
	return 0;
}

/* NAME=WEIGHT:DIR */
static int parse_blend(const char *arg, struct vfm_blend_set *set, struct vfm_arena *mem, struct vfm_err *err)
{
	char *name = vfm_arena_strdup(mem, arg), *weight = strchr(name, '='),
	     *dir = weight ? strchr(weight, ':') : NULL;
	int rc;

	if (!dir || weight == name || !dir[1])
		return vfm_fail(err, VFM_EUSAGE, "--blend: expected NAME=WEIGHT:DIR, got '%s'", arg);
	*weight++ = 0;
	*dir++ = 0;
	rc = dir - weight > 2 && dir[-2] == 'x' ? parse_passes(weight, set, err) : parse_weight(weight, set, err);
	set->name = name;
	set->dir = dir;
	return rc < 0 ? vfm_err_context(err, "--blend %s", arg) : 0;
}

/* Returns the set that "NAME=..." names, and *value, what follows; NULL: none. */
static struct vfm_blend_set *find_named(const char *arg, struct vfm_blend_set *sets, int n, const char **value)
{
	const char *equals = strchr(arg, '=');
	size_t len = equals ? (size_t)(equals - arg) : 0;

	for (int i = 0; i < n && equals; i++)
		if (strlen(sets[i].name) == len && strncmp(sets[i].name, arg, len) == 0) {
			*value = equals + 1;
			return &sets[i];
		}
	return NULL;
}

/* NAME=F */
static int parse_max_passes(const char *arg, struct vfm_blend_set *sets, int n, struct vfm_err *err)
{
	const char *passes;
	struct vfm_blend_set *set = find_named(arg, sets, n, &passes);

	if (!set)
		return vfm_fail(err, VFM_EUSAGE,
			"--max-passes: expected NAME=F with the name of a set of --blend, got '%s'", arg);
	if (vfm_parse_f64(passes, &set->max_passes, err) < 0)
		return vfm_err_context(err, "--max-passes %s", arg);
	return set->max_passes > 0 ? 0 : vfm_fail(err, VFM_EUSAGE, "--max-passes %s: the number must be > 0", arg);
}

/* NAME=A..B */
static int parse_subset(const char *arg, struct vfm_blend_set *sets, int n, struct vfm_arena *mem, struct vfm_err *err)
{
	const char *range;
	struct vfm_blend_set *set = find_named(arg, sets, n, &range);
	struct vfm_subset *subset = vfm_arena_alloc(mem, sizeof(*subset));

	if (!set)
		return vfm_fail(err, VFM_EUSAGE, "--subset: expected NAME=A..B with the name of a set, got '%s'", arg);
	if (set->subset)
		return vfm_fail(err, VFM_EUSAGE, "--subset %s: the set has a subset already", arg);
	set->subset = subset;
	return vfm_subset_parse(range, subset, err) < 0 ? vfm_err_context(err, "--subset %s", arg) : 0;
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
	bool constant = true;
	double sum = 0;

	if (!!n == !!o->blend.n)
		return vfm_fail(
			err, VFM_EUSAGE, n ? "give either folders or --blend, not both" : "a folder is missing");
	if (n > VFM_PLAN_MAX_SETS || o->blend.n > VFM_PLAN_MAX_SETS)
		return vfm_fail(err, VFM_EUSAGE, "more than %d sets", VFM_PLAN_MAX_SETS);
	for (int i = 0; i < n; i++) {
		sets[i].dir = dirs[i];
		sets[i].name = name_of(dirs[i], mem);
	}
	for (int i = 0; i < o->blend.n; i++) {
		TRY(parse_blend(o->blend.v[i], &sets[i], mem, err));
		sum += sets[i].weight;
		constant &= sets[i].weight > 0;
	}
	for (int i = 0; i < o->blend.n && constant; i++)
		sets[i].weight /= sum;
	for (int i = 0; i < o->max_passes.n; i++)
		TRY(parse_max_passes(o->max_passes.v[i], sets, o->blend.n, err));
	for (int i = 0; i < o->subset.n; i++)
		TRY(parse_subset(o->subset.v[i], sets, n + o->blend.n, mem, err));
	return 0;
}

/* ---- metadatasets of Megatron-Energon ---- */

/* Takes the selection of s.  Sets of one folder get a number after their name.  repeated: some have repetitions. */
static void add_metadataset_set(struct packing *p, struct vfm_metadataset_set *s, bool repeated)
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
	p->sets[p->n++] = (struct vfm_blend_set){.name = name,
		.dir = dir,
		.weight = s->weight,
		.passes = repeated ? s->repetitions : 0,
		.selection = s->selection,
		.is_part = s->is_part};
	s->selection = (struct vfm_selection){0};
}

static int read_metadataset_sets(struct packing *p, const char *path, struct vfm_err *err)
{
	struct vfm_metadataset m = {0};
	bool repeated = false;
	int rc;

	TRY_OUT(vfm_metadataset_read(&m, path, p->o->split ? p->o->split : "train", err));
	free(p->sets);
	p->sets = vfm_calloc(m.n + 1, sizeof(*p->sets));
	p->n = 0;
	for (size_t i = 0; i < m.n; i++)
		repeated |= m.sets[i].repetitions != 1;
	for (size_t i = 0; i < m.n; i++)
		add_metadataset_set(p, &m.sets[i], repeated);
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
	TRY(vfm_key_check_int("--cp", o->cp, 2, VFM_PLAN_MAX_CP, err));
	if (o->cp & (o->cp - 1))
		return vfm_fail(err, VFM_EUSAGE, "--cp: expected a power of two, got %lld", (long long)o->cp);
	if (o->batch % o->cp)
		return vfm_fail(err, VFM_EUSAGE, "--batch %lld: expected a multiple of --cp %lld", (long long)o->batch,
			(long long)o->cp);
	return vfm_key_check_int("--context x --cp", o->context * o->cp, 1, VFM_PLAN_MAX_CONTEXT, err);
}

static int parse_plan(const struct pack_opts *o, struct vfm_packing_opts *p, struct vfm_err *err)
{
	TRY(check_parts(o, err));
	TRY(vfm_key_check_int("--steps", o->steps, 0, ((int64_t)1 << 40) / o->batch, err));
	if (o->held_out_plan && o->held_out == 0)
		return vfm_fail(err, VFM_EUSAGE, "--held-out-plan: it needs --held-out");
	if (o->epochs > 0 && o->steps > 0)
		return vfm_fail(err, VFM_EUSAGE, "give either --epochs or --steps, not both");
	*p = (struct vfm_packing_opts){.context = (int32_t)o->context,
		.batch = (int32_t)o->batch,
		.cp = (int32_t)o->cp,
		.steps = o->steps,
		.epochs = o->epochs > 0 ? o->epochs : 1,
		.drop_last = o->drop_last,
		.balance_cost = o->by_cost,
		.one_each = o->one_each,
		.seed = (uint64_t)o->seed,
		.window = o->window,
		.cost = vfm_pack_cost_default()};
	if (o->cost)
		TRY(vfm_pack_cost_load(o->cost, &p->cost, err));
	return 0;
}

/* Fails if weights change, or sets have passes, and the plan gives that no meaning. */
static int check_mix(const struct packing *p, struct vfm_err *err)
{
	int passes = 0, changing = 0;

	for (int i = 0; i < p->n; i++) {
		const struct vfm_mix_weights *w = &p->sets[i].weights;

		passes += p->sets[i].passes > 0;
		changing += w->n > 0;
		if (w->n && p->po.steps && w->v[w->n - 1].step > p->po.steps)
			return vfm_fail(err, VFM_EUSAGE, "set '%s': step %lld of its weights is beyond --steps %lld",
				p->sets[i].name, (long long)w->v[w->n - 1].step, (long long)p->po.steps);
	}
	if (changing && !p->po.steps)
		return vfm_fail(err, VFM_EUSAGE, "--blend: weights that change need --steps");
	if (passes && passes < p->n && !p->po.steps)
		return vfm_fail(
			err, VFM_EUSAGE, "--blend: sets with passes together with sets with weights need --steps");
	if (passes == p->n && p->po.steps && p->o->blend.n)
		return vfm_fail(err, VFM_EUSAGE,
			"--steps: all sets of --blend have a number of passes, which is the length of the plan");
	return 0;
}

/* ---- sets ---- */

/* Fails if samples were left out without --long drop or --ragged drop. */
static int check_left_out(
	const struct pack_opts *o, const struct vfm_blend_set *sets, int n, int32_t most, struct vfm_err *err)
{
	int64_t n_long = 0, n_ragged = 0, records = 0, longest = 0;

	for (int i = 0; i < n; i++) {
		n_long += sets[i].n_long;
		longest = sets[i].longest > longest ? sets[i].longest : longest;
		n_ragged += sets[i].n_ragged;
		records += vfm_blend_selected(&sets[i]);
	}
	if (n_long && !o->drop_long)
		return vfm_fail(err, VFM_EUSAGE,
			"%lld of %lld samples are longer than the context of %d tokens; the longest has %lld (a larger "
			"--context takes them%s)",
			(long long)n_long, (long long)records, most, (long long)longest,
			n_long < records ? ", --long drop leaves them out" : "");
	if (n_ragged && !o->drop_ragged)
		return vfm_fail(err, VFM_EUSAGE,
			"%lld of %lld samples are not divisible by the patch %s (--ragged drop leaves them out)",
			(long long)n_ragged, (long long)records, o->patch);
	return 0;
}

static int same_widths(const struct vfm_blend_set *sets, int n, struct vfm_plan_header *h, struct vfm_err *err)
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
		if (s->text2_dim && h->text2_dim && s->text2_dim != h->text2_dim)
			return vfm_fail(err, VFM_EUSAGE, "set '%s' has second texts of width %d, others have %d",
				s->name, s->text2_dim, h->text2_dim);
		h->text_dim = s->text_dim ? s->text_dim : h->text_dim;
		h->text2_dim = s->text2_dim ? s->text2_dim : h->text2_dim;
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

/* Compares an encoder of set i with that of set `first`, whose identity is in the header.  With --force it records a
 * difference instead. */
static int match_encoder(const struct pack_opts *o, struct vfm_plan_header *h, json_t **forced, enum vfm_encoder_kind e,
	const struct vfm_blend_set *sets, int first, int i, const struct vfm_encoder_id *mine, struct vfm_err *err)
{
	const struct vfm_encoder_id *expected = &h->encoder_ids.of[e];
	char a[256], b[256];
	struct vfm_err why;
	json_t *entry;

	if (vfm_encoder_id_check(e, mine, set_text(&sets[i], a, sizeof(a)), expected,
		    set_text(&sets[first], b, sizeof(b)), &why) == 0)
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
static int match_encoders(const struct pack_opts *o, const struct vfm_blend_set *sets, int n, struct vfm_plan_header *h,
	json_t **forced, struct vfm_err *err)
{
	int first[VFM_ENCODER_KINDS] = {0}; /* the set that the header's identity is from */

	for (int i = 0; i < n; i++) {
		struct vfm_encoder_ids m = vfm_index_info(sets[i].ix)->encoder_ids;

		if (!sets[i].text_dim)
			m.text = (struct vfm_encoder_id){0};
		if (!sets[i].image_dim)
			m.image = (struct vfm_encoder_id){0};
		if (!m.tokenizer.name[0] || (sets[i].text_dim && !m.text.name[0]))
			vfm_warn("set '%s' does not name its %s: vfm-pack cannot check that the encoders match",
				sets[i].name,
				m.tokenizer.name[0]      ? "text encoder"
					: m.text.name[0] ? "tokenizer"
							 : "encoders");
		if (sets[i].text2_dim && !m.text2.name[0])
			vfm_warn("set '%s' does not name its second text encoder: vfm-pack cannot check that the "
				 "encoders match",
				sets[i].name);
		for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++) {
			const struct vfm_encoder_id *mine = &m.of[e];

			if (!h->encoder_ids.of[e].name[0] && mine->name[0])
				first[e] = i;
			TRY(match_encoder(o, h, forced, e, sets, first[e], i, mine, err));
		}
		vfm_encoder_ids_fill(&h->encoder_ids, &m);
	}
	return 0;
}

static int scan_sets(const struct pack_opts *o, struct vfm_blend_set *sets, int n, struct vfm_plan_header *h,
	json_t **forced, struct vfm_err *err)
{
	int32_t longest = h->context * (h->cp ? h->cp : 1);

	for (int i = 0; i < n; i++)
		TRY(vfm_blend_scan(&sets[i], h->patch, longest, o->held_out, err));
	TRY(check_left_out(o, sets, n, longest, err));
	TRY(same_widths(sets, n, h, err));
	return match_encoders(o, sets, n, h, forced, err);
}

/* Returns the path of a set to store: readers resolve relative paths against the plan's folder.  If that is another
 * than the current one, makes the path absolute.  file: the plan; NULL: stdout. */
static const char *stored_dir(const char *dir, const char *file, struct vfm_arena *mem)
{
	char out[PATH_MAX] = "", full[PATH_MAX];
	bool elsewhere = file && strchr(file, '/');
	struct stat st;

	if (!file && fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode) &&
		readlink("/proc/self/fd/1", out, sizeof(out) - 1) > 0) {
		char *folder = vfm_dir_of(out), cwd[PATH_MAX];

		elsewhere = getcwd(cwd, sizeof(cwd)) && strcmp(folder, cwd) != 0;
		free(folder);
	}
	return dir[0] == '/' || !elsewhere || !realpath(dir, full) ? dir : vfm_arena_strdup(mem, full);
}

/* Copies the weights of a set of a plan whose weights change. */
static void copy_weights(struct vfm_plan_set *to, const struct vfm_blend_set *from, struct vfm_arena *mem)
{
	struct vfm_mix_weights *w = &to->schedule;

	if (from->passes > 0)
		return;
	w->n = from->weights.n ? from->weights.n : 1;
	w->v = vfm_arena_alloc(mem, (size_t)w->n * sizeof(*w->v));
	if (from->weights.n)
		memcpy(w->v, from->weights.v, (size_t)w->n * sizeof(*w->v));
	else
		w->v[0].weight = from->weight;
}

/* Returns an estimate of the tokens of a plan of po->steps steps.  Without packing, a part is a sample. */
static double count_plan_tokens(const struct vfm_blend_set *sets, int n, const struct vfm_packing_opts *po)
{
	double parts = (double)po->steps * po->batch, tokens = 0, *share, per_token = 0;

	if (!po->one_each || po->cp)
		return parts * po->context;
	share = vfm_calloc((size_t)n, sizeof(*share));
	vfm_blend_requested(sets, n, po->steps, INFINITY, share); /* besides the sets with passes */
	for (int i = 0; i < n; i++) {
		if (sets[i].total_tokens > 0)
			per_token += share[i] * (double)sets[i].n / (double)sets[i].total_tokens;
		tokens += sets[i].passes * (double)sets[i].total_tokens;
		parts -= sets[i].passes * (double)sets[i].n;
	}
	free(share);
	return tokens + (parts > 0 && per_token > 0 ? parts / per_token : 0);
}

/* file: where the plan goes; NULL: stdout. */
static void fill_header(struct vfm_plan_header *h, const struct vfm_blend_set *sets, int n,
	const struct vfm_packing_opts *po, const char *file, struct vfm_arena *mem)
{
	double *share = vfm_calloc((size_t)n, sizeof(*share)), tokens = count_plan_tokens(sets, n, po);
	bool changes = false;

	h->n_sets = n;
	h->sets = vfm_arena_alloc(mem, (size_t)n * sizeof(*h->sets));
	vfm_blend_requested(sets, n, po->steps, tokens, share);
	for (int i = 0; i < n; i++)
		changes |= sets[i].weights.n > 0;
	for (int i = 0; i < n; i++) {
		struct vfm_plan_set *s = &h->sets[i];

		s->name = sets[i].name;
		s->dir_given = stored_dir(sets[i].dir, file, mem);
		s->records = sets[i].records;
		s->selected = vfm_blend_selected(&sets[i]);
		s->weight = share[i];
		s->passes = sets[i].passes;
		if (changes)
			copy_weights(s, &sets[i], mem);
		memcpy(s->index_sha256, sets[i].sha256, VFM_SHA256_HEX);
	}
	free(share);
}

/* ---- report ---- */

static void report_sets(const struct vfm_packing *p, const struct vfm_blend_set *sets, const struct vfm_plan_header *h)
{
	int64_t all = 0;

	for (int32_t i = 0; i < h->n_sets; i++)
		all += p->set_tokens[i];
	for (int32_t i = 0; i < h->n_sets; i++) {
		vfm_info("set %s: %lld samples, %.2f passes, %.2f%% of the tokens (asked: %.2f%%)", sets[i].name,
			(long long)p->set_samples[i], (double)p->set_samples[i] / (double)sets[i].n,
			100.0 * (double)p->set_tokens[i] / (double)all, 100 * h->sets[i].weight);
		if (sets[i].is_part)
			vfm_info("set %s: %lld of its %lld samples are selected", sets[i].name,
				(long long)sets[i].selection.total, (long long)sets[i].records);
		if (sets[i].n_long || sets[i].n_ragged)
			vfm_info("set %s: %lld samples left out: %lld too long, %lld not divisible by the patch",
				sets[i].name, (long long)(sets[i].n_long + sets[i].n_ragged), (long long)sets[i].n_long,
				(long long)sets[i].n_ragged);
	}
}

static void report_plan(const struct vfm_packing *p, double seconds)
{
	vfm_info("%lld steps, %lld packs, %lld samples; fill %.2f%%; largest pack of a "
		 "step over the mean: tokens %.3f, cost %.3f; %.2f s",
		(long long)p->steps, (long long)p->n_packs, (long long)p->n_samples, 100 * p->fill, p->imbalance_tokens,
		p->imbalance_cost, seconds);
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
static int write_held_out(const struct vfm_blend_set *sets, int n, const struct vfm_plan_header *train,
	const struct vfm_packing_opts *po, bool bin, const char *path, struct vfm_arena *mem, struct vfm_err *err)
{
	struct vfm_blend_set *held = vfm_calloc((size_t)n + 1, sizeof(*held));
	struct vfm_packing_opts once = *po;
	struct vfm_plan_header h = *train;
	struct vfm_blend *blend = NULL;
	struct vfm_packing plan = {0};
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
	fill_header(&h, held, n, &once, path, mem);
	TRY_OUT(vfm_atomic_open(&file, path, err));
	TRY_OUT(vfm_packing_write(&plan, blend, &once, held, &h, bin ? VFM_PLAN_BIN : VFM_PLAN_JSONL, file.f, err));
	rc = vfm_atomic_commit(&file, err);
out:
	vfm_atomic_abort(&file);
	vfm_packing_release(&plan);
	vfm_blend_free(blend);
	free(held);
	return rc < 0 ? vfm_err_context(err, "'%s'", path) : 0;
}

/* ---- the plan ---- */

static int read_options(struct packing *p, int n_dirs, char **dirs, struct vfm_err *err)
{
	const struct pack_opts *o = p->o;

	if (n_dirs == 1 && !o->blend.n && vfm_yaml_is_name(dirs[0]))
		TRY(o->subset.n ? vfm_fail(err, VFM_EUSAGE, "--subset: not for a metadataset, which has its own key")
				: read_metadataset_sets(p, dirs[0], err));
	else if (o->split)
		return vfm_fail(err, VFM_EUSAGE, "--split: it is for a metadataset");
	else
		TRY(parse_set_args(o, n_dirs, dirs, p->sets, &p->mem, err));
	TRY(parse_plan(o, &p->po, err));
	TRY(check_mix(p, err));
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

/* Reports and, if asked, writes the held-out samples.  Returns the number of samples. */
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
		vfm_warn("--held-out %g holds out none of these samples", p->o->held_out);
	else if (out->held_out)
		TRY(write_held_out(p->sets, p->n, &p->h, &p->po, p->o->bin, out->held_out, &p->mem, err));
	return samples;
}

static int64_t make_plan(struct packing *p, const struct pack_out *out, struct vfm_err *err)
{
	double start = vfm_now();
	struct vfm_packing plan = {0};
	struct vfm_blend *blend = vfm_blend_new(p->sets, p->n, p->po.seed, err);
	int64_t held = 0;
	int rc;

	TRY_OUT(blend ? 0 : err->code);
	held = hold_out(p, out, err);
	TRY_OUT(held < 0 ? (int)held : 0);
	fill_header(&p->h, p->sets, p->n, &p->po, out->path, &p->mem);
	TRY_OUT(vfm_packing_write(
		&plan, blend, &p->po, p->sets, &p->h, p->o->bin ? VFM_PLAN_BIN : VFM_PLAN_JSONL, out->f, err));
	report_sets(&plan, p->sets, &p->h);
	report_plan(&plan, vfm_now() - start);
out:
	vfm_packing_release(&plan);
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
	if (rc == 0 && o->bin && isatty(fileno(out->f)))
		rc = vfm_fail(err, VFM_EUSAGE, "--format bin: not to a terminal");
	if (rc == 0)
		rc = make_plan(&p, out, err);
	packing_release(&p);
	return rc;
}
