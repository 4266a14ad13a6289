/* plan_hash.c - the sha256 of a plan's content, which both encodings share (vfm-plan(5)).
 *
 * Steps are hashed by all compute threads, a block of steps at a time: memory does not depend on the plan.  For jsonl,
 * parsing JSON takes more time than sha256.
 */
#include <endian.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/par.h"
#include "data/plan/plan_impl.h"

enum { BLOCK = 1024, GRAIN = 64 }; /* steps between two checks for errors; steps per task */
enum { DIGEST_BYTES = 64 << 10 };  /* at each end of the file */

struct hash_block {
	const struct vfm_plan *m;
	int64_t first;               /* step */
	char (*hex)[VFM_SHA256_HEX]; /* [BLOCK] */
	int64_t bad;                 /* the first step that cannot be read; -1: none */
	struct vfm_err err;          /* why */
	pthread_mutex_t lock;        /* of the last two */
};

static void add32(struct vfm_sha256 *s, uint32_t x)
{
	x = htole32(x);
	vfm_sha256_add(s, &x, sizeof(x));
}

static void add64(struct vfm_sha256 *s, uint64_t x)
{
	x = htole64(x);
	vfm_sha256_add(s, &x, sizeof(x));
}

static void hash_step(const struct vfm_plan_step *step, bool with_cp, char hex[VFM_SHA256_HEX])
{
	struct vfm_sha256 *s = vfm_sha256_new();

	for (int32_t i = 0; i < step->n_packs; i++) {
		const struct vfm_plan_pack *p = &step->packs[i];

		if (with_cp && p->cp == 0)
			continue;
		if (with_cp)
			add32(s, (uint32_t)p->cp);
		add32(s, (uint32_t)p->n_samples);
		for (int32_t k = 0; k < p->n_samples; k++) {
			add32(s, (uint32_t)p->samples[k].set);
			add32(s, (uint32_t)p->samples[k].shard);
			add64(s, (uint64_t)p->samples[k].index);
			add32(s, (uint32_t)p->samples[k].tokens);
		}
	}
	vfm_sha256_end(s, hex);
}

static void hash_steps(int64_t i0, int64_t i1, void *ctx)
{
	struct hash_block *b = ctx;
	struct vfm_plan_step step = {0};
	struct vfm_err err = {0};

	for (int64_t i = i0; i < i1; i++) {
		if (vfm_plan_step(b->m, b->first + i, &step, &err) < 0) {
			pthread_mutex_lock(&b->lock);
			if (b->bad < 0 || i < b->bad) {
				b->bad = i;
				b->err = err;
			}
			pthread_mutex_unlock(&b->lock);
			break;
		}
		hash_step(&step, b->m->h.cp > 0, b->hex[i]);
	}
	vfm_plan_step_release(&step);
}

static void hash_header(struct vfm_sha256 *s, const struct vfm_plan_header *h)
{
	vfm_sha256_add(s, "vfm-plan", 8);
	add32(s, h->cp ? 2 : 1);
	if (h->cp)
		add32(s, (uint32_t)h->cp);
	add32(s, (uint32_t)h->context);
	add32(s, (uint32_t)h->batch);
	add64(s, (uint64_t)h->steps);
	for (int i = 0; i < 3; i++)
		add32(s, (uint32_t)h->patch[i]);
	add32(s, (uint32_t)h->latent_channels);
	add32(s, (uint32_t)h->text_dim);
	add32(s, (uint32_t)h->n_sets);
	for (int32_t i = 0; i < h->n_sets; i++)
		vfm_sha256_add(s, h->sets[i].index_sha256, VFM_SHA256_HEX - 1);
}

static int hash_content(const struct vfm_plan *m, char hex[VFM_SHA256_HEX], int (*tick)(void *ctx, struct vfm_err *err),
	void *ctx, struct vfm_err *err)
{
	struct hash_block b = {.m = m, .bad = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct vfm_sha256 *s = vfm_sha256_new();
	int rc = 0;

	b.hex = vfm_calloc(m->h.steps < BLOCK ? (size_t)m->h.steps : BLOCK, sizeof(*b.hex));
	hash_header(s, &m->h);
	for (; b.first < m->h.steps && b.bad < 0 && rc == 0; b.first += BLOCK) {
		int64_t n = m->h.steps - b.first < BLOCK ? m->h.steps - b.first : BLOCK;

		vfm_par_for(n, GRAIN, hash_steps, &b);
		for (int64_t i = 0; i < n; i++)
			vfm_sha256_add(s, b.hex[i], VFM_SHA256_HEX - 1);
		rc = tick ? tick(ctx, err) : 0;
	}
	vfm_sha256_end(s, hex);
	free(b.hex);
	if (b.bad >= 0 && err)
		*err = b.err;
	return b.bad >= 0 ? b.err.code : rc;
}

struct expected_plan {
	const struct vfm_plan *m;
	const char *sha256;
};

static int verify_plan(void *ctx, struct vfm_err *err)
{
	struct expected_plan *e = ctx;
	char hex[VFM_SHA256_HEX];

	if (e->sha256 && hash_content(e->m, hex, NULL, NULL, NULL) == 0 && !strcmp(hex, e->sha256))
		return 0;
	return vfm_fail(err, VFM_EENV, "'%s' changed while it was in use", e->m->path);
}

int vfm_plan_check_file(struct vfm_plan *m, const char *sha256, struct vfm_err *err)
{
	return vfm_map_check(&m->map, verify_plan, &(struct expected_plan){m, sha256}, err);
}

int vfm_plan_sha256(struct vfm_plan *m, char hex[VFM_SHA256_HEX], int (*tick)(void *ctx, struct vfm_err *err),
	void *ctx, struct vfm_err *err)
{
	int rc = hash_content(m, hex, tick, ctx, err);

	TRY(vfm_plan_check_file(m, rc < 0 ? NULL : hex, err)); /* an error of a step may follow from it */
	return rc;
}

void vfm_plan_digest(const struct vfm_plan *m, char hex[VFM_SHA256_HEX])
{
	struct vfm_sha256 *s = vfm_sha256_new();
	size_t n = m->map.size < DIGEST_BYTES ? m->map.size : DIGEST_BYTES;

	add64(s, m->map.size);
	vfm_sha256_add(s, m->map.data, n);
	vfm_sha256_add(s, m->map.data + m->map.size - n, n);
	vfm_sha256_end(s, hex);
}
