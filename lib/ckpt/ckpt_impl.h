/* ckpt_impl.h - what the files of this folder share; not for others. */
#ifndef VFM_CKPT_CKPT_IMPL_H
#define VFM_CKPT_CKPT_IMPL_H

#include "base/hash.h"
#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"

#define CKPT_CHUNK        (4 << 20) /* bytes hashed together */
#define CKPT_MAX_CHUNK    (64 << 20)
#define CKPT_MAX_MANIFEST ((size_t)256 << 20)
#define CKPT_MANIFEST     "manifest.json"
#define CKPT_SUMS         "SHA256SUMS"
#define CKPT_INDEX        "model.safetensors.index.json"

struct vfm_ckpt_file {
	const char *name;
	uint64_t bytes;
	const char *sha256; /* NULL: plain */
	int64_t chunk_bytes;
	const json_t *chunks; /* hex of each chunk; NULL: plain */
	int fd;               /* -1: not opened yet */
	bool have_st;
	struct vfm_st st;
};

struct ckpt_slot { /* a verified chunk */
	int file;  /* -1: empty */
	int64_t chunk;
	uint64_t used; /* when */
	uint8_t *buf;
	size_t cap;
};

struct ckpt_priv {
	json_t *root;
	struct vfm_arena arena;
	struct ckpt_slot slot[4];
	uint64_t clock;
	uint8_t *tmp; /* conversion buffer */
};

/* Manifest and SHA256SUMS of a checkpoint directory, without a look at its files. */
int ckpt_load_manifest(struct vfm_ckpt **out, const char *path, struct vfm_err *err);
/* A .safetensors file, or a directory with an index of several. */
int ckpt_open_plain(struct vfm_ckpt **out, const char *path, bool index, struct vfm_err *err);
int ckpt_file_stat(const struct vfm_ckpt *c, int file, struct vfm_err *err); /* exists, has its size */
int ckpt_fetch(
	struct vfm_ckpt *c, int file, uint64_t off, size_t len, void *dst, struct vfm_err *err); /* verified bytes */
int ckpt_file_header(struct vfm_ckpt *c, int file, struct vfm_err *err);                         /* reads .st once */
/* The place of a piece in its file, checked against the header. */
int ckpt_piece_place(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, uint64_t *off,
	struct vfm_err *err);

/* Compares two struct vfm_ckpt_tensor by name, for qsort and bsearch. */
int ckpt_tensor_cmp(const void *a, const void *b);
/* The tensors of all ranks by name; what several ranks hold of one is put together. */
json_t *ckpt_merge_tensors(json_t **ranks, int size);
void ckpt_manifest_text(const json_t *m, struct vfm_buf *b);

bool ckpt_step_of(const char *name, int64_t *step, bool *tmp); /* "step-00000123[.tmp]" */

#endif
