/* loader.c - read ahead: a ring of slots, each filled by one job of the pool.
 *
 * Batch number `seq` of this rank always goes to slot seq % n_slots, so that the order of delivery is
 * fixed whichever job is done first.  Jobs of one step share one parse of its lines (step cache).
 */
#include "data/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "data/index.h"
#include "data/patch.h"

enum slot_state { SLOT_FREE, SLOT_LOADING, SLOT_READY, SLOT_HELD };

struct slot {
	struct vfm_loader *l;
	enum slot_state state;
	int64_t seq;
	struct vfm_batch b;
	int rc;
	struct vfm_err err;
	struct vfm_record *rec; /* [cap_rec] of the samples */
	size_t cap_rec;
	float *latent; /* one sample before it is patchified */
	size_t latent_size;
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
	const struct vfm_manifest *m;
	const struct vfm_manifest_header *h;
	struct vfm_loader_opts o;
	struct vfm_index **ix; /* [n_sets] */
	int32_t patch_dim, per_step;
	int64_t n_batches, next;
	struct slot *slots;
	int32_t n_slots;
	struct cached_step *cache;
	int32_t n_cache;
	uint64_t clock;
	struct vfm_pool *pool;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct vfm_loader_stats stats;
};

/* ---- the step cache ---- */

/* Called with the lock held: the entry of that step, or a free one (oldest first) that becomes it. */
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
		abort();             /* there are more entries than threads, so that one is free */
	if (before && before != e) { /* it knows where this step begins */
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
	bool mine;

	pthread_mutex_lock(&l->lock);
	e = cache_entry(l, step);
	mine = !e->ready && e->refs == 0;
	e->refs++;
	e->used = ++l->clock;
	if (mine) {
		pthread_mutex_unlock(&l->lock);
		e->rc = vfm_manifest_step(l->m, step, &e->s, &e->err);
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

/* ---- filling a batch ---- */

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
	if (r->text_len && r->text_dim != l->h->text_dim)
		return vfm_fail(
			err, VFM_EUSAGE, "texts of width %d, the manifest says %d", r->text_dim, l->h->text_dim);
	return 0;
}

static int sample_context(const struct vfm_loader *l, const struct vfm_manifest_sample *s, struct vfm_err *err)
{
	return vfm_err_context(
		err, "set '%s', shard %d, index %lld", l->h->sets[s->set].name, s->shard, (long long)s->index);
}

/* Looks the samples up; counts tokens, texts and the largest latent. */
static int look_up(struct vfm_loader *l, struct slot *sl, const struct vfm_manifest_pack *p, size_t *max_latent,
	struct vfm_err *err)
{
	struct vfm_batch *b = &sl->b;

	vfm_grow(&sl->rec, &sl->cap_rec, (size_t)p->n_samples, sizeof(*sl->rec));
	b->tokens = p->tokens;
	b->text_tokens = 0;
	b->n_samples = p->n_samples;
	*max_latent = 0;
	for (int32_t i = 0; i < p->n_samples; i++) {
		const struct vfm_manifest_sample *s = &p->samples[i];
		struct vfm_record *r = &sl->rec[i];
		int rc = s->index > UINT32_MAX
			? vfm_fail(err, VFM_EUSAGE, "not in the index")
			: vfm_index_get(l->ix[s->set], (uint32_t)s->shard, (uint32_t)s->index, r, err);

		if (rc >= 0)
			rc = check_record(l, s, r, err);
		if (rc < 0)
			return sample_context(l, s, err);
		b->text_tokens += r->text_len;
		if (vfm_record_latent_count(r) > *max_latent)
			*max_latent = vfm_record_latent_count(r);
	}
	if (b->text_tokens > INT32_MAX)
		return vfm_fail(err, VFM_EINPUT, "more than 2^31 text tokens");
	return 0;
}

static void *carve(char *base, size_t *off, size_t n, size_t size)
{
	void *p = base ? base + *off : NULL;

	*off = (*off + n * size + 63) & ~(size_t)63;
	return p;
}

/* Lays the arrays out behind `base`; returns the bytes they take (base NULL: only that). */
static size_t lay_out(struct vfm_batch *b, char *base)
{
	size_t n = (size_t)b->n_samples, tokens = (size_t)b->tokens, text = (size_t)b->text_tokens, off = 0;

	b->id = carve(base, &off, n, sizeof(*b->id));
	b->grid = carve(base, &off, n, sizeof(*b->grid));
	b->cu_seqlens = carve(base, &off, n + 1, sizeof(*b->cu_seqlens));
	b->cu_text = carve(base, &off, n + 1, sizeof(*b->cu_text));
	b->x0 = carve(base, &off, tokens * (size_t)b->patch_dim, sizeof(*b->x0));
	b->text = carve(base, &off, text * (size_t)b->text_dim, sizeof(*b->text));
	b->seg = carve(base, &off, tokens, sizeof(*b->seg));
	b->idx = carve(base, &off, tokens, sizeof(*b->idx));
	b->pos = carve(base, &off, tokens, sizeof(*b->pos));
	return off;
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

/* The per-token tables of sample i, whose tokens begin at cu_seqlens[i]. */
static void fill_tables(struct vfm_batch *b, int32_t i)
{
	const int32_t *g = b->grid[i];
	int64_t at = b->cu_seqlens[i];
	int32_t k = 0;

	for (int32_t t = 0; t < g[0]; t++)
		for (int32_t h = 0; h < g[1]; h++)
			for (int32_t w = 0; w < g[2]; w++, at++) {
				b->seg[at] = i;
				b->idx[at] = k++;
				b->pos[at][0] = (int16_t)t;
				b->pos[at][1] = (int16_t)h;
				b->pos[at][2] = (int16_t)w;
			}
}

static int fill_sample(struct vfm_loader *l, struct slot *sl, struct vfm_index *ix, int32_t i, struct vfm_err *err)
{
	struct vfm_batch *b = &sl->b;
	const struct vfm_record *r = &sl->rec[i];
	int32_t dims[3] = {r->t, r->h, r->w};
	int64_t tokens = vfm_patch_grid(dims, l->h->patch, b->grid[i], err);

	b->id[i] = r->id;
	b->cu_seqlens[i + 1] = b->cu_seqlens[i] + (int32_t)tokens;
	b->cu_text[i + 1] = b->cu_text[i] + r->text_len;
	fill_tables(b, i);
	TRY(vfm_index_read_latent_f32(ix, r, sl->latent, err));
	vfm_patchify(sl->latent, r->c, dims, l->h->patch, b->x0 + (int64_t)b->cu_seqlens[i] * b->patch_dim);
	if (r->text_len)
		TRY(vfm_index_read_text_f32(ix, r, b->text + (int64_t)b->cu_text[i] * b->text_dim, err));
	return 0;
}

static int fill(struct vfm_loader *l, struct slot *sl, const struct vfm_manifest_pack *p, struct vfm_err *err)
{
	struct vfm_batch *b = &sl->b;
	size_t max_latent;

	TRY(look_up(l, sl, p, &max_latent, err));
	TRY(ensure(&b->mem, &b->mem_size, lay_out(b, NULL), "a batch", err));
	TRY(ensure((void **)&sl->latent, &sl->latent_size, max_latent * sizeof(float), "a latent", err));
	lay_out(b, b->mem);
	b->cu_seqlens[0] = 0;
	b->cu_text[0] = 0;
	for (int32_t i = 0; i < p->n_samples; i++)
		if (fill_sample(l, sl, l->ix[p->samples[i].set], i, err) < 0)
			return sample_context(l, &p->samples[i], err);
	return 0;
}

static void load_job(void *arg)
{
	struct slot *sl = arg;
	struct vfm_loader *l = sl->l;
	int64_t step = l->o.first_step + sl->seq / l->per_step;
	int64_t pack = l->o.rank + sl->seq % l->per_step * l->o.world;
	struct cached_step *e = cache_get(l, step);

	if (e->rc < 0) {
		sl->rc = e->rc;
		sl->err = e->err;
	} else {
		sl->b.step = step;
		sl->b.pack = pack;
		sl->b.step_tokens = e->s.tokens;
		sl->rc = fill(l, sl, &e->s.packs[pack], &sl->err);
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
	if (seq >= l->n_batches)
		return;
	sl->state = SLOT_LOADING;
	vfm_pool_push(l->pool, load_job, sl); /* the queue holds all slots: never blocks */
}

/* ---- open, next, release ---- */

static int open_set(struct vfm_loader *l, int32_t i, struct vfm_err *err)
{
	const struct vfm_manifest_set *s = &l->h->sets[i];
	char sha[VFM_SHA256_HEX];

	TRY(vfm_index_open(&l->ix[i], s->dir, err));
	if ((int64_t)vfm_index_n_records(l->ix[i]) != s->records)
		return vfm_fail(err, VFM_EUSAGE,
			"the index has %llu records, the manifest was made for %lld: pack again",
			(unsigned long long)vfm_index_n_records(l->ix[i]), (long long)s->records);
	if (!l->o.skip_hash) {
		char *path = vfm_strfmt("%s/" VFM_INDEX_NAME, s->dir);
		int rc = vfm_sha256_file(path, sha, err);

		free(path);
		TRY(rc);
		if (strcmp(sha, s->index_sha256))
			return vfm_fail(
				err, VFM_EUSAGE, "the index has changed since the manifest was made: pack again");
	}
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
	if (o->first_step < 0 || o->first_step > l->h->steps)
		return vfm_fail(err, VFM_EUSAGE, "step %lld: manifest '%s' has %lld", (long long)o->first_step,
			vfm_manifest_path(l->m), (long long)l->h->steps);
	return 0;
}

struct vfm_loader *vfm_loader_open(
	const struct vfm_manifest *m, const struct vfm_loader_opts *opts, struct vfm_err *err)
{
	struct vfm_loader *l = vfm_calloc(1, sizeof(*l));
	const int32_t *patch;

	*l = (struct vfm_loader){.m = m, .h = vfm_manifest_header(m), .o = *opts};
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
	patch = l->h->patch;
	l->patch_dim = l->h->latent_channels * patch[0] * patch[1] * patch[2];
	if (l->o.rank < l->h->batch)
		l->per_step = (l->h->batch - l->o.rank + l->o.world - 1) / l->o.world;
	l->n_batches = (l->h->steps - l->o.first_step) * l->per_step;
	l->n_slots = l->o.prefetch + 1;
	l->slots = vfm_calloc((size_t)l->n_slots, sizeof(*l->slots));
	l->n_cache = l->o.threads + 1;
	l->cache = vfm_calloc((size_t)l->n_cache, sizeof(*l->cache));
	for (int32_t i = 0; i < l->n_cache; i++)
		l->cache[i].step = -1;
	l->pool = vfm_pool_new(l->o.threads, l->n_slots);
	for (int32_t i = 0; i < l->n_slots; i++) {
		l->slots[i].l = l;
		l->slots[i].b.slot = i;
		l->slots[i].b.patch_dim = l->patch_dim;
		l->slots[i].b.text_dim = l->h->text_dim;
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
		vfm_big_free(l->slots[i].b.mem, l->slots[i].b.mem_size);
		vfm_big_free(l->slots[i].latent, l->slots[i].latent_size);
		free(l->slots[i].rec);
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

int vfm_loader_next(struct vfm_loader *l, struct vfm_batch **out, struct vfm_err *err)
{
	struct slot *sl = &l->slots[l->next % l->n_slots];
	double start = vfm_now();

	if (l->next >= l->n_batches)
		return 0;
	pthread_mutex_lock(&l->lock);
	while (sl->state == SLOT_LOADING)
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
	if (sl->state == SLOT_HELD)
		return vfm_fail(err, VFM_EUSAGE, "loader: all %d batches are held", l->n_slots);
	l->stats.last_wait_s = vfm_now() - start;
	l->stats.wait_s += l->stats.last_wait_s;
	if (sl->rc < 0) {
		if (err)
			*err = sl->err;
		return sl->rc;
	}
	sl->state = SLOT_HELD;
	l->next++;
	l->stats.batches++;
	l->stats.samples += sl->b.n_samples;
	l->stats.tokens += sl->b.tokens;
	l->stats.bytes +=
		(sl->b.tokens * sl->b.patch_dim + sl->b.text_tokens * sl->b.text_dim) * (int64_t)sizeof(float);
	*out = &sl->b;
	return 1;
}

void vfm_batch_release(struct vfm_loader *l, struct vfm_batch *b)
{
	struct slot *sl = &l->slots[b->slot];

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
