/* loader.h - the packs of a plan as host memory, read ahead in the background.
 *
 * The packs that `rank` of `world` owns come in the order of the plan (step, then pack).  Latents are bf16 or f16 if
 * all latents of the pack are stored so, else f32; with conditions, bf16 or f32.  A loader has one consumer: next and
 * release are called from one thread.  All calls are local.  Ranks of a node that need the same packs (tp, cp, pp)
 * form a group: one of them, in turn, reads a pack into shared memory.
 *
 * The next sample of the plan with as many tokens replaces a damaged one, the same on every rank and in every resumed
 * run.  A sample is damaged if its bytes contradict the index, or if its record of the index is damaged.  A file that
 * cannot be opened or read is a failure of the machine and ends the run.
 */
#ifndef VFM_DATA_LOADER_LOADER_H
#define VFM_DATA_LOADER_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/shared.h"
#include "data/plan/plan.h"
#include "io/key.h"
#include "spec/layout/pack.h"

enum {
	VFM_LOADER_PREFETCH_MAX = 4096,
	VFM_LOADER_EXTRA_DEPTH_MAX = 4096,
	VFM_LOADER_SLOTS_MAX = VFM_LOADER_PREFETCH_MAX + VFM_LOADER_EXTRA_DEPTH_MAX + 1,
	VFM_LOADER_STEPS_SEARCHED = 256, /* for a sample in place of a damaged one, its own included */
};

/* Ranks of one node that read the same packs. */
struct vfm_loader_group {
	const struct vfm_shared *mem; /* which all of them have open; outlives the loader */
	uint64_t at;                  /* vfm_loader_group_bytes() of it, reserved for this loader */
	int32_t rank, size;           /* size 1: no group */
	/* A rank may use a pack that is so many packs after one that another rank still uses (pp stages). */
	int32_t extra_depth;
	/* Called every 100 ms of a wait for other ranks, from any thread; a negative code ends it.  NULL: none. */
	int (*check)(void *ctx, struct vfm_err *err);
	void *ctx;
};
size_t vfm_loader_group_bytes(void);

struct vfm_loader_opts {
	int64_t first_step;  /* resume: the first step that is delivered */
	int32_t rank, world; /* pack p of a step belongs to p % world == rank; world 0 means 1 */
	/* With a plan that divides packs into parts (header.cp): the cp ranks that share what belongs to `rank`, and
	 * the number of this one among them.  Part p of a step belongs to rank p / n_parts % world, cp rank p %
	 * n_parts; a cp rank gets the pack that has this part.  If n_parts is less than the parts of a pack, other
	 * ranks with its parts get a pack without samples.  header.cp divides n_parts or the reverse, and world x
	 * n_parts divides the batch.  0: 1. */
	int32_t n_parts, part;
	/* Whole steps are divided instead: step s belongs to s % world == rank.  All ranks get the same number of
	 * packs: beyond the last step, step s is s % steps again.  first_step is 0. */
	bool by_step;
	int32_t prefetch;                     /* packs read ahead; 0: 4 */
	int32_t threads;                      /* reading threads; 0: 2 */
	const struct vfm_loader_group *group; /* NULL: none; the loader copies it */
	/* Weights of the captions of a sample; NULL: all are equally likely.  The loader copies them. */
	const struct vfm_name_weights *captions;
	uint64_t seed;    /* of the choice of captions */
	int32_t text_len; /* text rows of a sample that are delivered, the first; 0: all.  The first cut is logged */
	bool cond, image; /* deliver conditions, image rows; VFM_EUSAGE if the plan has none */
	/* The share of samples that may be replaced, of those delivered or, if more, of 1000; 0: none. */
	double max_damaged;
	struct vfm_shard_cache
		*cache; /* for shards that are not next to their index (data/dataset/shard_cache.h); NULL: none */
	/* of the plan (vfm_plan_sha256), borrowed; NULL: unknown.  The loader uses it if the modification time
	 * of the file changes. */
	const char *plan_sha256;
	/* do not compare the sha256 of the indexes with the plan at open (those of versions 1 and 2 are read whole)
	 */
	bool skip_hash;
};

/* The state of a thread that reads packs. */
enum vfm_load_cause {
	VFM_LOAD_FILES,   /* reads shards */
	VFM_LOAD_CHECK,   /* checks what it read: checksums, finite values */
	VFM_LOAD_ARRANGE, /* converts and patchifies */
	VFM_LOAD_LOOKUP,  /* reads plan and indexes; and all else: memory, positions */
	VFM_LOAD_PEERS,   /* waits until the other ranks of the group have released a slot */
	VFM_LOAD_CAUSES
};
extern const char *const vfm_load_causes[VFM_LOAD_CAUSES]; /* "files" */

struct vfm_loader_stats {
	/* delivered; those of the other cp ranks, too (n_parts) */
	int64_t packs, samples, tokens;
	int64_t bytes;      /* of all arrays, as delivered */
	int64_t file_bytes; /* that this rank has read from shards, read ahead included */
	int64_t unlisted;   /* samples that have none of the captions with a weight; the first one is logged */
	int64_t replaced;   /* damaged samples; the first 1000 are logged, with a cache one of a shard */
	double wait_s;      /* total time that next() blocked for data */
	double last_wait_s; /* of the last call */
	/* wait_s by what the reader of the awaited pack had spent its time on */
	double wait_by_s[VFM_LOAD_CAUSES];
};

struct vfm_loader;

/* Opens the indexes of all sets and compares them with the header: records, encoders, channels,
 * text_dim, sha256.  VFM_EUSAGE also if no set has a caption that opts->captions names.
 * The plan must outlive the loader.  NULL on failure. */
struct vfm_loader *vfm_loader_open(struct vfm_plan *m, const struct vfm_loader_opts *opts, struct vfm_err *err);
void vfm_loader_close(struct vfm_loader *l); /* waits for running jobs; frees all packs; accepts NULL */

/* Blocks until the next pack is read.  Returns 1 and sets *out, which the loader owns until vfm_loader_release; 0 at
 * the end of the plan; a negative code if the pack cannot be read.  Reasons: a sample is not in the index or its tokens
 * differ from the plan; plan or index changed during use; more samples are damaged than opts->max_damaged; no sample
 * has as many tokens as a damaged one.  The message names pack, set, shard and index; all further calls return the same
 * error.  At most prefetch + 1 packs may be held; VFM_EUSAGE if the oldest of them is still held. */
int vfm_loader_next(struct vfm_loader *l, struct vfm_pack **out, struct vfm_err *err);
void vfm_loader_release(struct vfm_loader *l, struct vfm_pack *p);

/* Returns the packs per step of this rank, those without samples included; 0 if it gets none. */
int32_t vfm_loader_packs_per_step(const struct vfm_loader *l);
struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l);

#endif
