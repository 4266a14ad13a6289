/* unigram.h - the best segmentation of a word into the pieces of a unigram language model (Kudo, arXiv 1804.10959).
 *
 * The result equals that of the `tokenizers` library bit for bit.  Scores are added in f64 from the left.  A longer
 * path wins only if its score is higher.  A character without its own piece costs the lowest score - 10.  sentencepiece
 * adds in f32 and therefore decides near ties differently.
 */
#ifndef VFM_ENCODER_TEXT_UNIGRAM_H
#define VFM_ENCODER_TEXT_UNIGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct vfm_unigram {                     /* `= {0}` before add */
	struct vfm_unigram_piece *piece; /* sorted by text after finish */
	size_t n, cap;
	size_t ids; /* pieces added */
	int32_t unk_id;
	bool byte_fallback;
	/* private */
	struct vfm_arena arena;
	double min_score;
	int32_t byte_id[256]; /* of <0x00> to <0xFF>; -1: none */
	uint32_t *first;      /* [65537]: pieces by their first two bytes */
};

/* Appends the piece of the next id. */
void vfm_unigram_add(struct vfm_unigram *u, const char *text, size_t len, double score);
/* Sorts the pieces.  VFM_EUSAGE: there are no pieces, or unk_id is not one of them; `what` names the model. */
int vfm_unigram_finish(struct vfm_unigram *u, const char *what, struct vfm_err *err);
void vfm_unigram_release(struct vfm_unigram *u);

/* Returns the id of a piece, or -1.  The last of equal pieces counts. */
int32_t vfm_unigram_find(const struct vfm_unigram *u, const char *s, size_t len);

/* The caller's memory for vfm_unigram_encode, kept between calls; `= {0}`, released by free(node) and free(id). */
struct vfm_unigram_scratch {
	struct vfm_unigram_node *node;
	size_t cap;
	int32_t *id; /* the result */
	size_t n, id_cap;
};
/* Sets s->id [s->n] to the ids of a word of valid UTF-8.  Adjacent unknown characters form one unknown piece.  Needs 16
 * bytes of memory for each byte of the word. */
void vfm_unigram_encode(const struct vfm_unigram *u, const char *word, size_t len, struct vfm_unigram_scratch *s);

#endif
