/* index_impl.h - what reader and writer of index.vfmi share; for lib/data/index*.c alone. */
#ifndef VFM_DATA_INDEX_IMPL_H
#define VFM_DATA_INDEX_IMPL_H

#include "data/index.h"

#define VFM_INDEX_MAGIC "VFMINDEX"

struct vfm_index_header {
	char magic[8] __attribute__((nonstring));
	uint32_t version, header_bytes, record_bytes, shard_bytes;
	uint64_t n_records;
	uint32_t n_shards, reserved0;
	uint64_t records_offset, shards_offset, file_bytes;
	char tokenizer[24], embedder[24];
	uint32_t reserved[3];
	uint32_t crc; /* crc32c of the 124 bytes before it */
};
_Static_assert(sizeof(struct vfm_index_header) == 128, "on-disk layout");

/* NULL, or why this record cannot be one of shard s. */
const char *vfm_record_fault(const struct vfm_record *r, const struct vfm_index_shard *s);

#endif
