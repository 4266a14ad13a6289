/* ckpt_impl.h - internal declarations of lib/ckpt. */
#ifndef VFM_CKPT_CKPT_IMPL_H
#define VFM_CKPT_CKPT_IMPL_H

#include "base/mem.h"
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"
#include "io/hash.h"
#include "spec/model/foreign.h"

#define CKPT_CHUNK        (4 << 20) /* bytes hashed together */
#define CKPT_MAX_CHUNK    (64 << 20)
#define CKPT_MAX_MANIFEST ((size_t)256 << 20)
#define CKPT_MANIFEST     "manifest.json"
#define CKPT_SUMS         "SHA256SUMS"
#define CKPT_INDEX        "model.safetensors.index.json"
#define CKPT_STEM_FOREIGN "diffusion_pytorch_model"
#define CKPT_PEFT_CONFIG  "adapter_config.json"
#define CKPT_META_STATE   "vfm.state" /* keys in the metadata of plain files */
#define CKPT_META_MODEL   "vfm.model"
#define CKPT_META_LORA    "lora_adapter_metadata" /* as diffusers names it */
#define CKPT_META_RANGE   "vfm.t_range"

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
	uint64_t used; /* ckpt_priv.clock at the last use */
	uint8_t *buf;
	size_t cap;
};

struct ckpt_priv {
	json_t *root;
	json_t *state;                  /* of plain files, from their metadata; NULL: none */
	json_t *config;                 /* of plain files; NULL: none */
	struct vfm_foreign_map map;     /* likewise; owns the names of the tensors */
	struct ckpt_adapters *adapters; /* attached to the weights; NULL: none */
	struct vfm_arena arena;
	struct ckpt_slot slot[4];
	uint64_t clock;
	uint8_t *tmp;  /* conversion buffer */
	float *scaled; /* the same, of scaled values */
};

/* Loads manifest and SHA256SUMS of a checkpoint directory.  Does not access the data files. */
int ckpt_load_manifest(struct vfm_ckpt **out, const char *path, struct vfm_err *err);
/* Parses a manifest like vfm_ckpt_open, without its files.  The path of *out is empty. */
int ckpt_parse_manifest(struct vfm_ckpt **out, const char *text, size_t len, struct vfm_err *err);
struct vfm_ckpt *ckpt_new(const char *path); /* without tensors and files */
/* Opens a file of tensors, or a directory of such files.  how may be NULL. */
int ckpt_open_plain(
	struct vfm_ckpt **out, const char *path, bool dir, const struct vfm_ckpt_how *how, struct vfm_err *err);
/* Returns the name of the index or the single file of a directory of plain files, or NULL. */
const char *ckpt_plain_name(const char *dir);
/* Parses the JSON under a key in the metadata of the first plain file.  *out is a new reference, or NULL if there is
 * none.  *where names it in messages; the caller frees it. */
int ckpt_read_meta(const struct vfm_ckpt *c, const char *key, json_t **out, char **where, struct vfm_err *err);
/* If the tensor names of c are those of another program, replaces its tensors by ours and sets the configuration. */
int ckpt_translate(struct vfm_ckpt *c, const char *dir, const struct vfm_model_spec *given, struct vfm_err *err);
/* Fails if the file is text, and names its kind: a Git LFS pointer, a web page, or other. */
int ckpt_refuse_text(int fd, uint64_t bytes, const char *name, struct vfm_err *err);
/* Reads the header of a tensor file in either format. */
int ckpt_open_header(struct vfm_st *st, int fd, uint64_t bytes, const char *name, struct vfm_err *err);
int ckpt_file_stat(const struct vfm_ckpt *c, int file, struct vfm_err *err); /* checks existence and size */
/* vfm_ckpt_read_tensor without and with attached adapters (adapters.c). */
int ckpt_read_stored(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err);
int ckpt_read_adapted(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err);
/* Returns rank and alpha of the adapters of our own checkpoint, under PEFT's names; the caller owns it. */
json_t *ckpt_lora_config(const struct vfm_ckpt *c);
void ckpt_adapters_free(struct ckpt_adapters *a); /* accepts NULL */
/* Lists the elements of a slice (NULL: all) of t, and their positions in the destination. */
int ckpt_slice_runs(const struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *s,
	struct vfm_runs *r, struct vfm_err *err);
/* Sets *off to the offset of a piece in its file; checks the piece against the file's header. */
int ckpt_piece_place(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, uint64_t *off,
	struct vfm_err *err);

/* Returns the dtype of a tensor after an export or import.  dtype: enum vfm_dtype for floating-point tensors, or -1. */
enum vfm_dtype ckpt_out_dtype(const struct vfm_ckpt_tensor *t, int dtype);

/* How a file of ComfyUI stores weights W as 8-bit floats w with W = scale * w. */
struct ckpt_faults;
struct ckpt_quant {
	float *scale; /* [c->n] of each tensor; 0: none */
	bool *known;  /* [c->n] the tensor is a scale, or describes the quantization */
};
/* Reads the scales of a file with the names of another program.  Adds tensors and layers of an unsupported quantization
 * to `bad`.  The caller releases *q in any case. */
int ckpt_quant_read(struct vfm_ckpt *c, struct ckpt_quant *q, struct ckpt_faults *bad, struct vfm_err *err);
void ckpt_quant_release(struct ckpt_quant *q);

/* Lists of tensors for one message.  Names that differ only in the block number are joined. */
struct ckpt_fault {
	char *text;
	int64_t block; /* -1: none */
};
struct ckpt_faults { /* `= {0}` is empty */
	struct ckpt_fault *v;
	size_t n, cap;
};
void ckpt_fault_add(struct ckpt_faults *l, const char *name, const char *more);
/* Adds a tensor whose shape is wrong. */
void ckpt_fault_shape(
	struct ckpt_faults *l, const char *name, int ndim, const int64_t *shape, int want_ndim, const int64_t *want);
/* Returns whether t has the shape; if not, adds it as `name`. */
bool ckpt_shape_fits(
	struct ckpt_faults *l, const char *name, const struct vfm_ckpt_tensor *t, int ndim, const int64_t *want);
/* Appends "; 3 tensors missing: a, blocks.{0-1}.b" and empties the list. */
void ckpt_faults_report(struct vfm_buf *b, struct ckpt_faults *l, const char *what);
void ckpt_faults_names(struct vfm_buf *b, struct ckpt_faults *l); /* the same without the words */
void ckpt_faults_release(struct ckpt_faults *l);                  /* empties the list */

/* ---- data files of checkpoints (out.c) ---- */

/* A file that is hashed in chunks.  A separate thread writes it while the caller reads and converts the next chunk. */
struct ckpt_out;

struct ckpt_out_sums {
	uint64_t bytes;
	char sha256[VFM_SHA256_HEX]; /* of the file */
	json_t *chunks;              /* hexadecimal sha256 of each CKPT_CHUNK bytes; the caller owns it */
};

/* Creates a file.  what: names the checkpoint in messages; borrowed.  Returns NULL with VFM_EENV on failure. */
struct ckpt_out *ckpt_out_open(const char *path, const char *what, struct vfm_err *err);
/* Appends data.  VFM_EENV: an earlier chunk could not be written. */
int ckpt_out_add(struct ckpt_out *o, const void *data, size_t len, struct vfm_err *err);
/* Writes the rest, syncs and closes the file, and frees o. */
int ckpt_out_close(struct ckpt_out *o, struct ckpt_out_sums *sums, struct vfm_err *err);
void ckpt_out_abandon(struct ckpt_out *o); /* closes the file, and frees o; accepts NULL */

int ckpt_save_fail(const char *what, struct vfm_err *err); /* with errno */

/* Sets *m to the section "model" of the checkpoint's configuration, and checks it (foreign.c). */
int ckpt_model_spec(const struct vfm_ckpt *c, struct vfm_model_spec *m, struct vfm_err *err);

/* ---- files for other programs (export.c) ---- */

/* Elements [a, b) of a tensor times `scale`; if src is NULL, the scale itself as one f32, or if that
 * is 0, b - a zeros. */
struct ckpt_export_part {
	const struct vfm_ckpt_tensor *src;
	int64_t a, b;
	double scale;
};
struct ckpt_exports {
	struct vfm_ckpt *c;
	const char *out;         /* for messages */
	struct vfm_st_tensor *t; /* source: its ckpt_export_parts, consecutive up to its last element */
	size_t n, cap;
	struct vfm_arena arena; /* names, parts */
	uint8_t *buf;           /* of the writer */
};
/* Adds a tensor that consists of parts, which the arena owns. */
void ckpt_export_add_parts(struct ckpt_exports *x, const char *name, enum vfm_dtype dtype, int ndim,
	const int64_t *shape, const struct ckpt_export_part *parts);
/* Adds a tensor with a single part. */
void ckpt_export_add(struct ckpt_exports *x, const char *name, enum vfm_dtype dtype, int ndim, const int64_t *shape,
	struct ckpt_export_part part);
/* Writes a file with the tensors t [n] of x. */
int ckpt_export_write(struct ckpt_exports *x, struct vfm_st_tensor *t, size_t n, const char *const (*meta)[2],
	size_t n_meta, const char *path, struct vfm_err *err);
void ckpt_exports_release(struct ckpt_exports *x);

/* Compares two struct vfm_ckpt_tensor by name, for qsort and bsearch. */
int ckpt_tensor_cmp(const void *a, const void *b);
/* Returns the tensors of all ranks, sorted by name.  Joins the pieces of a tensor from several ranks and adds up their
 * `nonfinite`, which is kept only if it is not 0.  Sets *nonfinite to the sum. */
json_t *ckpt_merge_tensors(json_t **ranks, int size, int64_t *nonfinite);
void ckpt_manifest_text(const json_t *m, struct vfm_buf *b);

/* Returns the code for a file that cannot be opened: VFM_EUSAGE if it is absent, else VFM_EENV. */
int ckpt_open_code(int errnum);

bool ckpt_is_dir(const char *path);
char *ckpt_bare_path(const char *path); /* a copy without trailing slashes; the caller frees it */
bool ckpt_has_file(const char *dir, const char *name);
bool ckpt_step_of(const char *name, int64_t *step, bool *tmp); /* "step-00000123[.tmp]" */

/* ---- the directory of a zip archive (zip.c) ---- */

struct vfm_zip_entry {
	const char *name;    /* owned by the arena; without NUL */
	uint64_t head, size; /* offset of its local header; bytes of the data */
};
struct vfm_zip {
	struct vfm_zip_entry *e; /* sorted by name; names are unique */
	size_t n;
	uint64_t directory; /* offset of the directory; all data precede it */
	struct vfm_arena arena;
};

/* Reads the directory from fd by pread.  VFM_EUSAGE: not such an archive; the message names the file `name` and the
 * entry. */
int vfm_zip_open(struct vfm_zip *z, int fd, uint64_t file_bytes, const char *name, struct vfm_err *err);
void vfm_zip_release(struct vfm_zip *z);
const struct vfm_zip_entry *vfm_zip_find(const struct vfm_zip *z, const char *name);
/* Sets *off to the offset of an entry's data; checks its local header. */
int vfm_zip_data(const struct vfm_zip *z, int fd, const struct vfm_zip_entry *e, const char *name, uint64_t *off,
	struct vfm_err *err);

#endif
