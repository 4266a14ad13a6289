/* loader.h - the packs of a manifest as host memory, read ahead in the background.
 *
 * The order of the packs is that of the manifest (step, then pack), restricted to the
 * packs that `rank` of `world` owns; it does not depend on threads or prefetch.  A loader
 * has one consumer: next and release are called from one thread.  All calls are local.
 */
#ifndef VFM_DATA_LOADER_H
#define VFM_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "data/manifest.h"
#include "spec/pack.h"

struct vfm_loader_opts {
	int64_t first_step;  /* resume: the first step that is delivered */
	int32_t rank, world; /* pack p of a step belongs to p % world == rank; world 0 means 1 */
	int32_t prefetch;    /* packs read ahead; 0: 4 */
	int32_t threads;     /* reading threads; 0: 2 */
	int32_t text_len;    /* text rows of a sample that are delivered, the first; 0: all.  The first cut is logged */
	/* do not compare the sha256 of the indexes with the manifest at open (it reads them whole) */
	bool skip_hash;
};

struct vfm_loader_stats {
	int64_t packs, samples, tokens; /* delivered */
	int64_t bytes;                  /* of latents and text, as float32 */
	double wait_s;                  /* that next() had to wait for data, in all */
	double last_wait_s;             /* in the last call */
};

struct vfm_loader;

/* Opens the indexes of all sets and compares them with the header: records, channels, text_dim, sha256.
 * The manifest must outlive the loader.  NULL on failure. */
struct vfm_loader *vfm_loader_open(
	const struct vfm_manifest *m, const struct vfm_loader_opts *opts, struct vfm_err *err);
void vfm_loader_close(struct vfm_loader *l); /* waits for work under way; frees all packs; NULL is fine */

/* 1: *out is the next pack, which belongs to the loader and is valid until vfm_loader_release; 0: the manifest is at
 * its end; negative: this pack cannot be read (a sample is not in the index, has other tokens than the manifest says,
 * or its checksum is wrong; the message names pack, set, shard and index), and every further call returns the same
 * error. At most prefetch + 1 packs may be held; VFM_EUSAGE if the oldest of them is still held. */
int vfm_loader_next(struct vfm_loader *l, struct vfm_pack **out, struct vfm_err *err);
void vfm_loader_release(struct vfm_loader *l, struct vfm_pack *p);

/* Packs of a step that this rank gets (0 if world > batch). */
int32_t vfm_loader_packs_per_step(const struct vfm_loader *l);
struct vfm_loader_stats vfm_loader_stats(const struct vfm_loader *l);

#endif
