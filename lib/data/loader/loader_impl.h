/* loader_impl.h - shared by the files of the loader. */
#ifndef VFM_DATA_LOADER_LOADER_IMPL_H
#define VFM_DATA_LOADER_LOADER_IMPL_H

#include <pthread.h>

#include "base/par.h"
#include "data/dataset/index.h"
#include "data/loader/loader.h"
#include "data/loader/loader_ring.h"

/* A sample of a pack, and its text and extra arrays.  rows 0: none, or an extra array that is not delivered. */
struct vfm_loaded {
	struct vfm_plan_sample from;
	struct vfm_index_record rec;
	struct vfm_index_text text, extra[VFM_EXTRAS];
	bool unlisted; /* none of its captions has a weight */
	bool replaced; /* `from` replaces a damaged sample */
	int64_t tried; /* number of candidates tried after the damaged sample */
};

struct vfm_load_slot {
	struct vfm_loader *l;
	int64_t seq;
	bool held; /* by the consumer */
	struct vfm_pack p;
	struct vfm_load_facts facts; /* of p */
	/* used by the reading thread: */
	struct vfm_loaded *sample; /* [cap_sample] */
	size_t cap_sample;
	float *scratch; /* a latent before patchify, or a text before truncation */
	size_t scratch_size;
	struct vfm_index_spent spent;
	double arrange_s;
	struct vfm_plan_step search; /* the step that is searched for a sample to replace a damaged one */
};

struct vfm_cached_step {
	int64_t step; /* -1: none */
	int refs;
	bool ready;
	uint64_t used;
	int rc;
	struct vfm_err err;
	struct vfm_plan_step s;
	/* with turns: the packs of turn 0, then those of turn 1; the number and the tokens of each */
	int32_t *order;
	size_t cap_order;
	int32_t n_turn[2];
	int64_t turn_tokens[2];
};

struct vfm_loader {
	struct vfm_plan *m;
	const struct vfm_plan_header *h;
	struct vfm_loader_opts o;
	struct vfm_index **ix; /* [n_sets] */
	struct vfm_name_weights captions;
	int32_t patch_dim, per_step;
	int64_t n_packs, next; /* over all parts of the rank */
	bool has_pack;         /* this cp rank has received its pack of the current parts */
	struct vfm_ring ring;
	struct vfm_load_slot *slots; /* [ring.n_slots] */
	struct vfm_cached_step *cache;
	int32_t n_cache;
	uint64_t clock;
	bool logged_cut, logged_cut2, logged_unlisted;
	int n_logged; /* replaced samples */
	struct vfm_plan_sample logged[1000];
	struct vfm_plan_sample damaged[VFM_LOAD_NAMED]; /* the last ones in delivered packs, as a ring */
	int n_damaged;
	int64_t file_bytes;
	atomic_bool is_cold; /* the last pack was not in the page cache */
	struct vfm_pool *pool;
	pthread_mutex_t lock; /* guards the cache, the logged samples and file_bytes */
	pthread_cond_t changed;
	struct vfm_loader_stats stats;
};

/* Reads a pack of a step, or one without samples, into the slot: fills sl->p, whose step fields are set, and the facts.
 */
int vfm_load_pack(struct vfm_loader *l, struct vfm_load_slot *sl, const struct vfm_plan_step *step,
	const struct vfm_plan_pack *m, struct vfm_load_facts *facts, struct vfm_err *err);

static inline bool vfm_is_same_sample(const struct vfm_plan_sample *a, const struct vfm_plan_sample *b)
{
	return a->set == b->set && a->shard == b->shard && a->index == b->index;
}

#endif
