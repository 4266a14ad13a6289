/* index_impl.h - declarations that lib/data/dataset/index*.c share. */
#ifndef VFM_DATA_DATASET_INDEX_IMPL_H
#define VFM_DATA_DATASET_INDEX_IMPL_H

#include <pthread.h>

#include "base/map.h"
#include "data/dataset/index.h"
#include "data/dataset/index_tree.h"

#define VFM_INDEX_MAGIC "VFMINDEX"

struct vfm_index_header {
	char magic[8] __attribute__((nonstring));
	uint32_t version, header_bytes, record_bytes, shard_bytes;
	uint64_t n_records;
	uint32_t n_shards, text_bytes; /* text_bytes: bytes per entry of the texts */
	uint64_t records_offset, shards_offset, file_bytes;
	uint64_t n_texts, texts_offset, meta_offset;
	uint32_t meta_bytes, meta_crc;
	uint64_t tree_offset;
	uint32_t reserved[5];
	uint32_t crc; /* crc32c of the 124 bytes before it */
};
_Static_assert(sizeof(struct vfm_index_header) == 128, "on-disk layout");

enum {
	VFM_INDEX_META_MAX = 1 << 20, /* bytes; zeros pad meta to whole blocks of the hash tree */
	VFM_INDEX_PARTS = 64,         /* datasets of a join */
	VFM_INDEX_FDS = 64            /* descriptors of tars that stay open, for shuffled reads of many shards */
};

struct vfm_index_fd {
	uint32_t shard;
	int fd, users; /* fd < 0: free */
};

struct vfm_index {
	struct vfm_index_info info;
	struct vfm_map map;
	struct vfm_index_header h;
	struct vfm_index_tree tree;
	const struct vfm_index_record *records;
	const struct vfm_index_shard *shards;
	const struct vfm_index_text *texts;
	char *path;
	struct vfm_shard_cache *cache; /* NULL: none */
	const char *set;
	pthread_mutex_t lock; /* guards slots */
	struct vfm_index_fd slots[VFM_INDEX_FDS];
};

/* acquire returns a descriptor of the shard's tar.  release returns it to *slot, or closes it if *slot is NULL. */
int vfm_index_acquire(struct vfm_index *ix, uint32_t shard, struct vfm_index_fd **slot, struct vfm_err *err);
void vfm_index_release(struct vfm_index *ix, struct vfm_index_fd *slot, int fd);
/* Call before the release if the bytes of an acquired shard contradict the index.  Returns 1 if the shard may be intact
 * when it is acquired again (vfm_shard_cache_renew), 0 if it is damaged, or a negative code with err. */
int vfm_index_renew(struct vfm_index *ix, uint32_t shard, int fd, struct vfm_err *err);

/* Returns the reason why this record cannot be one of shard s, or NULL. */
const char *vfm_record_fault(const struct vfm_index_record *r, const struct vfm_index_shard *s);
/* Returns the reason why this array cannot be one of record r, a text (e < 0) or the extra array e; or NULL. */
const char *vfm_index_array_fault(const struct vfm_index_text *t, const struct vfm_index_record *r, int e);

#endif
