/* loader.h - the packs of a manifest as host memory, read ahead in the background.
 *
 * The order of the packs is that of the manifest (step, then pack), restricted to the
 * packs that `rank` of `world` owns; it does not depend on threads or prefetch.  Latents are bf16 if all latents of the
 * pack are stored so, else f32.  A loader
 * has one consumer: next and release are called from one thread.  All calls are local.
 */
#ifndef VFM_DATA_LOADER_H
#define VFM_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/manifest.h"
#include "spec/key.h"
#include "spec/pack.h"

struct vfm_loader_opts {
	int64_t first_step;  /* resume: the first step that is delivered */
	int32_t rank, world; /* pack p of a step belongs to p % world == rank; world 0 means 1 */
	/* Whole steps are divided instead: step s belongs to s % world == rank.  All ranks get the same number of
	 * packs: beyond the last step, step s is s % steps again.  first_step is 0. */
	bool by_step;
	int32_t prefetch; /* packs read ahead; 0: 4 */
	int32_t threads;  /* reading threads; 0: 2 */
	/* Weights of the captions of a sample; NULL: all are equally likely.  The loader copies them. */
	const struct vfm_name_weights *captions;
	uint64_t seed;    /* of the choice of captions */
	int32_t text_len; /* text rows of a sample that are delivered, the first; 0: all.  The first cut is logged */
	bool cond, image; /* deliver conditions, image rows; VFM_EUSAGE if the manifest has none */
	/* of the manifest (vfm_manifest_sha256), borrowed; NULL: unknown.  The loader uses it if the modification time
	 * of the file changes. */
	const char *plan_sha256;
	/* do not compare the sha256 of the indexes with the manifest at open (those of versions 1 and 2 are read whole)
	 */
	bool skip_hash;
};

struct vfm_loader_stats {
	int64_t packs, samples, tokens; /* delivered */
	int64_t bytes;                  /* of all arrays, as delivered */
	int64_t unlisted;   /* samples that have none of the captions with a weight; the first one is logged */
	double wait_s;      /* total time that next() blocked for data */
	double last_wait_s; /* of the last call */
};

struct vfm_loader;

/* Opens the indexes of all sets and compares them with the header: records, encoders, channels,
 * text_dim, sha256.  VFM_EUSAGE also if no set has a caption that opts->captions names.
 * The manifest must outlive the loader.  NULL on failure. */
struct vfm_loader *vfm_loader_open(struct vfm_manifest *m, const struct vfm_loader_opts *opts, struct vfm_err *err);
void vfm_loader_close(struct vfm_loader *l); /* waits for running jobs; frees all packs; accepts NULL */

/* Blocks until the next pack is read.  Returns 1 and sets *out, which the loader owns and which is valid until
 * vfm_loader_release.  Returns 0 at the end of the manifest.  Returns a negative code if the pack cannot be read: a
 * sample is not in the index, its tokens differ from the manifest, its checksum is wrong, or manifest or index changed
 * while they were in use.  The message names pack, set, shard and index; all further calls return the same error. At
 * most prefetch + 1 packs may be held; VFM_EUSAGE if the oldest of them is still held. */
int vfm_loader_next(struct vfm_loader *l, struct vfm_pack **out, struct vfm_err *err);
void vfm_loader_release(struct vfm_loader *l, struct vfm_pack *p);

/* Returns the packs per step of this rank, 0 if it gets none. */
int32_t vfm_loader_packs_per_step(const struct vfm_loader *l);
struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l);

#endif
