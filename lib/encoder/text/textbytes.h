/* textbytes.h - a text encoder without learned weights: hashed byte n-grams.  vfm-shard(5), "TEXT", has the formula.
 *
 * Each word of a caption is a row, at most VFM_TEXT_ROWS (longer captions are truncated).  An empty caption has one
 * row, that of the empty word.  Words with common n-grams get similar rows, other words almost orthogonal ones.  Each
 * component has a variance of about 1, and the rows encode the order of the words.
 */
#ifndef VFM_ENCODER_TEXT_TEXTBYTES_H
#define VFM_ENCODER_TEXT_TEXTBYTES_H

#include "base/err.h"
#include "data/record/encoder_id.h"

#define VFM_TEXT_ROWS    512
#define VFM_TEXT_DIM     1024 /* default */
#define VFM_TEXT_DIM_MAX 8192
#define VFM_TEXT_VERSION "1" /* change it if the rows of any caption change */

struct vfm_textbytes; /* opaque; caches the rows of words.  One thread at a time. */

/* spec: "bytes" or "bytes:DIM", DIM in 1..VFM_TEXT_DIM_MAX.  VFM_EUSAGE otherwise. */
int vfm_textbytes_new(struct vfm_textbytes **t, const char *spec, struct vfm_err *err);
void vfm_textbytes_free(struct vfm_textbytes *t); /* no-op for NULL */

int vfm_textbytes_dim(const struct vfm_textbytes *t);
struct vfm_encoder_id vfm_textbytes_id(const struct vfm_textbytes *t); /* "bytes:1024", rows vary */

/* Returns the rows that vfm_textbytes_encode writes for this caption: 1..VFM_TEXT_ROWS. */
int vfm_textbytes_rows(const char *caption);
/* Writes rows [L, D] and returns L = vfm_textbytes_rows(caption).  Cannot fail. */
int vfm_textbytes_encode(struct vfm_textbytes *t, const char *caption, float *rows);

#endif
