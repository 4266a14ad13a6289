/* scan.h - reads a shard: its samples, the offsets of their parts, and the resulting index records.
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
	const char *fault;                         /* reason why it cannot be an index record, or NULL */
	const char *mismatch;                      /* contradiction of its record's digests, or NULL */
	const struct vfm_encoder_ids *encoder_ids; /* from its json; never NULL; many samples share it */
	/* its record has digests of latents, text and caption (binding.h) */
	bool is_bound;
	uint64_t files; /* vfm_binding_number of its record */
	/* shard, index and first_text are 0; valid if fault is NULL */
	struct vfm_index_record rec;
	/* [rec.n_texts], followed by the extra arrays, for vfm_index_writer_add; name is 0 */
	struct vfm_index_text *texts;
	const char **text_names;
	struct vfm_scan_part *parts;
	int n_parts;
};

struct vfm_scan {                   /* `= {0}`, or with the flags set, before; release in any case */
	bool headers_only;          /* reads only the headers of arrays; the records have VFM_REC_UNCHECKED */
	bool for_join;              /* samples may lack latents and JSON */
	bool check_hashes;          /* compares a shard of MosaicML Streaming with the hashes in index.json */
	const char *unchecked_hash; /* with check_hashes: an algorithm that OpenSSL lacks (mds.h) */
	bool is_mds;                /* the records have VFM_REC_MDS and may lack JSON */
	struct vfm_scan_sample *samples;
	size_t n, cap;
	uint64_t bytes;                            /* of the file */
	uint64_t end;                              /* offset of the first zero block */
	const struct vfm_encoder_ids *encoder_ids; /* of the last sample */
	struct vfm_arena arena;                    /* holds all strings and parts */
};

/* Reads the tar at `path`: all of it, or headers and JSON.  VFM_EINPUT: the tar is damaged, or a member belongs to no
 * sample or is not contiguous with its sample; *s keeps the samples before.  VFM_EENV: a read failed. */
int vfm_scan_tar(struct vfm_scan *s, const char *path, struct vfm_err *err);
/* As vfm_scan_tar for a shard of MosaicML Streaming, which the caller keeps.  A sample without key gets FILE/NUMBER. */
int vfm_scan_mds(struct vfm_scan *s, const struct vfm_mds_shard *shard, const char *path, struct vfm_err *err);
void vfm_scan_release(struct vfm_scan *s);

#endif
