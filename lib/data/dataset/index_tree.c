/* index_tree.c - verifies blocks of an index against the hashes of their parents at the first read; writes the tree. */
#include "data/dataset/index_tree.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/hash.h"

#define FANOUT (VFM_TREE_BLOCK / VFM_SHA256_BYTES)

struct vfm_tree_shape vfm_tree_shape_of(uint64_t bytes)
{
	struct vfm_tree_shape s = {.blocks[0] = bytes / VFM_TREE_BLOCK};
	uint64_t end = bytes;

	do {
		s.blocks[s.top + 1] = (s.blocks[s.top] + FANOUT - 1) / FANOUT;
		s.top++;
		s.offset[s.top] = end;
		end += s.blocks[s.top] * VFM_TREE_BLOCK;
	} while (s.blocks[s.top] > 1);
	s.end = end;
	return s;
}

/* ---- reading ---- */

static uint64_t words_of(uint64_t blocks)
{
	return (blocks + 63) / 64;
}

/* No other block has a hash of the top block, and what follows its hashes is not compared with any block. */
static bool is_padded_with_zeros(const struct vfm_index_tree *t)
{
	const uint8_t *top = t->file + t->shape.offset[t->shape.top];

	for (uint64_t i = t->shape.blocks[t->shape.top - 1] * VFM_SHA256_BYTES; i < VFM_TREE_BLOCK; i++)
		if (top[i])
			return false;
	return true;
}

int vfm_tree_open(struct vfm_index_tree *t, const uint8_t *file, uint64_t bytes, struct vfm_err *err)
{
	t->shape = vfm_tree_shape_of(bytes);
	t->file = file;
	if (!is_padded_with_zeros(t))
		return vfm_fail(err, VFM_EUSAGE, "the top block of the hash tree is damaged");
	for (int k = 0; k < t->shape.top; k++) {
		t->trusted[k] = calloc(words_of(t->shape.blocks[k]), sizeof(*t->trusted[k]));
		if (!t->trusted[k])
			return vfm_fail(err, VFM_EENV, "no memory to check %" PRIu64 " blocks", t->shape.blocks[k]);
	}
	return 0;
}

void vfm_tree_close(struct vfm_index_tree *t)
{
	for (int k = 0; k < VFM_TREE_LEVELS; k++)
		free(t->trusted[k]);
	*t = (struct vfm_index_tree){0};
}

/* Returns whether block n of a level has the hash that its parent says. */
static bool has_parents_hash(const struct vfm_index_tree *t, int level, uint64_t n)
{
	const struct vfm_tree_shape *s = &t->shape;
	uint8_t hash[VFM_SHA256_BYTES];

	vfm_sha256_raw(t->file + s->offset[level] + n * VFM_TREE_BLOCK, VFM_TREE_BLOCK, hash);
	return memcmp(hash, t->file + s->offset[level + 1] + n * sizeof(hash), sizeof(hash)) == 0;
}

static int fail_block(const struct vfm_index_tree *t, int level, uint64_t n, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EINPUT,
		"damaged: the %d bytes from %" PRIu64 " on do not have the SHA-256 in the hash tree", VFM_TREE_BLOCK,
		t->shape.offset[level] + n * VFM_TREE_BLOCK);
}

/* Trusts block n of a level, and so its parents, or fails.  Threads that check one block at once agree. */
static int trust_block(const struct vfm_index_tree *t, int level, uint64_t n, struct vfm_err *err)
{
	const uint64_t bit = (uint64_t)1 << n % 64;

	if (level == t->shape.top || (atomic_load_explicit(&t->trusted[level][n / 64], memory_order_acquire) & bit))
		return 0;
	TRY(trust_block(t, level + 1, n / FANOUT, err));
	if (!has_parents_hash(t, level, n))
		return fail_block(t, level, n, err);
	atomic_fetch_or_explicit(&t->trusted[level][n / 64], bit, memory_order_release);
	return 0;
}

int vfm_tree_check(const struct vfm_index_tree *t, uint64_t offset, uint64_t bytes, struct vfm_err *err)
{
	for (uint64_t n = offset / VFM_TREE_BLOCK; n * VFM_TREE_BLOCK < offset + bytes; n++)
		TRY(trust_block(t, 0, n, err));
	return 0;
}

int vfm_tree_recheck(const struct vfm_index_tree *t, struct vfm_err *err)
{
	for (int level = t->shape.top - 1; level >= 0; level--)
		for (uint64_t w = 0; w < words_of(t->shape.blocks[level]); w++) {
			uint64_t bits = atomic_load_explicit(&t->trusted[level][w], memory_order_acquire);

			for (; bits; bits &= bits - 1) {
				uint64_t n = w * 64 + (uint64_t)__builtin_ctzll(bits);

				if (!has_parents_hash(t, level, n))
					return fail_block(t, level, n, err);
			}
		}
	return 0;
}

/* ---- writing ---- */

static int fail_leaves(struct vfm_err *err)
{
	return vfm_fail_errno(err, VFM_EENV, "cannot write the temporary file of hashes");
}

int vfm_tree_writer_open(struct vfm_tree_writer *w, const char *dir, struct vfm_err *err)
{
	return vfm_unlinked_in(dir, &w->leaves, err);
}

void vfm_tree_writer_close(struct vfm_tree_writer *w)
{
	if (w->leaves)
		fclose(w->leaves);
	*w = (struct vfm_tree_writer){0};
}

int vfm_tree_writer_add(struct vfm_tree_writer *w, const void *data, size_t len, struct vfm_err *err)
{
	const uint8_t *from = data;
	uint8_t hash[VFM_SHA256_BYTES];

	while (len > 0) {
		size_t at = w->bytes % VFM_TREE_BLOCK, n = VFM_TREE_BLOCK - at < len ? VFM_TREE_BLOCK - at : len;

		memcpy((w->bytes < VFM_TREE_BLOCK ? w->first : w->block) + at, from, n);
		w->bytes += n;
		from += n;
		len -= n;
		if (at + n < VFM_TREE_BLOCK)
			return 0;
		vfm_sha256_raw(w->block, VFM_TREE_BLOCK, hash); /* of the first block: replaced at the end */
		if (fwrite(hash, sizeof(hash), 1, w->leaves) != 1)
			return fail_leaves(err);
	}
	return 0;
}

static int put_tree_block(FILE *f, const void *block, struct vfm_buf *parents, struct vfm_err *err)
{
	uint8_t hash[VFM_SHA256_BYTES];

	if (fwrite(block, VFM_TREE_BLOCK, 1, f) != 1)
		return vfm_fail_errno(err, VFM_EENV, "cannot write the hash tree");
	vfm_sha256_raw(block, VFM_TREE_BLOCK, hash);
	vfm_buf_add(parents, (const char *)hash, sizeof(hash));
	return 0;
}

/* Writes level 1 from the temporary file and collects the hashes of level 2. */
static int put_leaves(struct vfm_tree_writer *w, uint64_t blocks, FILE *f, struct vfm_buf *parents, struct vfm_err *err)
{
	rewind(w->leaves);
	for (uint64_t n = 0; n < blocks; n++) {
		memset(w->block, 0, sizeof(w->block));
		if (fread(w->block, 1, sizeof(w->block), w->leaves) == 0 || ferror(w->leaves))
			return vfm_fail_errno(err, VFM_EENV, "cannot read the temporary file of hashes");
		TRY(put_tree_block(f, w->block, parents, err));
	}
	return 0;
}

/* Writes a level whose hashes are in `level`, which then holds those of the next. */
static int put_level(struct vfm_buf *level, uint64_t blocks, FILE *f, struct vfm_err *err)
{
	struct vfm_buf parents = {0};
	uint8_t block[VFM_TREE_BLOCK];
	int rc = 0;

	for (size_t n = 0; rc == 0 && n < blocks; n++) {
		size_t at = n * sizeof(block), left = level->len - at;

		memset(block, 0, sizeof(block));
		memcpy(block, level->data + at, left < sizeof(block) ? left : sizeof(block));
		rc = put_tree_block(f, block, &parents, err);
	}
	vfm_buf_release(level);
	*level = parents;
	return rc;
}

int vfm_tree_writer_end(
	struct vfm_tree_writer *w, const void *header, size_t header_bytes, FILE *f, struct vfm_err *err)
{
	struct vfm_tree_shape s = vfm_tree_shape_of(w->bytes);
	struct vfm_buf level = {0};
	uint8_t hash[VFM_SHA256_BYTES];
	int rc;

	memcpy(w->first, header, header_bytes);
	vfm_sha256_raw(w->first, VFM_TREE_BLOCK, hash);
	if (fseeko(w->leaves, 0, SEEK_SET) != 0 || fwrite(hash, sizeof(hash), 1, w->leaves) != 1 ||
		fflush(w->leaves) != 0)
		return fail_leaves(err);
	rc = put_leaves(w, s.blocks[1], f, &level, err);
	for (int k = 2; rc == 0 && k <= s.top; k++)
		rc = put_level(&level, s.blocks[k], f, err);
	vfm_buf_release(&level);
	return rc;
}
