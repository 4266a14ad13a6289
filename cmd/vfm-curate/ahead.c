/* ahead.c - reads the command lines of later stages, and turns the results of a pass into results for them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ahead.h"
#include "base/mem.h"
#include "data/record/sample_key.h"
#include "data/record/stage_link.h"
#include "io/hash.h"
#include "io/host_memory.h"

#define MOST_KEPT  ((double)((size_t)1 << 31)) /* kept frames of one video */
#define LEAST_KEPT ((double)((size_t)64 << 20))
#define MOST_JSON  ((size_t)4 << 20) /* of the results in a record; a line may have 16 MiB (io/json.h) */

/* ---- later stages ---- */

static bool has_option(const struct vfm_later_stage *s, const char *name)
{
	for (int i = 1; i < s->argc; i++)
		if (!strncmp(s->argv[i], name, strlen(name)))
			return true;
	return false;
}

/* Adds a stage.  Returns whether later ones may follow: it changes neither the source nor the range of a clip. */
static bool add_later(struct curate_ahead *a, const struct vfm_later_stage *s, bool is_next)
{
	static const char *const neutral[] = {"filter", "bucket", "caption", "embed", "dedup", NULL};
	const char *name = s->argv[0];

	if (has_option(s, "--done")) /* it copies its results */
		return strcmp(name, "split") != 0 && strcmp(name, "clip") != 0;
	for (int i = 0; neutral[i]; i++)
		if (!strcmp(name, neutral[i]))
			return true;
	if (!strcmp(name, "score"))
		a->score |= curate_score_is_plain(s->argc, s->argv);
	else if (!strcmp(name, "hash"))
		a->hash |= curate_hash_is_plain(s->argc, s->argv);
	else if (!strcmp(name, "clip") && is_next && (vfm_stage_link() || !has_option(s, "--part")) &&
		curate_clip_opts(s->argc, s->argv, &a->cut, &a->dir))
		a->clip = true;
	else
		return false;
	return true;
}

/* The first number is that of the run, so that clip finds all files of a run that was continued.  The second one is that
 * of this process, whose files must not replace those that wait for clip. */
static void choose_file_names(struct curate_ahead *a)
{
	const struct vfm_stage_link *link = vfm_stage_link();
	char own[17], run[VFM_SHA256_HEX];
	uint64_t random = 0;

	a->clip = getrandom(&random, sizeof(random), 0) == sizeof(random);
	snprintf(own, sizeof(own), "%016llx", (unsigned long long)random);
	if (link)
		vfm_sha256_of(link->out_path, strlen(link->out_path), run);
	a->prefix = vfm_strfmt(".ahead-%.16s-%s-", link ? run : own, own);
}

static void find_later(struct curate_ahead *a)
{
	bool is_source = !strcmp(a->self, "probe"), may_cut = is_source || !strcmp(a->self, "split");
	int first = is_source;

	vfm_later_stages_find(&a->later);
	if (is_source) {
		const struct vfm_later_stage *split = a->later.n ? &a->later.stage[0] : NULL;

		a->split = split && !strcmp(split->argv[0], "split") && !has_option(split, "--done") &&
			(vfm_stage_link() || !has_option(split, "--part")) &&
			curate_split_opts(split->argc, split->argv, &a->shots);
		if (!a->split)
			return;
	}
	/* A clip directly after its split takes all records that split does not drop. */
	for (int i = first; i < a->later.n; i++)
		if (!add_later(a, &a->later.stage[i], i == first && may_cut))
			break;
	if (a->clip)
		choose_file_names(a);
}

bool curate_ahead_is_wanted(struct curate_ahead *a)
{
	bool wanted;

	pthread_mutex_lock(&a->lock);
	if (!a->is_found)
		find_later(a);
	a->is_found = true;
	wanted = a->split || a->clip || a->score || a->hash;
	pthread_mutex_unlock(&a->lock);
	return wanted;
}

void curate_ahead_release(struct curate_ahead *a)
{
	vfm_later_stages_release(&a->later);
	vfm_sample_set_release(&a->ids);
	free(a->prefix);
}

/* Returns whether a source is new, so that clip takes the files of its clips. */
static bool is_new_source(struct curate_ahead *a, const char *id)
{
	struct vfm_sample_seen s = {0}, first;
	struct vfm_err err;
	bool is_new;

	if (!id)
		return false;
	vfm_sample_hash(id, s.hash);
	pthread_mutex_lock(&a->lock);
	is_new = vfm_sample_set_add(&a->ids, &s, &first, &err) == 0;
	pthread_mutex_unlock(&a->lock);
	return is_new;
}

void curate_ahead_pass_opts(struct curate_ahead *a, const char *id, struct vfm_pass_opts *o)
{
	double bytes = vfm_host_memory() / 4 / (a->jobs > 1 ? a->jobs : 1);

	o->video.deinterlace = VFM_DEINTERLACE_OFF;
	o->video.draft = false;
	if (a->split)
		o->shots = a->shots;
	o->score = a->score;
	o->hash = a->hash;
	o->kept_bytes = (size_t)fmax(LEAST_KEPT, fmin(MOST_KEPT, bytes));
	if (!a->clip)
		return;
	o->cut = &a->cut;
	o->dir = a->dir;
	o->prefix = a->prefix;
	if (!is_new_source(a, id)) { /* the results would be those of files that do not exist */
		o->cut = NULL;
		o->score = o->hash = false;
	}
}

/* ---- results ---- */

static void put_results(json_t *rec, struct vfm_pass_clip *c)
{
	if (c->file)
		vfm_ahead_put(rec, "clip", curate_cut_json(c->file, &c->cut));
	if (c->score)
		vfm_ahead_put(rec, "score", curate_score_json(c->score));
	if (c->hash)
		vfm_ahead_put(rec, "hash", curate_hash_json(c->hash));
	free(c->file);
	c->file = NULL; /* clip renames it */
}

json_t *curate_ahead_spans(struct vfm_pass *p, double min_s)
{
	json_t *spans = json_array();
	size_t bytes = 0;
	int k = 0;

	for (int64_t i = 0; i < p->shots.n; i++) {
		json_t *keys = curate_span_keys(&p->shots, i, min_s);

		while (k < p->n_clips && p->clips[k].start < p->shots.spans[i].start)
			k++;
		if (k < p->n_clips && p->clips[k].start == p->shots.spans[i].start && bytes < MOST_JSON) {
			put_results(keys, &p->clips[k]);
			bytes += json_dumpb(json_object_get(keys, VFM_AHEAD_KEY), NULL, 0, JSON_COMPACT);
		}
		json_array_append_new(spans, keys);
	}
	return spans;
}

void curate_ahead_put_image(json_t *rec, const struct vfm_pass *p)
{
	if (p->n_clips)
		put_results(rec, &p->clips[0]);
}

int curate_ahead_analyze(struct curate_ahead *a, json_t *rec, const char *src, const struct vfm_score_opts *o,
	struct vfm_score *score, struct vfm_err *err)
{
	struct vfm_clip_hash *h = a->hash ? vfm_malloc(sizeof(*h)) : NULL;
	struct vfm_score mine;
	bool hashed = false;
	int rc;

	if (!score && a->score)
		score = &mine;
	rc = vfm_pass_clip_of(src, o, score, h, &hashed, err);
	if (rc == 0 && score == &mine)
		vfm_ahead_put(rec, "score", curate_score_json(score));
	if (rc == 0 && hashed)
		vfm_ahead_put(rec, "hash", curate_hash_json(h));
	free(h);
	return rc;
}
