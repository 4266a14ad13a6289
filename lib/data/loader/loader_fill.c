/* loader_fill.c - reads a pack: looks its samples up, replaces damaged ones, reads and arranges their arrays. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/loader/loader_impl.h"
#include "data/record/caption.h"
#include "spec/layout/patch.h"
#include "spec/model/dtype.h"

static int check_record(const struct vfm_loader *l, const struct vfm_plan_sample *s, const struct vfm_index_record *r,
	struct vfm_err *err)
{
	int32_t dims[3] = {r->t, r->h, r->w}, grid[3];
	int64_t tokens = vfm_patch_grid(dims, l->h->patch, grid, err);

	TRY(tokens);
	if (tokens != s->tokens)
		return vfm_fail(
			err, VFM_EUSAGE, "the plan says %d tokens, the index %lld", s->tokens, (long long)tokens);
	if (grid[0] > INT16_MAX || grid[1] > INT16_MAX || grid[2] > INT16_MAX)
		return vfm_fail(err, VFM_EINPUT, "a latent of %dx%dx%d is too large", dims[0], dims[1], dims[2]);
	if (r->c != l->h->latent_channels)
		return vfm_fail(err, VFM_EUSAGE, "%d latent channels, the plan says %d", r->c, l->h->latent_channels);
	if (r->n_texts && r->text_dim != l->h->text_dim)
		return vfm_fail(err, VFM_EUSAGE, "texts of width %d, the plan says %d", r->text_dim, l->h->text_dim);
	return 0;
}

static bool is_delivered(const struct vfm_loader *l, int e)
{
	const bool delivered[VFM_EXTRAS] = {
		[VFM_EXTRA_COND] = l->o.cond, [VFM_EXTRA_IMAGE] = l->o.image, [VFM_EXTRA_TEXT2] = l->o.text2_dim > 0};

	return delivered[e];
}

/* Looks up the extra arrays that are delivered. */
static int look_up_extras(struct vfm_loader *l, struct vfm_index *ix, struct vfm_loaded *s, struct vfm_err *err)
{
	const struct vfm_index_text *cond = &s->extra[VFM_EXTRA_COND], *image = &s->extra[VFM_EXTRA_IMAGE];

	const struct vfm_index_text *text2 = &s->extra[VFM_EXTRA_TEXT2];

	memset(s->extra, 0, sizeof(s->extra));
	for (int e = 0; e < VFM_EXTRAS; e++)
		if (is_delivered(l, e) && (e != VFM_EXTRA_TEXT2 || vfm_record_has_extra(&s->rec, VFM_EXTRA_TEXT2)))
			TRY(vfm_index_extra(ix, &s->rec, (enum vfm_extra)e, &s->extra[e], err));
	if (l->o.cond && cond->rows != l->h->cond_channels)
		return vfm_fail(err, VFM_EUSAGE, "a condition of %d channels, the plan says %d", cond->rows,
			l->h->cond_channels);
	if (l->o.image && (image->rows != l->h->image_len || image->width != l->h->image_dim))
		return vfm_fail(err, VFM_EUSAGE, "image rows [%d, %d], the plan says [%d, %d]", image->rows,
			image->width, l->h->image_len, l->h->image_dim);
	if (text2->rows && text2->width != l->h->text2_dim)
		return vfm_fail(
			err, VFM_EUSAGE, "a second text of width %d, the plan says %d", text2->width, l->h->text2_dim);
	return 0;
}

static int sample_context(const struct vfm_loader *l, const struct vfm_plan_sample *s, struct vfm_err *err)
{
	return vfm_err_context(
		err, "set '%s', shard %d, index %lld", l->h->sets[s->set].name, s->shard, (long long)s->index);
}

static bool is_cut(const struct vfm_loader *l, const struct vfm_loaded *s)
{
	return l->o.text_len > 0 && s->text.rows > l->o.text_len;
}

static int32_t kept_text_rows(const struct vfm_loader *l, const struct vfm_loaded *s)
{
	return is_cut(l, s) ? l->o.text_len : s->text.rows;
}

/* Returns how many rows of the second text are delivered. */
static int32_t kept_text2_rows(const struct vfm_loader *l, const struct vfm_loaded *s)
{
	const int32_t rows = s->extra[VFM_EXTRA_TEXT2].rows, most = l->o.text2_len;

	return most > 0 && rows > most ? most : rows;
}

/* Sets a flag of the loader; returns whether it was not set. */
static bool is_first_time(struct vfm_loader *l, bool *logged)
{
	bool first;

	pthread_mutex_lock(&l->lock);
	first = !*logged;
	*logged = true;
	pthread_mutex_unlock(&l->lock);
	return first;
}

/* Chooses the text of a sample in a step. */
static int choose_text(
	struct vfm_loader *l, struct vfm_index *ix, int64_t step, struct vfm_loaded *s, struct vfm_err *err)
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
		names[i] = vfm_index_info(ix)->names[texts[i].name];
	}
	s->text = texts[vfm_caption_choose(&l->captions, n, names, l->o.seed, (uint64_t)step, s->rec.id, &s->unlisted)];
	if (s->unlisted && is_first_time(l, &l->logged_unlisted))
		vfm_info("sample %llu has no caption with a weight (data.captions): of such samples, all captions are "
			 "equally likely",
			(unsigned long long)s->rec.id);
	return 0;
}

/* A change of the index is the cause of any other fault. */
static int check_index(struct vfm_loader *l, int32_t set, int rc, struct vfm_err *err)
{
	struct vfm_err change = {0};

	if (vfm_index_check(l->ix[set], &change) < 0) {
		rc = change.code;
		*err = change;
	}
	return rc;
}

/* Looks up the record of sample s->from and its text in a step. */
static int look_up_sample(struct vfm_loader *l, int64_t step, struct vfm_loaded *s, struct vfm_err *err)
{
	const struct vfm_plan_sample *from = &s->from;
	struct vfm_index *ix = l->ix[from->set];

	if (from->index > UINT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "not in the index");
	TRY(vfm_index_get(ix, (uint32_t)from->shard, (uint32_t)from->index, &s->rec, err));
	TRY(check_record(l, from, &s->rec, err));
	TRY(look_up_extras(l, ix, s, err));
	return choose_text(l, ix, step, s, err);
}

/* ---- damaged samples ---- */

static int64_t count_samples(const struct vfm_plan_step *s)
{
	int64_t n = 0;

	for (int32_t p = 0; p < s->n_packs; p++)
		n += s->packs[p].n_samples;
	return n;
}

/* The samples of a step are one array in the order of its packs. */
static const struct vfm_plan_sample *step_samples(const struct vfm_plan_step *s)
{
	return s->packs[0].samples;
}

/* Returns another sample with as many tokens as the damaged one, which is at position `at` of its step; NULL with err.
 * Skips the s->tried samples of earlier calls.  Searches, in this order:
 *   1. the following slots of the pack
 *   2. the following packs of the step, then the earlier ones
 *   3. the steps after it
 * The choice depends only on the plan and the damaged samples. */
static const struct vfm_plan_sample *find_other(struct vfm_loader *l, struct vfm_load_slot *sl,
	const struct vfm_plan_step *own, int64_t at, struct vfm_loaded *s, const struct vfm_err *why,
	struct vfm_err *err)
{
	const struct vfm_plan_sample damaged = step_samples(own)[at];
	int64_t before = 0; /* candidates of the steps before `step` */
	int64_t steps = l->h->steps < VFM_LOADER_STEPS_SEARCHED ? l->h->steps : VFM_LOADER_STEPS_SEARCHED;

	for (int64_t k = 0; k < steps; k++) {
		const struct vfm_plan_step *step = own;
		int64_t n;

		if (k > 0) {
			step = &sl->search;
			if (vfm_plan_step(l->m, (own->step + k) % l->h->steps, &sl->search, err) < 0)
				return NULL;
		}
		n = count_samples(step);
		for (int64_t i = s->tried > before ? s->tried - before : 0; i < n; i++) {
			const struct vfm_plan_sample *c = &step_samples(step)[k > 0 ? i : (at + 1 + i) % n];

			s->tried = before + i + 1;
			if (c->tokens == damaged.tokens && !vfm_is_same_sample(c, &damaged))
				return c;
		}
		before += n;
	}
	vfm_fail(err, VFM_EINPUT, "%s; no sample of %d tokens in %lld steps is left to take its place", why->msg,
		damaged.tokens, (long long)steps);
	return NULL;
}

/* With a cache, names the first of a shard: a server that has another file under its name damages all. */
static void log_damaged(struct vfm_loader *l, const struct vfm_plan_sample *damaged, const struct vfm_err *why)
{
	struct vfm_plan_sample named = *damaged;
	bool is_new;

	if (l->o.cache)
		named.index = 0;
	pthread_mutex_lock(&l->lock);
	is_new = l->n_logged < (int)(sizeof(l->logged) / sizeof(l->logged[0]));
	for (int i = 0; i < l->n_logged && is_new; i++)
		is_new = !vfm_is_same_sample(&l->logged[i], &named);
	if (is_new)
		l->logged[l->n_logged++] = named;
	pthread_mutex_unlock(&l->lock);
	if (is_new)
		vfm_warn("damaged, and replaced by another sample: %s%s", why->msg,
			l->o.cache ? " (others of this shard are not named)" : "");
}

/* After failure rc of sample i of a pack: chooses another sample in its place, and returns 0; or the failure. */
static int replace_sample(struct vfm_loader *l, struct vfm_load_slot *sl, const struct vfm_plan_step *step,
	const struct vfm_plan_pack *pack, int32_t i, struct vfm_err *err)
{
	const struct vfm_plan_sample *m = pack->samples, *other;
	struct vfm_loaded *s = &sl->sample[i];
	struct vfm_err why;

	sample_context(l, &s->from, err);
	if (err->code != VFM_EINPUT || l->o.max_damaged <= 0)
		return err->code;
	why = *err;
	other = find_other(l, sl, step, m - step_samples(step) + i, s, &why, err);
	if (!other)
		return err->code;
	log_damaged(l, &s->from, &why);
	s->from = *other;
	s->replaced = true;
	return 0;
}

/* ---- contents of a pack ---- */

static size_t larger_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Returns the elements of the largest array of a sample that passes through scratch. */
static size_t count_scratch(const struct vfm_loader *l, const struct vfm_loaded *s)
{
	size_t n = vfm_record_latent_count(&s->rec);

	if (l->o.cond)
		n = larger_size(n, vfm_extra_count(&s->rec, VFM_EXTRA_COND, &s->extra[VFM_EXTRA_COND]));
	if (is_cut(l, s))
		n = larger_size(n, (size_t)s->text.rows * s->rec.text_dim);
	if (kept_text2_rows(l, s) < s->extra[VFM_EXTRA_TEXT2].rows)
		n = larger_size(n, vfm_extra_count(&s->rec, VFM_EXTRA_TEXT2, &s->extra[VFM_EXTRA_TEXT2]));
	return n;
}

/* Returns the dtype that a sample can be delivered in: as it is stored, or f32. */
static enum vfm_dtype dtype_of(const struct vfm_loader *l, const struct vfm_loaded *s)
{
	const enum vfm_npy_type type = s->rec.latent_dtype;

	if (l->o.cond)
		return type == VFM_NPY_BF16 && s->extra[VFM_EXTRA_COND].dtype == type ? VFM_BF16 : VFM_F32;
	return vfm_dtype_of_npy(type);
}

/* Looks the samples up, and sets the sizes of the pack. */
static int look_up(struct vfm_loader *l, struct vfm_load_slot *sl, const struct vfm_plan_step *step,
	const struct vfm_plan_pack *m, size_t *scratch, struct vfm_err *err)
{
	struct vfm_pack *p = &sl->p;

	p->tokens = m->tokens;
	p->text_tokens = 0;
	p->text2_tokens = 0;
	p->n = m->n_samples;
	p->x0_dtype = VFM_F32;
	*scratch = 0;
	for (int32_t i = 0; i < m->n_samples; i++) {
		struct vfm_loaded *s = &sl->sample[i];

		while (check_index(l, s->from.set, look_up_sample(l, step->step, s, err), err) < 0)
			TRY(replace_sample(l, sl, step, m, i, err));
		p->text_tokens += kept_text_rows(l, s);
		p->text2_tokens += kept_text2_rows(l, s);
		if (i == 0)
			p->x0_dtype = dtype_of(l, s);
		else if (p->x0_dtype != dtype_of(l, s))
			p->x0_dtype = VFM_F32;
		*scratch = larger_size(*scratch, count_scratch(l, s));
	}
	if (p->text_tokens > INT32_MAX || p->text2_tokens > INT32_MAX)
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
static int load_text(struct vfm_loader *l, struct vfm_load_slot *sl, struct vfm_index *ix, const struct vfm_loaded *s,
	float *rows, struct vfm_err *err)
{
	if (!s->text.rows)
		return 0;
	if (!is_cut(l, s))
		return vfm_index_read_text_f32(ix, &s->rec, &s->text, rows, &sl->spent, err);
	if (is_first_time(l, &l->logged_cut))
		vfm_info("sample %llu has %d text rows; of each sample the first %d are read (model.text_len)",
			(unsigned long long)s->rec.id, s->text.rows, l->o.text_len);
	TRY(vfm_index_read_text_f32(ix, &s->rec, &s->text, sl->scratch, &sl->spent, err));
	memcpy(rows, sl->scratch, (size_t)l->o.text_len * s->rec.text_dim * sizeof(float));
	return 0;
}

/* The same of the second text. */
static int load_text2(struct vfm_loader *l, struct vfm_load_slot *sl, struct vfm_index *ix, const struct vfm_loaded *s,
	float *rows, struct vfm_err *err)
{
	const struct vfm_index_text *t = &s->extra[VFM_EXTRA_TEXT2];
	const int32_t kept = kept_text2_rows(l, s);

	if (kept == t->rows)
		return kept ? vfm_index_read_rows_f32(ix, &s->rec, VFM_EXTRA_TEXT2, t, rows, &sl->spent, err) : 0;
	if (is_first_time(l, &l->logged_cut2))
		vfm_info("sample %llu has %d rows of a second text; of each sample the first %d are read "
			 "(model.text2_len)",
			(unsigned long long)s->rec.id, t->rows, kept);
	TRY(vfm_index_read_rows_f32(ix, &s->rec, VFM_EXTRA_TEXT2, t, sl->scratch, &sl->spent, err));
	memcpy(rows, sl->scratch, (size_t)kept * t->width * sizeof(float));
	return 0;
}

/* Writes the latents in scratch, channels of sample s, as tokens from the sample's first on; `width` features each. */
static void arrange(struct vfm_loader *l, struct vfm_load_slot *sl, int32_t i, enum vfm_npy_type type, int32_t channels,
	void *tokens, int32_t width)
{
	const struct vfm_index_record *r = &sl->sample[i].rec;
	const int32_t dims[3] = {r->t, r->h, r->w};
	const size_t at = (size_t)sl->p.cu_seqlens[i] * (size_t)width * vfm_dtype_size(sl->p.x0_dtype);
	double start = vfm_now();

	vfm_patchify(sl->scratch, type, channels, dims, l->h->patch, (char *)tokens + at, sl->p.x0_dtype);
	sl->arrange_s += vfm_now() - start;
}

/* Reads the extra arrays of sample i. */
static int load_extras(struct vfm_loader *l, struct vfm_load_slot *sl, int32_t i, struct vfm_err *err)
{
	struct vfm_pack *p = &sl->p;
	const struct vfm_loaded *s = &sl->sample[i];
	const struct vfm_index_text *cond = &s->extra[VFM_EXTRA_COND];
	struct vfm_index *ix = l->ix[s->from.set];

	if (p->image)
		TRY(vfm_index_read_rows_f32(ix, &s->rec, VFM_EXTRA_IMAGE, &s->extra[VFM_EXTRA_IMAGE],
			p->image + (int64_t)i * p->image_len * p->image_dim, &sl->spent, err));
	if (p->text2)
		TRY(load_text2(l, sl, ix, s, p->text2 + (int64_t)p->cu_text2[i] * p->text2_dim, err));
	if (!p->cond)
		return 0;
	TRY(vfm_index_read_cond(ix, &s->rec, cond, sl->scratch, &sl->spent, err));
	arrange(l, sl, i, cond->dtype, cond->rows, p->cond, p->cond_dim);
	return 0;
}

static int fill_sample(struct vfm_loader *l, struct vfm_load_slot *sl, int32_t i, struct vfm_err *err)
{
	struct vfm_pack *p = &sl->p;
	const struct vfm_loaded *s = &sl->sample[i];
	struct vfm_index *ix = l->ix[s->from.set];
	const struct vfm_index_record *r = &s->rec;
	const int32_t dims[3] = {r->t, r->h, r->w};
	int32_t grid[3];

	TRY(vfm_patch_grid(dims, l->h->patch, grid, err));
	vfm_pack_set(p, i, r->id, grid, kept_text_rows(l, s));
	if (p->text2_dim)
		vfm_pack_set_text2(p, i, kept_text2_rows(l, s));
	TRY(vfm_index_read_latent(ix, r, sl->scratch, &sl->spent, err));
	arrange(l, sl, i, r->latent_dtype, r->c, p->x0, p->patch_dim);
	TRY(load_extras(l, sl, i, err));
	return load_text(l, sl, ix, s, p->text + (int64_t)p->cu_text[i] * p->text_dim, err);
}

/* Files are not in the page cache if the last pack came slower than this.  One thread reads one sample at a time; disks
 * and servers are fast with many requests at once. */
static const double COLD_BYTES_S = 1e9;

static void read_ahead(struct vfm_loader *l, const struct vfm_load_slot *sl)
{
	for (int32_t i = 0; i < sl->p.n; i++)
		vfm_index_read_ahead(l->ix[sl->sample[i].from.set], &sl->sample[i].rec);
}

/* Reads the samples in order; *i: the sample that failed. */
static int fill_samples(struct vfm_loader *l, struct vfm_load_slot *sl, int32_t *i, struct vfm_err *err)
{
	for (*i = 0; *i < sl->p.n; ++*i)
		TRY(fill_sample(l, sl, *i, err));
	return 0;
}

static void list_replaced(const struct vfm_load_slot *sl, const struct vfm_plan_pack *m, struct vfm_load_facts *f)
{
	for (int32_t i = 0; i < m->n_samples; i++) {
		f->unlisted += sl->sample[i].unlisted;
		if (!sl->sample[i].replaced)
			continue;
		if (f->replaced < VFM_LOAD_NAMED)
			f->named[f->replaced] = m->samples[i];
		f->replaced++;
	}
}

/* Reads until all samples are whole: another sample in place of a damaged one may have another text, and so change the
 * places of all. */
static int fill_pack(struct vfm_loader *l, struct vfm_load_slot *sl, const struct vfm_plan_step *step,
	const struct vfm_plan_pack *m, struct vfm_err *err)
{
	for (;;) {
		size_t scratch;
		int32_t bad;

		TRY(look_up(l, sl, step, m, &scratch, err));
		TRY(vfm_ring_place(&l->ring, sl->seq, &sl->p, err));
		TRY(ensure((void **)&sl->scratch, &sl->scratch_size, scratch * sizeof(float), "a latent", err));
		if (atomic_load(&l->is_cold))
			read_ahead(l, sl);
		if (fill_samples(l, sl, &bad, err) == 0)
			return 0;
		TRY(replace_sample(l, sl, step, m, bad, err));
	}
}

int vfm_load_pack(struct vfm_loader *l, struct vfm_load_slot *sl, const struct vfm_plan_step *step,
	const struct vfm_plan_pack *m, struct vfm_load_facts *facts, struct vfm_err *err)
{
	double start = vfm_now(), all;
	int rc;

	vfm_grow(&sl->sample, &sl->cap_sample, (size_t)m->n_samples, sizeof(*sl->sample));
	for (int32_t i = 0; i < m->n_samples; i++)
		sl->sample[i] = (struct vfm_loaded){.from = m->samples[i]};
	sl->spent = (struct vfm_index_spent){0};
	sl->arrange_s = 0;
	rc = fill_pack(l, sl, step, m, err);
	if (rc == 0)
		list_replaced(sl, m, facts);
	all = vfm_now() - start;
	facts->spent_s[VFM_LOAD_FILES] += sl->spent.files_s;
	facts->spent_s[VFM_LOAD_CHECK] += sl->spent.check_s;
	facts->spent_s[VFM_LOAD_ARRANGE] += sl->arrange_s;
	facts->spent_s[VFM_LOAD_LOOKUP] += all - sl->spent.files_s - sl->spent.check_s - sl->arrange_s;
	if (sl->spent.bytes)
		atomic_store(&l->is_cold, (double)sl->spent.bytes < sl->spent.files_s * COLD_BYTES_S);
	pthread_mutex_lock(&l->lock);
	l->file_bytes += sl->spent.bytes;
	pthread_mutex_unlock(&l->lock);
	return rc;
}
