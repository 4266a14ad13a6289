/* index_tree.h - the hash tree of index.vfmi, which makes it cheap to check any part of the file.
 *
 * The design is that of fs-verity (Linux, Documentation/filesystems/fsverity.rst).  Level 0 is the file before the
 * tree, in blocks of 4096 bytes.  Level k + 1 holds the SHA-256 of each block of level k, in order, padded with zeros
 * to blocks of 4096 bytes.  The levels are stored from 1 to the top, which is one block and ends the file.
 *
 * The top block and the header identify the file.  A block is trusted if its SHA-256 is in a trusted parent.
 */
#ifndef VFM_DATA_DATASET_INDEX_TREE_H
#define VFM_DATA_DATASET_INDEX_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define VFM_TREE_BLOCK  4096
#define VFM_TREE_LEVELS 9 /* enough for 2^63 bytes */

struct vfm_tree_shape {
	int top;                          /* number of the top level, from 1 */
	uint64_t blocks[VFM_TREE_LEVELS]; /* of each level */
	uint64_t offset[VFM_TREE_LEVELS]; /* in the file; that of level 0 is 0 */
	uint64_t end;                     /* of the top block */
};

/* Returns the shape of the tree over `bytes` > 0, a multiple of VFM_TREE_BLOCK. */
struct vfm_tree_shape vfm_tree_shape_of(uint64_t bytes);

/* ---- reading ---- */

struct vfm_index_tree { /* `= {0}` before open */
	struct vfm_tree_shape shape;
	/* private */
	const uint8_t *file;
	_Atomic(uint64_t) *trusted[VFM_TREE_LEVELS]; /* one bit per block; NULL for the top */
};

/* Reads only the top block.  file is mapped and at least shape.end bytes long; the tree covers the first `bytes`.
 * Allocates one bit per block; the kernel provides only used pages.  VFM_EUSAGE: the padding of the top block is
 * damaged. */
int vfm_tree_open(struct vfm_index_tree *t, const uint8_t *file, uint64_t bytes, struct vfm_err *err);
void vfm_tree_close(struct vfm_index_tree *t);

/* Checks the blocks of [offset, offset + bytes) that were not checked before.  VFM_EINPUT names the first bad block.
 * Several threads may call it at once. */
int vfm_tree_check(const struct vfm_index_tree *t, uint64_t offset, uint64_t bytes, struct vfm_err *err);

/* Hashes all trusted blocks below the top again.  VFM_EINPUT names one that has changed. */
int vfm_tree_recheck(const struct vfm_index_tree *t, struct vfm_err *err);

/* ---- writing ---- */

/* Hashes a file while it is written.  Keeps the first block, which holds the header, until the end. */
struct vfm_tree_writer { /* `= {0}` before open */
	FILE *leaves;    /* unlinked: level 1 */
	uint64_t bytes;
	uint8_t first[VFM_TREE_BLOCK], block[VFM_TREE_BLOCK];
};

/* Writes the hashes of level 1 to an unlinked file in `dir`, 32 bytes per block. */
int vfm_tree_writer_open(struct vfm_tree_writer *w, const char *dir, struct vfm_err *err);
void vfm_tree_writer_close(struct vfm_tree_writer *w);
int vfm_tree_writer_add(struct vfm_tree_writer *w, const void *data, size_t len, struct vfm_err *err);
/* Writes the tree to f.  The added bytes are a multiple of VFM_TREE_BLOCK; `header` replaces the first of them. */
int vfm_tree_writer_end(
	struct vfm_tree_writer *w, const void *header, size_t header_bytes, FILE *f, struct vfm_err *err);

#endif
