/* loader.c - prefetch: a ring of slots; a job of the pool fills each.
 *
 * Pack number `seq` of this rank always uses slot seq % n_slots, so that the order of delivery does not depend on the
 * order in which jobs finish.  Jobs of one step share one parse of its lines (step cache).
 */
#include "data/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "data/caption.h"
#include "data/index.h"
#include "data/patch.h"

struct loaded { /* a sample of a pack, and its text; text.rows 0: none */
	struct vfm_record rec;
	struct vfm_index_text text, extra[VFM_EXTRAS];
	bool unlisted; /* none of its captions has a weight */
};

enum slot_state { SLOT_FREE, SLOT_LOADING, SLOT_READY, SLOT_HELD };

struct slot {
	struct vfm_loader *l;
	enum slot_state state;
	int64_t seq;
	struct vfm_pack p;
	int rc;
	struct vfm_err err;
	struct loaded *sample; /* [cap_sample] */
	size_t cap_sample;
	float *scratch; /* a latent before patchify, or a text before truncation */
	size_t scratch_size;
};

struct cached_step {
	int64_t step; /* -1: none */
	int refs;
	bool ready;
	uint64_t used;
	int rc;
	struct vfm_err err;
	struct vfm_manifest_step s;
};

struct vfm_loader {
	struct vfm_manifest *m;
	const struct vfm_manifest_header *h;
	struct vfm_loader_opts o;
	struct vfm_index **ix; /* [n_sets] */
	struct vfm_name_weights captions;
	int32_t patch_dim, per_step;
	int64_t n_packs, next;
	struct slot *slots;
	int32_t n_slots;
	struct cached_step *cache;
	int32_t n_cache;
	uint64_t clock;
	bool logged_cut, logged_unlisted;
	struct vfm_pool *pool;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct vfm_loader_stats stats;
};

/* ---- the step cache ---- */

/* Returns the entry of a step, or reuses the oldest free one for it.  The caller holds the lock. */
static struct cached_step *cache_entry(struct vfm_loader *l, int64_t step)
{
	struct cached_step *e = NULL, *before = NULL;

	for (int32_t i = 0; i < l->n_cache; i++) {
		struct cached_step *c = &l->cache[i];

		if (c->step == step)
			return c;
		if (c->step == step - 1 && c->ready && c->rc == 0)
			before = c;
		if (c->refs == 0 && (!e || c->used < e->used))
			e = c;
	}
	if (!e)
		abort();             /* unreachable: more entries than threads */
	if (before && before != e) { /* its end is the offset of this step */
		e->s.step = before->s.step;
		e->s.n_packs = before->s.n_packs;
		e->s.next_off = before->s.next_off;
		e->s.serial = before->s.serial;
	}
	e->step = step;
	e->ready = false;
	return e;
}

static struct cached_step *cache_get(struct vfm_loader *l, int64_t step)
{
	struct cached_step *e;
	struct vfm_err why;
	bool mine;

	pthread_mutex_lock(&l->lock);
	e = cache_entry(l, step);
	mine = !e->ready && e->refs == 0;
	e->refs++;
	e->used = ++l->clock;
	if (mine) {
		pthread_mutex_unlock(&l->lock);
		e->rc = vfm_manifest_step(l->m, step, &e->s, &e->err);
		if (vfm_manifest_check(l->m, l->o.plan_sha256, &why) < 0) { /* an error of the step follows from it */
			e->err = why;
			e->rc = why.code;
		}
		pthread_mutex_lock(&l->lock);
		e->ready = true;
		pthread_cond_broadcast(&l->changed);
	}
	while (!e->ready)
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return e;
}

static void cache_put(struct vfm_loader *l, struct cached_step *e)
{
	pthread_mutex_lock(&l->lock);
	e->refs--;
	pthread_mutex_unlock(&l->lock);
}

/* ---- contents of a pack ---- */

static int check_record(const struct vfm_loader *l, const struct vfm_manifest_sample *s, const struct vfm_record *r,
	struct vfm_err *err)
{
	int32_t dims[3] = {r->t, r->h, r->w}, grid[3];
	int64_t tokens = vfm_patch_grid(dims, l->h->patch, grid, err);

	TRY(tokens);
	if (tokens != s->tokens)
		return vfm_fail(
			err, VFM_EUSAGE, "the manifest says %d tokens, the index %lld", s->tokens, (long long)tokens);
	if (grid[0] > INT16_MAX || grid[1] > INT16_MAX || grid[2] > INT16_MAX)
		return vfm_fail(err, VFM_EINPUT, "a latent of %dx%dx%d is too large", dims[0], dims[1], dims[2]);
	if (r->c != l->h->latent_channels)
		return vfm_fail(
			err, VFM_EUSAGE, "%d latent channels, the manifest says %d", r->c, l->h->latent_channels);
	if (r->n_texts && r->text_dim != l->h->text_dim)
		return vfm_fail(
			err, VFM_EUSAGE, "texts of width %d, the manifest says %d", r->text_dim, l->h->text_dim);
	return 0;
}

static bool is_delivered(const struct vfm_loader *l, int e)
{
	return e == VFM_EXTRA_COND ? l->o.cond : l->o.image;
}

/* Looks up the extra arrays that are delivered. */
static int look_up_extras(struct vfm_loader *l, struct vfm_index *ix, struct loaded *s, struct vfm_err *err)
{
	const struct vfm_index_text *cond = &s->extra[VFM_EXTRA_COND], *image = &s->extra[VFM_EXTRA_IMAGE];

	for (int e = 0; e < VFM_EXTRAS; e++)
		if (is_delivered(l, e))
			TRY(vfm_index_extra(ix, &s->rec, (enum vfm_extra)e, &s->extra[e], err));
	if (l->o.cond && cond->rows != l->h->cond_channels)
		return vfm_fail(err, VFM_EUSAGE, "a condition of %d channels, the manifest says %d", cond->rows,
			l->h->cond_channels);
	if (l->o.image && (image->rows != l->h->image_len || image->width != l->h->image_dim))
		return vfm_fail(err, VFM_EUSAGE, "image rows [%d, %d], the manifest says [%d, %d]", image->rows,
			image->width, l->h->image_len, l->h->image_dim);
	return 0;
}

static int sample_context(const struct vfm_loader *l, const struct vfm_manifest_sample *s, struct vfm_err *err)
{
	return vfm_err_context(
		err, "set '%s', shard %d, index %lld", l->h->sets[s->set].name, s->shard, (long long)s->index);
}

static bool is_cut(const struct vfm_loader *l, const struct loaded *s)
{
	return l->o.text_len > 0 && s->text.rows > l->o.text_len;
}

static int32_t kept_text_rows(const struct vfm_loader *l, const struct loaded *s)
{
	return is_cut(l, s) ? l->o.text_len : s->text.rows;
}

static void log_cut(struct vfm_loader *l, const struct loaded *s)
{
	bool first;

	pthread_mutex_lock(&l->lock);
	first = !l->logged_cut;
	l->logged_cut = true;
	pthread_mutex_unlock(&l->lock);
	if (first)
		vfm_info("sample %llu has %d text rows; of each sample the first %d are read (model.text_len)",
			(unsigned long long)s->rec.id, s->text.rows, l->o.text_len);
}

static void log_unlisted(struct vfm_loader *l, const struct loaded *s)
{
	bool first;

	pthread_mutex_lock(&l->lock);
	first = !l->logged_unlisted;
	l->logged_unlisted = true;
	pthread_mutex_unlock(&l->lock);
	if (first)
		vfm_info("sample %llu has no caption with a weight (data.captions): of such samples, all captions are "
			 "equally likely",
			(unsigned long long)s->rec.id);
}

/* Chooses the text of a sample in a step. */
static int choose_text(struct vfm_loader *l, struct vfm_index *ix, int64_t step, struct loaded *s, struct vfm_err *err)
{
	struct vfm_index_text texts[VFM_TEXTS_MAX];
	const char *names[VFM_TEXTS_MAX];
	const int n = (int)s->rec.n_texts;

	s->text = (struct vfm_index_text){0};
	s->unlisted = false;
	if (n == 0)
		return 0;
	for (int i = 0; i < n; i++) {
		TRY(vfm_index_text(ix, &s->rec, (uint32_t)i, &texts[i], err));
		names[i] = vfm_index_name(ix, texts[i].name);
	}
	s->text = texts[vfm_caption_choose(&l->captions, n, names, l->o.seed, (uint64_t)step, s->rec.id, &s->unlisted)];
	if (s->unlisted)
		log_unlisted(l, s);
	return 0;
}

/* Looks up the record of a sample and its text in a step. */
static int look_up_sample(struct vfm_loader *l, const struct vfm_manifest_sample *s, int64_t step, struct loaded *out,
	struct vfm_err *err)
{
	struct vfm_index *ix = l->ix[s->set];

	if (s->index > UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "not in the index");
	TRY(vfm_index_get(ix, (uint32_t)s->shard, (uint32_t)s->index, &out->rec, err));
	TRY(check_record(l, s, &out->rec, err));
	TRY(look_up_extras(l, ix, out, err));
	return choose_text(l, ix, step, out, err);
}

/* Looks the samples up; counts tokens, text rows and the elements of the largest array that passes through scratch.
 * Latents stay bf16 if all of them are. */
static int look_up(
	struct vfm_loader *l, struct slot *sl, const struct vfm_manifest_pack *m, size_t *scratch, struct vfm_err *err)
{
	struct vfm_pack *p = &sl->p;

	vfm_grow(&sl->sample, &sl->cap_sample, (size_t)m->n_samples, sizeof(*sl->sample));
	p->tokens = m->tokens;
	p->text_tokens = 0;
	p->n = m->n_samples;
	p->x0_dtype = m->n_samples ? VFM_BF16 : VFM_F32;
	*scratch = 0;
	for (int32_t i = 0; i < m->n_samples; i++) {
		const struct vfm_manifest_sample *s = &m->samples[i];
		struct loaded *in = &sl->sample[i];
		struct vfm_err change = {0};
		int rc = look_up_sample(l, s, p->step, in, err);

		/* A change of the index is the cause of any other fault. */
		if (vfm_index_check(l->ix[s->set], l->o.skip_hash ? NULL : l->h->sets[s->set].index_sha256, &change) <
			0) {
			rc = change.code;
			*err = change;
		}
		if (rc < 0)
			return sample_context(l, s, err);
		p->text_tokens += kept_text_rows(l, in);
		if (in->rec.latent_dtype != VFM_NPY_BF16)
			p->x0_dtype = VFM_F32;
		if (vfm_record_latent_count(&in->rec) > *scratch)
			*scratch = vfm_record_latent_count(&in->rec);
		if (l->o.cond && in->extra[VFM_EXTRA_COND].dtype != VFM_NPY_BF16)
			p->x0_dtype = VFM_F32;
		if (l->o.cond && vfm_extra_count(&in->rec, VFM_EXTRA_COND, &in->extra[VFM_EXTRA_COND]) > *scratch)
			*scratch = vfm_extra_count(&in->rec, VFM_EXTRA_COND, &in->extra[VFM_EXTRA_COND]);
		if (is_cut(l, in) && (size_t)in->text.rows * in->rec.text_dim > *scratch)
			*scratch = (size_t)in->text.rows * in->rec.text_dim;
	}
	if (p->text_tokens > INT32_MAX)
		return vfm_fail(err, VFM_EINPUT, "more than 2^31 text tokens");
	return 0;
}

static int ensure(void **p, size_t *have, size_t want, const char *what, struct vfm_err *err)
{
	if (*have >= want)
		return 0;
	vfm_big_free(*p, *have);
	*have = 0;
	*p = vfm_big_alloc(want, what, err);
	if (!*p)
		return VFM_EENV;
	*have = want;
	return 0;
}

/* Reads a text and truncates it.  The checksum covers all rows, so that a truncated text is read in full first. */
static int load_text(struct vfm_loader *l, struct slot *sl, struct vfm_index *ix, const struct loaded *s, float *rows,
	struct vfm_err *err)
{
	if (!s->text.rows)
		return 0;
	if (!is_cut(l, s))
		return vfm_index_read_text_f32(ix, &s->rec, &s->text, rows, err);
	log_cut(l, s);
	TRY(vfm_index_read_text_f32(ix, &s->rec, &s->text, sl->scratch, err));
	memcpy(rows, sl->scratch, (size_t)l->o.text_len * s->rec.text_dim * sizeof(float));
	return 0;
}

/* Reads the extra arrays of sample i. */
static int load_extras(struct vfm_loader *l, struct slot *sl, struct vfm_index *ix, int32_t i, struct vfm_err *err)
{
	struct vfm_pack *p = &sl->p;
	const struct loaded *s = &sl->sample[i];
	const struct vfm_index_text *cond = &s->extra[VFM_EXTRA_COND];
	const size_t size = vfm_dtype_size(p->x0_dtype);
	const int32_t dims[3] = {s->rec.t, s->rec.h, s->rec.w};

	if (p->image)
		TRY(vfm_index_read_extra_f32(ix, &s->rec, VFM_EXTRA_IMAGE, &s->extra[VFM_EXTRA_IMAGE],
			p->image + (int64_t)i * p->image_len * p->image_dim, err));
	if (!p->cond)
		return 0;
	if (p->x0_dtype == VFM_F32)
		TRY(vfm_index_read_extra_f32(ix, &s->rec, VFM_EXTRA_COND, cond, sl->scratch, err));
	else
		TRY(vfm_index_read_extra(ix, &s->rec, VFM_EXTRA_COND, cond, sl->scratch, err));
	vfm_patchify(sl->scratch, size, cond->rows, dims, l->h->patch,
		(char *)p->cond + (size_t)p->cu_seqlens[i] * (size_t)p->cond_dim * size);
	return 0;
}

static int fill_sample(struct vfm_loader *l, struct slot *sl, struct vfm_index *ix, int32_t i, struct vfm_err *err)
{
	struct vfm_pack *p = &sl->p;
	const struct loaded *s = &sl->sample[i];
	const struct vfm_record *r = &s->rec;
	const size_t size = vfm_dtype_size(p->x0_dtype);
	int32_t dims[3] = {r->t, r->h, r->w}, grid[3];

	TRY(vfm_patch_grid(dims, l->h->patch, grid, err));
	vfm_pack_set(p, i, r->id, grid, kept_text_rows(l, s));
	if (p->x0_dtype == VFM_F32)
		TRY(vfm_index_read_latent_f32(ix, r, sl->scratch, err));
	else
		TRY(vfm_index_read_latent(ix, r, sl->scratch, err));
	vfm_patchify(sl->scratch, size, r->c, dims, l->h->patch,
		(char *)p->x0 + (size_t)p->cu_seqlens[i] * (size_t)p->patch_dim * size);
	TRY(load_extras(l, sl, ix, i, err));
	return load_text(l, sl, ix, s, p->text + (int64_t)p->cu_text[i] * p->text_dim, err);
}

static int fill_slot(struct vfm_loader *l, struct slot *sl, const struct vfm_manifest_pack *m, struct vfm_err *err)
{
	size_t scratch;

	TRY(look_up(l, sl, m, &scratch, err));
	TRY(vfm_pack_alloc(&sl->p, err));
	TRY(ensure((void **)&sl->scratch, &sl->scratch_size, scratch * sizeof(float), "a latent", err));
	for (int32_t i = 0; i < m->n_samples; i++)
		if (fill_sample(l, sl, l->ix[m->samples[i].set], i, err) < 0)
			return sample_context(l, &m->samples[i], err);
	return 0;
}

static void load_job(void *arg)
{
	struct slot *sl = arg;
	struct vfm_loader *l = sl->l;
	bool by_step = l->o.by_step;
	int64_t step = by_step ? (l->o.rank + sl->seq / l->per_step * l->o.world) % l->h->steps
			       : l->o.first_step + sl->seq / l->per_step;
	int64_t pack = by_step ? sl->seq % l->per_step : l->o.rank + sl->seq % l->per_step * l->o.world;
	struct cached_step *e = cache_get(l, step);

	if (e->rc < 0) {
		sl->rc = e->rc;
		sl->err = e->err;
	} else {
		sl->p.step = step;
		sl->p.index = pack;
		sl->p.step_tokens = e->s.tokens;
		sl->rc = fill_slot(l, sl, &e->s.packs[pack], &sl->err);
		if (sl->rc < 0)
			vfm_err_context(&sl->err, "step %lld, pack %lld", (long long)step, (long long)pack);
	}
	cache_put(l, e);
	pthread_mutex_lock(&l->lock);
	sl->state = SLOT_READY;
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
}

static void schedule(struct vfm_loader *l, int64_t seq)
{
	struct slot *sl = &l->slots[seq % l->n_slots];

	sl->seq = seq;
	sl->state = SLOT_FREE;
	if (seq >= l->n_packs)
		return;
	sl->state = SLOT_LOADING;
	vfm_pool_push(l->pool, load_job, sl); /* the queue holds all slots: never blocks */
}

/* ---- open, next, release ---- */

/* A manifest that is silent about a maker would match every other set, and the run would not know its encoders. */
static int check_named_encoders(
	struct vfm_makers *makers, const char *index, struct vfm_makers *want, struct vfm_err *err)
{
	for (enum vfm_encoder e = 0; e < VFM_ENCODERS; e++) {
		char label[VFM_MAKER_LABEL];

		if (!vfm_makers_of(makers, e)->name[0] || vfm_makers_of(want, e)->name[0])
			continue;
		vfm_maker_label(vfm_makers_of(makers, e), label);
		return vfm_fail(err, VFM_EUSAGE, "%s has %s '%s', the manifest names none (encoders): pack again",
			index, vfm_encoder_name(e), label);
	}
	return 0;
}

static int open_set(struct vfm_loader *l, int32_t i, struct vfm_err *err)
{
	const struct vfm_manifest_set *s = &l->h->sets[i];
	struct vfm_makers makers, want = s->forced;
	char sha[VFM_SHA256_HEX], *index;
	int rc;

	TRY(vfm_index_open(&l->ix[i], s->dir, err));
	vfm_index_expect_random(l->ix[i]);
	makers = vfm_index_makers(l->ix[i]);
	vfm_makers_fill(&want, &l->h->makers);
	index = vfm_strfmt("'%s/" VFM_INDEX_NAME "'", s->dir);
	rc = vfm_makers_check(&makers, index, &want, "the manifest", err);
	if (rc == 0)
		rc = check_named_encoders(&makers, index, &want, err);
	free(index);
	TRY(rc);
	if ((int64_t)vfm_index_n_records(l->ix[i]) != s->records)
		return vfm_fail(err, VFM_EUSAGE,
			"the index has %llu records, the manifest was made for %lld: pack again",
			(unsigned long long)vfm_index_n_records(l->ix[i]), (long long)s->records);
	if (!l->o.skip_hash) {
		TRY(vfm_index_sha256(l->ix[i], sha, err));
		if (strcmp(sha, s->index_sha256))
			return vfm_fail(
				err, VFM_EUSAGE, "the index has changed since the manifest was made: pack again");
	}
	return 0;
}

static bool has_caption(const struct vfm_loader *l, const char *name)
{
	for (int32_t s = 0; s < l->h->n_sets; s++)
		for (uint32_t i = 0; i < vfm_index_n_names(l->ix[s]); i++)
			if (strcmp(vfm_index_name(l->ix[s], i), name) == 0)
				return true;
	return false;
}

static int check_captions(const struct vfm_loader *l, struct vfm_err *err)
{
	for (int i = 0; i < l->captions.n; i++)
		if (!has_caption(l, l->captions.list[i].name))
			return vfm_fail(err, VFM_EUSAGE, "data.captions: no set of manifest '%s' has the caption '%s'",
				vfm_manifest_path(l->m), l->captions.list[i].name);
	return 0;
}

static int check_opts(struct vfm_loader *l, struct vfm_err *err)
{
	struct vfm_loader_opts *o = &l->o;

	o->world = o->world ? o->world : 1;
	o->prefetch = o->prefetch ? o->prefetch : 4;
	o->threads = o->threads ? o->threads : 2;
	if (o->world < 1 || o->rank < 0 || o->rank >= o->world)
		return vfm_fail(err, VFM_EUSAGE, "rank %d of %d", o->rank, o->world);
	if (o->prefetch < 1 || o->prefetch > 4096 || o->threads < 1 || o->threads > 1024)
		return vfm_fail(err, VFM_EUSAGE, "prefetch must be 1 to 4096 and threads 1 to 1024");
	if (o->cond && !l->h->cond_channels)
		return vfm_fail(
			err, VFM_EUSAGE, "the samples of manifest '%s' have no condition", vfm_manifest_path(l->m));
	if (o->image && !l->h->image_len)
		return vfm_fail(
			err, VFM_EUSAGE, "the samples of manifest '%s' have no image rows", vfm_manifest_path(l->m));
	if (o->first_step < 0 || o->first_step > l->h->steps)
		return vfm_fail(err, VFM_EUSAGE, "step %lld: manifest '%s' has %lld", (long long)o->first_step,
			vfm_manifest_path(l->m), (long long)l->h->steps);
	return 0;
}

struct vfm_loader *vfm_loader_open(struct vfm_manifest *m, const struct vfm_loader_opts *opts, struct vfm_err *err)
{
	struct vfm_loader *l = vfm_calloc(1, sizeof(*l));
	const int32_t *patch;

	*l = (struct vfm_loader){.m = m, .h = vfm_manifest_header(m), .o = *opts};
	if (opts->captions)
		l->captions = *opts->captions;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->changed, NULL);
	if (check_opts(l, err) < 0)
		goto fail;
	l->ix = vfm_calloc((size_t)l->h->n_sets, sizeof(*l->ix));
	for (int32_t i = 0; i < l->h->n_sets; i++)
		if (open_set(l, i, err) < 0) {
			vfm_err_context(err, "manifest '%s', set '%s'", vfm_manifest_path(m), l->h->sets[i].name);
			goto fail;
		}
	if (check_captions(l, err) < 0)
		goto fail;
	patch = l->h->patch;
	l->patch_dim = l->h->latent_channels * patch[0] * patch[1] * patch[2];
	if (l->o.by_step)
		l->per_step = l->h->batch;
	else if (l->o.rank < l->h->batch)
		l->per_step = (l->h->batch - l->o.rank + l->o.world - 1) / l->o.world;
	l->n_packs = (l->h->steps - l->o.first_step) * l->per_step;
	if (l->o.by_step)
		l->n_packs = (l->h->steps + l->o.world - 1) / l->o.world * l->per_step;
	l->n_slots = l->o.prefetch + 1;
	l->slots = vfm_calloc((size_t)l->n_slots, sizeof(*l->slots));
	l->n_cache = l->o.threads + 1;
	l->cache = vfm_calloc((size_t)l->n_cache, sizeof(*l->cache));
	for (int32_t i = 0; i < l->n_cache; i++)
		l->cache[i].step = -1;
	l->pool = vfm_pool_new(l->o.threads, l->n_slots);
	for (int32_t i = 0; i < l->n_slots; i++) {
		l->slots[i].l = l;
		l->slots[i].p.patch_dim = l->patch_dim;
		l->slots[i].p.text_dim = l->h->text_dim;
		if (l->o.cond)
			l->slots[i].p.cond_dim = l->h->cond_channels * patch[0] * patch[1] * patch[2];
		if (l->o.image) {
			l->slots[i].p.image_len = l->h->image_len;
			l->slots[i].p.image_dim = l->h->image_dim;
		}
		schedule(l, i);
	}
	return l;
fail:
	vfm_loader_close(l);
	return NULL;
}

void vfm_loader_close(struct vfm_loader *l)
{
	if (!l)
		return;
	vfm_pool_free(l->pool);
	for (int32_t i = 0; l->slots && i < l->n_slots; i++) {
		vfm_pack_release(&l->slots[i].p);
		vfm_big_free(l->slots[i].scratch, l->slots[i].scratch_size);
		free(l->slots[i].sample);
	}
	for (int32_t i = 0; l->cache && i < l->n_cache; i++)
		vfm_manifest_step_release(&l->cache[i].s);
	for (int32_t i = 0; l->ix && i < l->h->n_sets; i++)
		vfm_index_close(l->ix[i]);
	free(l->slots);
	free(l->cache);
	free(l->ix);
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->changed);
	free(l);
}

int vfm_loader_next(struct vfm_loader *l, struct vfm_pack **out, struct vfm_err *err)
{
	struct slot *sl = &l->slots[l->next % l->n_slots];
	double start = vfm_now();

	if (l->next >= l->n_packs)
		return 0;
	pthread_mutex_lock(&l->lock);
	while (sl->state == SLOT_LOADING)
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
	if (sl->state == SLOT_HELD)
		return vfm_fail(err, VFM_EUSAGE, "loader: all %d packs are held", l->n_slots);
	l->stats.last_wait_s = vfm_now() - start;
	l->stats.wait_s += l->stats.last_wait_s;
	if (sl->rc < 0) {
		if (err)
			*err = sl->err;
		return sl->rc;
	}
	sl->state = SLOT_HELD;
	l->next++;
	l->stats.packs++;
	l->stats.samples += sl->p.n;
	l->stats.tokens += sl->p.tokens;
	for (int i = 0; i < sl->p.n; i++)
		l->stats.unlisted += sl->sample[i].unlisted;
	l->stats.bytes += sl->p.tokens * (sl->p.patch_dim + sl->p.cond_dim) * (int64_t)vfm_dtype_size(sl->p.x0_dtype) +
		(sl->p.text_tokens * sl->p.text_dim + (int64_t)sl->p.n * sl->p.image_len * sl->p.image_dim) *
			(int64_t)sizeof(float);
	*out = &sl->p;
	return 1;
}

void vfm_loader_release(struct vfm_loader *l, struct vfm_pack *p)
{
	struct slot *sl = (struct slot *)((char *)p - offsetof(struct slot, p));

	if (sl->state == SLOT_HELD)
		schedule(l, sl->seq + l->n_slots);
}

int32_t vfm_loader_packs_per_step(const struct vfm_loader *l)
{
	return l->per_step;
}

struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l)
{
	return l->stats;
}
