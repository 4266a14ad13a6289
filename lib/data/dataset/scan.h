/* scan.h - reads a shard: its samples, the offsets of their parts, and the index records that follow.
 *
 * The writer and the verifier of an index both use the scan, so that an index always describes the file on disk.
 */
#ifndef VFM_DATA_DATASET_SCAN_H
#define VFM_DATA_DATASET_SCAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "data/dataset/index.h"
#include "data/dataset/mds.h"

struct vfm_scan_part {
	const char *name; /* "latent.npy" */
	uint64_t offset, bytes;
	const struct vfm_mds_column *column; /* NULL: a member of a tar */
};

struct vfm_scan_sample {
	const char *key;
	const char *fault;                         /* NULL, or why it cannot be an index record */
	const char *mismatch;                      /* NULL, or what contradicts the digests of its record */
	const struct vfm_encoder_ids *encoder_ids; /* as its json names them; not NULL, the same for many samples */
	bool is_bound;                             /* its record has digests of latents, text and caption (binding.h) */
	uint64_t files;                            /* vfm_binding_number of its record */
	/* shard, index and first_text are 0; valid without fault */
	struct vfm_index_record rec;
	/* [rec.n_texts], and after them the extra arrays, for vfm_index_writer_add; name is 0 */
	struct vfm_index_text *texts;
	const char **text_names;
	struct vfm_scan_part *parts;
	int n_parts;
};

struct vfm_scan {                   /* `= {0}` before, or with headers_only; release in any case */
	bool headers_only;          /* reads of the arrays only their headers: the records have VFM_REC_UNCHECKED */
	bool for_join;              /* samples may be without latents, and without JSON */
	bool check_hashes;          /* compares a shard of MosaicML Streaming with the hashes in index.json */
	const char *unchecked_hash; /* then: an algorithm that OpenSSL lacks (mds.h) */
	bool is_mds;                /* the records have VFM_REC_MDS, and may be without JSON */
	struct vfm_scan_sample *samples;
	size_t n, cap;
	uint64_t bytes;                            /* of the file */
	uint64_t end;                              /* offset of the first zero block */
	const struct vfm_encoder_ids *encoder_ids; /* of the sample read last */
	struct vfm_arena arena;                    /* holds all strings and parts */
};

/* Reads all of the tar at `path`, or headers and JSON.  VFM_EINPUT: the tar is damaged, or a member belongs to no
 * sample or is not contiguous with its sample (*s keeps the samples before); VFM_EENV: cannot read. */
int vfm_scan_tar(struct vfm_scan *s, const char *path, struct vfm_err *err);
/* The same of a shard of MosaicML Streaming, which the caller keeps.  A sample without key has FILE/NUMBER. */
int vfm_scan_mds(struct vfm_scan *s, const struct vfm_mds_shard *shard, const char *path, struct vfm_err *err);
void vfm_scan_release(struct vfm_scan *s);

#endif
