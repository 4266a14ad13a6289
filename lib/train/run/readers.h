/* readers.h - the loaders of a run.  The ranks of a node that need the same packs read each pack once
 * (data/loader/loader.h).
 */
#ifndef VFM_TRAIN_RUN_READERS_H
#define VFM_TRAIN_RUN_READERS_H

#include "data/loader/loader.h"
#include "net/mesh/mesh.h"
#include "train/job/config.h"

/* Collective over mesh->readers, whose ranks take the same packs.  Opens a loader of the plan for this rank along dp,
 * with the options *o and those that follow from mesh and configuration.  Returns NULL on failure.  All arguments but o
 * must outlive the loader. */
struct vfm_loader *vfm_readers_open(struct vfm_plan *plan, const struct vfm_config *c, const struct vfm_mesh *mesh,
	const struct vfm_loader_opts *o, struct vfm_err *err);

/* Sets frames, height and width of the longest sample of a pack; zeros: the geometry is unknown, or the pack is empty.
 */
void vfm_readers_size(
	int64_t size[3], const struct vfm_pack *p, const struct vfm_model_spec *m, const struct vfm_geometry *g);

#endif
