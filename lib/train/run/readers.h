/* readers.h - the ranks of a node that need the same packs read each of them once (data/loader/loader.h). */
#ifndef VFM_TRAIN_RUN_READERS_H
#define VFM_TRAIN_RUN_READERS_H

#include "data/loader/loader.h"
#include "net/mesh/mesh.h"

/* Collective over mesh->readers.  Prepares a group for one loader of these ranks; they open it with the same options
 * and take the same packs.  The mesh must outlive the loader. */
int vfm_readers_group(const struct vfm_mesh *mesh, struct vfm_loader_group *g, struct vfm_err *err);

#endif
