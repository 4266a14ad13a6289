/* index_impl.h - what reader and writer of index.vfmi share; for lib/data/index*.c alone. */
#ifndef VFM_DATA_INDEX_IMPL_H
#define VFM_DATA_INDEX_IMPL_H

#include "data/index.h"

#define VFM_INDEX_MAGIC "VFMINDEX"

struct vfm_index_header {
	char magic[8] __attribute__((nonstring));
	uint32_t version, header_bytes, record_bytes, shard_bytes;
	uint64_t n_records;
	uint32_t n_shards, text_bytes; /* text_bytes: of an entry of the texts */
	uint64_t records_offset, shards_offset, file_bytes;
	union {
		struct {
			uint64_t n_texts, texts_offset, meta_offset;
			uint32_t meta_bytes, meta_crc;
			uint64_t tree_offset; /* version 2: 0 */
			uint64_t reserved;
		};
		char labels[2][24]; /* version 1: "NAME[@VERSION]" of the tokenizer and of the text encoder */
	};
	uint32_t reserved1[3];
	uint32_t crc; /* crc32c of the 124 bytes before it */
};
_Static_assert(sizeof(struct vfm_index_header) == 128, "on-disk layout");

/* Version 3 ends with a hash tree of all that precedes it (index_tree.h): meta is padded with zeros to whole blocks. */
#define VFM_INDEX_META_MAX (1u << 20)
enum { VFM_INDEX_PARTS = 64 }; /* datasets of a join */

/* Returns a descriptor of the shard's tar; release returns it to *slot, or closes it if *slot is NULL. */
struct vfm_index_fd;
int vfm_index_acquire(struct vfm_index *ix, uint32_t shard, struct vfm_index_fd **slot, struct vfm_err *err);
void vfm_index_release(struct vfm_index *ix, struct vfm_index_fd *slot, int fd);

/* NULL, or why this record cannot be one of shard s. */
const char *vfm_record_fault(const struct vfm_record *r, const struct vfm_index_shard *s);
/* NULL, or why this text cannot be one of record r. */
const char *vfm_index_text_fault(const struct vfm_index_text *t, const struct vfm_record *r);

/* The same of an extra array. */
const char *vfm_index_extra_fault(const struct vfm_index_text *t, const struct vfm_record *r, enum vfm_extra e);

/* Of a record r as version 1 has it: its text.  Offset and size are where later versions have first_text and n_texts.
 */
void vfm_index_text_v1(struct vfm_index_text *t, const struct vfm_record *r);
/* Makes record n of later versions of it. */
void vfm_index_upgrade_v1(struct vfm_record *r, uint64_t n);

#endif
