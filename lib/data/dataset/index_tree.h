/* index_tree.h - the hash tree of index.vfmi, which makes checking any part of it cheap.
 *
 * The design is that of fs-verity (Linux, Documentation/filesystems/fsverity.rst).  Level 0 is all of the file before
 * the tree, in blocks of 4096 bytes.  Level k + 1 holds the SHA-256 of each block of level k, in order, padded with
 * zeros to blocks of 4096 bytes.  The levels follow each other from 1 to the top, which is one block and ends the
 * file.
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

/* The tree of `bytes` > 0, a multiple of VFM_TREE_BLOCK. */
struct vfm_tree_shape vfm_tree_shape_of(uint64_t bytes);

/* ---- reading ---- */

struct vfm_index_tree { /* `= {0}` before open */
	struct vfm_tree_shape shape;
	/* private */
	const uint8_t *file;
	_Atomic(uint64_t) *trusted[VFM_TREE_LEVELS]; /* a bit a block; NULL of the top */
};

/* file: mapped, at least shape.end bytes long; the tree covers the first `bytes`.  Reads the top block alone.
 * VFM_EUSAGE: its padding is damaged.  The memory is a bit a block; the kernel provides only the pages that are
 * used. */
int vfm_tree_open(struct vfm_index_tree *t, const uint8_t *file, uint64_t bytes, struct vfm_err *err);
void vfm_tree_close(struct vfm_index_tree *t);

/* Checks the blocks of [offset, offset + bytes) that were not checked before.  VFM_EINPUT names the first bad block.
 * Threads may call it at once. */
int vfm_tree_check(const struct vfm_index_tree *t, uint64_t offset, uint64_t bytes, struct vfm_err *err);

/* Hashes again all blocks that are trusted, below the top.  VFM_EINPUT names one that has changed. */
int vfm_tree_recheck(const struct vfm_index_tree *t, struct vfm_err *err);

/* ---- writing ---- */

/* Hashes a file as it is written.  The first block, which holds the header, is kept to the end. */
struct vfm_tree_writer { /* `= {0}` before open */
	FILE *leaves;    /* unlinked: level 1 */
	uint64_t bytes;
	uint8_t first[VFM_TREE_BLOCK], block[VFM_TREE_BLOCK];
};

/* The hashes of level 1 go to an unlinked file in `dir`, 32 bytes a block. */
int vfm_tree_writer_open(struct vfm_tree_writer *w, const char *dir, struct vfm_err *err);
void vfm_tree_writer_close(struct vfm_tree_writer *w);
int vfm_tree_writer_add(struct vfm_tree_writer *w, const void *data, size_t len, struct vfm_err *err);
/* Writes the tree to f.  The bytes that were added are a multiple of VFM_TREE_BLOCK; `header` replaces the first. */
int vfm_tree_writer_end(
	struct vfm_tree_writer *w, const void *header, size_t header_bytes, FILE *f, struct vfm_err *err);

#endif
