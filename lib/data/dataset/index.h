/* index.h - index.vfmi: the offsets of all samples of a dataset, as fixed-size records; vfm-index(5) describes the
 * format.
 *
 *     header [128] | records [n_records x 128] | shard table [n_shards x 64] | texts [n_texts x 32] | meta | hash tree
 *
 * The file is mapped.  Opening takes constant time; records are checked when they are read.  The records of a shard are
 * contiguous, in the order of the tar.  A record refers to a range of the texts, one for each caption of the sample.
 * The caption of a sample with one unnamed caption is "" (data/record/caption.h).
 *
 * Any number of threads may call the reading functions on one index.
 */
#ifndef VFM_DATA_DATASET_INDEX_H
#define VFM_DATA_DATASET_INDEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "data/record/caption.h"
#include "data/record/extra.h"
#include "data/record/encoder_id.h"
#include "io/hash.h"
#include "io/npy.h"

#define VFM_INDEX_NAME         "index.vfmi"
#define VFM_INDEX_VERSION      3
#define VFM_INDEX_JOIN_VERSION 4
/* a sample has a second text, which readers of the other versions would ignore; join or not */
#define VFM_INDEX_TEXT2_VERSION 5

#define VFM_TEXTS_MAX      17  /* maximum per sample: VFM_CAPTIONS_MAX, and one without a name */
#define VFM_TEXT_NAMES_MAX 256 /* maximum names in a dataset */

enum {
	VFM_REC_IMAGE = 1, /* a still image: one latent frame, frames == 1 */
	VFM_REC_MEDIA = 2, /* the sample has a media member (KEY.mp4, KEY.jpg, …) */
			   /* 4, 8 and 128: it has the arrays of vfm_extra_kinds */
	/* a checksum of 0 means that the contents of the array are unknown; in a join, only some checksums may be 0 */
	VFM_REC_UNCHECKED = 16,
	/* the sample is in a shard of MosaicML Streaming: headers of arrays are those of mds.h, and json_bytes may be
	 * 0 */
	VFM_REC_MDS = 32,
	/* a sample without latents, of a dataset for a join: c, type and sizes are 0; t, h and w are those of its
	 * condition */
	VFM_REC_NO_LATENT = 64,
	VFM_REC_ALL = 255, /* other bits are 0 */
};

/* 128 bytes, in the format of the file.  Offsets count from the start of the shard's tar.  A payload is the content of
 * a tar member, including the npy header of an .npy. */
struct vfm_index_record {
	uint64_t id;            /* vfm_sample_id(key), the key of its random numbers */
	uint32_t shard;         /* number in the shard table */
	uint32_t index;         /* number in the shard, from 0 */
	uint64_t sample_offset; /* of the sample's first tar header */
	uint64_t sample_bytes;  /* headers, payloads and padding of all its members */
	uint64_t latent_offset;
	/* number of its first text, or of its first extra array if it has no texts; 0 without both */
	uint64_t first_text;
	uint64_t json_offset;
	uint64_t media_offset, media_bytes; /* 0, 0 without VFM_REC_MEDIA */
	uint32_t latent_bytes;              /* payload length */
	uint32_t n_texts;                   /* at most VFM_TEXTS_MAX */
	uint32_t json_bytes;
	uint32_t latent_crc; /* crc32c of the payload */
	uint32_t reserved0;  /* these three are 0 */
	uint32_t json_crc;
	uint16_t c, t, h, w;    /* latent [c, t, h, w], each >= 1 */
	uint16_t latent_header; /* npy header length; the elements follow */
	uint16_t reserved1[2];
	uint16_t text_dim;    /* of all its texts; 0 without texts */
	uint8_t latent_dtype; /* enum vfm_npy_type: F16, BF16 or F32 */
	uint8_t reserved2;
	uint16_t flags;     /* VFM_REC_* */
	uint32_t frames;    /* true number of frames before tokenization */
	uint32_t fps_milli; /* frames a second x 1000; 0: unknown or an image */
	uint32_t crc;       /* crc32c of the 124 bytes before it */
};

/* The texts of a sample are followed by its extra arrays (extra.h) in the same format, without a name.  `rows` of a
 * condition are its channels. */
struct vfm_index_text {    /* 32 bytes, in the format of the file */
	uint64_t offset;   /* of the payload, in the shard's tar */
	uint32_t bytes;    /* of the payload, with its npy header */
	uint32_t data_crc; /* crc32c of the payload */
	uint16_t header;   /* npy header length */
	uint16_t rows;     /* text [rows, text_dim of the record], >= 1 */
	uint8_t dtype;     /* enum vfm_npy_type: F16, BF16 or F32 */
	uint8_t name;      /* number of its name; ascending among the texts of a sample */
	uint16_t width;    /* features of an image row, or of a row of a second text; 0 for texts and conditions */
	uint32_t shard;    /* 0: in the shard of the record; else, in a join, the number of its shard + 1 */
	uint32_t crc;      /* crc32c of the 28 bytes before it */
};

struct vfm_index_shard {   /* 64 bytes, in the format of the file */
	char name[32];     /* relative to the index's folder, NUL-padded; vfm_shard_name_ok, in_folders only for MDS */
	uint64_t bytes;    /* of the tar */
	uint64_t first;    /* record number of its first sample */
	uint32_t count;    /* samples */
	uint32_t folder;   /* 0: the folder of the index; else, in a join, the number of its dataset + 1 */
	uint32_t reserved; /* 0 */
	uint32_t crc;      /* crc32c of the 60 bytes before it */
};

_Static_assert(sizeof(struct vfm_index_record) == 128, "on-disk layout");
_Static_assert(sizeof(struct vfm_index_shard) == 64, "on-disk layout");
_Static_assert(sizeof(struct vfm_index_text) == 32, "on-disk layout");

/* Turns an array [c, h, w], the latents or condition of an image, into [c, 1, h, w]. */
void vfm_sample_add_time(struct vfm_npy *n);

/* Check an array of a sample: `ndim` dimensions of 1 to 65535 elements, of float16, bfloat16 or float32.  array_check
 * also checks that all `elements`, which follow the header n, are finite.  VFM_EINPUT names `what`. */
int vfm_sample_shape_check(const struct vfm_npy *n, int ndim, const char *what, struct vfm_err *err);
int vfm_sample_array_check(
	const struct vfm_npy *n, int ndim, const void *elements, const char *what, struct vfm_err *err);

/* ---- reading ---- */

struct vfm_index;

/* Opens the index of a dataset's folder, or the index file `path`.  VFM_EUSAGE: there is no index, or its magic,
 * version, checksum, size or meta is wrong.  The caller owns *ix. */
int vfm_index_open(struct vfm_index **ix, const char *path, struct vfm_err *err);
void vfm_index_close(struct vfm_index *ix); /* no-op for NULL */
/* Announces that entries will be read in random order, so that the kernel reads single pages of the file. */
void vfm_index_expect_random(struct vfm_index *ix);

/* Makes the index read shards that are not next to it from the cache, which must outlive the index.  set: the name of
 * the dataset, borrowed; in a join, shards have the name of their own folder.  Call before the first payload is read.
 * VFM_EUSAGE: a join whose folders have the same URL. */
struct vfm_shard_cache;
int vfm_index_set_cache(struct vfm_index *ix, struct vfm_shard_cache *cache, const char *set, struct vfm_err *err);
/* Checks all indexes that read from one cache.  VFM_EUSAGE: two folders with shards have the same name, and the URL
 * depends on it. */
int vfm_index_check_remote(struct vfm_index *const *ix, size_t n, struct vfm_err *err);

struct vfm_index_info {
	char *dir; /* the folder */
	/* Identifies the dataset in plans: a digest of the header and the top of the hash tree.  The rest is compared
	 * with them when it is read. */
	char sha256[VFM_SHA256_HEX];
	uint64_t n_records;
	uint32_t n_shards, n_names, n_parts;
	struct vfm_encoder_ids encoder_ids; /* of all samples; unknown if any sample does not name the encoder */
	char names[VFM_TEXT_NAMES_MAX][VFM_CAPTION_NAME]; /* [n_names] of captions in the dataset */
	/* of MosaicML Streaming, as for vfm_mds_open ("": none); NULL: the dataset consists of tars */
	char *columns;
	struct vfm_index_part {   /* a dataset of a join, as it was joined */
		char *dir, *name; /* name: of its folder, with a cache */
		char sha256[VFM_SHA256_HEX];
	} * parts; /* [n_parts]; n_parts is 0 in other indexes */
};
const struct vfm_index_info *vfm_index_info(const struct vfm_index *ix); /* belongs to the index */

/* Returns VFM_EENV if the parts of the index that were read have changed since it was opened (vfm_map_check). */
int vfm_index_check(struct vfm_index *ix, struct vfm_err *err);

/* Compares the whole file with the hash tree.  VFM_EINPUT names the first bad block. */
int vfm_index_check_all(struct vfm_index *ix, struct vfm_err *err);

/* Returns whether a shard may have this name: up to 31 bytes, without control characters and a leading '.'.
 * in_folders: subfolders with such names are allowed. */
bool vfm_shard_name_ok(const char *name, bool in_folders);

/* Each checks one entry and copies it to *out.  VFM_EINPUT: the entry is damaged, inconsistent, or contradicts the hash
 * tree, the shard table or its number; VFM_EUSAGE: the number is out of range. */
int vfm_index_shard(const struct vfm_index *ix, uint32_t shard, struct vfm_index_shard *out, struct vfm_err *err);
int vfm_index_get(
	const struct vfm_index *ix, uint32_t shard, uint32_t i, struct vfm_index_record *out, struct vfm_err *err);
int vfm_index_at(
	/* n-th of all records */
	const struct vfm_index *ix, uint64_t n, struct vfm_index_record *out, struct vfm_err *err);

/* Checks text i (< n_texts) of a record from the functions above, and copies it to *out.  VFM_EINPUT: the entry is
 * damaged or contradicts the record. */
int vfm_index_text(const struct vfm_index *ix, const struct vfm_index_record *r, uint32_t i, struct vfm_index_text *out,
	struct vfm_err *err);

/* The cost of reading.  Functions add to it; a NULL pointer measures nothing. */
struct vfm_index_spent {
	double files_s, check_s; /* in read calls; in checksums and checks of elements */
	int64_t bytes;           /* read from shards */
};

/* Asks the kernel to read the sample into the page cache; does not wait and reports no failures.  No-op for an index
 * with a cache of remote shards. */
void vfm_index_read_ahead(struct vfm_index *ix, const struct vfm_index_record *r);

/* Read a payload, and check its crc32c and npy header.  dst holds c*t*h*w (or rows*text_dim) elements, of latent_dtype
 * or converted to f32.  VFM_EINPUT: damaged, or an element is NaN or infinite; VFM_EENV: a read failed. */
int vfm_index_read_latent(struct vfm_index *ix, const struct vfm_index_record *r, void *dst,
	struct vfm_index_spent *spent, struct vfm_err *err);
int vfm_index_read_text_f32(struct vfm_index *ix, const struct vfm_index_record *r, const struct vfm_index_text *t,
	float *dst, struct vfm_index_spent *spent, struct vfm_err *err);

/* Reads KEY.json and checks its crc32c; the caller owns *json, an object.  VFM_EINPUT: damaged, or not a JSON object;
 * VFM_EENV: a read failed. */
int vfm_index_read_json(struct vfm_index *ix, const struct vfm_index_record *r, json_t **json, struct vfm_err *err);

uint64_t vfm_record_latent_count(const struct vfm_index_record *r); /* c*t*h*w */

/* Extra arrays, which a record may lack. */
bool vfm_record_has_extra(const struct vfm_index_record *r, enum vfm_extra e);
int vfm_record_n_extras(const struct vfm_index_record *r);
/* Like vfm_index_text.  VFM_EUSAGE: the record lacks the array. */
int vfm_index_extra(const struct vfm_index *ix, const struct vfm_index_record *r, enum vfm_extra e,
	struct vfm_index_text *out, struct vfm_err *err);
/* Returns the elements of an array: channels * t * h * w, or rows * features. */
uint64_t vfm_extra_count(const struct vfm_index_record *r, enum vfm_extra e, const struct vfm_index_text *t);
/* Like vfm_index_read_latent and vfm_index_read_text_f32, with vfm_extra_count elements. */
int vfm_index_read_cond(struct vfm_index *ix, const struct vfm_index_record *r, const struct vfm_index_text *t,
	void *dst, struct vfm_index_spent *spent, struct vfm_err *err);
/* e: VFM_EXTRA_IMAGE or VFM_EXTRA_TEXT2. */
int vfm_index_read_rows_f32(struct vfm_index *ix, const struct vfm_index_record *r, enum vfm_extra e,
	const struct vfm_index_text *t, float *dst, struct vfm_index_spent *spent, struct vfm_err *err);

/* ---- writing: atomic; commit renames the file into place.  Texts and hashes wait in unlinked files in the folder of
 * the index: 32 bytes per text and one byte per record.  Memory grows only with the number of shards.  ---- */

struct vfm_index_writer;

int vfm_index_writer_open(struct vfm_index_writer **w, const char *path, struct vfm_err *err);
/* Add shards in the order of their numbers: shard begins one, then add is called for each of its records, with its
 * n_texts texts followed by its extra arrays.  The writer fills in shard, index, first_text, crc and the numbers of
 * names.  names [n_texts] are in ascending order.  VFM_EINPUT: record or texts are inconsistent, or the dataset has
 * more than VFM_TEXT_NAMES_MAX names. */
int vfm_index_writer_shard(struct vfm_index_writer *w, const char *name, uint64_t bytes, struct vfm_err *err);
/* For a join: adds a dataset, to which the following shards belong.  dir is relative to the folder of the index, or
 * absolute. */
int vfm_index_writer_part(
	struct vfm_index_writer *w, const char *dir, const char sha256[VFM_SHA256_HEX], struct vfm_err *err);
int vfm_index_writer_add(struct vfm_index_writer *w, const struct vfm_index_record *r,
	const struct vfm_index_text *texts, const char *const *names, struct vfm_err *err);
/* Marks the shards as those of MosaicML Streaming.  columns: borrowed until commit; NULL: the shards are tars. */
void vfm_index_writer_set_columns(struct vfm_index_writer *w, const char *columns);
/* Frees w on success and on failure. */
int vfm_index_writer_commit(struct vfm_index_writer *w, const struct vfm_encoder_ids *encoder_ids, struct vfm_err *err);
void vfm_index_writer_abort(struct vfm_index_writer *w); /* no-op for NULL */

#endif
