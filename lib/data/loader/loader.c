/* loader.c - prefetch: a ring of slots; a job of the pool fills each.
 *
 * Jobs of one step share one parse of its lines (step cache).
 */
#include "data/loader/loader.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "data/dataset/index_join.h"
#include "data/loader/loader_impl.h"
#include "spec/model/dtype.h"

const char *const vfm_load_causes[VFM_LOAD_CAUSES] = {"files", "check", "arrange", "lookup", "peers"};

/* ---- the step cache ---- */

/* Returns the entry of a step, or reuses the oldest free one for it.  The caller holds the lock. */
static struct vfm_cached_step *cache_entry(struct vfm_loader *l, int64_t step)
{
	struct vfm_cached_step *e = NULL, *before = NULL;

	for (int32_t i = 0; i < l->n_cache; i++) {
		struct vfm_cached_step *c = &l->cache[i];

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

/* Orders the packs of a step by turns. */
static void order_packs(const struct vfm_loader *l, struct vfm_cached_step *e)
{
	int32_t n = 0, before;

	vfm_grow(&e->order, &e->cap_order, (size_t)e->s.n_packs, sizeof(*e->order));
	for (int turn = 0; turn < 2; turn++) {
		before = n;
		e->turn_tokens[turn] = 0;
		for (int32_t p = 0; p < e->s.n_packs; p++) {
			if (l->o.turn_of(l->o.turn_ctx, e->step, p) != turn)
				continue;
			e->order[n++] = p;
			e->turn_tokens[turn] += e->s.packs[p].tokens;
		}
		e->n_turn[turn] = n - before;
	}
}

static struct vfm_cached_step *cache_get(struct vfm_loader *l, int64_t step)
{
	struct vfm_cached_step *e;
	struct vfm_err why;
	bool mine;

	pthread_mutex_lock(&l->lock);
	e = cache_entry(l, step);
	mine = !e->ready && e->refs == 0;
	e->refs++;
	e->used = ++l->clock;
	if (mine) {
		pthread_mutex_unlock(&l->lock);
		e->rc = vfm_plan_step(l->m, step, &e->s, &e->err);
		if (vfm_plan_check_file(l->m, l->o.plan_sha256, &why) < 0) { /* an error of the step follows from it */
			e->err = why;
			e->rc = why.code;
		}
		if (e->rc >= 0 && l->o.turn_of)
			order_packs(l, e);
		pthread_mutex_lock(&l->lock);
		e->ready = true;
		pthread_cond_broadcast(&l->changed);
	}
	while (!e->ready)
		pthread_cond_wait(&l->changed, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return e;
}

static void cache_put(struct vfm_loader *l, struct vfm_cached_step *e)
{
	pthread_mutex_lock(&l->lock);
	e->refs--;
	pthread_mutex_unlock(&l->lock);
}

/* ---- jobs ---- */

/* Returns the cp ranks that compute a pack; 0: all. */
static int32_t cp_of(const struct vfm_loader *l, const struct vfm_plan_pack *m)
{
	if (!l->h->cp)
		return 0;
	if (m->cp == 0)
		return 1;
	return m->cp < l->o.n_parts ? m->cp : l->o.n_parts;
}

enum { PACK_EMPTY = -1, PACK_NONE = -2 }; /* one without samples; none that any rank uses */

/* Returns the i-th pack of this rank in a step that is divided into turns, and sets the tokens of its turn. */
static int64_t pack_of_turn(const struct vfm_loader *l, const struct vfm_cached_step *e, int64_t i, int64_t *tokens)
{
	int64_t begin = 0;

	for (int turn = 0; turn < 2; turn++) {
		int64_t n = e->n_turn[turn], each = (n + l->o.world - 1) / l->o.world, at = i * l->o.world + l->o.rank;

		*tokens = e->turn_tokens[turn];
		if (i < each)
			return at < n ? e->order[begin + at] : PACK_EMPTY;
		i -= each;
		begin += n;
	}
	return PACK_NONE;
}

static int fill_slot(struct vfm_load_slot *sl, struct vfm_load_facts *facts, struct vfm_err *err)
{
	struct vfm_loader *l = sl->l;
	bool by_step = l->o.by_step;
	int64_t at = sl->seq / l->o.n_parts, part = sl->seq % l->o.n_parts;
	int64_t step = by_step ? (l->o.rank + at / l->per_step * l->o.world) % l->h->steps
			       : l->o.first_step + at / l->per_step;
	int64_t pack = by_step ? at % l->per_step : (l->o.rank + at % l->per_step * l->o.world) * l->o.n_parts + part;
	static const struct vfm_plan_pack empty;
	struct vfm_cached_step *e;
	double start = vfm_now();
	int rc;

	e = cache_get(l, step);
	facts->spent_s[VFM_LOAD_LOOKUP] = vfm_now() - start;
	rc = e->rc;
	if (rc < 0) {
		*err = e->err;
	} else {
		sl->p.step = step;
		sl->p.step_tokens = e->s.tokens;
		if (l->o.turn_of)
			pack = pack_of_turn(l, e, at % l->per_step, &sl->p.step_tokens);
		sl->p.index = pack;
		sl->p.cp = pack < 0 ? 0 : cp_of(l, &e->s.packs[pack]);
		facts->unused = pack == PACK_NONE;
		rc = vfm_load_pack(l, sl, &e->s, pack < 0 ? &empty : &e->s.packs[pack], facts, err);
		if (rc < 0)
			vfm_err_context(err, "step %lld, pack %lld", (long long)step, (long long)pack);
	}
	cache_put(l, e);
	return rc;
}

static void load_job(void *arg)
{
	struct vfm_load_slot *sl = arg;
	struct vfm_load_facts facts = {0};
	struct vfm_err err = {0};
	double start = vfm_now();
	int rc;

	if (!vfm_ring_wait_free(&sl->l->ring, sl->seq))
		return; /* the pack before is still in use, or was never used: the slot is not ours */
	facts.spent_s[VFM_LOAD_PEERS] = vfm_now() - start;
	rc = fill_slot(sl, &facts, &err);
	vfm_ring_publish(&sl->l->ring, sl->seq, &sl->p, &facts, rc, &err);
}

static void schedule(struct vfm_loader *l, int64_t seq)
{
	struct vfm_load_slot *sl = &l->slots[seq % l->ring.n_slots];

	sl->seq = seq;
	if (seq < l->n_packs && vfm_ring_reads(&l->ring, seq))
		vfm_pool_push(l->pool, load_job, sl); /* the queue holds all slots: never blocks */
}

/* ---- open, next, release ---- */

/* A plan without the identity of an encoder would match every other set, and the run would not know its encoders. */
static int check_named_encoders(
	struct vfm_encoder_ids *encoder_ids, const char *index, struct vfm_encoder_ids *want, struct vfm_err *err)
{
	for (enum vfm_encoder_kind e = 0; e < VFM_ENCODER_KINDS; e++) {
		char label[VFM_ENCODER_ID_LABEL];

		if (!encoder_ids->of[e].name[0] || want->of[e].name[0])
			continue;
		vfm_encoder_id_label(&encoder_ids->of[e], label);
		return vfm_fail(err, VFM_EUSAGE, "%s has %s '%s', the plan names none (encoders): pack again", index,
			vfm_encoder_kinds[e].name, label);
	}
	return 0;
}

static int open_set(struct vfm_loader *l, int32_t i, struct vfm_err *err)
{
	const struct vfm_plan_set *s = &l->h->sets[i];
	struct vfm_encoder_ids encoder_ids, want = s->forced;
	char *index;
	int rc;

	TRY(vfm_index_open(&l->ix[i], s->dir, err));
	TRY(vfm_index_set_cache(l->ix[i], l->o.cache, s->name, err));
	vfm_index_expect_random(l->ix[i]);
	encoder_ids = vfm_index_info(l->ix[i])->encoder_ids;
	vfm_encoder_ids_fill(&want, &l->h->encoder_ids);
	index = vfm_strfmt("'%s/" VFM_INDEX_NAME "'", s->dir);
	rc = vfm_encoder_ids_check(&encoder_ids, index, &want, "the plan", err);
	if (rc == 0)
		rc = check_named_encoders(&encoder_ids, index, &want, err);
	free(index);
	TRY(rc);
	if ((int64_t)vfm_index_info(l->ix[i])->n_records != s->records)
		return vfm_fail(err, VFM_EUSAGE, "the index has %llu records, the plan was made for %lld: pack again",
			(unsigned long long)vfm_index_info(l->ix[i])->n_records, (long long)s->records);
	if (!l->o.skip_hash) {
		if (strcmp(vfm_index_info(l->ix[i])->sha256, s->index_sha256))
			return vfm_fail(err, VFM_EUSAGE, "the index has changed since the plan was made: pack again");
		TRY(vfm_join_check_parts(l->ix[i], err));
	}
	return 0;
}

static bool has_caption(const struct vfm_loader *l, const char *name)
{
	for (int32_t s = 0; s < l->h->n_sets; s++)
		for (uint32_t i = 0; i < vfm_index_info(l->ix[s])->n_names; i++)
			if (strcmp(vfm_index_info(l->ix[s])->names[i], name) == 0)
				return true;
	return false;
}

static int check_captions(const struct vfm_loader *l, struct vfm_err *err)
{
	for (int i = 0; i < l->captions.n; i++)
		if (!has_caption(l, l->captions.list[i].name))
			return vfm_fail(err, VFM_EUSAGE, "data.captions: no set of plan '%s' has the caption '%s'",
				vfm_plan_path(l->m), l->captions.list[i].name);
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
	o->n_parts = o->n_parts && l->h->cp ? o->n_parts : 1;
	o->part = o->n_parts > 1 ? o->part : 0;
	if (o->part < 0 || o->part >= o->n_parts || (l->h->cp && l->h->batch % ((int64_t)o->world * o->n_parts)) ||
		(l->h->cp && l->h->cp % o->n_parts && o->n_parts % l->h->cp))
		return vfm_fail(err, VFM_EUSAGE,
			"part %d of %d of rank %d of %d, with %d parts a step and at most %d a pack", o->part,
			o->n_parts, o->rank, o->world, l->h->batch, l->h->cp);
	if (o->turn_of && (l->h->cp || o->by_step))
		return vfm_fail(err, VFM_EUSAGE, "turns within a step of a plan that sets the cp ranks of packs");
	if (o->prefetch < 1 || o->prefetch > VFM_LOADER_PREFETCH_MAX || o->threads < 1 || o->threads > 1024)
		return vfm_fail(err, VFM_EUSAGE, "prefetch must be 1 to 4096 and threads 1 to 1024");
	if (o->group && (o->group->extra_depth < 0 || o->group->extra_depth > VFM_LOADER_EXTRA_DEPTH_MAX))
		return vfm_fail(err, VFM_EUSAGE, "a prefetch depth of %d more packs", o->group->extra_depth);
	if (o->cond && !l->h->cond_channels)
		return vfm_fail(err, VFM_EUSAGE, "the samples of plan '%s' have no condition", vfm_plan_path(l->m));
	if (o->image && !l->h->image_len)
		return vfm_fail(err, VFM_EUSAGE, "the samples of plan '%s' have no image rows", vfm_plan_path(l->m));
	if (o->text2_dim && l->h->text2_dim && o->text2_dim != l->h->text2_dim)
		return vfm_fail(err, VFM_EUSAGE, "the second texts of plan '%s' have %d features, not %d",
			vfm_plan_path(l->m), l->h->text2_dim, o->text2_dim);
	if (o->first_step < 0 || o->first_step > l->h->steps)
		return vfm_fail(err, VFM_EUSAGE, "step %lld: plan '%s' has %lld", (long long)o->first_step,
			vfm_plan_path(l->m), (long long)l->h->steps);
	return 0;
}

static void set_up_slots(struct vfm_loader *l)
{
	const int32_t *patch = l->h->patch;
	int32_t volume = patch[0] * patch[1] * patch[2];

	l->slots = vfm_calloc((size_t)l->ring.n_slots, sizeof(*l->slots));
	for (int32_t i = 0; i < l->ring.n_slots; i++) {
		struct vfm_pack *p = &l->slots[i].p;

		l->slots[i].l = l;
		p->patch_dim = l->h->latent_channels * volume;
		p->text_dim = l->h->text_dim;
		p->text2_dim = l->o.text2_dim;
		if (l->o.cond)
			p->cond_dim = l->h->cond_channels * volume;
		if (l->o.image) {
			p->image_len = l->h->image_len;
			p->image_dim = l->h->image_dim;
		}
	}
	l->n_cache = l->o.threads + 1;
	l->cache = vfm_calloc((size_t)l->n_cache, sizeof(*l->cache));
	for (int32_t i = 0; i < l->n_cache; i++)
		l->cache[i].step = -1;
}

static void count_packs(struct vfm_loader *l)
{
	if (l->o.by_step)
		l->per_step = l->h->batch;
	else if (l->o.rank < l->h->batch)
		l->per_step = (l->h->batch / l->o.n_parts - l->o.rank + l->o.world - 1) / l->o.world;
	if (l->o.turn_of) /* each turn may end with a pack that not all ranks have */
		l->per_step = (l->h->batch + 2 * (l->o.world - 1)) / l->o.world;
	l->n_packs = (l->h->steps - l->o.first_step) * l->per_step * l->o.n_parts;
	if (l->o.by_step)
		l->n_packs = (l->h->steps + l->o.world - 1) / l->o.world * l->per_step;
}

static int32_t count_ring_slots(const struct vfm_loader *l)
{
	int64_t n = (int64_t)(l->o.prefetch + 1 + (l->o.group ? l->o.group->extra_depth : 0)) * l->o.n_parts;

	return n < VFM_LOADER_SLOTS_MAX ? (int32_t)n : VFM_LOADER_SLOTS_MAX / l->o.n_parts * l->o.n_parts;
}

struct vfm_loader *vfm_loader_open(struct vfm_plan *m, const struct vfm_loader_opts *opts, struct vfm_err *err)
{
	struct vfm_loader *l = vfm_calloc(1, sizeof(*l));

	*l = (struct vfm_loader){.m = m, .h = vfm_plan_header(m), .o = *opts};
	if (opts->captions)
		l->captions = *opts->captions;
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->changed, NULL);
	if (check_opts(l, err) < 0)
		goto fail;
	l->ix = vfm_calloc((size_t)l->h->n_sets, sizeof(*l->ix));
	for (int32_t i = 0; i < l->h->n_sets; i++)
		if (open_set(l, i, err) < 0) {
			vfm_err_context(err, "plan '%s', set '%s'", vfm_plan_path(m), l->h->sets[i].name);
			goto fail;
		}
	if (vfm_index_check_remote(l->ix, (size_t)l->h->n_sets, err) < 0) {
		vfm_err_context(err, "plan '%s'", vfm_plan_path(m));
		goto fail;
	}
	if (check_captions(l, err) < 0)
		goto fail;
	count_packs(l);
	if (vfm_ring_open(&l->ring, l->o.group, count_ring_slots(l), err) < 0)
		goto fail;
	l->o.group = NULL; /* it belongs to the caller */
	set_up_slots(l);
	l->pool = vfm_pool_new(l->o.threads, l->ring.n_slots);
	for (int32_t i = 0; i < l->ring.n_slots; i++)
		schedule(l, i);
	return l;
fail:
	vfm_loader_close(l);
	return NULL;
}

void vfm_loader_close(struct vfm_loader *l)
{
	if (!l)
		return;
	vfm_ring_stop(&l->ring);
	vfm_pool_free(l->pool);
	for (int32_t i = 0; l->slots && i < l->ring.n_slots; i++) {
		vfm_big_free(l->slots[i].scratch, l->slots[i].scratch_size);
		vfm_plan_step_release(&l->slots[i].search);
		free(l->slots[i].sample);
	}
	vfm_ring_close(&l->ring);
	for (int32_t i = 0; l->cache && i < l->n_cache; i++) {
		vfm_plan_step_release(&l->cache[i].s);
		free(l->cache[i].order);
	}
	for (int32_t i = 0; l->ix && i < l->h->n_sets; i++)
		vfm_index_close(l->ix[i]);
	free(l->slots);
	free(l->cache);
	free(l->ix);
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->changed);
	free(l);
}

/* Divides a wait for a pack by what its reader spent its time on. */
static void count_wait(struct vfm_loader *l, double wait_s, const struct vfm_load_facts *f)
{
	double all = 0;

	l->stats.last_wait_s = wait_s;
	l->stats.wait_s += wait_s;
	for (int i = 0; i < VFM_LOAD_CAUSES; i++)
		all += f->spent_s[i];
	for (int i = 0; i < VFM_LOAD_CAUSES && all > 0; i++)
		l->stats.wait_by_s[i] += wait_s * f->spent_s[i] / all;
}

/* Keeps the last different ones. */
static void name_damaged(struct vfm_loader *l, const struct vfm_plan_sample *s)
{
	for (int i = 0; i < l->n_damaged && i < VFM_LOAD_NAMED; i++)
		if (vfm_is_same_sample(&l->damaged[i], s))
			return;
	l->damaged[l->n_damaged++ % VFM_LOAD_NAMED] = *s;
}

static void count_delivered(struct vfm_loader *l, const struct vfm_pack *p, const struct vfm_load_facts *f)
{
	struct vfm_loader_stats *s = &l->stats;

	for (int64_t i = 0; i < f->replaced && i < VFM_LOAD_NAMED; i++)
		name_damaged(l, &f->named[i]);
	s->packs += p->n > 0;
	s->samples += p->n;
	s->tokens += p->tokens;
	s->unlisted += f->unlisted;
	s->replaced += f->replaced;
	s->bytes += p->tokens * (p->patch_dim + p->cond_dim) * (int64_t)vfm_dtype_size(p->x0_dtype) +
		(p->text_tokens * p->text_dim + p->text2_tokens * p->text2_dim +
			(int64_t)p->n * p->image_len * p->image_dim) *
			(int64_t)sizeof(float);
}

/* Fails if too many samples are damaged. */
static int check_share_replaced(struct vfm_loader *l, struct vfm_err *err)
{
	const struct vfm_loader_stats *s = &l->stats;
	struct vfm_buf list = {0};
	int rc;

	if ((double)s->replaced <= l->o.max_damaged * (double)(s->samples > 1000 ? s->samples : 1000))
		return 0;
	for (int i = 0; i < l->n_damaged && i < VFM_LOAD_NAMED; i++) {
		const struct vfm_plan_sample *d = &l->damaged[i];

		vfm_buf_addf(&list, "%s set '%s' shard %d index %lld", i ? "," : "", l->h->sets[d->set].name, d->shard,
			(long long)d->index);
	}
	rc = vfm_fail(err, VFM_EINPUT,
		"%lld of %lld samples are damaged, more than a share of %g (data.max_damaged):%s",
		(long long)s->replaced, (long long)s->samples, l->o.max_damaged, list.data);
	vfm_buf_release(&list);
	return rc;
}

/* Returns whether this cp rank takes the pack that begins at `part`: the pack has this rank's part; or it has no
 * samples, begins at this rank's part, and the rank has no pack in the step yet. */
static bool is_own_pack(struct vfm_loader *l, const struct vfm_pack *p, int32_t part)
{
	if (part == 0)
		l->has_pack = false;
	if (p->n > 0 ? l->o.part < part || l->o.part >= part + (p->cp ? p->cp : 1) : l->has_pack || l->o.part != part)
		return false;
	l->has_pack = true;
	return true;
}

/* Takes the pack of the next part. */
static int take_next(struct vfm_loader *l, struct vfm_load_slot **out, struct vfm_err *err)
{
	struct vfm_load_slot *sl = &l->slots[l->next % l->ring.n_slots];
	double start = vfm_now();

	if (l->next >= l->n_packs)
		return 0;
	if (sl->held)
		return vfm_fail(err, VFM_EUSAGE, "loader: all %d packs are held", l->ring.n_slots);
	TRY(check_share_replaced(l, err));
	TRY(vfm_ring_take(&l->ring, l->next, &sl->p, &sl->facts, err));
	count_wait(l, vfm_now() - start, &sl->facts);
	count_delivered(l, &sl->p, &sl->facts);
	sl->held = true;
	l->next++;
	*out = sl;
	return 1;
}

int vfm_loader_next(struct vfm_loader *l, struct vfm_pack **out, struct vfm_err *err)
{
	for (;;) {
		int32_t part = (int32_t)(l->next % l->o.n_parts);
		struct vfm_load_slot *sl;
		int rc = take_next(l, &sl, err);

		if (rc <= 0)
			return rc;
		if (!sl->facts.unused && is_own_pack(l, &sl->p, part)) {
			*out = &sl->p;
			return 1;
		}
		vfm_loader_release(l, &sl->p);
	}
}

void vfm_loader_release(struct vfm_loader *l, struct vfm_pack *p)
{
	struct vfm_load_slot *sl = (struct vfm_load_slot *)((char *)p - offsetof(struct vfm_load_slot, p));

	if (!sl->held)
		return;
	sl->held = false;
	vfm_ring_release(&l->ring, sl->seq);
	schedule(l, sl->seq + l->ring.n_slots);
}

int32_t vfm_loader_packs_per_step(const struct vfm_loader *l)
{
	return l->per_step;
}

struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l)
{
	struct vfm_loader_stats s = l->stats;
	pthread_mutex_t *lock = (pthread_mutex_t *)&l->lock;

	pthread_mutex_lock(lock);
	s.file_bytes = l->file_bytes;
	pthread_mutex_unlock(lock);
	return s;
}
